"""Gains of the findings' remedies, by a replay of the recording with what each changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.shared.cached import once_per_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.replay._mending import Mending
    from kanalyze.analyses.replay._network import Network
    from kanalyze.analyses.replay._replay import Plan
    from kanalyze.report import Report

#: A page replays remedies of reports with at most so many operations and calls.
MOST_REPLAYED: Final = 1 << 15

#: The finding that is about launches as graphs, which are a remedy of others, too.
_GRAPH: Final = "graph-candidate"


def with_replays(report: Report, found: Sequence[Finding], most: int) -> list[Finding]:
    """The findings on a report's window with what a replay says that each remedy gains.

    None is replayed of a report with more than `most` operations and calls, whose replays would take long.
    """
    if not any(one.mending for one in found) or operations(report).height + report.kind("api").height > most:
        return [one._replace(mending=None) for one in found]
    changes = [one.mending(report) if one.mending else None for one in found]
    told = list(zip(found, changes, strict=True))
    graphs = {one.device for one, change in told if change and change.graph and one.rule == _GRAPH}
    gains = [None if _is_double(one, change, graphs) else _gain(report, one.device, change) for one, change in told]
    return [one._replace(replayed_ns=gain, mending=None) for one, gain in zip(found, gains, strict=True)]


def _is_double(finding: Finding, change: Mending | None, graphs: set[int]) -> bool:
    """Whether the finding that is about graphs has the same change."""
    return change is not None and change.graph and finding.rule != _GRAPH and finding.device in graphs


def _gain(report: Report, device: int, change: Mending | None) -> int | None:
    """How much shorter the window of a device gets by a change, ns; None without any."""
    if change is None:
        return None
    from kanalyze.analyses.replay._mended import mended  # noqa: PLC0415 - most reports need no replay
    from kanalyze.analyses.replay._replay import replayed  # noqa: PLC0415 - as above

    known, plan = _networks(report)[device]
    state = mended(report, known, change)
    return max(known.end - replayed(known, plan, state.values, state.lags).end, 0)


@once_per_report
def _networks(report: Report) -> dict[int, tuple[Network, Plan]]:
    """The network of the window of each device, with its plan."""
    from kanalyze.analyses.replay._network import network  # noqa: PLC0415 - as above
    from kanalyze.analyses.replay._replay import planned  # noqa: PLC0415 - as above

    spans = windows(report)
    made = {
        (start, end): network(report.whole, start, end)
        for start, end in spans.select("start", "end").unique().iter_rows()
    }
    plans = {span: (one, planned(one)) for span, one in made.items()}
    return {device: plans[start, end] for device, start, end in spans.select("device", "start", "end").iter_rows()}
