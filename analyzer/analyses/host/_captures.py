"""Where the operations of CUDA graphs come from: the call that captured each, or added its node, before any launch.

An operation of a graph runs when the graph is launched, and its time belongs to that launch. What it is was said once,
when the graph was captured: the ranges, operators and lines of the program around the capturing call are its names.
Both are facts of the operation; neither takes the other's place. :func:`captures` has a row for each node whose making
the report records, with the call and its thread; :func:`capture_rows` says which of them each operation goes back to.
Rooms above add their own names to these rows, once a node instead of once a kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, launching_rows, operations
from kanalyze.analyses.host._call_kinds import captures as capture_spans
from kanalyze.analyses.host._call_kinds import cuda_name
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import as_of, gathered, last_of, mixed, rows_at
from kanalyze.errors import OtherCaptureError
from kanalyze.model import GRAPH_NODES
from kanalyze.report import Report

#: How a node came to be: a launch in a stream's capture, a call that adds nodes, or before the recording began.
CAPTURED, ADDED, OLDER = "captured", "added by a call", "not recorded"
HOW: Final = pl.Enum([CAPTURED, ADDED, OLDER])

#: Calls that add a node, such as cudaGraphAddKernelNode and hipGraphAddNode.
_ADDS: Final = "GraphAdd"

#: Calls that give an executable graph the nodes of another one, as cudaGraphExecUpdate; no graph has the number 0.
_UPDATES: Final = r"GraphExecUpdate"
_NOTHING: Final = 0

_NODE: Final = ["process_id", "graph_node_id"]


def with_captures(report: Report, other: Report) -> Report:
    """The report with the captures of its CUDA graphs in another one, of the same program.

    Raises:
        OtherCaptureError: None of its graphs is in that.
    """
    found = replace(report, captured_in=lambda: other.whole)
    if _other(found) is None:
        raise OtherCaptureError.of(report.meta.path, other.meta.path)
    return found


def lacks_captures(report: Report) -> bool:
    """Whether the report runs CUDA graphs, and records the capture of none."""
    return has_captures(report) and _named(report).is_null().all()


def capture_source(report: Report) -> Report:
    """The report that recorded the captures: another one of the same program where that was given, else itself."""
    return _other(report) or report


@once_per_process
def _other(report: Report) -> Report | None:
    """Another report in which the graphs were captured; None without one, or if it names fewer operations."""
    other = report.captured_in()
    if other is None:
        return None
    alone, by_order = replace(report, captured_in=lambda: None), _nodes(other).is_empty()
    names = (_calls_of_other(report) if by_order else _replayed(report)).height
    if names and (by_order or names >= _named(alone).is_not_null().sum()):
        return other
    of_one_collection = report.meta.capture is not None and report.meta.capture == other.meta.capture
    if of_one_collection and has_captures(alone) and not names:
        report.go_without(other.meta.path.name, OtherCaptureError.of(report.meta.path, other.meta.path))
    return None


def _named(report: Report) -> pl.Series:
    """:func:`capture_rows` without those of which no call is recorded."""
    rows, how = capture_rows(report), captures(report).get_column("how")
    return rows.to_frame().select(pl.when(gathered(how, rows) != OLDER).then(rows)).to_series()


@once_per_process
def _replayed(report: Report) -> pl.DataFrame:
    """The operations that another report of nsys ran, too, with the capture there: row and capture."""
    other = report.captured_in() or report
    found = replayed_alike(report, other)
    rows = found.select("row", gathered(_named(other), found.get_column("other")).alias("capture"))
    return rows.drop_nulls().sort("row")


@once_per_process
def captures(report: Report) -> pl.DataFrame:
    """The calls that made nodes of graphs: process_id, thread_id, since and until, call_row (of the api events), how.

    All of them are of :func:`capture_source`. All but how are null where no call is recorded: nsys lists nodes that are
    older than its recording. The last row is that of all nodes which are not listed.
    """
    other = _other(report)
    if other is not None and len(_nodes(other)):
        return captures(other)
    calls = capture_source(report).kind("api")
    spans = calls.select(*THREAD, since="start_ns", until=pl.col("start_ns") + pl.col("dur_ns"))
    numbered = _numbered_calls(report, spans)
    around = numbered if other is None and len(numbered) else _by_order(report).get_column("call_row")
    adds = gathered(calls.get_column("name"), around).cast(pl.String).str.contains(_ADDS)
    how = pl.when(adds.is_null()).then(pl.lit(OLDER)).when(adds).then(pl.lit(ADDED)).otherwise(pl.lit(CAPTURED))
    known = rows_at(spans, around).with_columns(around.alias("call_row"), how=how.cast(HOW))
    unknown = known.clear(1).with_columns(how=pl.lit(OLDER, dtype=HOW))
    return pl.concat([known, unknown])


@once_per_process
def _by_order(report: Report) -> pl.DataFrame:
    """The operations of a trace's graphs with the call that captured each: row and call_row."""
    return _calls_of_other(report) if _other(report) else captured_by_order(report, report).sort("row")


@once_per_process
def _calls_of_other(report: Report) -> pl.DataFrame:
    """The same by the calls of another report, which is given."""
    return captured_by_order(report, report.captured_in() or report).sort("row")


def _numbered_calls(report: Report, spans: pl.DataFrame) -> pl.Series:
    """Row of the call that made each of the nodes whose making is recorded."""
    points = _nodes(report).select("process_id", thread_id="captured_thread_id", at="captured_ns")
    begun = spans.select(*THREAD, at="since", end="until")
    return _containing(points, begun, as_of(points, begun.select(*THREAD, "at")))


def _containing(points: pl.DataFrame, spans: pl.DataFrame, row: pl.Series) -> pl.Series:
    """The outermost call around each point; `row` is the last one that had begun by then."""
    at, found = points.get_column("at"), pl.Series([None], dtype=pl.UInt32).new_from_index(0, points.height)
    for _ in range(_NESTED):
        inside = (gathered(spans.get_column("end"), row) >= at).fill_null(value=False)
        found = row.zip_with(inside, found)
        before = points.select(*THREAD, gathered(spans.get_column("at"), row).alias("at"))
        row = as_of(before, spans.select(*THREAD, "at"), equal=False)
    return found


#: Calls that nest: a driver's call inside a runtime's, inside a library's own.
_NESTED: Final = 3


@once_per_process
def capture_rows(report: Report) -> pl.Series:
    """Row of :func:`captures` that each row of `operations` goes back to; null for those of no graph."""
    work = operations(report, "graph_node_id", "call_start", "call_name", "thread_id").select(
        *_NODE, "thread_id", "call_name", at=pl.coalesce("call_start", "start")
    )
    found = pl.Series("capture", [None], dtype=pl.UInt32).new_from_index(0, work.height)
    inside = work.get_column("graph_node_id").is_not_null()
    if not inside.any() and not report.meta.recorder.ranked:
        return found
    nodes, other = _nodes(report), _other(report)
    known = _replayed(report) if other is not None and len(_nodes(other)) else None
    if known is not None or other is not None or nodes.is_empty():  # of a trace
        launches = work.get_column("call_name").cast(pl.String).str.contains(LAUNCHES).fill_null(value=False)
        found = found.scatter((inside | launches).arg_true(), captures(report).height - 1)
        if known is not None:
            return found.scatter(known.get_column("row"), known.get_column("capture"))
        return found.scatter(_by_order(report).get_column("row"), pl.int_range(captures(report).height - 1, eager=True))
    work = _updated(report, work.filter(inside))
    # of several rows of a node the last one before the launch
    rows = last_of(work.select(*_NODE, "at"), nodes.select(*_NODE, at="made_ns"))
    return found.scatter(inside.arg_true(), rows.fill_null(nodes.height))


def _updated(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """`work` (process_id, graph_node_id, at) of graphs that another one updated, with the nodes of that.

    An update says neither what it updates nor by what. That is the graph which is launched next on its thread, by the
    graph captured last before it: if they have as many nodes; else nothing is known of it any more.
    """
    calls = report.kind("api")
    names = calls.get_column("name").unique().cast(pl.String).drop_nulls()
    updating = pl.col("name").cast(pl.String).is_in(names.filter(names.str.contains(_UPDATES)).implode())
    updates = calls.filter(updating).select(*THREAD, at="start_ns")
    if updates.is_empty():
        return work
    graph = pl.col("graph_node_id") // OF_GRAPH
    by_number = _nodes(report).group_by("process_id", graph="graph_exec_id")
    sizes = by_number.agg(
        pl.col("captured_thread_id").first().alias("thread_id"),
        pl.col("original_node_id").is_null().all().alias("template"),
        nodes=pl.col("graph_node_id").n_unique(),
        at=pl.col("made_ns").max(),
    )
    templates, launched = sizes.filter("template"), work.select("process_id", "thread_id", "at", graph=graph)
    by = rows_at(templates, as_of(updates, templates.select(*THREAD, "at")))
    target = rows_at(launched, as_of(updates, launched.select(*THREAD, "at"), later=True))
    known = updates.with_columns(target.get_column("graph"), by=by.get_column("graph"), size=by.get_column("nodes"))
    known = known.drop_nulls("graph").join(sizes.select("process_id", "graph", "nodes"), on=["process_id", "graph"])
    # a copy that was already updated has the nodes of its own template
    source = known.with_columns(by=pl.when(pl.col("size") == pl.col("nodes")).then("by").otherwise(_NOTHING))
    last = as_of(work.select("process_id", "at", graph=graph), source.select("process_id", "at", "graph"))
    by_graph = gathered(source.get_column("by"), last).alias("by")
    node = pl.col("by") * OF_GRAPH + pl.col("graph_node_id") % OF_GRAPH
    return work.with_columns(by_graph).with_columns(graph_node_id=pl.coalesce(node, "graph_node_id"))


@once_per_process
def _nodes(report: Report) -> pl.DataFrame:
    return report.table(GRAPH_NODES.name)


def has_captures(report: Report) -> bool:
    """Whether any operation is one of a graph whose nodes were traced."""
    return not capture_rows(report).is_null().all()


# Which capture a replayed graph comes from, where no node has a number: by order and identity.
#
# Kineto records the calls in a stream's capture, and the operations of a launched graph, but nothing that joins the
# two. A launch ran what a capture recorded if it is as long and of the same kinds in the same order, and if no
# operation is another than what the same call of the same operator, with inputs of the same shapes, launched outside of
# captures, as in the passes that warm up: by name and launch shape. Of several captures the one with most operations so
# confirmed is taken, then the last; of several without any, none. What differs has no names.
#
# Where another report saw the program's graphs run, too, a graph is the one of the same operations in the same order.

#: Calls that make a node in a capture, by the kind of operation that it becomes; calls that launch a graph.
_MAKES: Final = {
    "kernel": r"^cu(?:da)?Launch(?:Kernel|Cooperative)",
    "memcpy": r"Memcpy.*Async",
    "memset": r"Memset.*Async",
}
LAUNCHES: Final = "GraphLaunch"

#: A node's number is that of its graph times so many, and its own.
OF_GRAPH: Final = 1 << 32

_FOUND: Final = {"row": pl.UInt32, "call_row": pl.UInt32}


def captured_by_order(report: Report, source: Report) -> pl.DataFrame:
    """The captured call of each operation of a graph that a capture in `source` fits: row, call_row (of `source`)."""
    calls, ran = _captured_calls(source), _operations(report).filter("graph")
    if calls.is_empty() or ran.is_empty():
        return pl.DataFrame(schema=_FOUND)
    calls = calls.join(_seen(source).group_by("by").agg("what"), on="by", how="left")
    kinds = calls.group_by("capture", "end").agg(pl.col("kind").sort_by("place").str.join(","))
    # launches of the same operations in the same order are of one graph
    one = [pl.col("kind").str.join(","), pl.col("what").cast(pl.String).str.join(",").alias("operations")]
    launches = ran.group_by("call_row", "at", maintain_order=True).agg(one)
    fits, made = list[pl.DataFrame](), list[pl.DataFrame]()
    for (kind, _), same in launches.group_by("kind", "operations", maintain_order=True):
        fitting = kinds.filter(pl.col("kind") == kind)
        if report is source:
            fitting = fitting.filter(pl.col("end") <= same.item(0, "at"))
        first = ran.filter(pl.col("call_row") == same.item(0, "call_row")).select("place", ran="what")
        both = calls.join(fitting, on="capture", how="semi").join(first, on="place")
        sure = pl.col("ran").is_in(pl.col("what"))
        judged = both.group_by("capture").agg(sure=sure.sum(), differ=(~sure).sum())
        alike = judged.filter(pl.col("differ") == 0).sort("sure", "capture")
        best = alike.filter((pl.col("sure") > 0) | (pl.len() == 1)).tail(1)
        fits.append(best.select("capture", "sure", graph=pl.lit(len(made), dtype=pl.UInt32)))
        made.append(same)
    # what a capture recorded is one graph: that with most operations confirmed, and of equals none
    surest = pl.concat(fits).filter(pl.col("sure") == pl.col("sure").max().over("capture"))
    found, alone = [pl.DataFrame(schema=_FOUND)], surest.filter(pl.len().over("capture") == 1)
    for graph, capture in alone.select("graph", "capture").iter_rows():
        captured = calls.filter(pl.col("capture") == capture).select("place", captured="call_row")
        every = ran.join(made[graph], on="call_row", how="semi").join(captured, on="place")
        found.append(every.select("row", call_row="captured"))
    return pl.concat(found)


def replayed_alike(report: Report, source: Report) -> pl.DataFrame:
    """The operations of graphs with those of `source` that are the same: row, other (row of `source`'s operations).

    Graphs are the same if they launch the same operations in the same order, by name and launch shape; several such
    ones in the order of their first launches, if both reports have as many.
    """
    of_graph, alike = ["process_id", "exec", "same"], ["same", "turn", "of"]
    (ran, launches), (other_ran, other_launches) = _launches(report), _launches(source)
    graphs, others = (
        every.sort("process_id", "at")
        .unique(of_graph, keep="first", maintain_order=True)
        .with_columns(turn=pl.int_range(pl.len()).over("same"), of=pl.len().over("same"))
        for every in (launches, other_launches)
    )
    known = graphs.join(others.select(*alike, other_call="call_row"), on=alike).select(*of_graph, "other_call")
    every = launches.join(known, on=of_graph, nulls_equal=True).select("call_row", "other_call")
    rows = ran.select("row", "call_row", "place").join(every, on="call_row")
    other_rows = other_ran.select("place", other="row", other_call="call_row")
    return rows.join(other_rows, on=["other_call", "place"]).select("row", "other")


def _launches(report: Report) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The operations of graphs, and their launches: call_row, at, process_id, exec, and same, a number of what ran."""
    ran = _operations(report).filter("graph")
    same = pl.col("what").cast(pl.String).str.join(",").hash().alias("same")
    first = pl.col("at", "process_id", "exec").first()
    return ran, ran.group_by("call_row", maintain_order=True).agg(first, same)


def _captured_calls(report: Report) -> pl.DataFrame:
    """Calls in captures that made a node: capture and its end, place in it, call_row, kind, and by, of :func:`_by`."""
    spans = capture_spans(report).sort("start").with_row_index("capture")
    names = report.kind("api").get_column("name").unique().drop_nulls()
    texts = pl.DataFrame({"text": [cuda_name(name) for name in names.cast(pl.String)]}, {"text": pl.String})
    kind = [pl.when(pl.col("text").str.contains(made)).then(pl.lit(kind)) for kind, made in _MAKES.items()]
    known = texts.select(names, makes=pl.coalesce(kind)).drop_nulls()
    calls = report.kind("api").with_row_index("call_row").join(known, on="name", maintain_order="left")
    calls = calls.filter(~pl.col("call_row").is_in(launching_rows(report).implode()))
    # on any thread: autograd's capture, too
    at = as_of(calls.select("process_id", at="start_ns"), spans.select("process_id", at="start"))
    inside = calls.hstack(rows_at(spans.select("capture", "end"), at)).filter(pl.col("start_ns") < pl.col("end"))
    made = inside.unique(["process_id", "correlation_id"], keep="first").sort("capture", "start_ns")
    placed = made.with_columns(_by(report, made), place=pl.int_range(pl.len()).over("capture"))
    return placed.select("capture", "end", "place", "call_row", "by", kind="makes")


def _by(report: Report, calls: pl.DataFrame) -> pl.Series:
    """What made each of `calls` (parent_id, start_ns): a number of operator, shapes, and which of its calls it is."""
    ops = pl.concat([report.kind(kind).select("event_id", "name") for kind in ("op", "range")])
    shapes = report.table("op_detail").select("event_id", "input_shapes")
    told = calls.select(pl.col("start_ns").rank("ordinal").over("parent_id").alias("turn"), event_id="parent_id")
    for side in (ops, shapes):
        told = told.join(side, on="event_id", how="left", maintain_order="left")
    told = told.with_columns(pl.col("name", "input_shapes").cast(pl.String))
    number = pl.when(pl.col("name").is_not_null()).then(mixed(["name", "input_shapes", "turn"]))
    return told.select(number.alias("by")).to_series()


def _operations(report: Report) -> pl.DataFrame:
    """Operations with their launch: row, call_row, at, graph (whether one launched it), place in it, and more.

    Those are process_id, kind, what (a number of name and launch shape), and exec (that of the executable graph).
    """
    work = operations(report, "call_row", "call_name", "call_start", "graph_node_id", *SHAPE).drop_nulls("call_row")
    work = work.with_columns(pl.col("kind", "name", "call_name").cast(pl.String))
    work = work.sort("call_row", pl.col("graph_node_id").fill_null(0), "start", "row")
    return work.select(
        "row",
        "call_row",
        "kind",
        "process_id",
        mixed(["kind", "name", *SHAPE]).alias("what"),
        exec=pl.col("graph_node_id") // OF_GRAPH,
        graph=pl.col("call_name").str.contains(LAUNCHES).fill_null(value=False),
        place=pl.int_range(pl.len()).over("call_row"),
        at="call_start",
    )


def _seen(report: Report) -> pl.DataFrame:
    """What calls outside of captures launched, by what made them: distinct by and what."""
    ran = _operations(report).filter(~pl.col("graph")).unique("call_row", maintain_order=True)
    calls = rows_at(report.kind("api").select("parent_id", "start_ns"), ran.get_column("call_row"))
    return ran.select("what").with_columns(_by(report, calls)).drop_nulls().unique()
