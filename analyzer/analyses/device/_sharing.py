"""Detects GPUs shared by several processes, whose kernels overlap or alternate.

A GPU time-slices between processes, unless the Multi-Process Service (MPS) or GPU instances (MIG) let their kernels run
concurrently. A kernel that waits for the time slice of another process has started and not ended, so both appear to
overlap, and its duration includes that slice. The report does not tell the two cases apart; it shows that the processes
shared the GPU, and for how long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import device_operations, of_device
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import median_of

if TYPE_CHECKING:
    from kanalyze.report import Report

_KINDS: Final = ("kernel", "graph")


#: Kernels shorter than this are shorter than a time slice; of them so many, and such a part of all, meet another
#: process's kernel where both run concurrently: at most one can at each switch between slices.
_SLICE_NS: Final = 1_000_000
_LEAST_MEETINGS: Final = 100
_OFTEN: Final = 0.15


class Slowed(NamedTuple):
    """A kernel that takes longer while kernels of another process overlap it.

    Attributes:
        name: Name of the kernel.
        process: Its process.
        longest_ns: Longest duration with such an overlap.
        alone_ns: Median duration without one.
    """

    name: str
    process: int
    longest_ns: int
    alone_ns: float


class Shared(NamedTuple):
    """A GPU that several processes share.

    Attributes:
        device: The GPU.
        processes: Processes whose kernels overlap or alternate on it.
        together_ns: Time in its window in which kernels of two or more processes overlap.
        turns: Number of kernels that follow one of another process.
        side_by_side: Whether the kernels certainly ran concurrently, as with MPS: so many of them, each shorter than a
            time slice, overlap the next one, of another process, that these cannot be switches between slices.
        slowed: The kernel that lost most time by sharing, where one is known.
    """

    device: int
    processes: list[int]
    together_ns: int
    turns: int
    side_by_side: bool
    slowed: Slowed | None


@once_per_report
def shared_devices(report: Report) -> list[Shared]:
    """GPUs in scope on which kernels of several processes overlap or alternate within the window."""
    if report.meta.recorder.ranked:  # GPU 0 of two processes may be two GPUs
        return []
    kernels = pl.col("kind").is_in(_KINDS) & pl.col("process_id").is_not_null()
    found = []
    for device, low, high in windows(report).iter_rows():
        own = of_device(device_operations(report), device)
        if own.select(pl.col("process_id").drop_nulls().n_unique()).item() > 1:
            work = intervals.clip(own.filter(kernels).select("process_id", "name", "start", "end"), low, high)
            if (shared := _shared(device, work)) is not None:
                found.append(shared)
    return found


def _shared(device: int, work: pl.DataFrame) -> Shared | None:
    together = overlapping(work)
    line = work.sort("start", "end").get_column("process_id")
    turns = int((line != line.shift(1)).sum())
    if together.height:
        met = intervals.overlap(work.get_column("start"), work.get_column("end"), together)
        beside = work.with_columns(shared=met > 0)
        processes = beside.filter("shared").get_column("process_id")
        slowed = _slowed(beside)
    elif turns >= line.n_unique():  # fewer turns: one process ran after the other
        processes, slowed = line, None
    else:
        return None
    known, together_ns = processes.unique().sort().to_list(), intervals.length(together)
    return Shared(device, known, together_ns, turns, _side_by_side(work), slowed)


def _side_by_side(work: pl.DataFrame) -> bool:
    line = work.sort("start", "end").with_columns(
        took=pl.col("end") - pl.col("start"),
        meets=(pl.col("process_id") != pl.col("process_id").shift(-1)) & (pl.col("start").shift(-1) < pl.col("end")),
    )
    met = line.filter(pl.col("meets").fill_null(value=False))
    many = met.height >= max(_LEAST_MEETINGS, _OFTEN * line.height)
    return many and median_of(met, "took") < _SLICE_NS


def overlapping(work: pl.DataFrame) -> pl.DataFrame:
    """The span set in which kernels (process_id, start, end) of two or more processes overlap."""
    parts = (intervals.union(part) for part in work.partition_by("process_id"))
    spans = pl.concat([pl.DataFrame(schema=intervals.SPANS), *parts])
    return intervals.subtract(intervals.union(spans), intervals.alone(spans))


def _slowed(work: pl.DataFrame) -> Slowed | None:
    """The kernel with the most excess time while shared, against its median duration when alone."""
    took = pl.col("end") - pl.col("start")
    shared, alone = took.filter(pl.col("shared")), took.filter(~pl.col("shared")).median().alias("alone_ns")
    sums = work.group_by("name", "process_id").agg(
        alone, shared.max().alias("longest_ns"), shared.sum().alias("total_ns"), shared.len().alias("count")
    )
    lost = (pl.col("total_ns") - pl.col("alone_ns") * pl.col("count")).alias("lost")
    known = sums.drop_nulls().with_columns(lost, pl.col("name").cast(pl.String)).filter(pl.col("lost") > 0)
    if known.is_empty():
        return None
    most = known.sort("lost", "name", "process_id", descending=[True, False, False]).row(0, named=True)
    return Slowed(most["name"], most["process_id"], most["longest_ns"], most["alone_ns"])
