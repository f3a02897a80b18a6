"""Nodes of CUDA graphs from nsys' rows of their creation: what each was made of, and when and where that was captured.

A node that is captured, or added by a call, has one row without an origin. Copies of it, in an executable graph or as
the child of another graph, have two, the second with the node that they are copies of. A graph's number is in the high
bits of its nodes' numbers, in the order in which they were begun. An executable graph has no children: CUDA puts their
nodes behind its own, of each child and then of what is inside it, as the copies of these graphs are numbered. nsys has
no rows for them, but at times one for the next node. So it was in eight graphs of kernels that tell themselves apart:
two and three children, one of them twice, nested ones, made in one order and run in another (nsys 2025.3, CUDA 13).
"""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.columns import gathered, last_of, rows_at
from kanalyze.readers.nsys import tables as nsys

#: Graphs that are made of graphs, at most.
_DEEPEST: Final = 16


def graph_nodes(raw: pl.DataFrame) -> pl.DataFrame:
    """The table `graph_nodes` of nsys' rows, sorted by time."""
    rows = raw.select(
        process_id=nsys.process_of("globalTid"),
        thread_id=nsys.thread_of("globalTid"),
        at="start",
        graph=nsys.graph_of_node("graphNodeId"),
        node="graphNodeId",
        origin="originalGraphNodeId",
    )
    copied = pl.col("origin").is_not_null().any().over("process_id", "graph")
    rows = pl.concat([rows, _of_children(rows.filter(copied))])
    own = rows.filter(pl.col("origin").is_not_null() | ~copied)
    first = rows_at(own.select("thread_id", "at"), _captured_rows(own))
    nodes = own.select(
        "process_id",
        graph_exec_id="graph",
        graph_node_id="node",
        graph_id=nsys.graph_of_node("origin"),
        original_node_id="origin",
        made_ns="at",
    )
    nodes = nodes.hstack(first.select(captured_ns="at", captured_thread_id="thread_id"))
    return nodes.drop_nulls("graph_exec_id").unique(maintain_order=True)


def _captured_rows(rows: pl.DataFrame) -> pl.Series:
    """Row that made the node which each of `rows` goes back to, through graphs made of graphs.

    Of several rows of an origin the last one by then counts. Null where the origin is older than the recording.
    """
    copied = rows.get_column("origin").is_not_null()
    asked = rows.filter(copied).select("process_id", "at", node="origin")
    origins = pl.int_range(rows.height, dtype=pl.UInt32, eager=True)
    of_row = origins.scatter(copied.arg_true(), last_of(asked, rows.select("process_id", "at", "node")))
    for _ in range(_DEEPEST):
        if (further := gathered(of_row, origins)).equals(origins):
            break
        origins = further
    return origins


def _of_children(copies: pl.DataFrame) -> pl.DataFrame:
    """Rows for the nodes that executable graphs have of children: `copies` are the rows of graphs made of graphs.

    A graph that was begun after another and ended before it, on one thread, is inside it.
    """
    key, made = ["process_id", "graph"], copies.filter(pl.col("origin").is_not_null())
    made = made.unique([*key, "node"], keep="last").sort(*key, "node")
    graphs = made.group_by(key).agg(pl.col("thread_id").first(), pl.len().alias("own"), ended=pl.col("at").max())
    pairs, around = [], list[tuple[int, int, int, int]]()
    for process, thread, graph, ended in (
        graphs.select("process_id", "thread_id", "graph", "ended").sort("process_id", "thread_id", "graph").iter_rows()
    ):
        while around and (around[-1][:2] != (process, thread) or around[-1][3] < ended):
            around.pop()
        pairs += [(process, outer[2], graph) for outer in around]
        around.append((process, thread, graph, ended))
    inside = pl.DataFrame(pairs, {"process_id": pl.Int64, "outer": pl.Int64, "graph": pl.Int64}, orient="row")
    inside = inside.join(made, on=key).join(graphs.select(key[0], "own", outer="graph"), on=["process_id", "outer"])
    inside = inside.sort("process_id", "outer", "graph", "node")
    place = pl.int_range(pl.len()).over("process_id", "outer") + pl.col("own")
    found = inside.with_columns(origin="node", graph="outer", node=nsys.first_node(pl.col("outer")) + place)
    # the row of the next node, where there is one, says how many there are
    further = copies.join(made, on=["process_id", "node"], how="anti").select(*key, "node")
    counts = found.group_by(key).agg(pl.col("node").max() + 1)
    other = further.join(counts, on=key, suffix="_after").filter(pl.col("node") != pl.col("node_after"))
    return found.join(other, on=key, how="anti").select(copies.columns)
