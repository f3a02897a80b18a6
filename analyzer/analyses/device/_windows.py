"""Window of each device: the interval that its ledger accounts for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, in_time, of_device, operations, used_devices
from kanalyze.analyses.shared.cached import once_per_process, once_per_report
from kanalyze.columns.grouping import of_parts

if TYPE_CHECKING:
    from kanalyze.report import Report


@once_per_report
def activity(report: Report) -> pl.DataFrame:
    """First start and last end of the CUDA calls and operations of all processes that used a device.

    Columns: device, start, end; one row per device with operations.
    """
    spans = _process_spans(report)
    used = used_devices(report)
    joined = used.join(spans, on="process_id", how="left", nulls_equal=True)
    return joined.group_by("device").agg(pl.col("start").min(), pl.col("end").max()).sort("device")


@once_per_report
def windows(report: Report) -> pl.DataFrame:
    """Window of each device with operations, the user's or else its :func:`activity`: device, start, end."""
    asked, spans = report.scope.window, activity(report)
    if asked is None:  # events that end before they start would give a negative length
        return spans.with_columns(pl.max_horizontal("start", "end").alias("end"))
    low = pl.col("start") if asked.start_ns is None else pl.lit(asked.start_ns, dtype=pl.Int64)
    high = pl.col("end") if asked.end_ns is None else pl.lit(asked.end_ns, dtype=pl.Int64)
    return spans.select("device", low.alias("start"), pl.max_horizontal(low, high).alias("end"))


def share_of_window(report: Report) -> pl.Expr:
    """The part of the window of its device that the time `ns` of a row is."""
    parts = [
        pl.when(pl.col("device") == device).then(pl.col("ns") / max(end - start, 1))
        for device, start, end in windows(report).iter_rows()
    ]
    return pl.coalesce(*parts, pl.lit(None, dtype=pl.Float64)).alias("share")


def span(report: Report) -> tuple[int, int] | None:
    """First start and last end of the windows of all devices; None without operations."""
    known = windows(report)
    if known.is_empty():
        return None
    low, high = known.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return int(low), int(high)


@once_per_process
def _process_spans(report: Report) -> pl.DataFrame:
    """First start and last end of the CUDA calls and operations of each process."""
    end = pl.col("start_ns") + pl.col("dur_ns")
    calls = in_time(report, report.kind("api").select("process_id", start="start_ns", end=end))
    return _spans(pl.concat([_spans(calls), _spans(operations(report))]))


def _spans(events: pl.DataFrame) -> pl.DataFrame:
    """First start and last end of the `events` (process_id, start, end) of each process."""
    sides = pl.col("start").min(), pl.col("end").max()
    return events.group_by("process_id").agg(sides)


@once_per_process
def busy_layers(report: Report) -> dict[int, list[pl.DataFrame]]:
    """By device, for each of :data:`BUSY_BUCKETS` the span set of its operations and those of the buckets before."""
    work, found = operations(report).select("device", "start", "end", "rank"), {}
    for device in work.get_column("device").unique().sort():
        own, layers = of_device(work, device), [pl.DataFrame(schema=intervals.SPANS)]
        for rank in range(len(BUSY_BUCKETS)):
            part = own.filter(pl.col("rank") == rank).select("start", "end")
            layers.append(intervals.union(pl.concat([layers[-1], part])) if part.height else layers[-1])
        found[device] = layers[1:]
    return found


def busy_spans(report: Report) -> dict[int, pl.DataFrame]:
    """Span set of busy time by device, at any time."""
    return {device: layers[-1] for device, layers in busy_layers(report).items()}


def busy_within(report: Report, spans: pl.DataFrame) -> pl.Series:
    """How long its device ran anything in each of `spans` (device, start, end); null without a device."""
    busy, none = busy_spans(report), pl.DataFrame(schema=intervals.SPANS)
    told = spans.select("device", "start", "end")
    found = of_parts(
        told,
        ["device"],
        pl.Int64,
        lambda key, own: intervals.overlap(own.get_column("start"), own.get_column("end"), busy.get(key[0], none)),
    )
    return found.set(told.get_column("device").is_null(), None).alias("busy_ns")


@once_per_report
def idle_spans(report: Report) -> dict[int, pl.DataFrame]:
    """Span set of idle time inside its window, by device in scope."""
    busy = busy_spans(report)
    return {device: intervals.gaps(busy[device], low, high) for device, low, high in windows(report).iter_rows()}


@once_per_report
def all_idle_spans(report: Report) -> pl.DataFrame:
    """Span set in which all devices in scope were idle, from the first start to the last end of their windows."""
    known, work = windows(report), operations(report).select("device", "start", "end")
    if known.is_empty():
        return pl.DataFrame(schema=intervals.SPANS)
    if known.height == 1:
        return idle_spans(report)[known.item(0, "device")]
    used = work.filter(pl.col("device").is_in(known.get_column("device").implode()))
    low, high = known.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return intervals.gaps(intervals.union(used), low, high)
