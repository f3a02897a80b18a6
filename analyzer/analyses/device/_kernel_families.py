"""Kernel families decoded from kernel names, and detection of communication kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.decoder.decode import HINTS, decode
from kanalyze.decoder.fields import OTHER
from kanalyze.errors import CannotTellError
from kanalyze.model import COLLECTIVE_DETAIL, COMPILED_KERNELS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

_COMMUNICATION: Final = "communication"

#: Grouping keys decoded from a kernel name, each as text; None where the name does not tell.
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
    """Whether a kernel is a communication kernel: by its name, or because it is recorded as a collective.

    Args:
        events: Kernels, with the columns event_id and name.
        report: The report, with its table of collectives.

    Returns:
        A Boolean expression of those columns; None where there is no such kernel.
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
    """The kernel family of each name; ``other`` where it is not known."""
    said = {name: decode(name).family for name in names.unique().cast(pl.String).drop_nulls()}
    return pl.Series("family", [said.get(name, OTHER) for name in names.cast(pl.String)], dtype=pl.String)


def decoded(report: Report, kernels: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Adds a text column for each of `keys`, decoded from the kernel names; ``other`` where not known.

    What the report records takes precedence: which kernels are collectives, and the compiler of Triton kernels.
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
    """The compiler of each kernel, ``triton`` or ``inductor``, where the capture recorded it; else null."""
    try:
        compiled = report.table(COMPILED_KERNELS.name)
    except CannotTellError:
        compiled = COMPILED_KERNELS.empty()
    sources = dict(compiled.select("name", "source").iter_rows())
    return pl.Series("compiler", [sources.get(name) for name in names.cast(pl.String)], dtype=pl.String)
