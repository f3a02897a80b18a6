"""Device operations (kernels, graphs, copies and memsets) with their ledger bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._kernel_families import communicating
from kanalyze.analyses.shared.cached import once_per_process, once_per_report
from kanalyze.columns.grouping import grouped
from kanalyze.columns.ordering import in_order
from kanalyze.model import DEVICE_KINDS

if TYPE_CHECKING:
    from kanalyze.report import Report


#: Buckets of a busy device by precedence, for operations that overlap (definitions.md, section 5).
BUSY_BUCKETS: Final = ("kernel", "communication", "memcpy", "memset")

_OPERATION: Final = ("event_id", "kind", "name", "start", "dur_ns", "device", "process_id", "rank", "detail")

_MEMCPY_NAME: Final = r"^\[(?:CUDA|HIP) memcpy (.*)\]$"


@once_per_process
def operations(report: Report) -> pl.DataFrame:
    """Operations of the processes in scope, on any device and at any time, sorted by event_id.

    Columns: row (row index), event_id, kind, name, start and end (clipped to the end of the recording), began and
    dur_ns (as recorded, not clipped), device, process_id, rank (index of the bucket), bucket, detail (``graph`` for a
    whole graph, the direction for a copy, else null).
    """
    kinds = [kind for kind in DEVICE_KINDS if kind in report.kinds] or ["kernel"]
    work = report.of_kinds(kinds, "event_id", "name", "start_ns", "dur_ns").rename({"start_ns": "start"})
    told = pl.concat((_buckets(report, kind) for kind in kinds), rechunk=True)
    work = pl.concat([work, told], how="horizontal").select(_OPERATION)
    work = in_order(work, "event_id")
    buckets = pl.Series("bucket", BUSY_BUCKETS, dtype=pl.Enum(BUSY_BUCKETS))
    placed = work.with_row_index("row").with_columns(
        (pl.col("start") + pl.col("dur_ns")).alias("end"),
        pl.col("start").alias("began"),
        pl.lit(buckets).gather(pl.col("rank").cast(pl.UInt32)).alias("bucket"),
    )
    return in_time(report, placed)


def recorded(report: Report, *columns: str) -> pl.DataFrame:
    """Columns of the device events as recorded, with event_id, in the order of :func:`operations`."""
    events = pl.concat([report.kind(kind).select("event_id", *columns) for kind in DEVICE_KINDS])
    return in_order(events, "event_id")


@once_per_report
def device_operations(report: Report) -> pl.DataFrame:
    """The :func:`operations` on the devices in scope."""
    work, device = operations(report), report.scope.device
    return work if device is None else work.filter(pl.col("device") == device)


@once_per_report
def exclusive_operations(report: Report) -> pl.DataFrame:
    """Clips :func:`device_operations` to the window; adds exclusive_ns, which is additive per device."""
    work, window = device_operations(report), report.scope.window
    if window is not None:
        low, high = window.start_ns, window.end_ns
        if low is not None:
            work = work.filter((pl.col("end") > low) | (pl.col("start") == low))
        if high is not None:
            work = work.filter(pl.col("start") < high)
        work = work.with_columns(pl.col("start").clip(low, high), pl.col("end").clip(low, high))
    parts = by_device(work)
    if len(parts) == 1:
        own = intervals.exclusive(work)
        same = own.equals(work.get_column("dur_ns"))  # nothing overlaps: both columns share one buffer
        return work.with_columns(pl.col("dur_ns").alias(own.name) if same else own)
    return pl.concat([part.with_columns(intervals.exclusive(part)) for part in parts])


def used_devices(report: Report) -> pl.DataFrame:
    """Distinct pairs of device in scope and process with operations on it: device, process_id."""
    used, device = _used_devices(report), report.scope.device
    return used if device is None else used.filter(pl.col("device") == device)


@once_per_process
def _used_devices(report: Report) -> pl.DataFrame:
    return grouped(operations(report), ["device", "process_id"], [])


def by_device(work: pl.DataFrame) -> list[pl.DataFrame]:
    """Splits `work` by device; gives `work` itself, not a copy, where there is at most one."""
    first, last = work.select(first=pl.col("device").min(), last=pl.col("device").max()).row(0)
    return [work] if first == last else work.partition_by("device")


def of_device(work: pl.DataFrame, device: int) -> pl.DataFrame:
    """Filters `work` by device; gives `work` itself where all rows are on it."""
    own = pl.col("device") == device
    return work if work.select(own.all()).item() else work.filter(own)


def _buckets(report: Report, kind: str) -> pl.DataFrame:
    """Derived columns of the operations of one kind: kind, device, process_id, rank and detail."""
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


# The end of the recording: events with a later (wrong) end are clipped, so that they do not stretch a window.
#
# Definitions: docs/definitions.md, section 5, the window of a device.

#: In a report without the end of the recording, how long an event may last after the last start of any other.
_LONGEST_TAIL_NS: Final = 60_000_000_000

_END: Final = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)


@once_per_process
def recorded_until(report: Report) -> int | None:
    """Upper bound for the ends of CUDA calls and operations; None where no end has to be clipped.

    That is the recorded end of the recording, unless most events begin after it, so that it must be wrong itself. In a
    report without it, an end is an outlier if it is more than a minute, and more than the span of all starts, after the
    last start, while no event of the other side (calls, or operations) ends as late; the bound is then the latest other
    end.
    """
    end = report.meta.end_ns
    sides = [_extent(report, DEVICE_KINDS), _extent(report, ("api",))]
    known = [side for side in sides if side is not None]
    if not known:
        return None
    latest = max(side[2] for side in known)
    if end is not None:
        return end if latest > end and _most_begin_before(report, end) else None
    first, last = min(side[0] for side in known), max(side[1] for side in known)
    limit = last + max(_LONGEST_TAIL_NS, last - first)
    late = [side[2] > limit for side in known]
    if not any(late) or (all(late) and len(late) > 1):
        return None
    ends = [report.kind(kind).select(_END.filter(limit >= _END).max()).item() for kind in _kinds(report)]
    return max((one for one in ends if one is not None), default=None)


def in_time(report: Report, events: pl.DataFrame) -> pl.DataFrame:
    """Clips start and end of `events` (calls or operations) to :func:`recorded_until`.

    Other events are read only where an end looks too late.
    """
    last, latest = events.select(last=pl.col("start").max(), latest=pl.col("end").max()).row(0)
    end = report.meta.end_ns
    if latest is None or latest <= (last + _LONGEST_TAIL_NS if end is None else end):
        return events
    limit = recorded_until(report)
    return events if limit is None else events.with_columns(pl.col("start", "end").clip(upper_bound=limit))


def _kinds(report: Report) -> list[str]:
    return [kind for kind in (*DEVICE_KINDS, "api") if kind in report.kinds]


def _extent(report: Report, kinds: tuple[str, ...]) -> tuple[int, int, int] | None:
    """First start, last start and last end of the events of some kinds; None without events."""
    starts = pl.col("start_ns")
    found = [
        report.kind(kind)
        .select(starts.min().alias("first"), starts.max().alias("last"), _END.max().alias("end"))
        .row(0)
        for kind in kinds
        if kind in report.kinds
    ]
    known = [one for one in found if one[0] is not None]
    if not known:
        return None
    firsts, lasts, ends = zip(*known, strict=True)
    return min(firsts), max(lasts), max(ends)


def _most_begin_before(report: Report, end_ns: int) -> bool:
    """Whether at least half of all calls and operations begin before `end_ns`."""
    counts = [report.kind(kind).select(pl.len(), (pl.col("start_ns") < end_ns).sum()).row(0) for kind in _kinds(report)]
    return bool(2 * sum(before for _, before in counts) >= sum(every for every, _ in counts))
