"""Kernels by name, or by name and launch shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._common import DURATION_COLUMNS, duration_statistics, require, share_of_total
from kanalyze.analyses._lookup import beside
from kanalyze.analyses._operations import exclusive_operations
from kanalyze.errors import UnknownNameError
from kanalyze.model import LAUNCH_SHAPE
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from typing import Unpack

    from kanalyze.report import Report, Where

TABLE: Final = Table(
    "kernels",
    "One kernel, all its launches.",
    (
        Column("name", pl.String, "Demangled name of the kernel.", nullable=True),
        *DURATION_COLUMNS,
        Column(
            "exclusive_ns",
            pl.Int64,
            "Time in which this kernel was what its device was doing; over all kernels, and whole graphs, it sums to "
            "the ledger's kernel and communication buckets.",
        ),
    ),
    equals="nsys stats cuda_gpu_kern_sum; with --by launch-shape cuda_gpu_kern_gb_sum",
    groupings=("launch-shape",),
)

#: The table that ``by="launch-shape"`` gives.
BY_LAUNCH_SHAPE: Final = Table(
    "kernels",
    "One kernel in one launch shape.",
    (*TABLE.columns, *LAUNCH_SHAPE),
    equals="nsys stats cuda_gpu_kern_gb_sum",
    when="--by launch-shape",
)


def kernels(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """The kernels in scope, heaviest first.

    Args:
        report: Where to look; kernels that overlap its window count, whole.
        by: ``launch-shape`` tells launches of different grid or block apart.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE` or :data:`BY_LAUNCH_SHAPE`, sorted as nsys sorts it: total time descending, count, name.

    Raises:
        CannotTellError: The report records no kernels.
        UnknownNameError: There is no such grouping.
    """
    report = report.narrow(**where)
    require(report, TABLE.name, "kernel")
    if by not in (None, *TABLE.groupings):
        raise UnknownNameError.of("grouping of kernels", by, TABLE.groupings)
    found = exclusive_operations(report).select("kind", "event_id", "name", "dur_ns", "exclusive_ns")
    found = found.filter(pl.col("kind") == "kernel")
    keys, table = ["name"], TABLE
    if by is not None:
        table, shape = BY_LAUNCH_SHAPE, [column.name for column in LAUNCH_SHAPE]
        keys += shape
        found = beside(found, report.kernel_config, *shape)
    sums = found.group_by(keys).agg(*duration_statistics(), pl.col("exclusive_ns").sum())
    order = sums.with_columns(share_of_total(), pl.col("name").cast(pl.String)).sort(
        "total_ns", "count", *keys, descending=[True, False, *(False for _ in keys)]
    )
    return table.select(order)
