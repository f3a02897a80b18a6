"""Renders one table in full: its cells as text with units, and the table as CSV, JSON or Parquet."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import polars as pl

from kanalyze import outlets
from kanalyze.errors import UnknownNameError
from kanalyze.renderers.text.grid import Column, Grid, text_of
from kanalyze.renderers.text.kernel_names import short_forms

#: All columns, as a choice of columns.
ALL: Final = "all"

#: Column printed last, since it may be long: the first of these in the table.
_LAST: Final = ("sentence", "effect", "evidence", "kernel", "name", "operation", "culprit", "waited_for")

#: Columns that may hold kernel names: the last column is fitted to the remaining space, others are short.
KERNELS: Final = ("kernel", "name", "operation", "function", "what", "ended_by", "culprit", "waited_for")

#: Those of them that hold phrases, too.
PHRASES: Final = ("culprit", "waited_for")

#: A kernel name within a phrase: "after gemm on stream 7".
_PHRASE: Final = re.compile(r"(after )?(.*?)( on (?:the same |another )?(?:stream|GPU|process).*)?", re.DOTALL)

_TEXT: Final = (pl.String, pl.Categorical, pl.Enum)


def joined(parts: Mapping[str | None, pl.DataFrame], column: str = "instance") -> pl.DataFrame:
    """Concatenates the tables of several windows or reports with a leading `column`; a single unnamed one stays."""
    if None in parts:
        return parts[None]
    made = []
    several = any("instance" in frame.columns for frame in parts.values())
    for name, frame in parts.items():
        keys = {column: name and outlets.name(name)}
        if several and "instance" not in frame.columns:  # others have the windows that they are of
            keys["instance"] = None
        made.append(frame.select(*(pl.lit(text, dtype=pl.String).alias(key) for key, text in keys.items()), pl.all()))
    return pl.concat(made)


def of_reports(tables: Sequence[tuple[str, pl.DataFrame]]) -> pl.DataFrame:
    """Concatenates the tables of several reports with a leading column `report`.

    Texts take the place of categories, which differ from report to report.
    """
    plain = pl.col(pl.Categorical).cast(pl.String)
    return joined({report: frame.with_columns(plain) for report, frame in tables}, "report")


def arranged(frame: pl.DataFrame, sort: str | None, top: int | None, each: str | None = None) -> pl.DataFrame:
    """Sorts `frame` by a column (descending with a leading minus) and truncates it to `top` rows.

    Without `sort` these are that many for `each` value of a column, if one is named.

    Raises:
        UnknownNameError: There is no such column.
    """
    if sort is not None:
        name = sort.removeprefix("-")
        if name not in frame.columns:
            raise UnknownNameError.of("column", name, frame.columns)
        frame = frame.sort(name, descending=sort.startswith("-"), nulls_last=True, maintain_order=True)
    if top is None or sort is not None or each is None:
        return frame if top is None else frame.head(top)
    return frame.filter(pl.int_range(pl.len()).over(each) < top)


def chosen(frame: pl.DataFrame, columns: str | None) -> pl.DataFrame:
    """The columns that a comma-separated list names, in its order; the whole frame for None and ``all``.

    Raises:
        UnknownNameError: There is no such column.
    """
    if columns is None or columns.strip() == ALL:
        return frame
    names = list(dict.fromkeys(name.strip() for name in columns.split(",") if name.strip()))
    for name in names or [columns]:
        if name not in frame.columns:
            raise UnknownNameError.of("column", name, frame.columns)
    return frame.select(names)


def laid_out(frame: pl.DataFrame) -> Grid:
    """Formats a table's cells with units, the column of names last."""
    last = last_of(frame.columns)
    order = [name for name in frame.columns if name != last] + ([last] if last else [])
    named, cells = last in KERNELS and last not in PHRASES, []
    for name in order:
        texts = [text_of(name, value) for value in frame.get_column(name)]
        if not named or name != last:
            texts = [*map(outlets.short, on_phrases(texts, 48) if name in KERNELS else texts)]
        cells.append(texts)
    heads = tuple(Column(name, left=is_text(frame.schema[name])) for name in order)
    return Grid(heads, list(zip(*cells, strict=True)), named=named)


def last_of(names: Sequence[str]) -> str | None:
    """The column that is printed last, since it may be long; None if there is none."""
    return next((name for name in _LAST if name in names), None)


def is_text(kind: pl.DataType) -> bool:
    """Whether a column's values are texts, which are left-aligned."""
    return kind in _TEXT


def on_phrases(texts: Sequence[str], width: int) -> list[str]:
    """Shortens kernel names to `width`, alone or within phrases."""
    parts = [match.groups(default="") for text in texts if (match := _PHRASE.fullmatch(text))]
    short = short_forms((name for _, name, _ in parts if not name.startswith("between ")), width)
    return [f"{before}{short.get(name, name)}{after}" for before, name, after in parts]


def _parquet(frame: pl.DataFrame) -> bytes:
    """Parquet file with the table's types."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


#: CSV with a header, numbers and texts unformatted, nulls empty; JSON as a list of objects, one per row.
FORMATS: Final[dict[str, Callable[[pl.DataFrame], bytes]]] = {
    "csv": lambda frame: frame.write_csv().encode(),
    "json": lambda frame: outlets.escaped_json(frame.write_json()).encode() + b"\n",
    "parquet": _parquet,
}
