"""NVTX ranges by name: how often, and how long on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._common import DURATION_COLUMNS, analysis, duration_statistics, require, share_of_total
from kanalyze.analyses._operations import used_devices
from kanalyze.analyses._ranges import named_ranges, overlapping
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.report import Report

TABLE: Final = Table(
    "ranges",
    "One NVTX range by name and style, all its instances on all threads; time of ranges inside ranges counts in both.",
    (
        Column("range", pl.String, "Domain, colon and name, as nsys 2025 prints it; the default domain has no name."),
        Column("style", pl.String, "PushPop (nests on its thread) or StartEnd.", nullable=True),
        *DURATION_COLUMNS,
        Column("open_count", pl.Int64, "How many were never closed; those last until the latest NVTX event."),
        Column("threads", pl.Int64, "How many threads started one."),
        Column("cross_thread_count", pl.Int64, "How many another thread ended; these have no place in range_gpu."),
    ),
    equals="nsys stats nvtx_sum",
)


@analysis
def ranges(report: Report) -> pl.DataFrame:
    """The NVTX ranges in scope, by name and style, the longest in total first.

    Ranges that overlap the window count, whole; of a device, those of the processes that used it.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report records no ranges.
    """
    require(report, TABLE.name, "range")
    found = overlapping(named_ranges(report), report.scope.window)
    if report.scope.device is not None:
        found = found.join(used_devices(report).select("process_id").unique(), on="process_id", how="semi")
    sums = (
        found.with_columns(dur_ns=pl.col("end") - pl.col("start"))
        .group_by("range", "style")
        .agg(
            *duration_statistics(),
            pl.col("open").sum().alias("open_count"),
            pl.struct("process_id", "thread_id").n_unique().alias("threads"),
            pl.col("end_thread_id").count().alias("cross_thread_count"),
        )
    )
    order = sums.with_columns(share_of_total(), pl.col("style").cast(pl.String))
    return TABLE.select(order.sort("total_ns", "range", "style", descending=[True, False, False]))
