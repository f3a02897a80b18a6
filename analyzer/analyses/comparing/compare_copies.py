"""Copies and memsets of an iteration before and after, by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.comparing._pair import CERTAINTY, COUNTS, TIMES, by_key, by_size
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._pair import Pair

TABLE: Final = Table(
    "compare_copies",
    "One kind of copy, or all memsets, in an iteration of base and of new; time is exclusive.",
    (
        Column("operation", pl.String, "As the tool names it.", nullable=True),
        *COUNTS,
        Column("base_bytes", pl.Int64, "Bytes that an iteration of base moved."),
        Column("new_bytes", pl.Int64, "The same of new."),
        *TIMES,
        *CERTAINTY,
    ),
    purpose="copies and memsets, before and after",
    telling=("operation", "base_count", "new_count", "base_bytes", "new_bytes", "delta_ns"),
    sides=True,
)


def compare_copies(pair: Pair) -> pl.DataFrame:
    """The copies and memsets of an iteration of both sides, by kind.

    Returns:
        :data:`TABLE`, the largest difference first.
    """
    moved = pl.col("kind").is_in(["memcpy", "memset"])
    rows = by_key(pair, lambda one: one.slots.filter(moved), ("name",), "exclusive_ns", "count", "bytes")
    return by_size(TABLE.select(rows.rename({"name": "operation"})), "operation")
