"""GPUs that several processes share: whose kernels had begun and not ended at the same time, and who took turns.

A GPU runs the kernels of one process at a time, in time slices, unless the Multi-Process Service (MPS) or instances of
the GPU (MIG) let them run side by side. A kernel that has to wait for the other process's slice has begun and not
ended, so that both look as if they ran together, and its duration holds the slice. The report does not say which of the
two it was; it shows that they shared the GPU, and for how long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import device_operations, of_device
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.shared.cached import once_per_report

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Tools that number the GPUs of each process on their own: two processes' GPU 0 may be two GPUs.
_OWN_NUMBERS: Final = ("torch.profiler",)

_KINDS: Final = ("kernel", "graph")


@dataclass(frozen=True)
class Slowed:
    """A kernel of one process that takes longer where kernels of another one run meanwhile.

    Attributes:
        name: The kernel.
        process: Its process.
        longest_ns: The longest of its durations there.
        alone_ns: The median of the others.
    """

    name: str
    process: int
    longest_ns: int
    alone_ns: float


@dataclass(frozen=True)
class Shared:
    """A GPU that several processes share.

    Attributes:
        device: The GPU.
        processes: Those that ran kernels on it in turn, or at the same time.
        together_ns: How long, in its window, kernels of two of them or more had begun and not ended.
        turns: How often the next kernel to start is another process's.
        slowed: The kernel that lost most by it, where one is known.
    """

    device: int
    processes: list[int]
    together_ns: int
    turns: int
    slowed: Slowed | None


@once_per_report
def shared_devices(report: Report) -> list[Shared]:
    """The GPUs in scope on which kernels of several processes ran in turn, or at the same time, in the window."""
    if report.meta.tool in _OWN_NUMBERS:
        return []
    kernels = pl.col("kind").is_in(_KINDS) & pl.col("process_id").is_not_null()
    found = []
    for device, low, high in windows(report).iter_rows():
        own = of_device(device_operations(report), device)
        if own.get_column("process_id").drop_nulls().n_unique() > 1:
            work = intervals.clip(own.filter(kernels).select("process_id", "name", "start", "end"), low, high)
            if (shared := _shared(device, work)) is not None:
                found.append(shared)
    return found


def _shared(device: int, work: pl.DataFrame) -> Shared | None:
    together = _together(work)
    line = work.sort("start", "end").get_column("process_id")
    turns = int((line != line.shift(1)).sum())
    if together.height:
        met = intervals.overlap(work.get_column("start"), work.get_column("end"), together)
        beside = work.with_columns(shared=met > 0)
        processes = beside.filter("shared").get_column("process_id")
        slowed = _slowed(beside)
    elif turns >= line.n_unique():  # else each ran after the other
        processes, slowed = line, None
    else:
        return None
    return Shared(device, processes.unique().sort().to_list(), intervals.length(together), turns, slowed)


def _together(work: pl.DataFrame) -> pl.DataFrame:
    """The span set in which kernels of two processes or more had begun and not ended."""
    spans = [intervals.union(part) for part in work.partition_by("process_id")]
    edges = [pl.concat([part.select(at=side, step=pl.lit(step)) for side, step in _STEPS]) for part in spans]
    line = pl.concat([pl.DataFrame(schema={"at": pl.Int64, "step": pl.Int32}), *edges])
    counted = line.group_by("at").agg(pl.col("step").sum()).sort("at")
    pieces = counted.select(start="at", end=pl.col("at").shift(-1), many=pl.col("step").cum_sum())
    return intervals.union(pieces.filter(pl.col("many") > 1).select("start", "end"))


_STEPS: Final = (("start", 1), ("end", -1))


def _slowed(work: pl.DataFrame) -> Slowed | None:
    """The kernel that took most longer in all where it was not alone, against its median where it was."""
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
