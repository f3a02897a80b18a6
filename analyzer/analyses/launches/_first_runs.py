"""First-touch costs: kernel runs that waited for unified memory which no kernel had used on the device before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import device_operations, exclusive_operations
from kanalyze.analyses.host._launching_call import calls_of
from kanalyze.analyses.launches._launch_costs import launched_kernels
from kanalyze.analyses.launches._one_time_calls import costs
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.lookup import beside

if TYPE_CHECKING:
    from kanalyze.report import Report


#: Unified memory is managed in blocks of this size; a page fault migrates a part of one.
_BLOCK_BYTES: Final = 1 << 21

#: The direction of a migration to the device, and what marks one that the program requested.
_TO_DEVICE: Final = "Unified Host-to-Device"
_ASKED_FOR: Final = "User"

_RUN: Final = ("process_id", "device")


def first_touch_costs(report: Report) -> pl.DataFrame:
    """Kernel runs during which blocks of unified memory migrated to the device for the first time."""
    moved = _migrations(report)
    if moved.is_empty():
        return costs(pl.DataFrame())
    runs = device_operations(report).filter(pl.col("kind") == "kernel")
    runs = runs.select("row", "name", *_RUN, "start", "end", "dur_ns").sort("start", "row")
    during = moved.sort("at").join_asof(
        runs, left_on="at", right_on="start", by=_RUN, check_sortedness=False, coalesce=False
    )
    during = during.filter(pl.col("at") < pl.col("end"))
    block = [*_RUN, pl.col("address") // _BLOCK_BYTES]
    new = during.filter(pl.col("row") == pl.col("row").first().over(block, order_by="at"))
    sums = new.group_by("row").agg(moves=pl.len(), size=pl.col("size_bytes").sum())
    calm = runs.join(during, on="row", how="anti").group_by(*_RUN, "name").agg(warm_ns=pl.col("dur_ns").median())
    touched = runs.join(sums, on="row").join(calm, on=[*_RUN, "name"], how="left", nulls_equal=True)
    return costs(
        touched.with_columns(
            category=pl.lit("first touch"),
            what=pl.col("name").cast(pl.String),
            extra_ns=pl.col("dur_ns") - pl.col("warm_ns"),
            evidence=pl.format("{} migrations of {} bytes to the GPU for the first time", "moves", "size"),
        )
    )


def _migrations(report: Report) -> pl.DataFrame:
    """Migrations to a device that no prefetch requested: process_id, device, at, address, size_bytes."""
    work = device_operations(report)
    told = work.filter((pl.col("kind") == "memcpy") & (pl.col("detail").cast(pl.String) == _TO_DEVICE))
    known = beside(
        told.select("event_id", *_RUN, at="start"), report.copy_detail, "address", "size_bytes", "migration_cause"
    )
    asked = pl.col("migration_cause").cast(pl.String).str.starts_with(_ASKED_FOR).fill_null(value=False)
    return known.filter(~asked & pl.col("address").is_not_null()).drop("event_id", "migration_cause")


#: The identity of a kernel, for its first run: once per process and device.
KERNEL: Final = ("process_id", "device", "name")


@once_per_report
def kernel_starts(report: Report) -> pl.DataFrame:
    """The kernels in scope, one row per process, device and kernel.

    Columns: those of :data:`KERNEL`, count (runs), first_start (of the first run on the device), first_kernel_ns and
    warm_kernel_ns (the later runs' median), later (launches after the first that have a call of their own), call_start,
    first_api_ns, launch_ns (the device's wait for it) and warm_api_ns. First means first in the whole process: null
    where that one is not in scope.
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
