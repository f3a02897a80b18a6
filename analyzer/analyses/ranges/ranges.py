"""NVTX ranges by name: number, and time on the host."""

from __future__ import annotations

from typing import Final, Unpack

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import device_operations, of_used_processes
from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.ranges._projection import process_work
from kanalyze.analyses.ranges.range_gpu import BY_NAME, OF_PROCESS, by_name
from kanalyze.analyses.shared.analysis import check_grouping, require
from kanalyze.analyses.shared.statistics import DURATION_COLUMNS, duration_statistics, known_sum, share_of_total
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table

_OF_PROCESS: Final = tuple(column.name for column in OF_PROCESS)

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
        *OF_PROCESS,
    ),
    purpose="NVTX ranges by time on the host",
    telling=("range", "count", "total_ns", "share", "avg_ns"),
    equals="nsys stats nvtx_sum",
    groupings=(BY_NAME,),
)


def ranges(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """The NVTX ranges in scope by name and style, the longest total time first.

    Args:
        report: Where to look; ranges that overlap its window count in full; of a device, those of processes that used
            it.
        by: ``name`` removes the ids and sizes that emit_nvtx appends, which make every range unique.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report records no ranges.
        UnknownNameError: There is no such grouping.
    """
    report = report.narrow(**where)
    check_grouping(TABLE, by)
    require(report, TABLE, "range")
    found = of_used_processes(report, intervals.overlapping(named_ranges(report), report.scope.sides))
    found = found if by is None else by_name(report, found)
    if "api" in report.kinds and set(DEVICE_KINDS).intersection(report.kinds):
        # the work that any thread launched while each range was open
        work = process_work(report, device_operations(report).select("row", "process_id", "start", "end"))
        found = found.join(work, on="row", how="left", maintain_order="left")
        found = found.with_columns(pl.col(_OF_PROCESS).fill_null(0))
    else:
        found = found.with_columns(pl.lit(None, dtype=pl.Int64).alias(name) for name in _OF_PROCESS)
    sums = (
        found.with_columns(dur_ns=pl.col("end") - pl.col("start"))
        .group_by("range", "style")
        .agg(
            *duration_statistics(),
            *(known_sum(name) for name in _OF_PROCESS),
            open_count=pl.col("open").sum(),
            threads=pl.struct("process_id", "thread_id").n_unique(),
            cross_thread_count=pl.col("end_thread_id").count(),
        )
    )
    order = sums.with_columns(share_of_total(), pl.col("style").cast(pl.String))
    return TABLE.select(order.sort("total_ns", "range", "style", descending=[True, False, False]))
