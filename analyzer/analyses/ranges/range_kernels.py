"""Kernels by the NVTX range that launched them."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.ranges._projection import ThreadRanges, launched, thread_ranges
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.analyses.shared.statistics import spread
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.report import Report
from kanalyze.schema import Table, columns

TABLE: Final = Table(
    "range_kernels",
    "One kernel in one NVTX range, by range name, style and thread; a kernel counts in every range around its launch.",
    columns("""
        range text?: Domain, colon and name, as nsys 2025 prints it; null for kernels that no range launched.
        style text?: PushPop (nests on its thread) or StartEnd.
        process_id int?: Process that launched it; null where no launch is known.
        thread_id int?: Thread that launched it; null where no launch is known.
        kernel text?: Demangled name of the kernel.
        range_count int: Instances of the range that launched it.
        count int: How often it ran.
        total_ns int: Sum of its durations; where ranges of one name nest, once for each around it.
        avg_ns float: Mean duration; this and the following count as often as total_ns.
        median_ns float: Median duration.
        min_ns int: Shortest.
        max_ns int: Longest.
        stddev_ns float: Sample standard deviation of the durations; 0 for a single one.
        kernel_ns int: Sum of its durations, every kernel once.
    """),
    purpose="the kernels of each NVTX range",
    telling=("range", "count", "total_ns", "avg_ns"),
    equals="nsys stats nvtx_kern_sum",
)

#: Batch size in pairs of kernel and range; about 500 MB.
_MOST_PAIRS: Final = 8_000_000


@analysis
def range_kernels(report: Report) -> pl.DataFrame:
    """The kernels in scope by the ranges that launched them, sorted by range, process and thread, then by total.

    Kernels that overlap the window count in full, in all ranges around their launch, whenever those are.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report lacks ranges, CUDA calls, or kernels.
    """
    for needed in ("range", "api"):
        require(report, TABLE.name, needed)
    require(report, TABLE, "kernel")
    work = exclusive_operations(report).filter(pl.col("kind") == "kernel")
    work = work.select("row", "process_id", "dur_ns", start="began", kernel="name")
    names = named_ranges(report).select(pl.col("range").cast(pl.Categorical), "style")
    found = [TABLE.empty()]
    for thread, kernels in launched(report, work).items():
        own = [pl.lit(key, pl.Int64).alias(name) for key, name in zip(thread, THREAD, strict=True)]
        ranges = thread_ranges(report).get(thread, ThreadRanges.none())
        parts = _parts(kernels, ranges.deepest)
        found += [TABLE.select(_sums(names, _in_ranges(ranges, part)).with_columns(own)) for part in parts]
    by = ["range", "process_id", "thread_id", "total_ns", "style", "kernel"]
    return pl.concat(found).sort(by, descending=[name == "total_ns" for name in by])


def _parts(kernels: pl.DataFrame, around: int) -> list[pl.DataFrame]:
    """Splits the kernels of one thread into batches by name, so that `around` copies of a batch fit into memory."""
    if kernels.height * around <= _MOST_PAIRS:
        return [kernels]
    names = kernels.group_by("kernel").len().sort("len", "kernel")
    part = pl.col("len").cast(pl.Int64).cum_sum() * around // _MOST_PAIRS
    numbered = names.select("kernel", part.alias("part"))
    joined = kernels.join(numbered, on="kernel", nulls_equal=True, maintain_order="left")
    return joined.partition_by("part", include_key=False)


def _in_ranges(ranges: ThreadRanges, kernels: pl.DataFrame) -> pl.DataFrame:
    """Joins kernels of one thread with all ranges around their launch (or null): row, kernel, dur_ns, range_row."""
    kernels = kernels.select("row", "kernel", "dur_ns", "since", "until")
    parts = [part.drop("since", "until") for part in ranges.pairs(kernels)]
    found = pl.concat([part.get_column("row") for part in parts] or [kernels.get_column("row").clear()])
    outside = kernels.drop("since", "until").filter(~pl.col("row").is_in(found.implode()))
    return pl.concat([*parts, outside.with_columns(range_row=pl.lit(None, pl.UInt32))])


def _sums(names: pl.DataFrame, ran: pl.DataFrame) -> pl.DataFrame:
    """Sums the kernels of one thread by range, style and kernel."""
    named = names.select(pl.all().gather(ran.get_column("range_row")))
    return (
        ran.hstack(named)
        .group_by("range", "style", "kernel")
        .agg(
            *spread("dur_ns", "", "_ns"),
            range_count=pl.col("range_row").drop_nulls().n_unique(),
            count=pl.col("row").n_unique(),
            total_ns=pl.col("dur_ns").sum(),
            kernel_ns=pl.col("dur_ns").filter(pl.col("row").is_first_distinct()).sum(),
        )
    )
