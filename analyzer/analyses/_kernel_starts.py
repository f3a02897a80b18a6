"""Each kernel's first run and first launch beside those that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._common import once_per_report
from kanalyze.analyses._launch import calls_of
from kanalyze.analyses._launched import launched_kernels
from kanalyze.analyses._operations import device_operations, exclusive_operations

if TYPE_CHECKING:
    from kanalyze.report import Report

#: What a kernel is, so that it has one first run: once per process and device.
KERNEL: Final = ("process_id", "device", "name")


@once_per_report
def kernel_starts(report: Report) -> pl.DataFrame:
    """The kernels in scope, one row per process, device and kernel.

    Columns: those of :data:`KERNEL`, count (runs), first_start (of the first run on the device), first_kernel_ns and
    warm_kernel_ns (the later runs' median), later (launches after the first that have a call of their own), call_start,
    first_api_ns, launch_ns (what the device waited for it) and warm_api_ns. What is first is so in the whole process:
    null where the first one is not in scope.
    """
    work = device_operations(report).select("kind", "row", *KERNEL, "start", "dur_ns")
    runs = work.filter(pl.col("kind") == "kernel").sort("start", "row")
    runs = runs.with_columns(first=pl.struct(KERNEL).is_first_distinct())
    if report.scope.window is not None:
        runs = runs.join(exclusive_operations(report).select("row"), on="row", how="semi")
    first, warm = pl.col("first"), ~pl.col("first")
    sums = runs.group_by(KERNEL).agg(
        pl.len().cast(pl.Int64).alias("count"),
        first_start=pl.col("start").filter(first).first(),
        first_kernel_ns=pl.col("dur_ns").filter(first).first(),
        warm_kernel_ns=pl.col("dur_ns").filter(warm).median(),
    )
    launches = (
        launched_kernels(report)
        .group_by(KERNEL)
        .agg(
            warm.sum().cast(pl.Int64).alias("later"),
            row=pl.col("row").filter(first).first(),
            first_api_ns=pl.col("api_ns").filter(first).first(),
            launch_ns=pl.col("launch_ns").filter(first).first(),
            warm_api_ns=pl.col("api_ns").filter(warm).median(),
        )
    )
    launches = launches.with_columns(calls_of(report, launches.get_column("row"), "call_start").get_columns()).drop(
        "row"
    )
    return sums.join(launches, on=KERNEL, how="left", nulls_equal=True)
