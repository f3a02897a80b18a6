"""Which capture a replayed graph comes from, where no node has a number: by order and identity.

Kineto records the calls in a stream's capture, and the operations of a launched graph, but nothing that joins the two.
A launch ran what a capture recorded if it is as long and of the same kinds in the same order, and if no operation is
another than what the same call of the same operator, with inputs of the same shapes, launched outside of captures, as
in the passes that warm up: by name and launch shape. Of several captures the one with most operations so confirmed is
taken, then the last; of several without any, none. What differs has no names.

Where another report saw the program's graphs run, too, a graph is the one of the same operations in the same order.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, launching_rows, operations
from kanalyze.analyses.host._call_kinds import captures, cuda_name
from kanalyze.columns import as_of, mixed, rows_at
from kanalyze.report import Report

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
    found = [pl.DataFrame(schema=_FOUND)]
    for graph, capture in _of_one_graph(pl.concat(fits)).select("graph", "capture").iter_rows():
        captured = calls.filter(pl.col("capture") == capture).select("place", captured="call_row")
        every = ran.join(made[graph], on="call_row", how="semi").join(captured, on="place")
        found.append(every.select("row", call_row="captured"))
    return pl.concat(found)


def _of_one_graph(fits: pl.DataFrame) -> pl.DataFrame:
    """Of graphs that one capture fits (capture, sure, graph) the one with most operations confirmed; of equals none.

    What a capture recorded is one graph: it cannot have launched the other operations of another one.
    """
    most = pl.col("sure").max().over("capture")
    first = fits.filter(pl.col("sure") == most)
    return first.filter(pl.len().over("capture") == 1)


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
    spans = captures(report).sort("start").with_row_index("capture")
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
