"""Cost of the profiler per recorded call, range and operator, from what the program takes without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.analyses.replay._changes import Changes, changed
from kanalyze.analyses.replay._replay import replayed

if TYPE_CHECKING:
    from kanalyze.analyses.replay._network import Network
    from kanalyze.analyses.replay._replay import Plan
    from kanalyze.report import Report

#: Most that a profiler is taken to cost per event, and how closely the cost is found.
_MOST_NS: Final = 50_000.0
_CLOSE_NS: Final = 10.0

#: A recording that takes longer by less than this part tells nothing of the profiler.
_NOTABLE: Final = 0.01


def profiler_cost(report: Report, network: Network, plan: Plan, measured_ns: float) -> float:
    """The cost per event (ns) with which the window takes `measured_ns`; the highest at which it takes no less.

    0 where the recording takes hardly longer than that, or where no cost explains it: a device-bound program does not
    tell what the host would take without the profiler.
    """

    def took(cost_ns: float) -> int:
        state = changed(report, network, Changes(profiler_ns=cost_ns))
        return replayed(network, plan, state.values, state.lags).end - network.start

    low, high = 0.0, _MOST_NS
    if took(low) <= measured_ns * (1 + _NOTABLE) or took(high) > measured_ns:
        return low
    while high - low > _CLOSE_NS:
        middle = (low + high) / 2
        low, high = (middle, high) if took(middle) > measured_ns else (low, middle)
    return low
