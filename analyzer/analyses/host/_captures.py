"""Where the operations of CUDA graphs come from: the call that captured each, or added its node, before any launch.

An operation of a graph runs when the graph is launched, and its time belongs to that launch. What it is was said once,
when the graph was captured: the ranges, operators and lines of the program around the capturing call are its names.
Both are facts of the operation; neither takes the other's place. :func:`captures` has a row for each node whose making
the report records, with the call and its thread; :func:`capture_rows` says which of them each operation goes back to.
Rooms above add their own names to these rows, once a node instead of once a kernel.
"""

import re
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

import polars as pl

from kanalyze import errors, intervals, model
from kanalyze.analyses.device._operations import SHAPE, facts_of, launching_rows, operations, with_facts
from kanalyze.analyses.host import _call_kinds
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.threads import THREAD, outermost
from kanalyze.columns import as_of, gathered, last_of, mixed, rows_at, scattered, told_of
from kanalyze.decoder.fields import normalised
from kanalyze.report import Report

#: How a node came to be: a launch in a stream's capture, a call that adds nodes, or before the recording began.
CAPTURED, ADDED, OLDER = "captured", "added by a call", "not recorded"
#: Nothing but order tells it, and another capture may fit as well.
LIKELY: Final = "by order alone"
#: Order and identity do not tell which capture it is.
SEVERAL: Final = "several fit"
#: The program says itself what it is.
MARKED: Final = "marked"
HOW: Final = pl.Enum([CAPTURED, ADDED, MARKED, LIKELY, SEVERAL, OLDER])

#: Calls that give an executable graph the parameters of another one's nodes; no graph has the number 0.
_UPDATES: Final = re.compile("GraphExecUpdate")
_NOTHING: Final = 0

_NODE: Final = ["process_id", "graph_node_id"]
_CAPTURES: Final = {"row": pl.UInt32, "capture": pl.UInt32, "sure": pl.Boolean}


def with_captures(report: Report, other: Report) -> Report:
    """The report with the captures of its CUDA graphs in another one, of the same program.

    Raises:
        OtherCaptureError: None of its graphs is in that.
    """
    # with a whole of its own: that of a report that was looked at before has no such captures
    scope = replace(report.scope, capture=other.meta.path)
    linked = replace(report, scope=scope, captured_in=lambda: other.whole, _whole=WeakValueDictionary())
    if _other(linked) is None:
        raise errors.OtherCaptureError.of(report.meta.path, other.meta.path)
    return linked


def lacks_captures(report: Report) -> bool:
    """Whether the report runs CUDA graphs, and records the capture of none."""
    return has_captures(report) and _named(report).is_null().all()


def capture_source(report: Report) -> Report:
    """The report that recorded the captures: another one of the same program where that was given, else itself."""
    return _other(report) or report


def _beside(report: Report) -> Report | None:
    """The report that was given, or is in the capture, for captures; else, where no range names them, its trace."""
    unnamed = "op" not in report.kinds and report.table("graph_nodes").height and report.kind("range").is_empty()
    return report.captured_in() or (report.beside() if unnamed else None)


@once_per_process
def _other(report: Report) -> Report | None:
    """Another report in which the graphs were captured; None without one, or if it names fewer operations."""
    other = _beside(report)
    if other is None:
        return None
    alone = replace(report, captured_in=lambda: None, beside=lambda: None)
    by_order, given = other.table("graph_nodes").is_empty(), report.captured_in() is not None
    rows = _calls_of_other(report).drop_nulls() if by_order else _replayed(report)
    names = rows.filter(given | pl.col("sure")).height
    if names and ((by_order and given) or names >= _named(alone).is_not_null().sum()):
        return other
    of_one_collection = given and report.meta.capture is not None and report.meta.capture == other.meta.capture
    if of_one_collection and has_captures(alone) and not names:
        report.go_without(other.meta.path.name, errors.OtherCaptureError.of(report.meta.path, other.meta.path))
    return None


def _named(report: Report) -> pl.Series:
    """:func:`capture_rows` without those of which no call is recorded."""
    rows, calls = capture_rows(report), captures(report).get_column("call_row")
    return rows.to_frame().select(pl.when(gathered(calls, rows).is_not_null()).then(rows)).to_series()


@once_per_process
def _replayed(report: Report) -> pl.DataFrame:
    """The operations that another report of nsys ran, too, with the capture there: row, capture and sure.

    Graphs are the same if they launch the same operations in the same order, by name and launch shape; several such
    ones in the order of their first launches, if both reports have as many, which is sure of runs of one collection.
    """
    other, alike = _beside(report) or report, ["same", "turn", "of"]
    (ran, launches), (other_ran, other_launches) = _launches(report), _launches(other)
    graphs, others = (
        frame.sort("process_id", "at")
        .unique("graph", keep="first", maintain_order=True)
        .with_columns(turn=pl.int_range(pl.len()).over("same"), of=pl.len().over("same"))
        for frame in (launches, other_launches)
    )
    # what runs elsewhere may launch several ones in another order
    of_one_collection = report.meta.capture is not None and report.meta.capture == other.meta.capture
    sure = (pl.col("of") == 1) | of_one_collection
    pairs = graphs.join(others.select(*alike, other_call="call_row"), on=alike).select("graph", "other_call", sure=sure)
    calls = launches.join(pairs, on="graph").select("call_row", "other_call", "sure")
    rows = ran.select("row", "call_row", "place").join(calls, on="call_row")
    matches = rows.join(other_ran.select("place", other="row", other_call="call_row"), on=["other_call", "place"])
    capture = gathered(_named(other), matches.get_column("other")).alias("capture")
    return matches.select("row", capture, "sure").drop_nulls().sort("row")


@once_per_process
def captures(report: Report) -> pl.DataFrame:
    """The calls that made nodes of graphs: process_id, thread_id, since and until, call_row (of the api events), how.

    All of them are of :func:`capture_source`. All but how are null where no call is recorded: nsys lists nodes that are
    older than its recording. The last row is that of all nodes which are not listed.
    """
    other = _other(report)
    if other is not None and len(other.table("graph_nodes")):
        return captures(other)
    calls = capture_source(report).kind("api")
    spans = calls.select(*THREAD, since="start_ns", until=pl.col("start_ns") + pl.col("dur_ns"))
    nodes = report.table("graph_nodes")
    listed = other is None and len(nodes)
    # a node was made in the outermost call around that
    points = nodes.select("process_id", thread_id="captured_thread_id", at="captured_ns", until="captured_ns")
    around = _call_kinds.calls_around(report, points) if listed else _by_order(report).get_column("call_row")
    adds = gathered(calls.get_column("name"), around).cast(pl.String).str.contains("GraphAdd")  # …KernelNode
    unknown = pl.lit(OLDER if listed else SEVERAL)
    how = pl.when(adds.is_null()).then(unknown).when(adds).then(pl.lit(ADDED)).otherwise(pl.lit(CAPTURED))
    rows = rows_at(spans, around).with_columns(around.alias("call_row"), how=how.cast(HOW))
    return pl.concat([rows, rows.clear(1).with_columns(how=pl.lit(OLDER, dtype=HOW))])


@once_per_process
def _by_order(report: Report) -> pl.DataFrame:
    """The operations of a trace's graphs with the call that captured each: row, call_row and sure."""
    return _calls_of_other(report) if _other(report) else captured_by_order(report, report).sort("row")


@once_per_process
def _calls_of_other(report: Report) -> pl.DataFrame:
    """The same by the calls of another report, which is given."""
    return captured_by_order(report, _beside(report) or report).sort("row")


def capture_rows(report: Report) -> pl.Series:
    """Row of :func:`captures` that each row of `operations` surely goes back to, else its last; null for no graph."""
    unknown = pl.lit(captures(report).height - 1, dtype=pl.UInt32)
    row = pl.when("sure").then("capture").when(pl.col("capture").is_not_null()).then(unknown)
    return likely_captures(report).select(row.alias("capture")).to_series()


@once_per_process
def likely_captures(report: Report) -> pl.DataFrame:
    """Row of :func:`captures` that each row of `operations` goes back to, and whether that is sure: capture, sure."""
    work, nodes, other = operations(report, "graph_node_id"), report.table("graph_nodes"), _other(report)
    inside, rows = work.get_column("graph_node_id").is_not_null(), pl.DataFrame(schema=_CAPTURES)
    if other is None and len(nodes):
        ran = with_facts(report, work.filter(inside), "call_start", "thread_id")
        ran = _updated(report, ran.with_columns(at=pl.coalesce("call_start", "start")))
        # of several rows of a node the last one before the launch
        last = last_of(ran.select(*_NODE, "at"), nodes.select(*_NODE, at="made_ns"))
        rows = ran.select("row", "sure", capture=last)
    elif inside.any() or report.meta.recorder.ranked:  # of a trace
        inside |= _call_kinds.graph_call(report, facts_of(report, work.get_column("row"), "call_name").to_series())
        by_order = other is None or other.table("graph_nodes").is_empty()
        rows = _by_order(report).with_row_index("capture") if by_order else _replayed(report)
    capture, sure = (scattered(work.height, rows["row"], rows[name]) for name in ("capture", "sure"))
    if inside.any():
        capture = capture.set(inside & capture.is_null(), captures(report).height - 1)
    return pl.DataFrame([capture.alias("capture"), sure.fill_null(value=True).alias("sure")])


def _updated(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """`work` (process_id, thread_id, graph_node_id, at) with the nodes of graphs that updated others, and `sure`.

    What an update changed in a graph holds until the next one that can be of it.
    """
    updates = _updates(report)
    if updates.is_empty():
        return work.with_columns(sure=True)
    work = work.with_columns(graph=pl.col("graph_node_id") // model.NODES_OF_A_GRAPH)
    changed = _changed(report, updates, work).sort("at")
    changed = changed.with_columns(pl.col("by").forward_fill().over("process_id", "graph"))
    last = as_of(work.select("process_id", "at", "graph"), changed.select("process_id", "at", "graph"))
    work = work.hstack(rows_at(changed.select("by", "sure"), last))
    node = pl.col("by") * model.NODES_OF_A_GRAPH + pl.col("graph_node_id") % model.NODES_OF_A_GRAPH
    return work.with_columns(
        pl.coalesce(node, "graph_node_id").alias("graph_node_id"), pl.col("sure").fill_null(value=True)
    )


def _updates(report: Report) -> pl.DataFrame:
    """The calls that update executable graphs: process_id, thread_id, at, by and its nodes, sure.

    An update does not say by what. `by` is the graph that its thread captured since its last update, and made no copy
    of; null if there is none, :data:`_NOTHING` if there are several. It is sure if all updates of the process have one,
    and it is never made executable.
    """
    calls = _call_kinds.calls_that(report, _UPDATES.search, *THREAD, **intervals.OF_EVENTS)
    updates = outermost(calls).select(*THREAD, at="start").sort("at").with_row_index("update")
    captured = _graphs(report).filter(pl.col("origin").is_null())
    row = as_of(captured.select(*THREAD, "at"), updates.select(*THREAD, "at"), later=True)
    captured = captured.with_columns(row.alias("update"), until=gathered(updates.get_column("at"), row))
    free = captured.filter((pl.col("copied") > pl.col("until")).fill_null(value=True))
    by = free.group_by("update").agg(pl.col("graph", "nodes", "copied").first(), sources=pl.len())
    one = (pl.col("sources") == 1).fill_null(value=False)
    return updates.join(by, on="update", how="left", maintain_order="left").select(
        *THREAD,
        "at",
        pl.when(one).then("nodes").alias("nodes"),
        by=pl.when(one).then("graph").when(pl.col("sources").is_not_null()).then(_NOTHING),
        sure=one.all().over("process_id") & pl.col("copied").is_null(),
    )


def _changed(report: Report, updates: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The executable graphs that each of `updates` can have changed: process_id, graph, at, by (null: nothing), sure.

    An update does not say of what. It is of a graph of as many nodes; of several it is taken to be the one that its
    thread launches next, which is not sure.
    """
    graphs, launched = _graphs(report), work.select("process_id", "thread_id", "at", "graph")
    unlisted = launched.join(graphs, on=["process_id", "graph"], how="anti").select("process_id").unique()
    target = rows_at(launched, as_of(updates.select(*THREAD, "at"), launched.select(*THREAD, "at"), later=True))
    updates = updates.with_columns(target.get_column("graph").alias("next")).with_row_index("update")
    updates = updates.join(unlisted.with_columns(unlisted=True), on="process_id", how="left")
    rivals = pl.col("origin").is_null().sum().over("process_id", "nodes") > 1
    copies = graphs.with_columns(rivals=rivals).filter(pl.col("origin").is_not_null())
    both = updates.join(copies, on="process_id", suffix="_of").filter(pl.col("at_of") < pl.col("at"))
    # of as many nodes; if by what is not known, of as many as several captures
    both = both.filter(
        pl.when(pl.col("nodes").is_not_null()).then(pl.col("nodes") == pl.col("nodes_of")).otherwise("rivals")
    )
    alone = (pl.len().over("update") == 1) & pl.col("unlisted").is_null()
    meant = alone | (pl.col("graph") == pl.col("next")) | pl.col("nodes").is_null()
    return both.select("process_id", "graph", "at", by=pl.when(meant).then("by"), sure=pl.col("sure") & alone)


@once_per_process
def _graphs(report: Report) -> pl.DataFrame:
    """The listed graphs: process_id, graph, thread_id, at, origin (null: captured), nodes, copied (when, at first)."""
    nodes = report.table("graph_nodes").sort("graph_node_id")
    own = pl.col("graph_id").eq_missing(pl.col("graph_id").first())  # and no child's
    graphs = nodes.group_by("process_id", graph="graph_exec_id").agg(
        pl.col("captured_thread_id").last().alias("thread_id"),
        at=pl.col("made_ns").max(),
        origin=pl.col("graph_id").first(),
        nodes=pl.col("graph_node_id").filter(own).n_unique(),
    )
    copied = nodes.group_by("process_id", graph="graph_id").agg(copied=pl.col("made_ns").min())
    return graphs.join(copied, on=["process_id", "graph"], how="left")


def has_captures(report: Report) -> bool:
    """Whether any operation is one of a graph whose nodes were traced."""
    return not capture_rows(report).is_null().all()


# Which capture a replayed graph comes from, where no node has a number: by order and identity.
#
# Kineto records the calls in a stream's capture, and the operations of a launched graph, but nothing that joins the
# two. A launch ran what a capture recorded if it is as long and of the same kinds in the same order, and if each
# operation is what the same call of the same operator, with inputs of the same shapes, launched outside of captures, as
# in the passes that warm up: by name and launch shape. Where some have no such twin, order alone tells it, which is not
# sure: a graph that was captured before the recording may fit as well. Where shapes are missing captures of all sizes
# fit: then it is that which the same operations came right before in the same order, if others came before each other
# one. Of captures that fit one graph, and of graphs that fit one capture, nobody can tell which is which: these have no
# names, as what differs has none.
#
# Where another report saw the program's graphs run, too, a graph is the one of the same operations in the same order.

#: Calls that make a node in a capture, by the kind of operation that it becomes.
_MAKES: Final = {
    "kernel": r"^cu(?:da)?Launch(?:Kernel|Cooperative)",
    "memcpy": r"Memcpy.*Async",
    "memset": r"Memset.*Async",
}

#: The kinds of operations in order.
_KINDS: Final = pl.col("kind").sort_by("place").str.join(",")


def captured_by_order(report: Report, source: Report) -> pl.DataFrame:
    """The captured call of each operation of a graph that captures in `source` fit: row, call_row (there), sure.

    Where several fit there is no call, surely.
    """
    if _call_kinds.captures(source).is_empty():
        return pl.DataFrame(schema={"row": pl.UInt32, "call_row": pl.UInt32, "sure": pl.Boolean})
    calls, (ran, launches) = _captured_calls(source), _launches(report)
    made_by = pl.col("by").cast(pl.String).fill_null("").sort_by("place").str.join(",").alias("alike")
    captured = calls.group_by("capture", "process_id", "end").agg(_KINDS, made_by)
    # what calls outside of captures launched, by what made them
    alone = _operations(source).filter(~pl.col("graph")).unique("call_row", maintain_order=True)
    makers = rows_at(source.kind("api").select("parent_id", "start_ns"), alone.get_column("call_row"))
    alone = alone.with_columns(_by(source, makers))
    captured = captured.join(_run_before(source, calls, alone), on="capture", how="left")
    captured = captured.with_columns(run=pl.when(pl.col("run").is_not_null().all().over("kind")).then("run"))
    graphs = launches.unique("graph", keep="first", maintain_order=True)
    # of captures that are alike, and of graphs that run the same, one tells for all
    pairs = captured.unique("alike").select("alike", "kind", "capture")
    pairs = pairs.join(graphs.unique("same").select("same", "kind", "call_row"), on="kind")
    seen = alone.select("by", "what").drop_nulls().unique()
    pairs = pairs.join(calls.select("capture", "place", "by"), on="capture")
    pairs = pairs.join(ran.select("call_row", "place", "what"), on=["call_row", "place"])
    pairs = pairs.with_columns(mixed(["by", "what"]).cast(pl.String).alias("pass"))
    pairs = pairs.join(seen.with_columns(sure=True), on=["by", "what"], how="left")
    sure, known = pl.col("sure").is_not_null(), pl.col("by").is_in(seen.get_column("by").implode())
    judged = pairs.group_by("alike", "same").agg(
        sure.all(), differ=(known & ~sure).any(), ran=pl.col("pass").sort_by("place").str.join(",")
    )
    fits = (
        judged.filter(~pl.col("differ")).join(captured, on="alike").join(graphs, on=["same", "kind"], suffix="_graph")
    )
    if report is source:
        fits = fits.filter((pl.col("end") <= pl.col("at")) & (pl.col("process_id") == pl.col("process_id_graph")))
    warmed = pl.col("run").str.contains(pl.col("ran"), literal=True).fill_null(value=False)
    fits = fits.with_columns(warmed=warmed).filter(pl.col("warmed") | ~pl.col("warmed").any().over("graph"))
    lone = (pl.len().over("capture") == 1) & (pl.len().over("graph") == 1)
    capture = pl.when(lone).then("capture").alias("capture")
    fits = fits.select(capture, "graph", sure=pl.col("sure") | pl.col("warmed") | ~lone).unique()
    rows = launches.select("call_row", "graph").join(fits, on="graph")
    rows = rows.join(ran.select("row", "call_row", "place", "ordered"), on="call_row").drop("call_row")
    rows = rows.join(calls, on=["capture", "place"], how="left")
    return rows.select("row", "call_row", pl.col("sure") & (pl.col("ordered") | pl.col("call_row").is_null()))


def _run_before(source: Report, calls: pl.DataFrame, alone: pl.DataFrame) -> pl.DataFrame:
    """What ran right before captures, twice as many operations: capture, run (in order, as text; null for too few)."""
    starts = _call_kinds.captures(source).sort("start").select("process_id", at="start")
    capture = as_of(alone.select("process_id", "at"), starts, later=True)
    before = alone.with_columns(capture=capture, step=mixed(["by", "what"]).cast(pl.String)).sort("at")
    before = before.join(calls.group_by("capture").len(), on="capture", maintain_order="left")
    count = pl.col("len").first()
    run = pl.when(pl.len() >= count).then(pl.col("step").tail(2 * count).str.join(","))
    return before.group_by("capture").agg(run.alias("run"))


def _launches(report: Report) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The operations of graphs, and their launches by time: call_row, at, process_id, kind, same and graph.

    Those are the kinds of what ran in order, a number of what it was, and one of the graph: launches of the same
    operations in the same order are of one.
    """
    ran, keys = _operations(report).filter("graph"), ["call_row", "at", "process_id", "exec"]
    what = pl.col("what").cast(pl.String).sort_by("place").str.join(",").hash().alias("same")
    launches = ran.group_by(keys).agg(_KINDS, what).sort("at", "call_row")
    return ran, launches.with_columns(graph=mixed(["process_id", "exec", "same"]))


def _captured_calls(report: Report) -> pl.DataFrame:
    """Calls in captures that made a node: capture, process_id, end, place in it, call_row, kind, by (:func:`_by`)."""
    spans = _call_kinds.captures(report).sort("start").with_row_index("capture")
    names = _call_kinds.call_names(report)
    text = pl.lit(_call_kinds.cuda_names(names))
    kind = [pl.when(text.str.contains(pattern)).then(pl.lit(kind)) for kind, pattern in _MAKES.items()]
    kinds = names.to_frame().with_columns(makes=pl.coalesce(kind)).drop_nulls()
    calls = report.kind("api").with_row_index("call_row").join(kinds, on="name", maintain_order="left")
    calls = calls.filter(~pl.col("call_row").is_in(launching_rows(report).implode()))
    # in the thread's own capture, else, as autograd's threads, in that of the process, if no other overlaps it
    until, following = pl.col("end").cum_max().shift(1).over("process_id"), pl.col("start").shift(-1).over("process_id")
    alone = spans.filter(~((pl.col("start") < until) | (following < pl.col("end"))).fill_null(value=False))
    inside = calls.clear().with_columns(capture=pl.lit(None, pl.UInt32), end=pl.lit(None, pl.Int64))
    for captures_of, keys in ((spans, THREAD), (alone, ("process_id",))):
        at = as_of(calls.select(*keys, at="start_ns"), captures_of.select(*keys, at="start"))
        within = calls.hstack(rows_at(captures_of.select("capture", "end"), at)).filter(
            pl.col("start_ns") < pl.col("end")
        )
        inside = pl.concat([inside, within])
    inside = inside.unique("call_row", keep="first", maintain_order=True)
    makers = inside.unique(["process_id", "correlation_id"], keep="first").sort("capture", "start_ns")
    placed = makers.with_columns(_by(report, makers), place=pl.int_range(pl.len()).over("capture"))
    return placed.select("capture", "process_id", "end", "place", "call_row", "by", kind="makes")


def _by(report: Report, calls: pl.DataFrame) -> pl.Series:
    """What made each of `calls` (parent_id, start_ns): a number of operator, shapes, and which of its calls it is.

    Null for none: ranges around passes that warm up have other names.
    """
    ops = report.kind("op").select("event_id", "name")
    shapes = report.table("op_detail").select("event_id", "input_shapes")
    rows = calls.select(pl.col("start_ns").rank("ordinal").over("parent_id").alias("turn"), event_id="parent_id")
    for side in (ops, shapes):
        rows = rows.join(side, on="event_id", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("name", "input_shapes").cast(pl.String))
    number = pl.when(pl.col("name").is_not_null()).then(mixed(["name", "input_shapes", "turn"]))
    return rows.select(number.alias("by")).to_series()


def _operations(report: Report) -> pl.DataFrame:
    """Operations with their launch: row, call_row, at, graph (whether one launched it), place in it, and more.

    Those are process_id, kind, what (a number of name and launch shape), exec (that of the executable graph), and
    ordered: branches on several streams without numbers of nodes have no order that a capture tells.
    """
    facts = ("call_row", "call_name", "call_start", "graph_node_id", "stream", *SHAPE)
    work = operations(report, *facts).drop_nulls("call_row")
    launched = _call_kinds.graph_call(report, work.get_column("call_name"))
    work = work.with_columns(pl.col("kind", "name").cast(pl.String), graph=launched)
    work = work.sort("call_row", pl.col("graph_node_id").fill_null(0), "start", "row")
    work = work.with_columns(name=told_of(work.get_column("name"), normalised))
    return work.select(
        *("row", "call_row", "kind", "process_id", "graph"),
        mixed(["kind", "name", *SHAPE]).alias("what"),
        exec=pl.col("graph_node_id") // model.NODES_OF_A_GRAPH,
        place=pl.int_range(pl.len()).over("call_row"),
        ordered=(pl.col("graph_node_id").is_not_null() | (pl.col("stream").n_unique() == 1)).all().over("call_row"),
        at="call_start",
    )
