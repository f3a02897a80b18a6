"""What the names of kernels say of them, and which kernels move data between GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.decoder.communication import HINTS
from kanalyze.decoder.decode import decode
from kanalyze.decoder.fields import OTHER
from kanalyze.errors import CannotTellError
from kanalyze.model import COLLECTIVE_DETAIL, COMPILED_KERNELS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

_COMMUNICATION: Final = "communication"

#: What a name can be grouped by, each as text; None where the name does not say.
KEYS: Final[dict[str, Callable[[KernelName], str | None]]] = {
    "family": lambda said: said.family,
    "library": lambda said: said.library,
    "operation": lambda said: said.operation,
    "dtype": lambda said: said.dtype,
    "arch": lambda said: said.arch,
    "tensor_core": lambda said: None if said.tensor_core is None else "yes" if said.tensor_core else "no",
    "tile": lambda said: "x".join(map(str, said.tile)) or None,
}


def communicating(events: pl.DataFrame, report: Report) -> pl.Expr | None:
    """Whether a kernel moves data between GPUs: by its name, or because it is recorded as a collective.

    Args:
        events: Kernels; the columns event_id and name are looked at.
        report: Where collectives would be recorded.

    Returns:
        An expression of those columns; None where no kernel does.
    """
    names = events.get_column("name").unique().cast(pl.String).drop_nulls()
    hinted = names.filter(names.str.contains_any(list(HINTS), ascii_case_insensitive=True))
    found = [name for name in hinted if decode(name).family == _COMMUNICATION]
    by_name = pl.col("name").is_in(found) if found else None
    recorded = report.table(COLLECTIVE_DETAIL.name).get_column("event_id")
    if recorded.is_empty():
        return by_name
    by_record = pl.col("event_id").is_in(recorded.implode())
    return by_record if by_name is None else by_name.fill_null(value=False) | by_record


def families(names: pl.Series) -> pl.Series:
    """The family of each name; ``other`` where there is none."""
    said = {name: decode(name).family for name in names.unique().cast(pl.String).drop_nulls()}
    return pl.Series("family", [said.get(name, OTHER) for name in names.cast(pl.String)], dtype=pl.String)


def decoded(report: Report, kernels: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """`kernels` with what their names say: a column of text for each of `keys`, ``other`` where a name does not.

    What the report knows better counts: which kernels are collectives, and who compiled the kernels of Triton.
    """
    names = kernels.get_column("name").unique().drop_nulls()
    said = [decode(name) for name in names.cast(pl.String)]
    columns = [pl.Series(key, [KEYS[key](one) for one in said], dtype=pl.String) for key in keys]
    known = pl.DataFrame([names, *columns])
    if "library" in keys:
        known = known.with_columns(pl.coalesce("library", _compiler(report, known.get_column("name"))))
    joined = kernels.join(known, on="name", how="left")
    collectives = communicating(kernels, report) if "family" in keys else None
    if collectives is not None:
        joined = joined.with_columns(
            pl.when(collectives).then(pl.lit(_COMMUNICATION)).otherwise("family").alias("family")
        )
    return joined.with_columns(pl.col(key).fill_null(OTHER) for key in keys)


def _compiler(report: Report, names: pl.Series) -> pl.Series:
    """Who compiled each kernel, ``triton`` or ``inductor``, where a capture tells; null for the others."""
    try:
        compiled = report.table(COMPILED_KERNELS.name)
    except CannotTellError:
        compiled = COMPILED_KERNELS.empty()
    sources = dict(compiled.select("name", "source").iter_rows())
    return pl.Series("compiler", [sources.get(name) for name in names.cast(pl.String)], dtype=pl.String)
