"""Ranks before and after, each with its verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.comparing._comparison import verdict_of
from kanalyze.analyses.comparing._pair import CERTAINTY, TIMES
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._comparison import Comparison

#: The function takes the whole comparison, not the pair of one rank.
OF_ALL_RANKS: Final = True

TABLE: Final = Table(
    "compare_ranks",
    "One rank that both sides have, with the verdict on it.",
    (
        Column("rank", pl.Int64, "The rank of the process, by its environment or else by GPU."),
        *TIMES,
        *CERTAINTY[:-1],
        Column("verdict", pl.Enum(["faster", "slower", "same", "cannot tell"]), "As that of the comparison."),
        Column("changed", pl.Boolean, "Whether it is faster or slower."),
    ),
    purpose="each rank, before and after",
    telling=("rank", "verdict", "delta_ns", "base_ns", "new_ns"),
    sides=True,
)


def compare_ranks(comparison: Comparison) -> pl.DataFrame:
    """The time of an iteration of both sides, for each rank that both have.

    Returns:
        :data:`TABLE`, by rank.
    """
    rows = []
    for pair in comparison.pairs:
        found = verdict_of(pair)
        rows.append(
            {
                "rank": pair.base.about.rank,
                "base_ns": found.base_ns,
                "new_ns": found.new_ns,
                "delta_ns": found.new_ns - found.base_ns,
                "ratio": found.ratio,
                "ratio_low": found.low,
                "ratio_high": found.high,
                "verdict": found.word,
                "changed": bool(found),
            }
        )
    return TABLE.select(pl.DataFrame(rows, schema=TABLE.schema).sort("rank"))
