"""The steady part of a device's window: without one-time costs, as far as the report shows them.

Definitions: definitions.md, section 5, "The steady part".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import of_device, operations, used_devices
from kanalyze.analyses.device._windows import busy_spans, windows
from kanalyze.analyses.host._call_kinds import captures, graph_steps
from kanalyze.analyses.host._context_creation import begun_before, loading_seen
from kanalyze.analyses.launches._launch_costs import launch_costs
from kanalyze.analyses.shared.cached import once_per_report

if TYPE_CHECKING:
    from kanalyze.report import Report

#: The steady part needs at least this share of the device's busy time, and so many operations; otherwise the program
#: has none.
_MOST: Final = 0.5
_FEWEST: Final = 3


#: The minimum share of the time considered, and the minimum time, for a finding to be worth a sentence.
WORTH_SAYING: Final = 0.001
_LEAST_NS: Final = 1_000


class Steady(NamedTuple):
    """The steady part of a device's window.

    Attributes:
        start: Start.
        end: End.
        busy_ns: Busy time of the device within it, in ns.
    """

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
    found = {}
    for device, busy, parts in _between_one_time_costs(report):
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
    """The minimum time at stake for a finding on each device to be worth a sentence, in ns.

    That is :data:`WORTH_SAYING` times the steady part; without one, times the interval from the device's first to its
    last operation without one-time costs; and if the report shows no such costs, times the window. It is at least a
    microsecond, but never more than that share of the window.
    """
    lengths = {device: intervals.length(parts) for device, _, parts in _between_one_time_costs(report)}
    lengths |= {device: steady.ns for device, steady in steady_parts(report).items()}
    whole = {device: WORTH_SAYING * (end - start) for device, start, end in windows(report).iter_rows()}
    found = {device: max(WORTH_SAYING * ns, _LEAST_NS) for device, ns in lengths.items()}
    return {device: min(least, found.get(device, least)) for device, least in whole.items()}


def worth_saying(report: Report, ns: int) -> bool:
    """Whether `ns` of a device's window could be enough for a finding, on any device."""
    return any(ns >= least for least in least_worth_saying(report).values())


@once_per_report
def _between_one_time_costs(report: Report) -> list[tuple[int, pl.DataFrame, pl.DataFrame]]:
    """Busy intervals, and the intervals between one-time costs, of each device with such costs in its window."""
    costs, found = _one_time_intervals(report), []
    for device, low, high in windows(report).iter_rows():
        own = used_devices(report).filter(pl.col("device") == device).select("process_id")
        mine = costs.join(own, on="process_id", how="semi", nulls_equal=True)
        once = intervals.clip(mine.select("start", "end"), low, high)
        busy = intervals.clip(busy_spans(report)[device], low, high)
        if once.height and busy.height:
            whole = busy.select(pl.col("start").min(), pl.col("end").max())
            found.append((device, busy, intervals.subtract(whole, intervals.union(once))))
    return found


def _one_time_intervals(report: Report) -> pl.DataFrame:
    """Intervals of one-time costs: process_id, start and end, for processes that began during the recording."""
    launches = [first.cold for first in launch_costs(report).first.values()]
    returned = pl.col("call_start") + pl.col("api_ns")
    making = graph_steps(report).filter(pl.col("step").is_in(["instantiate", "upload"]))
    parts = [loading_seen(report), making, captures(report)]
    parts += [cold.with_columns(start="call_start", end=returned) for cold in launches]
    every = pl.concat([part.select("process_id", "start", "end") for part in parts])
    return every.join(begun_before(report), on="process_id", how="anti", nulls_equal=True)
