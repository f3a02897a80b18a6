"""CUDA graphs at run time: which operations belong to which launch of which graph.

An operation belongs to a graph if the report names its executable graph, if it is a whole-graph row, or if a graph
launch call launched it (old file versions name no graph). The operations of one launch share process and correlation
id. Those in the body of a conditional node have no correlation id: they belong to the latest launch of their graph
before them, since launches of one executable graph never overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import operations, with_facts
from kanalyze.analyses.device._windows import busy_within
from kanalyze.analyses.host._call_kinds import names_that
from kanalyze.analyses.idle._attribution import launch_waits, waited_ns
from kanalyze.analyses.shared.cached import once_per_process, once_per_report
from kanalyze.columns.lookup import nearest
from kanalyze.intervals import newly_covered
from kanalyze.model import DEVICE_KINDS

if TYPE_CHECKING:
    from kanalyze.report import Report

#: The part that runtime and driver calls which launch a graph have in their names.
_LAUNCHES_GRAPH: Final = "GraphLaunch"

#: Keys of the launches on one device, and of its graphs (`mark` only where no id is known).
_LAUNCH: Final = ("process_id", "correlation_id", "device")
_GRAPH: Final = ("process_id", "device", "graph_exec_id", "mark")

#: Hashes below this can be summed without overflow, however many operations a launch has.
_HASHES: Final = 1 << 31

#: The tables that name the graph of an operation.
_TOLD_IN: Final = ("kernel_config", "copy_detail", "graph_detail")

_OPERATION: Final = ("row", "event_id", "kind", "name", "start", "end", "device", "process_id")


def launches_graphs(report: Report, names: pl.Series) -> pl.Series:
    """Whether each call name launches a CUDA graph."""
    graphs = _graph_calls(report)
    if not graphs:
        return pl.Series([False]).new_from_index(0, len(names))
    return names.is_in(graphs).fill_null(value=False)


def _graph_calls(report: Report) -> list[str]:
    """Names of the calls that launch CUDA graphs."""
    return names_that(report, lambda name: _LAUNCHES_GRAPH in name)


def has_graphs(report: Report) -> bool:
    """Whether any operation belongs to a CUDA graph; cheaper than finding out which."""
    named = any(report.table(name).select(pl.col("graph_exec_id").count()).item() for name in _TOLD_IN)
    possible = named or report.kind("graph").height or _graph_calls(report)
    return bool(possible) and not _with_graph_ids(report).is_empty()


@once_per_process
def graph_operations(report: Report) -> pl.DataFrame:
    """The operations of CUDA graphs on any device and at any time.

    Columns: row (of `operations`), event_id, kind, name, start, end, device, process_id, graph_exec_id and graph_id
    (null where not recorded), launch (of :func:`graph_launches`; null if unknown) and graph (a number from 1, in the
    order of the first operations; without an executable graph's id, launches with the same kinds and names of
    operations on one device of a process count as one graph).
    """
    marked = _with_graph_ids(report)
    known = marked.filter(pl.col("correlation_id").is_not_null())
    ids = [pl.col(name).min().over("process_id", "correlation_id") for name in ("graph_exec_id", "graph_id")]
    known = known.with_columns(ids)
    launches = known.group_by(_LAUNCH).agg(
        pl.col("start").min(), pl.col("graph_exec_id", "graph_id").first(), _composition().alias("mark")
    )
    launches = launches.sort("start", *_LAUNCH).with_row_index("launch")
    launches = launches.with_columns(pl.when(pl.col("graph_exec_id").is_null()).then("mark"))
    known = known.join(launches.select(*_LAUNCH, "launch", "mark"), on=_LAUNCH, how="left", nulls_equal=True)
    found = pl.concat([known, _of_conditional_bodies(marked.filter(pl.col("correlation_id").is_null()), launches)])
    graphs = found.group_by(_GRAPH).agg(pl.col("start").min(), pl.col("row").min()).sort("start", "row")
    graphs = graphs.with_row_index("graph", offset=1).select("graph", *_GRAPH)
    numbered = found.join(graphs, on=_GRAPH, how="left", nulls_equal=True).sort("row")
    return numbered.drop("correlation_id", "mark")


def _composition() -> pl.Expr:
    """A hash of the kinds and names of a launch's operations, independent of their order."""
    name = pl.col("name").to_physical().cast(pl.Int64).fill_null(-1)
    return ((name * len(DEVICE_KINDS) + pl.col("kind").to_physical()).hash() % _HASHES).cast(pl.Int64).sum()


def _of_conditional_bodies(orphans: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Assigns operations without correlation id to the latest launch of their graph before them."""
    own = ["process_id", "device", "graph_exec_id"]
    begun = launches.drop_nulls("graph_exec_id").select(*own, "launch", begun="start")
    found = nearest(orphans, begun, ("start", "begun"), own).drop("begun")
    return found.with_columns(mark=pl.lit(None, dtype=pl.Int64))


@once_per_process
def _with_graph_ids(report: Report) -> pl.DataFrame:
    """The operations of graphs, with graph_exec_id, graph_id and correlation_id."""
    told = ("graph_exec_id", "graph_id")
    work = operations(report, "call_name", "correlation_id", *told)
    by_call = launches_graphs(report, work.get_column("call_name"))
    mine = by_call | work.select(pl.col("graph_exec_id").is_not_null() | (pl.col("kind") == "graph")).to_series()
    return work.filter(mine).select(*_OPERATION, "correlation_id", *told)


@once_per_report
def graph_launches(report: Report) -> pl.DataFrame:
    """The launches of CUDA graphs, one row per launch and device that it ran on, by first start.

    Columns: launch, graph, process_id, device, graph_exec_id, start and end (first start to last end), busy_ns (union
    of its own operations), idle_ns (the device ran nothing at all), kernels, copies, memsets, whole (its nodes were not
    recorded), launch_ns (the device's wait for it), call_row, thread_id, call_start, call_ns and charged (whether the
    call's time is charged here: the device where its first operation ran).
    """
    own = graph_operations(report).drop_nulls("launch").sort("launch", "start", "row")
    launch_ns = waited_ns(launch_waits(report), own.get_column("row"))
    own = own.with_columns(pl.max_horizontal("start", "end").alias("end"), launch_ns)
    own = own.with_columns(newly_covered(own, "launch").alias("busy_ns"))
    counts = [
        (pl.col("kind") == kind).sum().cast(pl.Int64).alias(name)
        for kind, name in (("kernel", "kernels"), ("memcpy", "copies"), ("memset", "memsets"))
    ]
    sums = own.group_by("launch", maintain_order=True).agg(
        pl.col("graph", "process_id", "device", "graph_exec_id", "row").first(),
        pl.col("start").min(),
        pl.col("end").max(),
        *counts,
        (pl.col("kind") == "graph").any().alias("whole"),
        pl.col("launch_ns", "busy_ns").sum(),
    )
    spans = with_facts(report, sums, "call_row", "thread_id", "call_start", "call_ns")
    idle = sums.get_column("end") - sums.get_column("start") - busy_within(report, sums)
    return spans.with_columns(
        idle.alias("idle_ns"), charged=pl.col("call_row").is_not_null() & pl.col("call_row").is_first_distinct()
    )
