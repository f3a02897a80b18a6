"""The host cost of building CUDA graphs: capture, instantiation and upload, attributed to each graph.

No report says which call made which executable graph, but graphs are numbered in the order of their creation. So in a
process that launched as many graphs as it made, calls and graphs are matched in that order; elsewhere they are left
unmatched rather than guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.host._call_kinds import captures, graph_steps
from kanalyze.analyses.launches._graph_launches import graph_launches
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.thread_lanes import THREAD

if TYPE_CHECKING:
    from kanalyze.report import Report

_COSTS: Final = ("instantiate_ns", "capture_ns", "upload_ns")


@once_per_report
def making_costs(report: Report) -> pl.DataFrame:
    """The host time for building each executable graph that was launched.

    Columns: process_id, graph_exec_id, instantiate_ns, capture_ns and upload_ns; null where unknown.
    """
    made, steps = _instantiations(report), graph_steps(report)
    length = pl.col("end") - pl.col("start")
    with_capture = _captured(made, steps, captures(report))
    uploads = steps.filter(pl.col("step") == "upload")
    found = _uploaded(with_capture, uploads).with_columns(instantiate_ns=length)
    return found.select("process_id", "graph_exec_id", *(pl.col(name).cast(pl.Int64) for name in _COSTS))


def _instantiations(report: Report) -> pl.DataFrame:
    """The call that instantiated each executable graph, if known: process_id, graph_exec_id, thread_id, start, end."""
    calls = graph_steps(report).filter(pl.col("step") == "instantiate")
    known = graph_launches(report).drop_nulls(["process_id", "graph_exec_id"])
    graphs = known.group_by("process_id", "graph_exec_id").agg(first=pl.col("call_start").min()).sort("graph_exec_id")
    place = pl.int_range(pl.len()).over("process_id").alias("place")
    size = pl.len().over("process_id")
    calls = calls.with_columns(place, calls=size, last_end=pl.col("end").cum_max().shift(1).over("process_id"))
    pairs = graphs.with_columns(place, graphs=size).join(calls, on=["process_id", "place"])
    apart = (pl.col("start") >= pl.col("last_end")).fill_null(value=True)
    possible = apart & (pl.col("end") <= pl.col("first")) & (pl.col("calls") == pl.col("graphs"))
    sure = pairs.filter(possible.fill_null(value=False).all().over("process_id"))
    return sure.select("process_id", "graph_exec_id", "thread_id", "start", "end")


def _captured(made: pl.DataFrame, steps: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """`made` with capture_ns: the last capture on its thread before it, unless another graph was made in between."""
    others = steps.filter(pl.col("step") != "upload").select(*THREAD, "step", "event_id", last="start")
    last = made.sort("start").join_asof(
        others, left_on="start", right_on="last", by=THREAD, allow_exact_matches=False, check_sortedness=False
    )
    lengths = spans.select("event_id", capture_ns=pl.col("end") - pl.col("start"))
    return last.join(lengths, on="event_id", how="left", maintain_order="left").select(*made.columns, "capture_ns")


def _uploaded(made: pl.DataFrame, uploads: pl.DataFrame) -> pl.DataFrame:
    """`made` with upload_ns: the upload that followed it if each graph has one; all uploads for an only graph."""
    graph = ["process_id", "graph_exec_id"]
    followed = uploads.select("process_id", "start", ns=pl.col("end") - pl.col("start")).join_asof(
        made.sort("start").select(*graph, "start"), on="start", by="process_id", check_sortedness=False
    )
    sums = followed.group_by(graph).agg(pl.col("ns").sum(), uploads=pl.len())
    both = made.join(sums, on=graph, how="left", maintain_order="left")
    each = (pl.col("uploads") == 1).fill_null(value=False).all().over("process_id")
    one = pl.len().over("process_id") == 1
    none = ~pl.col("process_id").is_in(uploads.get_column("process_id").unique().implode())
    ns = pl.when(none).then(0).when(each | one).then(pl.col("ns").fill_null(0))
    return both.with_columns(ns.alias("upload_ns")).select(*made.columns, "upload_ns")
