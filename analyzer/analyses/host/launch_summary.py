"""Call, queue and kernel time of launches, by kernel, call, thread and device."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.host._call_kinds import shown
from kanalyze.analyses.host.launches import joined_launches
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.analyses.shared.statistics import spread
from kanalyze.report import Report
from kanalyze.schema import Column, Table

_MEASURES: Final = {
    "total": "call start to the end of kernel or call",
    "api": "the call",
    "queue": "call's return to kernel start, over the launches that have one",
    "kernel": "the kernel",
}


def _measure_columns(measure: str, doc: str) -> tuple[Column, ...]:
    kinds = {"avg": "Mean", "median": "Median", "min": "Shortest", "max": "Longest"}
    nullable = measure == "queue"
    return (
        *(
            Column(
                f"{measure}_{name}_ns", pl.Int64 if name in ("min", "max") else pl.Float64, f"{word}: {doc}.", nullable
            )
            for name, word in kinds.items()
        ),
        Column(f"{measure}_stddev_ns", pl.Float64, f"Sample standard deviation: {doc}; 0 for fewer than two."),
    )


TABLE: Final = Table(
    "launch_summary",
    "One kernel launched by one call on one thread and device.",
    (
        Column("process_id", pl.Int64, "Process that made the calls."),
        Column("thread_id", pl.Int64, "Thread that made the calls.", nullable=True),
        Column("device", pl.Int64, "What the process calls the GPU, as nsys prints it.", nullable=True),
        Column("count", pl.Int64, "Launches."),
        Column("queue_count", pl.Int64, "Launches whose kernel started after the call returned."),
        *(column for measure, doc in _MEASURES.items() for column in _measure_columns(measure, doc)),
        Column("api", pl.String, "The call, as nsys shows it.", nullable=True),
        Column("kernel", pl.String, "Demangled name of the kernel.", nullable=True),
        Column(
            "charged_api_ns", pl.Int64, "Time in these calls, each counted once also when it launched many kernels."
        ),
    ),
    purpose="times from call to kernel, by kernel and call",
    telling=("count", "total_avg_ns", "api_avg_ns", "queue_avg_ns", "kernel_avg_ns"),
    equals="nsys stats cuda_kern_exec_sum",
)


@analysis
def launch_summary(report: Report) -> pl.DataFrame:
    """Statistics of the launches in scope, the longest mean total first.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report lacks kernels or CUDA calls.
    """
    require(report, TABLE.name, "kernel")
    require(report, TABLE, "api")
    keys = ["process_id", "thread_id", "device", "api", "kernel"]
    statistics = [part for measure in _MEASURES for part in spread(f"{measure}_ns", f"{measure}_", "_ns")]
    joined = joined_launches(report).select(*keys, *(f"{measure}_ns" for measure in _MEASURES), "charged_api_ns")
    sums = joined.group_by(keys).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("queue_ns").count().cast(pl.Int64).alias("queue_count"),
        *statistics,
        pl.col("charged_api_ns").sum(),
    )
    named = sums.with_columns(shown(pl.col("api")), pl.col("kernel").cast(pl.String))
    found, keys = TABLE.select(named), ["kernel", "thread_id"]
    keys += [name for name in found.columns if name not in ("total_avg_ns", *keys)]  # a stable order of ties
    return found.sort("total_avg_ns", *keys, descending=[True, *(False for _ in keys)])
