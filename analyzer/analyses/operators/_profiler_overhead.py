"""Attribution of CUDA profiler overhead to host events, as torch's own profiler does it.

An overhead has no number of its own, and takes that of its parent in another tree of torch, built for memory and
modules (torch/csrc/profiler/collection.cpp, build_tree and kinetoEventCorrelationID). In that tree, an event's parent
is the latest started event that has not ended, whether or not it ends after the child; a call made inside an operator
is a parent of nothing; and an annotation on a device is an event like any other, on the thread that ended the
profiling: it encloses what begins after it in the same operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.analyses.operators._device_annotations import device_annotations
from kanalyze.analyses.operators._event_tree import in_order, tree_of
from kanalyze.analyses.operators._events import framework_events, home_calls
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from kanalyze.report import Report


@once_per_process
def overhead_makers(report: Report) -> pl.DataFrame:
    """For each overhead, the innermost enclosing event, if any: columns event_id, maker_id."""
    calls = home_calls(report)
    overhead = calls.filter(pl.col("kind") == "overhead").sort("start", "event_id")
    points = overhead.select(*THREAD, at="start")
    spans = device_annotations(report)
    begun, ended = (pl.Series([None], dtype=pl.Int64).new_from_index(0, points.height) for _ in "ab")
    if spans.height:
        last = spans.get_column("start").search_sorted(points.get_column("at"), side="right").cast(pl.Int64) - 1
        last = last.set(last < 0, None)
        begun, ended = (gathered(spans.get_column(name), last) for name in ("start", "end"))
    there = points.with_columns(begun.alias("at"))
    everything = pl.concat([framework_events(report), calls.filter(pl.col("kind") == "api")])
    around, at_begin = _innermost(everything, points, there)
    hidden = ((around == at_begin) & (ended >= points.get_column("at"))).fill_null(value=False)
    found = overhead.select("event_id", maker_id=around.set(hidden, None))
    return found.drop_nulls()


def _innermost(events: pl.DataFrame, *asked: pl.DataFrame) -> list[pl.Series]:
    """The event_id of the innermost event around each of some points (process_id, thread_id, at), ends included."""
    at = pl.concat([points.get_column("at") for points in asked]).drop_nulls().unique().sort()
    first = at.search_sorted(events.get_column("start"), side="left")
    last = at.search_sorted(events.get_column("end"), side="right")
    near = events.filter(last > first).with_columns(pl.col("end") + 1)
    tree = tree_of(in_order(near))
    ids, whatever = tree.rows.get_column("last_id"), tree.of_kinds(*tree.rows.get_column("kind").unique())
    return [gathered(ids, tree.innermost(points, whatever)) for points in asked]
