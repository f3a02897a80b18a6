"""Hot source lines of kernels: samples, instructions and memory accesses by line."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.counters._metrics import ratio, require_counters
from kanalyze.analyses.shared.analysis import analysis
from kanalyze.analyses.shared.statistics import known_sum
from kanalyze.report import Report
from kanalyze.schema import Column, Table

#: The columns summed over the instructions of a line.
SUMS: Final = ("samples", "stalled_samples", "instructions", "thread_instructions", "sectors", "ideal_sectors")

TABLE: Final = Table(
    "hot_lines",
    "One line of source of one kernel that ncu measured, with the instructions made of it.",
    (
        Column("event_id", pl.Int64, "The kernel in `events`."),
        Column("name", pl.String, "Its name.", nullable=True),
        Column(
            "file", pl.String, "The source file; null for all instructions of which no line is known.", nullable=True
        ),
        Column("line", pl.Int64, "The line there.", nullable=True),
        Column("samples", pl.Int64, "Samples of warps that were at it.", nullable=True),
        Column("share", pl.Float64, "Their part of the kernel's samples.", nullable=True),
        Column("stalled_samples", pl.Int64, "Those of them in which the scheduler issued nothing.", nullable=True),
        Column("sass_count", pl.Int64, "Instructions that it was made into."),
        Column("instructions", pl.Int64, "How often warps executed them.", nullable=True),
        Column("thread_instructions", pl.Int64, "How often threads did.", nullable=True),
        Column("threads_per_instruction", pl.Float64, "Threads that took part, of 32.", nullable=True),
        Column("sectors", pl.Int64, "Sectors that its global accesses touch in L2.", nullable=True),
        Column("ideal_sectors", pl.Int64, "Sectors that they would touch side by side.", nullable=True),
        Column("ideal_share", pl.Float64, "ideal_sectors by sectors: 1 is coalesced.", nullable=True),
        Column("live_registers", pl.Int64, "Most registers that are live at one of its instructions.", nullable=True),
        Column("text", pl.String, "The line, where the source was imported.", nullable=True),
    ),
    purpose="the lines of source that warps were at",
    telling=("samples", "share", "file", "line", "text"),
    counted=True,
)


@analysis
def hot_lines(report: Report) -> pl.DataFrame:
    """The source lines of all kernels, most samples first.

    Returns:
        :data:`TABLE`; a kernel compiled without -lineinfo, or known only from CSV pages, has one row without a line;
        empty if the section SourceCounters was not collected.

    Raises:
        CannotTellError: The report has no counters, or a window is set: ncu's kernels have no timestamps.
    """
    require_counters(report, TABLE)
    sums = (
        report.table("instructions")
        .group_by("event_id", "file", "line")
        .agg(
            *(known_sum(name) for name in SUMS),
            pl.col("live_registers").max(),
            sass_count=pl.len().cast(pl.Int64),
        )
    )
    names = report.kind("kernel").select("event_id", pl.col("name").cast(pl.String))
    every = report.table("instructions").group_by("event_id").agg(all_samples=pl.col("samples").sum())
    found = (
        sums.join(names, on="event_id", how="left")
        .join(every, on="event_id", how="left")
        .join(_texts(report), on=["file", "line"], how="left")
        .with_columns(
            share=ratio("samples", "all_samples"),
            threads_per_instruction=ratio("thread_instructions", "instructions"),
            ideal_share=ratio("ideal_sectors", "sectors"),
        )
    )
    order = ["event_id", "samples", "file", "line"]
    return TABLE.select(found.sort(order, descending=[False, True, False, False], nulls_last=True))


def _texts(report: Report) -> pl.DataFrame:
    """Columns file, line and text of all sources in the report."""
    files = report.table("source_files")
    split = files.with_columns(pl.col("text").str.split("\n")).explode("text")
    return split.with_columns(line=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("file"))
