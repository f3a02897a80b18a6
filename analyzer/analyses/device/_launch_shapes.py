"""Kernels grouped by launch shape and resources."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import (
    RESOURCES,
    SHAPE,
    by_device,
    exclusive_operations,
    launch_shapes,
    with_facts,
)
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.grouping import grouped
from kanalyze.model import LAUNCH_SHAPE

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Columns of the launch shape in tables where it may be unknown.
SHAPE_COLUMNS: Final = tuple(replace(column, nullable=True) for column in LAUNCH_SHAPE)


@once_per_report
def kernel_shapes(report: Report) -> pl.DataFrame:
    """Kernels in scope grouped by device, name, launch shape and resources.

    Columns: device, bucket, name, the six of :data:`SHAPE`, :data:`RESOURCES`, count, total_ns, exclusive_ns, and
    alone_ns (time in which the kernel ran without any other kernel).
    """
    needed = ("row", "kind", "device", "bucket", "name", "dur_ns", "start", "end", "exclusive_ns")
    work = exclusive_operations(report).select(needed).filter(pl.col("bucket").is_in(["kernel", "communication"]))
    ran = (
        pl.concat([_alone(part) for part in by_device(work)])
        .filter(pl.col("kind") == "kernel")
        .drop("kind", "start", "end")
    )
    kernels = with_facts(report, ran, "shape").drop("row")
    sums = [pl.len().cast(pl.Int64).alias("count"), pl.col("dur_ns").sum().alias("total_ns")]
    sums += [pl.col("exclusive_ns").sum(), pl.col("alone_ns").sum()]
    found = grouped(kernels, ("device", "bucket", "name", "shape"), sums).join(
        launch_shapes(report), on="shape", how="left"
    )
    return found.select("device", "bucket", "name", *SHAPE, *RESOURCES, "count", "total_ns", "exclusive_ns", "alone_ns")


def other_shapes(shapes: pl.DataFrame) -> int:
    """Number of distinct kernels and launch shapes besides that of the first row, resources aside."""
    return shapes.select("name", *SHAPE).unique().height - 1


def _alone(work: pl.DataFrame) -> pl.DataFrame:
    """Adds alone_ns, the time in which no other kernel ran, to kernels of one device."""
    if work.select((pl.col("exclusive_ns") == pl.col("end") - pl.col("start")).all()).item():
        return work.with_columns(alone_ns="exclusive_ns")
    single = intervals.alone(work)
    return work.with_columns(alone_ns=intervals.overlap(work.get_column("start"), work.get_column("end"), single))
