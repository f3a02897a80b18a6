"""Window of each device: the interval that its ledger accounts for."""

from typing import Any, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import (
    BUSY_BUCKETS,
    device_operations,
    in_time,
    of_device,
    operations,
    used_devices,
)
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.report import Report


@analysis.once_per_report
def activity(report: Report) -> pl.DataFrame:
    """First start and last end of the CUDA calls and operations of all processes that used a device.

    Columns: device, start, end; one row per device with operations.
    """
    joined = used_devices(report).join(_process_spans(report), on="process_id", how="left", nulls_equal=True)
    return joined.group_by("device").agg(pl.col("start").min(), pl.col("end").max()).sort("device")


@analysis.once_per_report
def windows(report: Report) -> pl.DataFrame:
    """Window of each device with operations, the user's or else its :func:`activity`: device, start, end."""
    window, spans = report.scope.window, activity(report)
    if window is None:  # events that end before they start would give a negative length
        return spans.with_columns(pl.max_horizontal("start", "end").alias("end"))
    low = pl.col("start") if window.start_ns is None else pl.lit(window.start_ns, dtype=pl.Int64)
    high = pl.col("end") if window.end_ns is None else pl.lit(window.end_ns, dtype=pl.Int64)
    return spans.select("device", low.alias("start"), pl.max_horizontal(low, high).alias("end"))


def share_of_window(report: Report) -> pl.Expr:
    """The part of the window of its device that the time `ns` of a row is."""
    parts = [
        pl.when(pl.col("device") == device).then(pl.col("ns") / max(end - start, 1))
        for device, start, end in windows(report).iter_rows()
    ]
    return pl.coalesce(*parts, pl.lit(None, dtype=pl.Float64)).alias("share")


def span(report: Report) -> tuple[int, int] | None:
    """First start and last end of the windows of all devices; None without operations."""
    spans = windows(report)
    if spans.is_empty():
        return None
    low, high = spans.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return int(low), int(high)


@analysis.once_per_process
def _process_spans(report: Report) -> pl.DataFrame:
    """First start and last end of the CUDA calls and operations of each process."""
    calls = in_time(report, report.kind("api").select("process_id", **intervals.OF_EVENTS))
    sides = pl.col("start").min(), pl.col("end").max()
    parts = [events.group_by("process_id").agg(sides) for events in (calls, operations(report))]
    return pl.concat(parts).group_by("process_id").agg(sides)


@analysis.once_per_report
def busy_layers(report: Report) -> dict[int, list[pl.DataFrame]]:
    """By device in scope, for each of :data:`BUSY_BUCKETS` the busy time of its operations and those of buckets before.

    Span sets, of what overlaps the window of the device.
    """
    work, layers_of_device = operations(report).select("device", "start", "end", "rank"), {}
    for device, *sides in windows(report).iter_rows():
        own, layers = of_device(work, device), [pl.DataFrame(schema=intervals.SPANS)]
        if report.scope.window is not None:
            own = intervals.overlapping(own, (sides[0], sides[1]))
        for rank in range(len(BUSY_BUCKETS)):
            part = own.filter(pl.col("rank") == rank).select("start", "end")
            layers.append(intervals.union(pl.concat([layers[-1], part])) if part.height else layers[-1])
        layers_of_device[device] = layers[1:]
    return layers_of_device


def spans_of_bucket(report: Report, device: int, bucket: str) -> pl.DataFrame:
    """When a device, in its window, runs work of one of :data:`BUSY_BUCKETS` and of none before it: a span set."""
    at, layers = BUSY_BUCKETS.index(bucket), busy_layers(report)[device]
    low, high = windows(report).row(by_predicate=pl.col("device") == device)[1:]
    spans = intervals.clip(layers[at], low, high)
    return intervals.subtract(spans, layers[at - 1]) if at else spans


def busy_by_bucket(report: Report, device: int, start: pl.Series, end: pl.Series) -> pl.DataFrame:
    """The busy time of a device in each ``[start, end)`` by bucket, ``<bucket>_ns``: what each adds to those before."""
    sums, before, last = dict[str, pl.Series](), pl.zeros(len(start), dtype=pl.Int64, eager=True), None
    for bucket, layer in zip(BUSY_BUCKETS, busy_layers(report)[device], strict=True):
        until = before if layer is last else intervals.overlap(start, end, layer)
        sums[f"{bucket}_ns"], before, last = until - before, until, layer
    return pl.DataFrame(sums)


@analysis.once_per_process
def busy_spans(report: Report) -> dict[int, pl.DataFrame]:
    """Span set of busy time by device, at any time."""
    work = operations(report).select("device", "start", "end")
    return {device: intervals.union(of_device(work, device)) for device in work.get_column("device").unique().sort()}


def busy_within(report: Report, spans: pl.DataFrame) -> pl.Series:
    """How long its device ran anything in each of `spans` (device, start, end); null without a device."""
    busy_ns = intervals.covered_by(spans, "device", busy_spans(report))
    return busy_ns.set(spans.get_column("device").is_null(), None).alias("busy_ns")


@analysis.once_per_report
def idle_spans(report: Report) -> dict[int, pl.DataFrame]:
    """Span set of idle time inside its window, by device in scope."""
    busy = busy_spans(report)
    return {device: intervals.gaps(busy[device], low, high) for device, low, high in windows(report).iter_rows()}


@analysis.once_per_report
def all_idle_spans(report: Report) -> pl.DataFrame:
    """Span set in which all devices in scope were idle, from the first start to the last end of their windows."""
    edges, idle = span(report), idle_spans(report)
    if edges is None or len(idle) == 1:
        return next(iter(idle.values()), pl.DataFrame(schema=intervals.SPANS))
    return intervals.gaps(intervals.union(pl.concat(busy_spans(report)[device] for device in idle)), *edges)


# GPUs shared by several processes, whose kernels overlap or alternate.
#
# A GPU time-slices between processes, unless the Multi-Process Service (MPS) or GPU instances (MIG) let their kernels
# run concurrently. A kernel that waits for the time slice of another process has started and not ended, so both appear
# to overlap, and its duration includes that slice. The report does not tell the two cases apart; it shows that the
# processes shared the GPU, and for how long.


#: Kernels shorter than this are shorter than a time slice; of them so many, and such a part of all, meet another
#: process's kernel where both run concurrently: at most one can at each switch between slices.
_SLICE_NS: Final = 1_000_000
_LEAST_MEETINGS: Final = 100
_OFTEN: Final = 0.15


class Shared(NamedTuple):
    """A GPU on which kernels of these `processes` overlap or alternate.

    `together_ns` is the time in its window in which those of two or more overlap, `turns` how many follow one of
    another process. `side_by_side` if they certainly ran concurrently, as with MPS: so many of them, each shorter than
    a time slice, overlap the next one, of another process, that these cannot be switches between slices. `slowed` is
    the kernel that lost most time by sharing, where one is known.
    """

    device: int
    processes: list[int]
    together_ns: int
    turns: int
    side_by_side: bool
    slowed: dict[str, Any] | None


@analysis.once_per_report
def shared_devices(report: Report) -> list[Shared]:
    """GPUs in scope on which kernels of several processes overlap or alternate within the window."""
    if report.meta.recorder.ranked:  # GPU 0 of two processes may be two GPUs
        return []
    kernels = pl.col("kind").is_in(("kernel", "graph")) & pl.col("process_id").is_not_null()
    devices = []
    for device, low, high in windows(report).iter_rows():
        own = of_device(device_operations(report), device)
        if own.select(pl.col("process_id").drop_nulls().n_unique()).item() > 1:
            work = intervals.clip(own.filter(kernels).select("process_id", "name", "start", "end"), low, high)
            if (shared := _shared(device, work)) is not None:
                devices.append(shared)
    return devices


def _shared(device: int, work: pl.DataFrame) -> Shared | None:
    together = overlapping(work)
    line = work.sort("start", "end").get_column("process_id")
    turns = int((line != line.shift(1)).sum())
    if together.height:
        beside = work.with_columns(shared=intervals.covered(work, together) > 0)
        processes = beside.filter("shared").get_column("process_id")
        slowed = _slowed(beside)
    elif turns >= line.n_unique():  # fewer turns: one process ran after the other
        processes, slowed = line, None
    else:
        return None
    process_ids, together_ns = processes.unique().sort().to_list(), intervals.length(together)
    next_one = pl.col("process_id", "start").shift(-1).name.prefix("next_")
    meets = (pl.col("process_id") != pl.col("next_process_id")) & (pl.col("next_start") < pl.col("end"))
    short = work.sort("start", "end").with_columns(next_one, took=pl.col("end") - pl.col("start")).filter(meets)
    many = short.height >= max(_LEAST_MEETINGS, _OFTEN * work.height)
    side_by_side = many and statistics.median_of(short, "took") < _SLICE_NS
    return Shared(device, process_ids, together_ns, turns, side_by_side, slowed)


def process_count(report: Report) -> int:
    """Processes with device operations; where there are none, the processes in scope."""
    return int(device_operations(report).select(pl.col("process_id").n_unique()).item()) or report.processes.height


def overlapping(work: pl.DataFrame) -> pl.DataFrame:
    """The span set in which kernels (process_id, start, end) of two or more processes overlap."""
    parts = (intervals.union(part) for part in work.partition_by("process_id"))
    spans = pl.concat([pl.DataFrame(schema=intervals.SPANS), *parts])
    return intervals.subtract(intervals.union(spans), intervals.alone(spans))


def _slowed(work: pl.DataFrame) -> dict[str, Any] | None:
    """The kernel with the most excess time while shared: name, process_id, longest_ns, and alone_ns (the median)."""
    took = pl.col("end") - pl.col("start")
    shared, alone = took.filter(pl.col("shared")), took.filter(~pl.col("shared")).median().alias("alone_ns")
    sums = work.group_by("name", "process_id").agg(
        alone, shared.max().alias("longest_ns"), shared.sum().alias("total_ns"), shared.len().alias("count")
    )
    lost = (pl.col("total_ns") - pl.col("alone_ns") * pl.col("count")).alias("lost")
    lengthened = sums.drop_nulls().with_columns(lost, pl.col("name").cast(pl.String)).filter(pl.col("lost") > 0)
    order = lengthened.sort("lost", "name", "process_id", descending=[True, False, False])
    return next(order.iter_rows(named=True), None)
