"""The host events and device operations in scope, with the time and memory of each event."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations, facts_of, operations
from kanalyze.analyses.operators._events import (
    FRAMEWORK_KINDS,
    annotation_events,
    asynchronous,
    call_makers,
    framework_events,
    home_calls,
    host_tree,
    in_order,
    in_subtrees,
    mistaken,
    operator_tree,
    sums_by,
    tree_of,
)
from kanalyze.analyses.shared.analysis import once_per_process, once_per_report
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import gathered
from kanalyze.report import Report

# Memory allocated minus freed during each host event, as torch's own profiler counts it.
#
# torch attributes an allocation to every host event running at that time, on any thread, both ends included
# (torch/autograd/profiler.py, _parse_kineto_results).

#: By side, with and without children; torch calls these columns CPU Mem and CUDA Mem.
MEMORY: Final = ("self_cpu_bytes", "cpu_bytes", "self_device_bytes", "device_bytes")


@once_per_process
def allocations(report: Report) -> pl.DataFrame:
    """All allocations (bytes above 0) and deallocations (below 0), by time.

    Columns: at, device (whether on a device), bytes, failed (whether memory ran out; bytes is then 0).
    """
    events = report.kind("memory").select("event_id", "name", at="start_ns")
    detail = report.table("memory_detail").select("event_id", "memory", "size_bytes")
    known = events.join(detail, on="event_id", how="left", maintain_order="left")
    sign = pl.when(pl.col("name") == "Allocation").then(1).when(pl.col("name") == "Deallocation").then(-1).otherwise(0)
    device = (pl.col("memory") == "Device").fill_null(value=False)
    failed = (sign == 0).alias("failed")
    return known.select("at", device.alias("device"), (pl.col("size_bytes") * sign).alias("bytes"), failed).sort("at")


def with_memory_taken(report: Report, rows: pl.DataFrame, parents: pl.Series | None) -> pl.DataFrame:
    """Adds :data:`MEMORY` to `rows` (start, end); 0 if no memory was recorded.

    `parents` are the enclosing rows; None if no children are to be subtracted, as for asynchronous events.
    """
    every = allocations(report)
    if every.is_empty():
        return rows.with_columns(pl.lit(0, dtype=pl.Int64).alias(name) for name in MEMORY)  # literals take no memory
    found: dict[str, pl.Series | pl.Expr] = {}
    for side, on_device in (("cpu", False), ("device", True)):
        part = every.filter(pl.col("device") == on_device)
        before = pl.concat([pl.Series([0], dtype=pl.Int64), part.get_column("bytes").cum_sum()])
        at = part.get_column("at")
        first = at.search_sorted(rows.get_column("start"), side="left")
        last = at.search_sorted(rows.get_column("end"), side="right")
        taken = before.gather(last) - before.gather(first)
        own = pl.lit(0, dtype=pl.Int64) if parents is None else taken - sums_by(parents, taken, rows.height)
        found |= {f"self_{side}_bytes": own, f"{side}_bytes": taken}
    return rows.with_columns(**{name: found[name] for name in MEMORY})


# Annotations on the devices, as torch's traces have them (gpu_user_annotation).


@once_per_process
def device_annotations(report: Report) -> pl.DataFrame:
    """Interval from first to last operation of each annotation, by stream: columns name, start, end, device.

    An operation belongs to the annotation on top of the stack of the launching thread at the time of the call.
    """
    work = operations(report, "thread_id", "call_start", "stream").rename({"call_start": "at"})
    made = _top_annotation(annotation_events(report), work)
    known = work.select("device", "start", "end", "stream", made).drop_nulls("event_id")
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


# Attribution of CUDA profiler overhead to host events, as torch's own profiler does it.
#
# An overhead has no number of its own, and takes that of its parent in another tree of torch, built for memory and
# modules (torch/csrc/profiler/collection.cpp, build_tree and kinetoEventCorrelationID). In that tree, an event's parent
# is the latest started event that has not ended, whether or not it ends after the child; a call made inside an operator
# is a parent of nothing; and an annotation on a device is an event like any other, on the thread that ended the
# profiling: it encloses what begins after it in the same operator.


@once_per_process
def overhead_makers(report: Report) -> pl.DataFrame:
    """Innermost event around each overhead, if any: columns event_id, maker_id."""
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


# Device time launched by each host event: correctly attributed, and as torch's own profiler counts it.
#
# Correctly, an operation belongs to the operator that the trace names for it (External id); if it names none, as for
# kernels of CUDA graphs and those launched by Triton, to the innermost event around its launching call, on the calling
# thread.
#
# torch's table counts some time twice: it mistakes some calls for an operator (:func:`mistaken`), and overhead for the
# event around it. Both then have the operator's time again, as have all events around them.


@once_per_process
def makers(report: Report) -> pl.Series:
    """Row of the host tree that launched each row of `operations`; null if unknown.

    The launching event is an operator, an annotation or a Python function.
    """
    tree, work = host_tree(report), operations(report)
    found = tree.row_of(_named_makers(report))
    rest = work.filter(found.is_null()).get_column("row")
    if rest.is_empty() or "api" not in report.kinds:
        return found
    around = facts_of(report, rest, *THREAD, "call_start").rename({"call_start": "at"})
    return found.scatter(rest, tree.innermost(around, tree.of_kinds(*FRAMEWORK_KINDS)))


@once_per_process
def _named_makers(report: Report) -> pl.Series:
    """Id of the operator that the trace names for each row of `operations`, or for its call; else null."""
    named = operations(report, "parent_id").get_column("parent_id")
    if not named.has_nulls() or "api" not in report.kinds:
        return named
    calls = operations(report, "call_id").select("call_id")
    made_by = calls.join(call_makers(report), left_on="call_id", right_on="event_id", how="left", maintain_order="left")
    return named.zip_with(named.is_not_null(), made_by.get_column("maker_id"))


def torch_device_times(report: Report) -> pl.DataFrame:
    """The columns self_device_ns and device_ns for the operator tree, as torch counts them, on the device in scope."""
    rows, sums = operator_tree(report).rows, _by_event(report)
    own = rows.select(event_id="last_id").join(sums, on="event_id", how="left", maintain_order="left")
    found = own.get_column("ns").fill_null(0)
    return pl.DataFrame({"self_device_ns": found, "device_ns": in_subtrees(rows, found)})


def _by_event(report: Report) -> pl.DataFrame:
    """Total time of the operations that torch attributes to each host event: columns event_id, ns."""
    sums = _by_operator(report, report.scope.device)
    known = sums.rename({"event_id": "op_id"})
    again = mistaken(report).join(known, on="op_id").group_by("event_id").agg(pl.col("ns").sum())
    sums = pl.concat([sums, again])
    overhead = overhead_makers(report).join(sums.rename({"event_id": "maker_id"}), on="maker_id")
    return pl.concat([sums, overhead.select("event_id", "ns")])


def _by_operator(report: Report, device: int | None) -> pl.DataFrame:
    """Total time of the operations that each operator launched, by External id: columns event_id, ns."""
    here = pl.lit(value=True) if device is None else pl.col("device") == device
    work = operations(report).select("device", ns="dur_ns", event_id=_named_makers(report))
    parts = [work.filter(here).select("event_id", "ns")]
    waits = report.kind("sync").filter(here).select("process_id", "correlation_id", ns="dur_ns")
    if waits.height:  # torch takes these waits for device operations of the operator
        keys = ["process_id", "correlation_id"]
        calls = report.kind("api").join(call_makers(report), on="event_id").unique(keys)
        parts.append(waits.join(calls, on=keys).select(event_id="maker_id", ns="ns"))
    return pl.concat(parts).drop_nulls("event_id").group_by("event_id").agg(pl.col("ns").sum())


#: The kinds of events by which a framework names its work.
OPERATOR_KINDS: Final = ("op", "range")

_DURATION: Final = pl.col("end") - pl.col("start")


@once_per_report
def host_work(report: Report) -> pl.DataFrame:
    """The rows of the host tree that overlap the window, unclipped, with row and dur_ns."""
    rows = host_tree(report).rows.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64), dur_ns=_DURATION)
    return intervals.overlapping(rows, report.scope.sides)


@once_per_report
def operator_work(report: Report) -> pl.DataFrame:
    """The rows of the operator tree that overlap the window, unclipped, and asynchronous annotations.

    Columns: event_id, kind, name, start, end, self_ns, dur_ns, self_device_ns, device_ns, and those of memory.
    """
    rows, later = operator_tree(report).rows, asynchronous(report)
    columns = ["event_id", "kind", "name", "start", "end"]
    own = rows.select(*columns, "self_ns").hstack(torch_device_times(report).get_columns())
    own = with_memory_taken(report, own, rows.get_column("parent")).with_columns(_DURATION.alias("dur_ns"))
    if later.height:
        nothing = [pl.lit(0, dtype=pl.Int64).alias(name) for name in ("self_ns", "self_device_ns", "device_ns")]
        free = with_memory_taken(report, later.select(*columns, *nothing), None)
        own = pl.concat([own, free.with_columns(_DURATION.alias("dur_ns"))])
    return intervals.overlapping(own, report.scope.sides)


@once_per_report
def launched_work(report: Report) -> pl.DataFrame:
    """The device operations in scope, with their launching events.

    Columns: those of `exclusive_operations`; maker, the row of the host tree that launched it (an operator, annotation
    or Python function), and operator, the innermost operator or annotation around maker. Null for none.
    """
    tree, work = host_tree(report), exclusive_operations(report)
    maker = gathered(makers(report), work.get_column("row")).alias("maker")
    return work.with_columns(maker, tree.nearest(maker, tree.of_kinds(*OPERATOR_KINDS)).alias("operator"))
