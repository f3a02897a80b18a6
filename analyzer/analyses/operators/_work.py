"""The host events and device operations in scope, with the time and memory of each event."""

from typing import Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device import _operations
from kanalyze.analyses.host._captures import capture_rows, capture_source, captures
from kanalyze.analyses.operators import _host_tree
from kanalyze.analyses.shared import analysis, threads
from kanalyze.columns import beside, gathered, nearest_place, of_parts
from kanalyze.decoder.decode import decode
from kanalyze.decoder.fields import OTHER
from kanalyze.report import Report

# Memory allocated minus freed during each host event, as torch's own profiler counts it.
#
# torch attributes an allocation to every host event running at that time, on any thread, both ends included
# (torch/autograd/profiler.py, _parse_kineto_results).

#: By side, with and without children; torch calls these columns CPU Mem and CUDA Mem.
MEMORY: Final = ("self_cpu_bytes", "cpu_bytes", "self_device_bytes", "device_bytes")


@analysis.once_per_process
def allocations(report: Report) -> pl.DataFrame:
    """All allocations (bytes above 0) and deallocations (below 0), by time.

    Columns: at, device (whether on a device), bytes, failed (whether memory ran out; bytes is then 0).
    """
    events = report.kind("memory").select("event_id", "name", at="start_ns")
    detailed = beside(events, report.table("memory_detail"), "memory", "size_bytes")
    sign = pl.when(pl.col("name") == "Allocation").then(1).when(pl.col("name") == "Deallocation").then(-1).otherwise(0)
    device = (pl.col("memory") == "Device").fill_null(value=False)
    return detailed.select("at", device=device, bytes=pl.col("size_bytes") * sign, failed=sign == 0).sort("at")


def with_memory_taken(report: Report, rows: pl.DataFrame, parents: pl.Series | None) -> pl.DataFrame:
    """Adds :data:`MEMORY` to `rows` (start, end); 0 if no memory was recorded.

    `parents` are the enclosing rows; None if no children are to be subtracted, as for asynchronous events.
    """
    all_allocations, zero = allocations(report), pl.lit(0, dtype=pl.Int64)
    if all_allocations.is_empty():
        return rows.with_columns(zero.alias(name) for name in MEMORY)  # literals take no memory
    for side, on_device in (("cpu", False), ("device", True)):
        part = all_allocations.filter(pl.col("device") == on_device)
        before = pl.concat([pl.Series([0], dtype=pl.Int64), part.get_column("bytes").cum_sum()])
        first = part.get_column("at").search_sorted(rows.get_column("start"), side="left")
        last = part.get_column("at").search_sorted(rows.get_column("end"), side="right")
        taken_bytes = before.gather(last) - before.gather(first)
        self_bytes = zero if parents is None else taken_bytes - _host_tree.sums_by(parents, taken_bytes, rows.height)
        rows = rows.with_columns(self_bytes.alias(f"self_{side}_bytes"), taken_bytes.alias(f"{side}_bytes"))
    return rows


# Annotations on the devices, as torch's traces have them (gpu_user_annotation).


@analysis.once_per_process
def device_annotations(report: Report) -> pl.DataFrame:
    """Interval from first to last operation of each annotation, by stream: columns name, start, end, device.

    An operation belongs to the annotation on top of the stack of the launching thread at the time of the call.
    """
    ranges = _host_tree.annotation_events(report)
    lasting = ranges.filter(pl.col("end") > pl.col("start")).partition_by(threads.THREAD, as_dict=True)
    work = _operations.operations(report, "thread_id", "call_start", "stream").rename({"call_start": "at"})

    def tops(thread: tuple[Any, ...], part: pl.DataFrame) -> pl.Series:
        if thread in lasting:
            return _top_of_stack(lasting[thread], part.get_column("at"))
        return pl.Series([None], dtype=pl.Int64).new_from_index(0, part.height)

    top = of_parts(work.select(*threads.THREAD, "at"), threads.THREAD, pl.Int64, tops).alias("event_id")
    annotated = work.select("device", "start", "end", "stream", top).drop_nulls("event_id")
    spans = annotated.group_by("event_id", "device", "stream").agg(pl.col("start").min(), pl.col("end").max())
    named = spans.join(ranges.select("event_id", "name"), on="event_id").select("name", "start", "end", "device")
    return named.sort("start", "end", "device")


def _top_of_stack(ranges: pl.DataFrame, at: pl.Series) -> pl.Series:
    """The event_id of the annotation on top of a thread's stack at each point, or null.

    The end of an annotation pops the top, even if that is another one (Kineto, popUserCorrelationId).
    """
    begins = ranges.select("event_id", time="start", step=pl.lit(1, dtype=pl.Int64))
    stops = ranges.select(event_id=pl.lit(None, dtype=pl.Int64), time="end", step=pl.lit(-1, dtype=pl.Int64))
    edges = pl.concat([begins, stops]).sort("time", "step").with_row_index("place")
    count = edges.height + 1
    edges = edges.with_columns(depth=pl.col("step").cum_sum(), place=pl.col("place").cast(pl.Int64))
    pushed = edges.filter(pl.col("step") == 1).with_columns(key=pl.col("depth") * count + pl.col("place")).sort("key")
    passed = edges.get_column("time").search_sorted(at, side="right").cast(pl.Int64)
    depth = gathered(edges.get_column("depth"), (passed - 1).set(passed == 0, None)).fill_null(0)
    last = pushed.get_column("key").search_sorted(depth * count + passed, side="left").cast(pl.Int64) - 1
    return gathered(pushed.get_column("event_id"), last.set((last < 0) | (depth <= 0), None))


# Attribution of CUDA profiler overhead to host events, as torch's own profiler does it.
#
# An overhead has no number of its own, and takes that of its parent in another tree of torch, built for memory and
# modules (torch/csrc/profiler/collection.cpp, build_tree and kinetoEventCorrelationID). In that tree, an event's parent
# is the latest started event that has not ended, whether or not it ends after the child; a call made inside an operator
# is a parent of nothing; and an annotation on a device is an event like any other, on the thread that ended the
# profiling: it encloses what begins after it in the same operator.


@analysis.once_per_process
def overhead_makers(report: Report) -> pl.DataFrame:
    """Innermost event around each overhead, if any: columns event_id, maker_id."""
    calls = _host_tree.home_calls(report)
    overhead = calls.filter(pl.col("kind") == "overhead").sort("start", "event_id")
    points = overhead.select(*threads.THREAD, at="start")
    spans = device_annotations(report)
    last = nearest_place(spans.get_column("start"), points.get_column("at"))
    begun, ended = (gathered(spans.get_column(name), last) for name in ("start", "end"))
    # of all events only those around any of the points, ends included
    at = pl.concat([points.get_column("at"), begun]).drop_nulls().unique().sort()
    everything = pl.concat([_host_tree.framework_events(report), calls.filter(pl.col("kind") == "api")])
    first = at.search_sorted(everything.get_column("start"), side="left")
    stop = at.search_sorted(everything.get_column("end"), side="right")
    tree = _host_tree.tree_of(everything.filter(stop > first).with_columns(pl.col("end") + 1))
    every = tree.of_kinds(*tree.rows.get_column("kind").unique())
    around, at_begin = (
        gathered(tree.rows.get_column("last_id"), tree.innermost(asked, every))
        for asked in (points, points.with_columns(begun.alias("at")))
    )
    hidden = ((around == at_begin) & (ended >= points.get_column("at"))).fill_null(value=False)
    return overhead.select("event_id", maker_id=around.set(hidden, None)).drop_nulls()


# Device time launched by each host event: correctly attributed, and as torch's own profiler counts it.
#
# Correctly, an operation belongs to the operator that the trace names for it (External id); if it names none, as for
# kernels of CUDA graphs and those launched by Triton, to the innermost event around its launching call, on the calling
# thread.
#
# torch's table counts some time twice: it mistakes some calls for an operator (:func:`mistaken`), and overhead for the
# event around it. Both then have the operator's time again, as have all events around them.


@analysis.once_per_process
def makers(report: Report) -> pl.Series:
    """Row of the host tree that launched each row of `operations`; null if unknown.

    The launching event is an operator, an annotation or a Python function.
    """
    tree = _host_tree.host_tree(report)
    rows = tree.row_of(_named_makers(report))
    rest = _operations.operations(report).get_column("row").filter(rows.is_null())
    if rest.is_empty() or "api" not in report.kinds:
        return rows
    around = _operations.facts_of(report, rest, *threads.THREAD, "call_start").rename({"call_start": "at"})
    return rows.scatter(rest, tree.innermost(around, tree.of_kinds(*_host_tree.FRAMEWORK_KINDS)))


@analysis.once_per_process
def _named_makers(report: Report) -> pl.Series:
    """Id of the operator that the trace names for each row of `operations`, or for its call; else null."""
    named = _operations.operations(report, "parent_id").get_column("parent_id")
    if not named.has_nulls() or "api" not in report.kinds:
        return named
    calls = _operations.operations(report, "call_id").select(event_id="call_id")
    makers = beside(calls, _host_tree.call_makers(report), "maker_id").get_column("maker_id")
    return named.zip_with(named.is_not_null(), makers)


def torch_device_times(report: Report) -> pl.DataFrame:
    """The columns self_device_ns and device_ns for the operator tree, as torch counts them, on the device in scope."""
    work = _operations.operations(report).select("device", ns="dur_ns", event_id=_named_makers(report))
    parts, keys = [_operations.in_device_scope(report, work).select("event_id", "ns")], ["process_id", "correlation_id"]
    waits = _operations.in_device_scope(report, report.kind("sync")).select(*keys, ns="dur_ns")
    if waits.height:  # torch takes these waits for device operations of the operator
        calls = report.kind("api").join(_host_tree.call_makers(report), on="event_id").unique(keys)
        parts.append(waits.join(calls, on=keys).select(event_id="maker_id", ns="ns"))
    sums = pl.concat(parts).drop_nulls("event_id").group_by("event_id").agg(pl.col("ns").sum())
    again = _host_tree.mistaken(report).join(sums.rename({"event_id": "op_id"}), on="op_id")
    sums = pl.concat([sums, again.group_by("event_id").agg(pl.col("ns").sum())])
    overhead = overhead_makers(report).join(sums.rename({"event_id": "maker_id"}), on="maker_id")
    rows, sums = _host_tree.operator_tree(report).rows, pl.concat([sums, overhead.select("event_id", "ns")])
    own = rows.select(event_id="last_id").join(sums, on="event_id", how="left", maintain_order="left")
    times = own.get_column("ns").fill_null(0)
    return pl.DataFrame({"self_device_ns": times, "device_ns": _host_tree.in_subtrees(rows, times)})


#: The kinds of events by which a framework names its work.
OPERATOR_KINDS: Final = ("op", "range")

_DURATION: Final = pl.col("end") - pl.col("start")


@analysis.once_per_report
def operator_work(report: Report) -> pl.DataFrame:
    """The rows of the operator tree that overlap the window, unclipped, and asynchronous annotations.

    Columns: event_id, kind, name, start, end, self_ns, dur_ns, self_device_ns, device_ns, and those of memory.
    """
    rows, later = _host_tree.operator_tree(report).rows, _host_tree.annotation_events(report).filter("asynchronous")
    columns = ["event_id", "kind", "name", "start", "end"]
    own = rows.select(*columns, "self_ns").hstack(torch_device_times(report).get_columns())
    own = with_memory_taken(report, own, rows.get_column("parent")).with_columns(_DURATION.alias("dur_ns"))
    nothing = [pl.lit(0, dtype=pl.Int64).alias(name) for name in ("self_ns", "self_device_ns", "device_ns")]
    free = with_memory_taken(report, later.select(*columns, *nothing), None).with_columns(_DURATION.alias("dur_ns"))
    return intervals.overlapping(pl.concat([own, free]), report.scope.sides)


@analysis.once_per_report
def launched_work(report: Report) -> pl.DataFrame:
    """The device operations in scope, with their launching events.

    Columns: those of `exclusive_operations`; maker, the row of the host tree that launched it (an operator, annotation
    or Python function), and operator, the innermost operator or annotation around maker. Null for none.
    """
    tree, work = _host_tree.host_tree(report), _operations.exclusive_operations(report)
    maker = gathered(makers(report), work.get_column("row")).alias("maker")
    return work.with_columns(maker, tree.nearest(maker, tree.of_kinds(*OPERATOR_KINDS)).alias("operator"))


@analysis.once_per_report
def captured_work(report: Report) -> pl.DataFrame:
    """The operations of CUDA graphs in scope, with the events of :func:`capture_source` that captured them.

    Columns: those of `exclusive_operations`; maker and operator as in :func:`launched_work`, of the capture.
    """
    tree, work = _host_tree.host_tree(capture_source(report)), _operations.exclusive_operations(report)
    row = gathered(capture_rows(report), work.get_column("row"))
    work, row = work.filter(row.is_not_null()), row.drop_nulls()
    points = captures(report).select(*threads.THREAD, at="since")
    makers = tree.innermost(points, tree.of_kinds(*_host_tree.FRAMEWORK_KINDS))
    maker = gathered(makers, row).alias("maker")
    return work.with_columns(maker, tree.nearest(maker, tree.of_kinds(*OPERATOR_KINDS)).alias("operator"))


#: Operators and ranges of compilers and XLA, which say nothing of what they run.
SHELL: Final = r"^:?(?:CompiledFunction|## Call CompiledFxGraph|Torch-Compiled Region|XlaModule|.*: CompiledFunction)"


def said_by_kernels(report: Report, names: pl.Series) -> pl.Series:
    """The operators that kernels were compiled from, else that their names say; null where those say none.

    A name says what Triton fused, or the kind of work.
    """
    kernels = {name: decode(name) for name in names.unique().cast(pl.String).drop_nulls()}
    fused = {name: kernel.fused if kernel.library == "inductor" else () for name, kernel in kernels.items()}
    texts = {
        name: ", ".join(fused[name]) or (None if kernel.family == OTHER else kernel.family)
        for name, kernel in kernels.items()
    }
    texts |= dict(_operations.compiled_from(report).drop_nulls("made_of").select("kernel", "made_of").iter_rows())
    return names.cast(pl.String).replace_strict(texts, default=None, return_dtype=pl.String)
