"""Launch costs: first launches, and launch-bound kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import device_operations, exclusive_operations, of_device, with_facts
from kanalyze.analyses.host._context_creation import shown_cold
from kanalyze.analyses.idle._attribution import launch_waits, waited_ns
from kanalyze.analyses.launches._graph_launches import launches_graphs
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import median_of
from kanalyze.columns.grouping import LARGEST, mixed, numbered
from kanalyze.columns.ordering import repeated

if TYPE_CHECKING:
    from kanalyze.report import Report

_FIRST: Final = ("row", "process_id", "name", "call_start", "api_ns", "launch_ns")

#: A first launch is cold if it takes this many times the median of the later launches.
COLD_FACTOR: Final = 3


class FirstLaunches(NamedTuple):
    """The first launch of each kernel on one device in the recording, compared with later launches.

    Attributes:
        kernels: Number of kernels.
        cold: The first launches that took :data:`COLD_FACTOR` times as long as usual, the longest first, if the report
            shows that they were the kernel's first in the process; columns row, process_id, name, call_start, api_ns
            (the call), launch_ns (the device's wait).
        unsure: The same for processes that began before the recording, where that is unknown.
        usual_ns: The median call duration of later launches.
        stake_ns: The device's wait for cold launches beyond its usual wait for a launch.
    """

    kernels: int
    cold: pl.DataFrame
    unsure: pl.DataFrame
    usual_ns: float
    stake_ns: int


class LaunchCosts(NamedTuple):
    """Costs of first launches, and launch-bound kernels.

    Attributes:
        bound: The launch-bound kernels of each device, the longest wait of the device first; columns device, name,
            count (launches after the first), api_ns, kernel_ns (medians), launch_ns (the device's wait). A kernel is
            launch-bound if the median of its launching calls is longer than the median of its runs, first launches
            excluded. Kernels of CUDA graphs are not, since their launch is shared.
        first: First launches by device; without devices whose kernels were all launched only once.
    """

    bound: pl.DataFrame
    first: dict[int, FirstLaunches]


@once_per_report
def launch_costs(report: Report) -> LaunchCosts:
    """The launch costs of the kernels in scope."""
    launched = launched_kernels(report)
    own = launched.select("device", "name", "api_ns", "kernel_ns", "launch_ns").filter(~launched.get_column("first"))
    sums = own.group_by("device", "name").agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("api_ns").median(),
        pl.col("kernel_ns").median(),
        pl.col("launch_ns").sum(),
    )
    bound = sums.filter(pl.col("api_ns") > pl.col("kernel_ns"))
    firsts = {
        device: found
        for device in launched.get_column("device").unique().sort()
        if (found := _first_launches(report, of_device(launched, device))) is not None
    }
    return LaunchCosts(bound.sort("device", "launch_ns", "name", descending=[False, True, False]), firsts)


def _first_launches(report: Report, launched: pl.DataFrame) -> FirstLaunches | None:
    first = launched.filter("first")
    warm = launched.select("first", "api_ns", "launch_ns").filter(~pl.col("first"))
    if warm.is_empty():
        return None
    usual, usual_wait = median_of(warm, "api_ns"), median_of(warm, "launch_ns")
    slow = first.filter(pl.col("api_ns") > COLD_FACTOR * usual).sort("api_ns", "row", descending=[True, False])
    slow = with_facts(report, slow, "thread_id", "call_start", "call_end")
    shown = shown_cold(report, slow)
    cold, unsure = (slow.filter(some).select(_FIRST) for some in (shown, ~shown))
    stake = cold.select((pl.col("launch_ns") - usual_wait).clip(lower_bound=0).sum()).item()
    return FirstLaunches(first.height, cold, unsure, usual, int(stake))


def launched_kernels(report: Report) -> pl.DataFrame:
    """The kernels in scope that were launched by a call of their own, in the order of the calls.

    Columns: row (of `operations`), name, device, process_id, kernel_ns, api_ns (the call's duration), launch_ns (the
    device's wait for this launch), first (the process's first launch of this kernel on this device in the recording).
    """
    launched = _own_launches(report)
    known = launched.with_columns(waited_ns(launch_waits(report), launched.get_column("row")))
    if report.scope.window is None:
        return known
    return known.join(exclusive_operations(report).select("row"), on="row", how="semi", maintain_order="left")


def _own_launches(report: Report) -> pl.DataFrame:
    """The kernels on the devices in scope whose call launched nothing else, in the order of the calls.

    Columns: row, name, device, process_id, kernel_ns, first and api_ns. Most reports lose no row in any of the steps,
    and a copy after each would not fit into memory for large ones.
    """
    needed = ("row", "name", "device", "process_id", pl.col("dur_ns").alias("kernel_ns"))
    work = device_operations(report)
    kernel = work.select(pl.col("kind") == "kernel").to_series()
    work = work.select(needed) if kernel.all() else work.select(needed).filter(kernel)
    work = with_facts(report, work, "call_row", "call_start", "call_name")
    alone = work.get_column("call_row").is_not_null() & ~launches_graphs(report, work.get_column("call_name"))
    work = work.drop("call_name") if alone.all() else work.drop("call_name").filter(alone)
    if not work.get_column("call_start").is_sorted():
        work = work.sort("call_start", maintain_order=True)
    work = work.with_columns(first=_identity(work).is_first_distinct())
    shared = repeated(work.get_column("call_row"))
    work = work.filter(~shared) if shared.any() else work
    return with_facts(report, work.drop("call_row", "call_start"), "call_ns").rename({"call_ns": "api_ns"})


def _identity(work: pl.DataFrame) -> pl.Expr:
    """A number that identifies process, device and kernel."""
    keys = ("process_id", "device", "name")
    number, size = numbered(work, keys)
    return number if size < LARGEST else mixed(keys)
