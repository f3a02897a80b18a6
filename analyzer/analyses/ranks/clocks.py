"""Clocks of a job's hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.analyses.ranks._job import Job

TABLE: Final = Table(
    "clocks",
    "The clock of one rank in one part of the run, against that of the first rank.",
    (
        Column("host", pl.String, "The machine, where the reports tell it.", nullable=True),
        Column("rank", pl.Int64, "The rank."),
        Column("part", pl.Int64, "The part of the run, from 0 on."),
        Column(
            "offset_ns", pl.Int64, "By how much the clock is ahead of the first rank's in its middle.", nullable=True
        ),
        Column("low_ns", pl.Int64, "The least that this can be.", nullable=True),
        Column("high_ns", pl.Int64, "The most that this can be.", nullable=True),
        Column(
            "drift_ppm", pl.Float64, "By how much faster it runs, in parts per million; 0 where nothing shows that."
        ),
        Column("start_ns", pl.Int64, "Start of the part by the first rank's clock, in the origin of its report."),
        Column("end_ns", pl.Int64, "Its end."),
    ),
    purpose="clock offsets of hosts, with bounds and drift",
    telling=("rank", "host", "part", "offset_ns", "low_ns", "high_ns"),
    job=True,
)


def clocks(job: Job) -> pl.DataFrame:
    """The offset of each rank's clock with its bounds, part by part of the run.

    Definition: docs/definitions.md, section 11, "Clocks".

    Returns:
        :data:`TABLE`, by rank and part; offset and bounds are null where no collectives connect the clocks.
    """
    told = job.ranks.select("host", "rank", "clock").join(job.clocks.table, on="clock", how="inner")
    return TABLE.select(told.with_columns(pl.col("start_ns", "end_ns") - job.origin_ns).sort("rank", "part"))
