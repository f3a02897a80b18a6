"""Maps nsys' integer references (StringIds, ENUM_* tables) to names, column-wise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.readers.nsys.events import Named, fallback_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kanalyze.readers.storage.table_file import TableFile

    Namer = Callable[[pl.DataFrame], pl.Series]

#: Labels are looked up in an array if it has at most this many unused slots per label.
_SPARSE: Final = 8
_SMALL: Final = 1024


class Labels:
    """Cache of the string and enumeration tables of one database."""

    def __init__(self, database: TableFile) -> None:
        """Read from `database` lazily."""
        self._database = database
        self._known: dict[str, dict[int, str]] = {}

    def of(self, table: str) -> dict[int, str]:
        """Label by number of StringIds or of an ENUM_* table; CUPTI's own labels where the table is missing."""
        if table not in self._known:
            column = "value" if table == "StringIds" else "label"
            rows = self._database.frame(table, {"id": pl.Int64, column: pl.String}).drop_nulls()
            self._known[table] = dict(rows.iter_rows()) or fallback_labels(table)
        return self._known[table]

    def namer(self, named: Named) -> Namer:
        """A function from raw rows to their Categorical column of names, as described by `named`."""
        if not named.column:
            constant = pl.Series([named.template], dtype=pl.Categorical)
            return lambda raw: constant.new_from_index(0, raw.height)
        if not named.table:
            prefix, _, suffix = named.template.partition("{}")
            return lambda raw: raw.select(
                (prefix + pl.col(named.column).cast(pl.String) + suffix).cast(pl.Categorical)
            ).to_series()
        labels = self.of(named.table)
        look_up = lookup({number: named.template.format(label) for number, label in labels.items()})
        return lambda raw: look_up(raw.get_column(named.column))


def lookup(labels: Mapping[int, str]) -> Callable[[pl.Series], pl.Series]:
    """A function from a column of numbers to the Categorical column of their labels, null where there is none."""
    top = max(labels, default=-1)
    if top < _SPARSE * len(labels) + _SMALL:
        values = pl.Series([labels.get(number) for number in range(top + 1)] or [None], dtype=pl.Categorical)
        return lambda numbers: values.gather(numbers.set(~numbers.is_between(0, top), None))
    numbered = pl.DataFrame(
        {"number": list(labels), "label": list(labels.values())},
        schema={"number": pl.Int64, "label": pl.Categorical},
    )
    return lambda numbers: (
        numbers.alias("number")
        .to_frame()
        .join(numbered, on="number", how="left", maintain_order="left")
        .get_column("label")
    )
