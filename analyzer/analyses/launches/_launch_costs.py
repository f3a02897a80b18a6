"""Launch costs: first launches, and launch-bound kernels; and CUDA graphs at run time.

An operation belongs to a graph if the report names its executable graph, if it is a whole-graph row, or if a graph
launch call launched it (old file versions name no graph). The operations of one launch share process and correlation
id. Those in the body of a conditional node have no correlation id: they belong to the latest launch of their graph
before them, since launches of one executable graph never overlap.
"""

from typing import Final, NamedTuple

import polars as pl

from kanalyze import intervals, model
from kanalyze.analyses.device._operations import (
    device_operations,
    in_window_scope,
    of_device,
    operations,
    used_devices,
    with_facts,
)
from kanalyze.analyses.device._windows import busy_spans, busy_within, windows
from kanalyze.analyses.host._call_kinds import begun_before, captures, graph_call, graph_steps, loading_seen, shown_cold
from kanalyze.analyses.idle._attribution import waited_ns
from kanalyze.analyses.shared.analysis import once_per_process, once_per_report
from kanalyze.columns import in_order, mixed, nearest, shared
from kanalyze.report import Report

#: What tells a kernel on a device from others.
KERNEL: Final = ("process_id", "device", "name")

#: A first launch is cold if it takes this many times the median of the later launches.
COLD_FACTOR: Final = 3


class LaunchCosts(NamedTuple):
    """Launch-bound kernels, and first launches of kernels on a device that are slow.

    `bound` has those of each device, the longest wait of the device first; columns device, name, count (launches after
    the first), api_ns, kernel_ns (medians), launch_ns (the device's wait). A kernel is launch-bound if the median of
    its launching calls is longer than the median of its runs, first launches excluded. Kernels of CUDA graphs are not,
    since their launch is shared.

    `slow` has the first launches in the recording that took :data:`COLD_FACTOR` times as long as usual, by device, the
    longest first; columns device, row, process_id, name, call_start, api_ns (the call), launch_ns (the device's wait),
    sure (whether the report shows that it was the kernel's first in the process, which it may not be in one that began
    before the recording), kernels (how many were launched on the device), usual_ns (the median call of later launches
    on it) and stake_ns (the device's wait beyond its usual one for a launch).
    """

    bound: pl.DataFrame
    slow: pl.DataFrame


@once_per_report
def launch_costs(report: Report) -> LaunchCosts:
    """The launch costs of the kernels in scope."""
    launched, first = launched_kernels(report), pl.col("first")
    own = launched.select("device", "name", "api_ns", "kernel_ns", "launch_ns").filter(~launched.get_column("first"))
    sums = own.group_by("device", "name").agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("api_ns").median(),
        pl.col("kernel_ns").median(),
        pl.col("launch_ns").sum(),
    )
    bound = sums.filter(pl.col("api_ns") > pl.col("kernel_ns"))
    usual = launched.group_by("device").agg(
        kernels=first.sum(),
        usual_ns=pl.col("api_ns").filter(~first).median(),
        usual_wait=pl.col("launch_ns").filter(~first).median(),
    )
    slow = launched.filter(first).join(usual, on="device").filter(pl.col("api_ns") > COLD_FACTOR * pl.col("usual_ns"))
    slow = with_facts(report, slow, "thread_id", "call_start", "call_end")
    slow = slow.sort("device", "api_ns", "row", descending=[False, True, False])
    slow = slow.with_columns(
        sure=shown_cold(report, slow),
        stake_ns=(pl.col("launch_ns") - pl.col("usual_wait")).clip(lower_bound=0),
    )
    return LaunchCosts(bound.sort("device", "launch_ns", "name", descending=[False, True, False]), slow)


def launched_kernels(report: Report) -> pl.DataFrame:
    """The kernels in scope that were launched by a call of their own, in the order of the calls.

    Columns: row (of `operations`), name, device, process_id, kernel_ns, api_ns (the call's duration), launch_ns (the
    device's wait for this launch), first (the process's first launch of this kernel on this device in the recording).
    """
    # a call of its own launched nothing else; most reports lose no row in any of the steps
    work = device_operations(report).filter(pl.col("kind") == "kernel")
    work = work.select("row", "name", "device", "process_id", kernel_ns="dur_ns")
    work = with_facts(report, work, "call_row", "call_start", "call_name")
    alone = work.get_column("call_row").is_not_null() & ~graph_call(report, work.get_column("call_name"))
    work = in_order(work.drop("call_name").filter(alone), "call_start")
    work = work.with_columns(first=mixed(KERNEL).is_first_distinct())
    work = work.filter(~shared(work.get_column("call_row"))).drop("call_start")
    launched = with_facts(report, work, "call_ns").rename({"call_ns": "api_ns"}).drop("call_row")
    return in_window_scope(report, launched.hstack(waited_ns(report, launched.get_column("row"), "launch_ns")))


#: Keys of the launches on one device, and of its graphs (`mark` only where no id is known).
_LAUNCH: Final = ("process_id", "correlation_id", "device")
_GRAPH: Final = ("process_id", "device", "graph_exec_id", "mark")


def has_graphs(report: Report) -> bool:
    """Whether any operation belongs to a CUDA graph; cheaper than finding out which."""
    named = any(
        report.table(name).select(pl.col("graph_exec_id").count()).item()
        for name in ("kernel_config", "copy_detail", "graph_detail")
    )
    possible = named or report.kind("graph").height or graph_call(report, report.kind("api").get_column("name")).any()
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
    # a hash of the kinds and names of a launch's operations, whatever their order
    name = pl.col("name").to_physical().cast(pl.Int64).fill_null(-1)
    # so small that sums do not overflow, however many operations a launch has
    mark = ((name * len(model.DEVICE_KINDS) + pl.col("kind").to_physical()).hash() % (1 << 31)).cast(pl.Int64).sum()
    launches = known.group_by(_LAUNCH).agg(
        pl.col("start").min(), pl.col("graph_exec_id", "graph_id").first(), mark=mark
    )
    launches = launches.sort("start", *_LAUNCH).with_row_index("launch")
    launches = launches.with_columns(pl.when(pl.col("graph_exec_id").is_null()).then("mark"))
    known = known.join(launches.select(*_LAUNCH, "launch", "mark"), on=_LAUNCH, how="left", nulls_equal=True)
    # those of conditional bodies have the latest launch of their graph before them
    own = ["process_id", "device", "graph_exec_id"]
    begun = launches.drop_nulls("graph_exec_id").select(*own, "launch", begun="start")
    orphans = nearest(marked.filter(pl.col("correlation_id").is_null()), begun, ("start", "begun"), own).drop("begun")
    work = pl.concat([known, orphans], how="diagonal")
    graphs = work.group_by(_GRAPH).agg(pl.col("start").min(), pl.col("row").min()).sort("start", "row")
    graphs = graphs.with_row_index("graph", offset=1).select("graph", *_GRAPH)
    return work.join(graphs, on=_GRAPH, how="left", nulls_equal=True).sort("row").drop("correlation_id", "mark")


@once_per_process
def _with_graph_ids(report: Report) -> pl.DataFrame:
    """The operations of graphs, with graph_exec_id, graph_id and correlation_id."""
    ids = ("graph_exec_id", "graph_id")
    work = operations(report, "call_name", "correlation_id", *ids)
    by_call = graph_call(report, work.get_column("call_name"))
    mine = by_call | work.select(pl.col("graph_exec_id").is_not_null() | (pl.col("kind") == "graph")).to_series()
    return work.filter(mine).select(
        "row", "event_id", "kind", "name", "start", "end", "device", "process_id", "correlation_id", *ids
    )


@once_per_report
def graph_launches(report: Report) -> pl.DataFrame:
    """The launches of CUDA graphs, one row per launch and device that it ran on, by first start.

    Columns: launch, graph, process_id, device, graph_exec_id, start and end (first start to last end), busy_ns (union
    of its own operations), idle_ns (the device ran nothing at all), kernels, copies, memsets, whole (its nodes were not
    recorded), launch_ns (the device's wait for it), call_row, thread_id, call_start, call_ns and charged (whether the
    call's time is charged here: the device where its first operation ran).
    """
    own = graph_operations(report).drop_nulls("launch").sort("launch", "start", "row")
    own = own.hstack(waited_ns(report, own.get_column("row"), "launch_ns"))
    own = own.with_columns(pl.max_horizontal("start", "end").alias("end"))
    own = own.with_columns(intervals.newly_covered(own, "launch").alias("busy_ns"))
    names = {"kernels": "kernel", "copies": "memcpy", "memsets": "memset"}
    counts = {name: (pl.col("kind") == kind).sum().cast(pl.Int64) for name, kind in names.items()}
    sums = own.group_by("launch", maintain_order=True).agg(
        pl.col("graph", "process_id", "device", "graph_exec_id", "row").first(),
        pl.col("start").min(),
        pl.col("end").max(),
        pl.col("launch_ns", "busy_ns").sum(),
        whole=(pl.col("kind") == "graph").any(),
        **counts,
    )
    idle = sums.get_column("end") - sums.get_column("start") - busy_within(report, sums)
    return with_facts(report, sums, "call_row", "thread_id", "call_start", "call_ns").with_columns(
        idle.alias("idle_ns"), charged=pl.col("call_row").is_not_null() & pl.col("call_row").is_first_distinct()
    )


# The steady part of a device's window: without one-time costs, as far as the report shows them.

#: The steady part needs at least this share of the device's busy time, and so many operations; otherwise the program
#: has none.
_MOST: Final = 0.5
_FEWEST: Final = 3


#: The minimum share of the time considered, and the minimum time, for a finding to be worth a sentence.
WORTH_SAYING: Final = 0.001
_LEAST_NS: Final = 1_000


class Steady(NamedTuple):
    """The steady part of a device's window, with the busy time of the device within it."""

    start: int
    end: int
    busy_ns: int

    @property
    def ns(self) -> int:
        """The duration, in ns."""
        return self.end - self.start


@once_per_report
def steady_parts(report: Report) -> dict[int, Steady]:
    """The steady part of each device that has one.

    Of the intervals between one-time costs (contexts, loading, graph building, slow first launches), from the device's
    first to its last operation in the window, the one with most busy time; only if that is most of the device's busy
    time, and it holds several operations. A process that was running before the recording has no such costs.
    """
    steady = {}
    for device, busy, parts in _between_one_time_costs(report):
        times = intervals.covered(parts, busy)
        most = times.arg_max()
        if most is None or times[most] < _MOST * intervals.length(busy):
            continue
        start, end = parts.row(most)
        starts = of_device(operations(report).select("device", "start"), device).get_column("start")
        if starts.is_between(start, end, closed="left").sum() >= _FEWEST:
            steady[device] = Steady(start, end, times[most])
    return steady


@once_per_report
def least_worth_saying(report: Report) -> dict[int, float]:
    """The minimum time at stake for a finding on each device to be worth a sentence, in ns.

    That is :data:`WORTH_SAYING` times the steady part; without one, times the interval from the device's first to its
    last operation without one-time costs; and if the report shows no such costs, times the window. It is at least a
    microsecond, but never more than that share of the window.
    """
    lengths = {device: intervals.length(parts) for device, _, parts in _between_one_time_costs(report)}
    lengths |= {device: steady.ns for device, steady in steady_parts(report).items()}
    whole = {device: WORTH_SAYING * (end - start) for device, start, end in windows(report).iter_rows()}
    worth_ns = {device: max(WORTH_SAYING * ns, _LEAST_NS) for device, ns in lengths.items()}
    return {device: min(least, worth_ns.get(device, least)) for device, least in whole.items()}


def worth_saying(report: Report, ns: int) -> bool:
    """Whether `ns` of a device's window could be enough for a finding, on any device."""
    return any(ns >= least for least in least_worth_saying(report).values())


@once_per_report
def _between_one_time_costs(report: Report) -> list[tuple[int, pl.DataFrame, pl.DataFrame]]:
    """Busy intervals, and the intervals between one-time costs, of each device with such costs in its window."""
    returned = pl.col("call_start") + pl.col("api_ns")
    cold = launch_costs(report).slow.filter("sure").with_columns(start="call_start", end=returned)
    making = graph_steps(report).filter(pl.col("step").is_in(["instantiate", "upload"]))
    parts = (loading_seen(report), making, captures(report), cold)
    every = pl.concat([part.select("process_id", "start", "end") for part in parts])
    # of processes that began during the recording
    costs, between = every.join(begun_before(report), on="process_id", how="anti", nulls_equal=True), []
    for device, low, high in windows(report).iter_rows():
        own = used_devices(report).filter(pl.col("device") == device).select("process_id")
        mine = costs.join(own, on="process_id", how="semi", nulls_equal=True)
        once = intervals.clip(mine.select("start", "end"), low, high)
        busy = intervals.clip(busy_spans(report)[device], low, high)
        if once.height and busy.height:
            whole = busy.select(pl.col("start").min(), pl.col("end").max())
            between.append((device, busy, intervals.subtract(whole, intervals.union(once))))
    return between
