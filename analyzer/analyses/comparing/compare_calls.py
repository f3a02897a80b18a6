"""CUDA calls of an iteration before and after, those that block the host among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.comparing._pair import CERTAINTY, COUNTS, TIMES, by_key, by_size
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._pair import Pair

TABLE: Final = Table(
    "compare_calls",
    "One CUDA call, in an iteration of base and of new, by the host's time; calls inside calls count in both.",
    (
        Column("name", pl.String, "The call.", nullable=True),
        Column("blocking", pl.Boolean, "Whether it waits for the GPU: synchronisations, copies, frees."),
        *COUNTS,
        *TIMES,
        *CERTAINTY,
    ),
    purpose="CUDA calls and waits, before and after",
    telling=("name", "blocking", "base_count", "new_count", "delta_ns"),
    sides=True,
)


#: Prefix of a call in CUDA's and in HIP's interface, and nsys' version at its end.
_PREFIX: Final = r"^(?:cuda|cu|hip)(?:Ext)?(?:Module)?|_v\d+(?:_pt[sd]z)?$"


def compare_calls(pair: Pair) -> pl.DataFrame:
    """The CUDA calls of an iteration of both sides.

    Returns:
        :data:`TABLE`, the largest difference first.
    """
    names = _names(pair)
    named = pl.col("name").replace(names)
    rows = by_key(pair, lambda one: one.calls.with_columns(named), ("name", "blocking"), "total_ns", "count")
    return by_size(TABLE.select(rows), "name")


def _names(pair: Pair) -> dict[str, str]:
    """Names of calls that do the same, where one side is of HIP and the other of CUDA: both together."""
    sides = [
        pl.concat([one.calls.select(pl.col("name").drop_nulls()) for one in side.digests])
        for side in (pair.base, pair.new)
    ]
    if len({bool(names.get_column("name").str.starts_with("hip").any()) for names in sides}) == 1:
        return {}
    alike = pl.col("name").unique().sort().str.join(" / ").over(pl.col("name").str.replace_all(_PREFIX, ""))
    every = pl.concat(sides).unique()
    return dict(every.select("name", alike.alias("alike")).iter_rows())
