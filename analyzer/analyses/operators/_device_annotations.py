"""Annotations on the devices, as torch's traces have them (gpu_user_annotation)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.analyses.device._operations import operations, recorded
from kanalyze.analyses.host._launching_call import calls_of
from kanalyze.analyses.operators._events import annotation_events
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from kanalyze.report import Report


@once_per_process
def device_annotations(report: Report) -> pl.DataFrame:
    """Per stream, the interval from first to last operation of each annotation: columns name, start, end, device.

    An operation belongs to the annotation on top of the stack of the launching thread at the time of the call.
    """
    work = operations(report)
    streams = recorded(report, "stream")
    calls = calls_of(report, work.get_column("row"), "thread_id", "call_start").rename({"call_start": "at"})
    made = _top_annotation(annotation_events(report), calls.with_columns(work.get_column("process_id")))
    known = (
        work.select("device", "start", "end").with_columns(made, streams.get_column("stream")).drop_nulls("event_id")
    )
    spans = known.group_by("event_id", "device", "stream").agg(pl.col("start").min(), pl.col("end").max())
    names = annotation_events(report).select("event_id", "name")
    found = spans.join(names, on="event_id").select("name", "start", "end", "device")
    return found.sort("start", "end", "device")


def _top_annotation(ranges: pl.DataFrame, points: pl.DataFrame) -> pl.Series:
    """The event_id of the annotation on top of the stack at each of `points` (process_id, thread_id, at), or null.

    The end of an annotation pops the top, even if that is another one (Kineto, popUserCorrelationId).
    """
    found = pl.Series("event_id", [None], dtype=pl.Int64).new_from_index(0, points.height)
    lasting = ranges.filter(pl.col("end") > pl.col("start")).partition_by(THREAD, as_dict=True)
    for key, part in points.with_row_index("point").partition_by(THREAD, as_dict=True).items():
        if key in lasting:
            top = _top_of_one(lasting[key], part.get_column("at"))
            found = found.scatter(part.get_column("point"), top)
    return found


def _top_of_one(ranges: pl.DataFrame, at: pl.Series) -> pl.Series:
    """:func:`_top_annotation` for the annotations of one thread."""
    begins = ranges.select("event_id", "start").rename({"start": "time"}).with_columns(step=pl.lit(1, dtype=pl.Int64))
    stops = ranges.select(event_id=pl.lit(None, dtype=pl.Int64), time="end", step=pl.lit(-1, dtype=pl.Int64))
    edges = pl.concat([begins, stops]).sort("time", "step").with_row_index("place")
    count = edges.height + 1
    edges = edges.with_columns(depth=pl.col("step").cum_sum(), place=pl.col("place").cast(pl.Int64))
    pushed = edges.filter(pl.col("step") == 1).with_columns(key=pl.col("depth") * count + pl.col("place")).sort("key")
    passed = edges.get_column("time").search_sorted(at, side="right").cast(pl.Int64)
    depth = gathered(edges.get_column("depth"), (passed - 1).set(passed == 0, None)).fill_null(0)
    last = pushed.get_column("key").search_sorted(depth * count + passed, side="left").cast(pl.Int64) - 1
    last = last.set((last < 0) | (depth <= 0), None)
    return gathered(pushed.get_column("event_id"), last)
