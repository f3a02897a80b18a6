"""Kernels by name, by name and launch shape, or by family; copies and memsets; and all of them in one list."""

from typing import Final, Unpack

import polars as pl

from kanalyze import errors, model
from kanalyze.analyses.device._operations import SHAPE, decoded, exclusive_operations, with_facts
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.columns import rate
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns
from kanalyze.tools import NAMES

TABLE: Final = Table(
    "kernels",
    "One kernel, all its launches.",
    (
        Column("name", pl.String, "Demangled name of the kernel.", nullable=True),
        *statistics.DURATION_COLUMNS,
        *columns("""
            exclusive_ns int: Time in which this was what its device was doing; over all kernels, and whole graphs, it
                sums to the ledger's kernel and communication buckets.
        """),
    ),
    purpose="kernels by total time",
    tools=NAMES,
    equals="nsys stats cuda_gpu_kern_sum; with --by launch-shape cuda_gpu_kern_gb_sum",
    groupings=("launch-shape", "family", "library", "operation", "dtype", "arch", "tensor-core", "tile"),
)

#: The table that ``by="launch-shape"`` gives.
BY_LAUNCH_SHAPE: Final = Table(
    "kernels",
    "One kernel in one launch shape.",
    (*TABLE.columns, *model.LAUNCH_SHAPE),
    equals="nsys stats cuda_gpu_kern_gb_sum",
    when="--by launch-shape",
    telling=("total_ns", "share", "count", "grid_x", "block_x"),
)

_FAMILY: Final = Column("family", pl.String, "What they do: gemm, elementwise, communication…")


def _by_name(by: str, *keys: Column) -> Table:
    """The table for a grouping by keys decoded from kernel names; ``other`` where not known."""
    return Table(
        "kernels",
        "All kernels whose names say the same; `other` where they do not say.",
        (*keys, *TABLE.columns[1:], Column("kernels", pl.Int64, "Different names.")),
        when=f"--by {by}",
    )


#: The tables that the other groupings give.
BY_FAMILY: Final = _by_name("family", _FAMILY)
BY_LIBRARY: Final = _by_name("library", Column("library", pl.String, "Whose kernels: cublas, aten, inductor, nccl…"))
BY_OPERATION: Final = _by_name(
    "operation", _FAMILY, Column("operation", pl.String, "What they compute: pow, sum, allreduce, fprop…")
)
BY_DTYPE: Final = _by_name("dtype", Column("dtype", pl.String, "Types of the inputs: f32, tf32, bf16…"))
BY_ARCH: Final = _by_name("arch", Column("arch", pl.String, "What they were written for: sm80, ampere…"))
BY_TENSOR_CORE: Final = _by_name(
    "tensor-core", Column("tensor_core", pl.String, "Whether they compute on tensor cores: yes, no.")
)
BY_TILE: Final = _by_name("tile", Column("tile", pl.String, "Elements that a block makes: 128x64x32."))

_FORMS: Final = {
    form.when.removeprefix("--by "): form
    for form in (BY_FAMILY, BY_LIBRARY, BY_OPERATION, BY_DTYPE, BY_ARCH, BY_TENSOR_CORE, BY_TILE)
}


def kernels(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """Kernels in scope, the longest in total first.

    Args:
        report: The report; kernels that overlap its window count whole.
        by: ``launch-shape`` groups by name, grid and block; the other groupings by keys decoded from the names.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, :data:`BY_LAUNCH_SHAPE` or one of the other forms, sorted as nsys sorts it: total time
        descending, count, name.

    Raises:
        CannotTellError: The report records no kernels; or a window is asked for of a report of ncu, whose kernels
            were measured one by one: their durations are those under ncu, and each had the device for itself.
        UnknownNameError: There is no such grouping.
    """
    report = report.narrow(**where)
    analysis.require_kernels(report, BY_LAUNCH_SHAPE if by == "launch-shape" else TABLE)
    analysis.check_grouping(TABLE, by)
    rows = exclusive_operations(report).select("row", "kind", "event_id", "name", "dur_ns", "exclusive_ns")
    rows = rows.filter((pl.col("kind") == "kernel") & pl.col("dur_ns").is_not_null())
    if rows.is_empty() and report.meta.timeless:
        which = "counters of durations (section SpeedOfLight)"
        raise errors.CannotTellError.without_counters(TABLE.name, report.meta.path, which)
    keys, table = ["name"], TABLE
    if by in _FORMS:
        table = _FORMS[by]
        keys = [column.name for column in table.columns if column.dtype == pl.String]
        rows = decoded(report, rows, *keys)
    elif by is not None:
        table = BY_LAUNCH_SHAPE
        keys += SHAPE
        rows = with_facts(report, rows, *SHAPE)
    names = [pl.col("name").n_unique().alias("kernels")] if by in _FORMS else []
    sums = rows.group_by(keys).agg(*statistics.duration_statistics(), pl.col("exclusive_ns").sum(), *names)
    order = sums.with_columns(statistics.share_of_total(), pl.col(keys[0]).cast(pl.String)).sort(
        "total_ns", "count", *keys, descending=[True, False, *(False for _ in keys)]
    )
    return table.select(order)


# Kernels, copies and memsets in one table, by total time.

_CATEGORIES: Final = {"kernel": "CUDA_KERNEL", "memcpy": "MEMORY_OPER", "memset": "MEMORY_OPER"}

GPU: Final = Table(
    "gpu",
    "One kernel or one kind of memory operation.",
    (
        Column("category", pl.String, "CUDA_KERNEL or MEMORY_OPER."),
        Column("operation", pl.String, "The kernel's name, or the memory operation as nsys names it.", nullable=True),
        *statistics.DURATION_COLUMNS,
    ),
    purpose="kernels and memory operations in one list",
    equals="nsys stats cuda_gpu_sum",
)


@analysis.analysis
def gpu(report: Report) -> pl.DataFrame:
    """Device operations in scope by name, the longest in total first: :data:`GPU`.

    As in nsys, operations that are a whole graph are left out; `ledger` and `exposure` count them.

    Raises:
        CannotTellError: The report records no device operations.
    """
    analysis.require(report, GPU, *_CATEGORIES)
    work = exclusive_operations(report).filter(pl.col("kind").is_in(list(_CATEGORIES)))
    category = pl.col("kind").cast(pl.String).replace_strict(_CATEGORIES).alias("category")
    sums = work.group_by("kind", "name").agg(statistics.duration_statistics())
    named = sums.with_columns(statistics.share_of_total(), category, pl.col("name").cast(pl.String).alias("operation"))
    return GPU.select(named.sort("total_ns", "operation", "category", descending=[True, False, False]))


# Time, bytes and bandwidth of copies and memsets, by operation.

COPIES: Final = Table(
    "copies",
    "One kind of copy, or all memsets.",
    (
        Column("operation", pl.String, "As nsys names it, such as [CUDA memcpy Host-to-Device].", nullable=True),
        *statistics.DURATION_COLUMNS,
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
    telling=("total_ns", "total_bytes", "bandwidth_bytes_per_s"),
    equals="nsys stats cuda_gpu_mem_time_sum and cuda_gpu_mem_size_sum",
)


@analysis.analysis
def copies(report: Report) -> pl.DataFrame:
    """Copies and memsets in scope by operation, the longest in total first: :data:`COPIES`.

    Raises:
        CannotTellError: The report records neither copies nor memsets.
    """
    analysis.require(report, COPIES, "memcpy", "memset")
    moved = exclusive_operations(report).filter(pl.col("kind").is_in(["memcpy", "memset"]))
    joined = with_facts(report, moved, "size_bytes")
    sizes = (pl.col("size_bytes").sum().alias("total_bytes"), *statistics.spread("size_bytes", "", "_bytes"))
    sums = joined.group_by("name").agg(
        *statistics.duration_statistics(),
        *(pl.when(pl.col("size_bytes").count() > 0).then(size) for size in sizes),
        pl.col("exclusive_ns").sum(),
    )
    named = sums.with_columns(
        statistics.share_of_total(),
        rate(pl.col("total_bytes"), pl.col("total_ns")).alias("bandwidth_bytes_per_s"),
        pl.col("name").cast(pl.String).alias("operation"),
    )
    return COPIES.select(named.sort("total_ns", "operation", descending=[True, False]))
