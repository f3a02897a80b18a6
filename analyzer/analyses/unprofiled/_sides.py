"""A window without its profiler: as usual, at the least and at the most that is known of the host's time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.replay._changes import BY_TOOL, NEAR, without_profiler
from kanalyze.analyses.replay._network import Changed, Network, as_recorded, network
from kanalyze.analyses.replay._whatif import Plan, planned, replayed
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.analyses.unprofiled._correction import SAME, hosts_of, replayable
from kanalyze.report import Report
from kanalyze.units import time

if TYPE_CHECKING:
    from kanalyze.analyses.iterations._steady import SteadyPart


class Side(NamedTuple):
    """The window of a device without a profiler that costs so much: its network, its state, and when it ends."""

    network: Network
    plan: Plan
    state: Changed
    end: int


@once_per_report
def sides(report: Report) -> dict[int, list[Side]]:
    """The window of each device: with what is usually left of the host's time, with the least, and with the most.

    With the least, what nothing waited for in the recording takes no time; with the most, as long as nearly any does.
    """
    spans = {device: (start, end) for device, start, end in windows(report).iter_rows()}
    by_span = {}
    for span in {*spans.values()}:
        known = network(report.whole, *span)
        plan, by_span[span] = planned(known), list[Side]()
        for host, lags in zip(hosts_of(report), ("lag", "low", "high"), strict=True):
            state = without_profiler(report.whole, known, as_recorded(known, lags), host)
            by_span[span].append(Side(known, plan, state, replayed(known, plan, state.values, state.lags).end))
    return {device: by_span[span] for device, span in spans.items()}


class Estimate(NamedTuple):
    """What an iteration takes without the profiler, as estimated for its tool (ns)."""

    usual_ns: float
    least_ns: float
    most_ns: float


def estimated(view: Report, steady: SteadyPart, most: int) -> Estimate | None:
    """An iteration of the steady part without the profiler; None of unknown tools, and of large reports.

    Args:
        view: The report's steady part.
        steady: The same.
        most: Of reports of more operations and calls there is none.
    """
    if view.meta.tool not in BY_TOOL or not replayable(view, most):
        return None
    known = sides(view)
    of_device = known.get(steady.device or 0) or next(iter(known.values()))
    usual, least, longest = ((one.end - one.network.start) / steady.number for one in of_device)
    return Estimate(usual, least * (1 - NEAR), longest * (1 + NEAR))


def estimated_sentence(estimate: Estimate, recorded_ns: float, tool: str) -> str:
    """A sentence on what an iteration takes without `tool`, beside a report of it."""
    if estimate.least_ns >= recorded_ns * (1 - SAME - NEAR):
        return f"Without {tool} it takes about as long, by estimate."
    most_ns = min(estimate.most_ns, recorded_ns)
    return f"Without {tool} it takes {time(estimate.least_ns)} to {time(most_ns)}, by estimate."
