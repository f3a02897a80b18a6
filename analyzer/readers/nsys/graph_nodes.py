"""Nodes of CUDA graphs from nsys' rows of their creation: what each was made of, and when and where that was captured.

A node that is captured, or added by a call, has one row without an origin. Copies of it, in an executable graph or as
the child of another graph, have two, the second with the node that they are copies of. A graph's number is in the high
bits of its nodes' numbers, in the order in which they were made. An executable graph has no children: CUDA puts a
child's nodes behind its own, which nsys shows by a row for the next one alone (nsys 2025.3, CUDA 13).
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
    """Rows for the nodes that executable graphs have of a child: `copies` are the rows of graphs made of graphs.

    Of a graph with several children, or a child with children, nobody has seen the order.
    """
    made, keys = copies.filter(pl.col("origin").is_not_null()), ["process_id", "graph"]
    last = copies.join(made, on=["process_id", "node"], how="anti").join(
        made.group_by(keys).agg(own=pl.col("node").n_unique()), on=keys
    )
    further = last.with_columns(
        children=pl.col("node") - nsys.first_node(pl.col("graph")) - pl.col("own").cast(pl.Int64)
    )
    found = [copies.clear()]
    for row in further.filter(pl.col("children") > 0).iter_rows(named=True):
        same = pl.all_horizontal(pl.col(name) == row[name] for name in ("process_id", "thread_id"))
        block = made.filter(same & (pl.col("at") < row["at"])).tail(row["own"] + row["children"])
        child = block.filter(pl.col("graph") != row["graph"])
        if child.height == row["children"] and child.get_column("graph").n_unique() == 1:
            node = row["node"] - row["children"] + pl.int_range(child.height, dtype=pl.Int64)
            found.append(child.with_columns(origin="node", graph=pl.lit(row["graph"], dtype=pl.Int64), node=node))
    return pl.concat(found)
