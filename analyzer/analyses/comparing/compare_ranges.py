"""The program's own ranges inside of an iteration, before and after."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.comparing._pair import CERTAINTY, COUNTS, TIMES, by_key, by_size
from kanalyze.analyses.iterations._parts_of_step import BETWEEN
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._pair import Pair

TABLE: Final = Table(
    "compare_ranges",
    "One of the program's ranges directly inside of the iterations, in base and in new, by the host's time; the "
    "rows sum to an iteration of the host, which is not that of `compare` where the host runs ahead.",
    (
        Column("range", pl.String, "Its name; (between them) is the time in none of them."),
        *(replace(one, doc=f"{one.doc[:-1]}; null for the time in none.", nullable=True) for one in COUNTS),
        *TIMES,
        Column("base_busy_ns", pl.Int64, "Time of it in which the GPU was busy, in base."),
        Column("new_busy_ns", pl.Int64, "The same in new."),
        *CERTAINTY,
    ),
    purpose="the parts of an iteration, before and after",
    telling=("range", "delta_ns", "base_ns", "new_ns", "changed"),
    sides=True,
)


def compare_ranges(pair: Pair) -> pl.DataFrame:
    """The ranges inside of an iteration of both sides, by name.

    Returns:
        :data:`TABLE`, the largest difference first; empty where the iterations of a side hold no ranges.
    """
    if not all(any(one.ranges.height for one in side.digests) for side in (pair.base, pair.new)):
        return TABLE.empty()
    rows = by_key(pair, lambda one: one.ranges, ("range",), "ns", "count", "busy_ns")
    counted = pl.when(pl.col("range") != BETWEEN).then(pl.col("base_count", "new_count"))
    return by_size(TABLE.select(rows.with_columns(counted)), "range")
