"""CUDA graphs: launch cost on the host, busy time on the device, and their nodes."""

from __future__ import annotations

from typing import Final, Unpack

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations, with_facts
from kanalyze.analyses.host._call_kinds import captures, graph_steps
from kanalyze.analyses.launches._graph_candidates import CANDIDATES, candidates
from kanalyze.analyses.launches._launch_costs import graph_launches, graph_operations
from kanalyze.analyses.shared.analysis import once_per_report, part_of
from kanalyze.analyses.shared.statistics import DURATION_COLUMNS, duration_statistics, share_of_total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import nearest
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

#: The columns that identify a graph, in both forms of the table.
_KEYS: Final = (
    Column("graph", pl.Int64, "A number for the graph on this device within the report, from 1."),
    Column("process_id", pl.Int64, "Process that launched it; null where the report does not say.", nullable=True),
    Column("device", pl.Int64, "The GPU that ran it, as in `devices`."),
    Column("graph_exec_id", pl.Int64, "The executable graph; null where the report does not tell.", nullable=True),
    Column("graph_id", pl.Int64, "The graph that it was instantiated from; null likewise.", nullable=True),
)
_LEFT_OUT: Final = "null where its nodes were not traced"

TABLE: Final = Table(
    "graphs",
    "One executable CUDA graph on one device, all its launches.",
    (
        *_KEYS,
        *columns(f"""
            launches int: Launches of it that ran anything on this device.
            nodes int?: Nodes that the report lists of it, a child graph as one.
            active_nodes int?: Different nodes that ran an operation; {_LEFT_OUT}.
            kernels_per_launch float?: Kernels in a launch, mean; {_LEFT_OUT}.
            copies_per_launch float?: Copies in a launch, mean; {_LEFT_OUT}.
            memsets_per_launch float?: Memsets in a launch, mean; {_LEFT_OUT}.
            api_total_ns int: Time in the launching calls, each charged once: where it began to run.
            api_avg_ns float?: Mean launching call; null where no call is known.
            api_median_ns float?: Median launching call; null likewise.
            launch_ns int: What the device waited for its launches: part of the ledger's launch bucket.
            span_total_ns int: From the first start to the last end of each launch, summed.
            span_avg_ns float?: Mean of that; null without launches.
            span_median_ns float?: Median of that; null without launches.
            busy_ns int: Part of the spans in which any of its own operations ran.
            idle_ns int?: Part of the spans in which the device ran nothing at all; {_LEFT_OUT}.
            exclusive_ns int: Time of the ledger that its operations have; additive.
            instantiate_ns int?: The call that made it; null where the calls do not tell which.
            capture_ns int?: From the beginning to the end of the stream capture that it came from; null likewise.
            upload_ns int?: Calls that uploaded it ahead of its launches; null likewise.
        """),
    ),
    purpose="CUDA graphs: launches, nodes, host, GPU time",
    telling=("graph", "launches", "nodes", "api_avg_ns", "span_avg_ns", "busy_ns", "idle_ns"),
    groupings=("kernel", "candidate"),
)

#: The table that ``by="kernel"`` gives.
BY_KERNEL: Final = Table(
    "graphs",
    "One kernel inside one executable CUDA graph.",
    (
        *_KEYS,
        Column("kernel", pl.String, "Demangled name of the kernel.", nullable=True),
        *DURATION_COLUMNS,
        Column("exclusive_ns", pl.Int64, "Time of the ledger that these kernels have; additive."),
    ),
    when="--by kernel",
    telling=("graph", "count", "total_ns"),
)

#: The table that ``by="candidate"`` gives.
BY_CANDIDATE: Final = CANDIDATES

_NAMES: Final = tuple(column.name for column in _KEYS)


def graphs(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """The CUDA graphs in scope, the longest total device time first.

    Args:
        report: Where to look; launches of which anything overlaps its window count, whole.
        by: ``kernel`` gives the kernels inside each graph, ``candidate`` the repeated launches that could be one.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, :data:`BY_KERNEL` or :data:`BY_CANDIDATE`; empty where there are none.

    Raises:
        CannotTellError: The report records no device operations.
        UnknownNameError: There is no such grouping.
    """
    report = part_of(report, where, TABLE, by, *DEVICE_KINDS)
    if by == "candidate":
        return candidates(report)
    if by is None:
        return _summed(report)
    inside = _seen(report).filter(pl.col("kind") == "kernel")
    sums = inside.group_by(*_NAMES, "name").agg(*duration_statistics(), pl.col("exclusive_ns").sum())
    named = sums.with_columns(share_of_total(), pl.col("name").cast(pl.String).alias("kernel"))
    return BY_KERNEL.select(named.sort("graph", "total_ns", "kernel", descending=[False, True, False]))


def _seen(report: Report) -> pl.DataFrame:
    """The graph operations in scope that overlap the window, with dur_ns and exclusive_ns."""
    own = graph_operations(report).drop("event_id", "kind", "name", "start", "end", "device", "process_id")
    work = exclusive_operations(report).select(
        "row", "event_id", "kind", "name", "device", "process_id", "dur_ns", "exclusive_ns"
    )
    return work.join(own, on="row")


def _summed(report: Report) -> pl.DataFrame:
    seen = _seen(report)
    keys = seen.group_by("graph").agg(pl.col(_NAMES[1:]).first(), pl.col("exclusive_ns").sum())
    launches = graph_launches(report).join(seen.select("launch").drop_nulls().unique(), on="launch", how="semi")
    sums = launches.group_by("graph").agg(_statistics())
    both = keys.join(sums, on="graph", how="left").with_columns(
        pl.col(("launches", "api_total_ns", "launch_ns", "span_total_ns", "busy_ns")).fill_null(0)
    )
    ids, count = ["process_id", "graph_exec_id"], pl.col("graph_node_id").n_unique().cast(pl.Int64)
    listed = report.table("graph_nodes").group_by(ids).agg(made_of=pl.col("graph_id").drop_nulls().first(), nodes=count)
    ran = with_facts(report, graph_operations(report).select("row", "graph"), "graph_node_id").drop_nulls()
    both = both.join(listed, on=ids, how="left", nulls_equal=True)
    both = both.join(ran.group_by("graph").agg(active_nodes=count), on="graph", how="left")
    whole = both.with_columns(pl.coalesce("graph_id", "made_of").alias("graph_id"))
    whole = whole.join(making_costs(report), on=ids, how="left")
    return TABLE.select(whole.sort("span_total_ns", "graph", descending=[True, False]))


def _statistics() -> list[pl.Expr]:
    span, traced = pl.col("end") - pl.col("start"), ~pl.col("whole").any()
    return [
        pl.len().cast(pl.Int64).alias("launches"),
        pl.when(traced).then(pl.col("kernels", "copies", "memsets").mean()).name.suffix("_per_launch"),
        pl.col("call_ns").filter("charged").sum().alias("api_total_ns"),
        pl.col("call_ns").mean().alias("api_avg_ns"),
        pl.col("call_ns").median().alias("api_median_ns"),
        pl.col("launch_ns").sum(),
        span.sum().alias("span_total_ns"),
        span.mean().alias("span_avg_ns"),
        span.median().alias("span_median_ns"),
        pl.col("busy_ns").sum(),
        pl.when(traced).then(pl.col("idle_ns").sum()).alias("idle_ns"),
    ]


@once_per_report
def making_costs(report: Report) -> pl.DataFrame:
    """The host time for building each executable graph that was launched.

    Columns: process_id, graph_exec_id, instantiate_ns, capture_ns and upload_ns; null where unknown.
    """
    steps, length, ids = graph_steps(report), pl.col("end") - pl.col("start"), ["process_id", "graph_exec_id"]
    # the call that instantiated each, where there are as many calls as graphs, one after the other, before the launches
    calls = steps.filter(pl.col("step") == "instantiate")
    graphs = (
        graph_launches(report).drop_nulls(ids).group_by(ids).agg(first=pl.col("call_start").min()).sort("graph_exec_id")
    )
    place = pl.int_range(pl.len()).over("process_id").alias("place")
    size = pl.len().over("process_id")
    calls = calls.with_columns(place, calls=size, last_end=pl.col("end").cum_max().shift(1).over("process_id"))
    pairs = graphs.with_columns(place, graphs=size).join(calls, on=["process_id", "place"])
    apart = (pl.col("start") >= pl.col("last_end")).fill_null(value=True)
    possible = apart & (pl.col("end") <= pl.col("first")) & (pl.col("calls") == pl.col("graphs"))
    instantiated = pairs.filter(possible.fill_null(value=False).all().over("process_id"))
    instantiated = instantiated.select(*ids, "thread_id", "start", "end", instantiate_ns=length)
    # the last capture on its thread before it, unless another graph was made in between
    others = steps.filter(pl.col("step") != "upload").select(*THREAD, "step", "event_id", last="start")
    last = nearest(instantiated, others, ("start", "last"), THREAD, "strictly before")
    lengths = captures(report).select("event_id", capture_ns=length)
    instantiated = last.join(lengths, on="event_id", how="left", maintain_order="left").select(
        *instantiated.columns, "capture_ns"
    )
    # the upload that followed it if each graph has one; all uploads for an only graph
    uploads = steps.filter(pl.col("step") == "upload")
    times = uploads.select("process_id", "start", ns=length)
    followed = nearest(times, instantiated.select(*ids, made="start"), ("start", "made"), ["process_id"])
    sums = followed.group_by(ids).agg(pl.col("ns").sum(), uploads=pl.len())
    each = (pl.col("uploads") == 1).fill_null(value=False).all().over("process_id")
    none = ~pl.col("process_id").is_in(uploads.get_column("process_id").unique().implode())
    ns = pl.when(none).then(0).when(each | (pl.len().over("process_id") == 1)).then(pl.col("ns").fill_null(0))
    costs = instantiated.join(sums, on=ids, how="left", maintain_order="left").with_columns(ns.alias("upload_ns"))
    return costs.select(*ids, *(pl.col(name).cast(pl.Int64) for name in ("instantiate_ns", "capture_ns", "upload_ns")))
