"""Kernels, copies and memsets in one table, by total time."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.analyses.shared.statistics import DURATION_COLUMNS, duration_statistics, share_of_total
from kanalyze.report import Report
from kanalyze.schema import Column, Table

_CATEGORIES: Final = {"kernel": "CUDA_KERNEL", "memcpy": "MEMORY_OPER", "memset": "MEMORY_OPER"}

TABLE: Final = Table(
    "gpu",
    "One kernel or one kind of memory operation.",
    (
        Column("category", pl.String, "CUDA_KERNEL or MEMORY_OPER."),
        Column("operation", pl.String, "The kernel's name, or the memory operation as nsys names it.", nullable=True),
        *DURATION_COLUMNS,
    ),
    purpose="kernels and memory operations in one list",
    equals="nsys stats cuda_gpu_sum",
)


@analysis
def gpu(report: Report) -> pl.DataFrame:
    """Device operations in scope by name, the longest in total first.

    As in nsys, operations that are a whole graph are left out; `ledger` and `exposure` count them.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report records no device operations.
    """
    require(report, TABLE, *_CATEGORIES)
    work = exclusive_operations(report).filter(pl.col("kind").is_in(list(_CATEGORIES)))
    category = pl.col("kind").cast(pl.String).replace_strict(_CATEGORIES).alias("category")
    sums = work.group_by("kind", "name").agg(duration_statistics())
    named = sums.with_columns(share_of_total(), category, pl.col("name").cast(pl.String).alias("operation"))
    return TABLE.select(named.sort("total_ns", "operation", "category", descending=[True, False, False]))
