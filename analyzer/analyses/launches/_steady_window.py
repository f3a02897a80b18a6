"""The steady part of a device's window: where nothing was paid once, as far as the report shows.

Definitions: definitions.md, section 5, "The steady part".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import of_device, operations, used_devices
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.host._graph_calls import captures, graph_steps
from kanalyze.analyses.host._recording_start import begun_before, loading_seen
from kanalyze.analyses.launches._launch_costs import launch_costs
from kanalyze.analyses.shared.cached import once_per_report

if TYPE_CHECKING:
    from kanalyze.report import Report

#: It holds at least this part of the time in which the device ran anything, and so many operations: else the program
#: has no such part.
_MOST: Final = 0.5
_FEWEST: Final = 3


#: A finding that touches less than this part is not worth a sentence, nor one of less than this time.
WORTH_SAYING: Final = 0.001
_LEAST_NS: Final = 1_000


class Steady(NamedTuple):
    """The steady part of a device's window.

    Attributes:
        start: Start.
        end: End.
        busy_ns: Time in it in which the device ran anything.
    """

    start: int
    end: int
    busy_ns: int

    @property
    def ns(self) -> int:
        """Its length."""
        return self.end - self.start


@once_per_report
def steady_parts(report: Report) -> dict[int, Steady]:
    """The steady part of each device that has one.

    Between its first and its last operation in the window, the time between two one-time costs (contexts, loading, the
    making of graphs, slow first launches) in which the device was busy most; only where that is most of its busy time,
    and holds several operations. A process that was at work before the recording has no such costs.
    """
    found = {}
    for device, busy, parts in _apart(report):
        times = intervals.overlap(parts.get_column("start"), parts.get_column("end"), busy)
        most = times.arg_max()
        if most is None or times[most] < _MOST * intervals.length(busy):
            continue
        start, end = parts.row(most)
        starts = of_device(operations(report).select("device", "start"), device).get_column("start")
        if starts.is_between(start, end, closed="left").sum() >= _FEWEST:
            found[device] = Steady(start, end, times[most])
    return found


@once_per_report
def least_worth_saying(report: Report) -> dict[int, float]:
    """What a finding has to touch of each device's window to be worth a sentence, in ns.

    That is a part, :data:`WORTH_SAYING`, of what the device's findings are about: of its steady part, else of the time
    between its first and its last operation without one-time costs, and of its window where the report shows no such
    costs. At least a microsecond, where it is not that part of the window.
    """
    lengths = {device: intervals.length(parts) for device, _, parts in _apart(report)}
    lengths |= {device: steady.ns for device, steady in steady_parts(report).items()}
    whole = {device: WORTH_SAYING * (end - start) for device, start, end in windows(report).iter_rows()}
    found = {device: max(WORTH_SAYING * ns, _LEAST_NS) for device, ns in lengths.items()}
    return {device: min(least, found.get(device, least)) for device, least in whole.items()}


def worth_saying(report: Report, ns: int) -> bool:
    """Whether a finding that takes `ns` of a device's window could be worth a sentence, on any device."""
    return any(ns >= least for least in least_worth_saying(report).values())


@once_per_report
def _apart(report: Report) -> list[tuple[int, pl.DataFrame, pl.DataFrame]]:
    """For each device with one-time costs in its window: when it was busy, and the time between them, as span sets."""
    costs, found = _once(report), []
    for device, low, high in windows(report).iter_rows():
        own = used_devices(report).filter(pl.col("device") == device).select("process_id")
        mine = costs.join(own, on="process_id", how="semi", nulls_equal=True)
        once = intervals.clip(mine.select("start", "end"), low, high)
        work = of_device(operations(report).select("device", "start", "end"), device)
        busy = intervals.union(intervals.clip(work.select("start", "end"), low, high))
        if once.height and busy.height:
            whole = busy.select(pl.col("start").min(), pl.col("end").max())
            found.append((device, busy, intervals.subtract(whole, intervals.union(once))))
    return found


def _once(report: Report) -> pl.DataFrame:
    """What is paid once: process_id, start and end, of processes that were not at work before the recording."""
    launches = [first.cold for first in launch_costs(report).first.values()]
    returned = pl.col("call_start") + pl.col("api_ns")
    making = graph_steps(report).filter(pl.col("step").is_in(["instantiate", "upload"]))
    parts = [loading_seen(report), making, captures(report)]
    parts += [cold.with_columns(start="call_start", end=returned) for cold in launches]
    every = pl.concat([part.select("process_id", "start", "end") for part in parts])
    return every.join(begun_before(report), on="process_id", how="anti", nulls_equal=True)
