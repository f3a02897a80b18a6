"""The work of the devices: every kernel, graph, copy and memset, with the bucket that it fills while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._kernel_families import communicating
from kanalyze.analyses.device._recorded_time import in_time
from kanalyze.analyses.shared.cached import once_per_process, once_per_report
from kanalyze.frames import constant, distinct_rows, stacked
from kanalyze.model import DEVICE_KINDS

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Buckets of a busy device; where several run at once the first wins (definitions.md, section 5).
BUSY_BUCKETS: Final = ("kernel", "communication", "memcpy", "memset")

_OPERATION: Final = ("event_id", "kind", "name", "start", "dur_ns", "device", "process_id", "rank", "detail")

_MEMCPY_NAME: Final = r"^\[(?:CUDA|HIP) memcpy (.*)\]$"


@once_per_process
def operations(report: Report) -> pl.DataFrame:
    """Every operation of the processes in scope, on any device and at any time, in the order of event_id.

    Columns: row (its number here), event_id, kind, name, start and end (no later than what can have been recorded),
    began and dur_ns (before any clipping), device,
    process_id, rank (of its bucket), bucket, detail (``graph`` for a whole graph, the direction for a
    copy, else null).
    """
    kinds = [kind for kind in DEVICE_KINDS if kind in report.kinds] or ["kernel"]
    work = report.of_kinds(kinds, "event_id", "name", "start_ns", "dur_ns").rename({"start_ns": "start"})
    told = stacked(_buckets(report, kind) for kind in kinds)
    work = pl.concat([work, told], how="horizontal").select(_OPERATION)
    if not work.get_column("event_id").is_sorted():
        work = work.sort("event_id")
    buckets = pl.Series("bucket", BUSY_BUCKETS, dtype=pl.Enum(BUSY_BUCKETS))
    placed = work.with_row_index("row").with_columns(
        (pl.col("start") + pl.col("dur_ns")).alias("end"),
        pl.col("start").alias("began"),
        pl.lit(buckets).gather(pl.col("rank").cast(pl.UInt32)).alias("bucket"),
    )
    return in_time(report, placed)


def recorded(report: Report, *columns: str) -> pl.DataFrame:
    """Columns of the devices' events as they were recorded, with `event_id`, in the order of :func:`operations`."""
    events = pl.concat([report.kind(kind).select("event_id", *columns) for kind in DEVICE_KINDS])
    return events if events.get_column("event_id").is_sorted() else events.sort("event_id")


@once_per_report
def device_operations(report: Report) -> pl.DataFrame:
    """:func:`operations` on the devices in scope."""
    work, device = operations(report), report.scope.device
    return work if device is None else work.filter(pl.col("device") == device)


@once_per_report
def exclusive_operations(report: Report) -> pl.DataFrame:
    """:func:`device_operations` that overlap the window, with `exclusive_ns` inside it, additive on each device."""
    work, window = device_operations(report), report.scope.window
    if window is not None:
        low, high = window.start_ns, window.end_ns
        if low is not None:
            work = work.filter((pl.col("end") > low) | (pl.col("start") == low))
        if high is not None:
            work = work.filter(pl.col("start") < high)
        work = work.with_columns(pl.col("start").clip(low, high), pl.col("end").clip(low, high))
    if work.is_empty() or constant(work, "device"):
        own = intervals.exclusive(work)
        same = own.equals(work.get_column("dur_ns"))  # where nothing overlaps, which is in memory once then
        return work.with_columns(pl.col("dur_ns").alias(own.name) if same else own)
    return pl.concat([part.with_columns(intervals.exclusive(part)) for part in work.partition_by("device")])


@once_per_report
def used_devices(report: Report) -> pl.DataFrame:
    """Which processes ran operations on which devices in scope: columns device and process_id, each pair once."""
    return distinct_rows(device_operations(report).select("device", "process_id"))


def of_device(work: pl.DataFrame, device: int) -> pl.DataFrame:
    """The rows of `work` on one device; `work` itself where that is all of them."""
    only = constant(work, "device") and work.head(1).item(0, "device") == device
    return work if only else work.filter(pl.col("device") == device)


def _buckets(report: Report, kind: str) -> pl.DataFrame:
    """What :func:`operations` tells of the events of one kind beside what is recorded."""
    events = report.kind(kind)
    rank, detail = pl.lit(BUSY_BUCKETS.index("kernel")), pl.lit(None, dtype=pl.Categorical)
    if kind == "kernel":
        communicates = communicating(events, report)
        if communicates is not None:
            rank = pl.when(communicates).then(pl.lit(BUSY_BUCKETS.index("communication"))).otherwise(rank)
    elif kind == "graph":
        detail = pl.lit("graph", dtype=pl.Categorical)
    else:
        rank = pl.lit(BUSY_BUCKETS.index(kind))
    if kind == "memcpy":
        names = events.get_column("name").unique()
        directions = names.cast(pl.String).str.extract(_MEMCPY_NAME).cast(pl.Categorical)
        detail = pl.col("name").replace_strict(names, directions, default=None, return_dtype=pl.Categorical)
    return events.select(
        pl.lit(kind, dtype=pl.Enum(DEVICE_KINDS)).alias("kind"),
        pl.col("device").fill_null(0),
        "process_id",
        rank.cast(pl.Int8).alias("rank"),
        detail.alias("detail"),
    )
