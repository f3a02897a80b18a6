"""Kernels by launch shape: what the page and the rules on grids build on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses._common import once_per_report
from kanalyze.analyses._lookup import beside
from kanalyze.analyses._operations import exclusive_operations
from kanalyze.frames import constant
from kanalyze.model import LAUNCH_SHAPE

if TYPE_CHECKING:
    from kanalyze.report import Report

SHAPE: Final = tuple(column.name for column in LAUNCH_SHAPE)


@once_per_report
def kernel_shapes(report: Report) -> pl.DataFrame:
    """The kernels in scope by device, name and launch shape.

    Columns: device, bucket, name, the six of :data:`SHAPE`, count, and alone_ns: the time in which such a kernel ran
    and no other one did.
    """
    needed = ("event_id", "kind", "device", "bucket", "name", "start", "end", "exclusive_ns")
    work = exclusive_operations(report).select(needed).filter(pl.col("bucket").is_in(["kernel", "communication"]))
    one = work.is_empty() or constant(work.get_column("device"))
    parts = [_alone(part) for part in ([work] if one else work.partition_by("device"))]
    ran = pl.concat(parts).filter(pl.col("kind") == "kernel")
    kernels = beside(ran.select("event_id", "device", "bucket", "name", "alone_ns"), report.kernel_config, *SHAPE)
    grouped = kernels.group_by("device", "bucket", "name", *SHAPE)
    return grouped.agg(pl.len().cast(pl.Int64).alias("count"), pl.col("alone_ns").sum())


def _alone(work: pl.DataFrame) -> pl.DataFrame:
    """`work`, of one device, with the time in which each kernel ran and no other did."""
    if work.select((pl.col("exclusive_ns") == pl.col("end") - pl.col("start")).all()).item():
        return work.with_columns(alone_ns="exclusive_ns")
    single = intervals.alone(work)
    return work.with_columns(alone_ns=intervals.overlap(work.get_column("start"), work.get_column("end"), single))
