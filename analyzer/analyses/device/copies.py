"""Time, bytes and bandwidth of copies and memsets, by operation."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations, with_facts
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.analyses.shared.statistics import DURATION_COLUMNS, duration_statistics, share_of_total, spread
from kanalyze.columns import rate
from kanalyze.report import Report
from kanalyze.schema import Column, Table, columns

TABLE: Final = Table(
    "copies",
    "One kind of copy, or all memsets.",
    (
        Column("operation", pl.String, "As nsys names it, such as [CUDA memcpy Host-to-Device].", nullable=True),
        *DURATION_COLUMNS,
        *columns("""
            total_bytes int?: Bytes moved; null, as the next five, where sizes are not known.
            avg_bytes float?: Mean size.
            median_bytes float?: Median size.
            min_bytes int?: Smallest.
            max_bytes int?: Largest.
            stddev_bytes float?: Sample standard deviation of the sizes; 0 for a single one.
            bandwidth_bytes_per_s float?: Bytes moved per second of copying; null where no time was spent, or sizes are
                not known.
            exclusive_ns int: Time in which the device did nothing but this; sums to the ledger's memcpy and memset
                buckets.
        """),
    ),
    purpose="copies and memsets: time, bytes, bandwidth",
    telling=("total_ns", "total_bytes", "bandwidth_bytes_per_s", "count"),
    equals="nsys stats cuda_gpu_mem_time_sum and cuda_gpu_mem_size_sum",
)


@analysis
def copies(report: Report) -> pl.DataFrame:
    """Copies and memsets in scope by operation, the longest in total first.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report records neither copies nor memsets.
    """
    require(report, TABLE, "memcpy", "memset")
    moved = exclusive_operations(report).filter(pl.col("kind").is_in(["memcpy", "memset"]))
    joined = with_facts(report, moved, "size_bytes")
    sizes = (pl.col("size_bytes").sum().alias("total_bytes"), *spread("size_bytes", "", "_bytes"))
    sums = joined.group_by("name").agg(
        *duration_statistics(),
        *(pl.when(pl.col("size_bytes").count() > 0).then(size) for size in sizes),
        pl.col("exclusive_ns").sum(),
    )
    named = sums.with_columns(
        share_of_total(),
        rate(pl.col("total_bytes"), pl.col("total_ns")).alias("bandwidth_bytes_per_s"),
        pl.col("name").cast(pl.String).alias("operation"),
    )
    return TABLE.select(named.sort("total_ns", "operation", descending=[True, False]))
