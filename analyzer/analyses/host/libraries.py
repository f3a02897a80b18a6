"""Host time by library: library calls, NVTX ranges of a domain, and operating system calls."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import of_used_processes
from kanalyze.analyses.device._windows import all_idle_spans, windows
from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.analyses.shared.statistics import DURATION_COLUMNS, duration_statistics
from kanalyze.report import Report
from kanalyze.schema import Column, Table, columns
from kanalyze.tools import recorders

TABLE: Final = Table(
    "libraries",
    "One call or range of a library, or one operating system call.",
    (
        Column("library", pl.String, "The library, by the name of its ranges' domain; OS runtime for system calls."),
        Column("name", pl.String, "The call or range; null where the report has no name for it.", nullable=True),
        *(
            Column(column.name, column.dtype, "Their part of the sum of the library's total_ns.")
            if column.name == "share"
            else column
            for column in DURATION_COLUMNS
        ),
        *columns("""
            idle_ns int?: What of total_ns all devices were idle for, inside their windows; null where no device is
                known.
        """),
    ),
    purpose="calls of cuBLAS, NCCL and others, of the OS",
    tools=recorders("osrt"),
    equals="nsys stats osrt_sum (rows of the library OS runtime)",
)

#: Library name of operating system calls.
OS_RUNTIME: Final = "OS runtime"

#: Libraries by prefix of a call's name, where the report does not record the library.
_BY_CALL: Final = {"(?i)^cublas": "cuBLAS", "(?i)^cudnn": "cuDNN"}

_ROWS: Final = {"library": pl.String, "name": pl.String, "start": pl.Int64, "dur_ns": pl.Int64}


@analysis
def libraries(report: Report) -> pl.DataFrame:
    """Library and system calls in scope, by library; with a device in scope, those of its processes.

    Every NVTX domain counts as a library, since libraries put their ranges into a domain; ranges of the default domain
    belong to the program and are left out. Nested calls and ranges count for both.

    Returns:
        :data:`TABLE`: the library with the longest total first, then its rows, the longest total first.

    Raises:
        CannotTellError: The report records neither library calls, nor NVTX ranges, nor system calls.
    """
    require(report, TABLE, "library", "osrt", "range")
    rows = pl.concat([_ranges(report), *(_calls(report, kind) for kind in ("library", "osrt"))])
    start = rows.get_column("start")
    idle = intervals.overlap(start, start + rows.get_column("dur_ns"), all_idle_spans(report))
    known = pl.lit(None, dtype=pl.Int64) if windows(report).is_empty() else pl.col("idle_ns").sum()
    sums = (
        rows.with_columns(idle.alias("idle_ns"))
        .group_by("library", "name")
        .agg(*duration_statistics(), known.alias("idle_ns"))
    )
    whole = pl.col("total_ns").sum().over("library")
    share = pl.when(whole > 0).then(pl.col("total_ns") / whole).otherwise(0.0)
    ordered = sums.with_columns(share.alias("share"), whole.alias("whole")).sort(
        "whole", "library", "total_ns", "name", descending=[True, False, True, False]
    )
    return TABLE.select(ordered)


def _calls(report: Report, kind: str) -> pl.DataFrame:
    events = of_used_processes(report, report.seen(kind))
    name = pl.col("name").cast(pl.String)
    library = pl.lit(OS_RUNTIME if kind == "osrt" else "other")
    for pattern, known in _BY_CALL.items() if kind == "library" else ():
        library = pl.when(name.str.contains(pattern)).then(pl.lit(known)).otherwise(library)
    columns = {"library": library, "name": name, "start": pl.col("start_ns"), "dur_ns": pl.col("dur_ns").fill_null(0)}
    return events.select(column.cast(_ROWS[key]).alias(key) for key, column in columns.items())


def _ranges(report: Report) -> pl.DataFrame:
    """Ranges of domains that overlap the window; a range that was never closed ends with the last NVTX event."""
    if "range" not in report.kinds:
        return pl.DataFrame(schema=_ROWS)
    ranges = intervals.overlapping(named_ranges(report).filter(pl.col("domain").is_not_null()), report.scope.sides)
    return of_used_processes(report, ranges).select(
        pl.col("domain").cast(pl.String).alias("library"), "name", "start", dur_ns=pl.col("end") - pl.col("start")
    )
