"""When each device was busy, and when idle: what runs on the host meanwhile is exposed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze import intervals
from kanalyze.analyses._common import once_per_process, once_per_report
from kanalyze.analyses._operations import of_device, operations
from kanalyze.analyses._windows import windows
from kanalyze.frames import distinct_values

if TYPE_CHECKING:
    from kanalyze.report import Report


@once_per_process
def busy_spans(report: Report) -> dict[int, pl.DataFrame]:
    """The span set in which anything ran on each device, at any time."""
    work = operations(report).select("device", "start", "end")
    return {device: intervals.union(of_device(work, device)) for device in distinct_values(work, "device")}


@once_per_report
def idle_spans(report: Report) -> dict[int, pl.DataFrame]:
    """The span set of each device in scope, by its number, in which nothing ran on it inside its window."""
    busy = busy_spans(report)
    return {device: intervals.gaps(busy[device], low, high) for device, low, high in windows(report).iter_rows()}


@once_per_report
def all_idle_spans(report: Report) -> pl.DataFrame:
    """The span set in which all devices in scope were idle, between the first start and last end of their windows."""
    known, work = windows(report), operations(report).select("device", "start", "end")
    if known.is_empty():
        return pl.DataFrame(schema=intervals.SPANS)
    if known.height == 1:
        return idle_spans(report)[known.item(0, "device")]
    used = work.filter(pl.col("device").is_in(known.get_column("device").implode()))
    low, high = known.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return intervals.gaps(intervals.union(used), low, high)
