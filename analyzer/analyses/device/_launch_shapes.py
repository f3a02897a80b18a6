"""Kernels grouped by launch shape and resources."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import by_device, exclusive_operations
from kanalyze.analyses.shared.cached import once_per_process, once_per_report
from kanalyze.columns.grouping import grouped, mixed, slices
from kanalyze.columns.lookup import beside, positions
from kanalyze.model import LAUNCH_SHAPE

if TYPE_CHECKING:
    from kanalyze.report import Report

SHAPE: Final = tuple(column.name for column in LAUNCH_SHAPE)

#: Columns of the launch shape in tables where it may be unknown.
SHAPE_COLUMNS: Final = tuple(replace(column, nullable=True) for column in LAUNCH_SHAPE)

#: Resources that a launch takes of an SM besides threads.
RESOURCES: Final = ("registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes", "shared_config_bytes")


def shape_numbers(report: Report) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Distinct launch shapes with resources, numbered, and the number of each kernel.

    Returns:
        The distinct shapes: shape (their number), :data:`SHAPE` and :data:`RESOURCES`; and event_id and shape of every
        row of the table of kernel configurations, in its order.
    """
    shapes, numbers, ids = _numbered(report)
    # shares the event ids of the kernels instead of a copy
    ids = report.kind("kernel").get_column("event_id") if ids is None else ids
    return shapes, pl.DataFrame([ids, numbers])


@once_per_process
def _numbered(report: Report) -> tuple[pl.DataFrame, pl.Series, pl.Series | None]:
    """Distinct shapes, the number of each row, and its event ids (None where equal to those of the kernels)."""
    config, found = report.kernel_config, []
    codes = []
    for part in slices(config.select(*SHAPE, *RESOURCES)):
        code = part.select(mixed(part.columns).alias("code")).to_series()
        fresh = code.is_first_distinct()
        codes.append(code)
        found.append(part.filter(fresh).with_columns(code.filter(fresh)))
    shapes = pl.concat(found).unique("code").sort("code").with_row_index("shape")
    numbers = [positions(shapes.get_column("code"), part) for part in codes]
    ids, kernels = config.get_column("event_id"), report.kind("kernel").get_column("event_id")
    return shapes.drop("code"), pl.concat(numbers).alias("shape"), None if ids.equals(kernels) else ids


@once_per_report
def kernel_shapes(report: Report) -> pl.DataFrame:
    """Kernels in scope grouped by device, name, launch shape and resources.

    Columns: device, bucket, name, the six of :data:`SHAPE`, :data:`RESOURCES`, count, total_ns, exclusive_ns, and
    alone_ns (time in which the kernel ran without any other kernel).
    """
    needed = ("event_id", "kind", "device", "bucket", "name", "dur_ns", "start", "end", "exclusive_ns")
    work = exclusive_operations(report).select(needed).filter(pl.col("bucket").is_in(["kernel", "communication"]))
    ran = (
        pl.concat([_alone(part) for part in by_device(work)])
        .filter(pl.col("kind") == "kernel")
        .drop("kind", "start", "end")
    )
    shapes, numbers = shape_numbers(report)
    kernels = beside(ran, numbers, "shape").drop("event_id")
    sums = [pl.len().cast(pl.Int64).alias("count"), pl.col("dur_ns").sum().alias("total_ns")]
    sums += [pl.col("exclusive_ns").sum(), pl.col("alone_ns").sum()]
    found = grouped(kernels, ("device", "bucket", "name", "shape"), sums).join(shapes, on="shape", how="left")
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
