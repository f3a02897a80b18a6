"""What remedies gain by replays of the recording: one after the other, so that gains add up to that of all together."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.findings._claims import place_in_order
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.replay._mending import Mending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.report import Report

#: A page replays remedies of reports with at most so many operations and calls.
MOST_REPLAYED: Final = 1 << 18

#: Findings that many sound programs have, and that are told only where their remedy gains a hundredth: so many times
#: what is worth saying of any.
_COMMON: Final = ("small-grid", "tail", "low-occupancy")
_HUNDREDTH: Final = 10

#: What a remedy gains differs by so large a part from what an exact replay says, at most, in three of four programs of
#: docs/diagnosis.md.
_OF_REMEDIES: Final = 0.25

#: What the window of a device gets shorter by: without the profiler as usual, with least of the host's time, with most;
#: and by how much each of them may be wrong (ns).
_Gains = list[tuple[int, int]]
_NOTHING: Final[_Gains] = [(0, 0)] * 3


def with_replays(report: Report, found: Sequence[Finding], most: int) -> list[Finding]:
    """The findings on a report's window with what a replay says that each remedy gains.

    Where specific ones gain less together than one by one, none is told of more than it gains on top of those that gain
    more; no general one of more than it gains on top of all specific ones, and none that others claim a part of, on top
    of those whose time is their own. None is replayed of a report with more
    than `most` operations and calls, whose replays would take long.
    """
    least = least_worth_saying(report)
    changes: dict[int, Mending] = {}
    if operations(report).height + report.kind("api").height <= most:
        known = {at: one.mending(report) for at, one in enumerate(found) if one.mending}
        changes = {at: change for at, change in known.items() if change is not None}
    gains: dict[int, _Gains] = {}
    for device in {found[at].device for at in changes}:
        own = {at: change for at, change in changes.items() if found[at].device == device}
        gains |= _of_device(report, device, found, own)
    told = [_with(report, one, gains.get(at)) for at, one in enumerate(found)]
    common = [one.general or one.rule in _COMMON for one in told]
    return [
        one
        for one, often in zip(told, common, strict=True)
        if not often or one.gain_ns >= _HUNDREDTH * least[one.device]
    ]


def _of_device(report: Report, device: int, found: Sequence[Finding], changes: dict[int, Mending]) -> dict[int, _Gains]:
    """The gains of the remedies of a device, by finding."""
    gains = {at: _replayed(report, device, change) for at, change in changes.items()}
    later = {at for at in gains if found[at].general or found[at].curtailed}
    own = sorted(gains.keys() - later, key=lambda at: -gains[at][0][0])
    union = reduce(Mending.with_all_of, (changes[at] for at in own), Mending())
    before = _replayed(report, device, union) if len(own) > 1 else gains[own[0]] if own else _NOTHING
    rest = sorted(later, key=lambda at: (found[at].general, place_in_order(found[at].rule)))
    if sum(gains[at][0][0] for at in own) > before[0][0]:
        union, before, rest = changes[own[0]], gains[own[0]], [*own[1:], *rest]
    for at in rest:
        union = union.with_all_of(changes[at])
        after = _replayed(report, device, union)
        more = [(max(new - old, 0), apart) for (old, _), (new, apart) in zip(before, after, strict=True)]
        gains[at] = [min(sides) for sides in zip(more, gains[at], strict=True)]
        before = after
    return gains


def _replayed(report: Report, device: int, change: Mending) -> _Gains:
    """How much shorter the window of a device gets by a change, and how wrong that may be."""
    from kanalyze.analyses.replay._replay import mended, replayed  # noqa: PLC0415 - most reports need no replay
    from kanalyze.analyses.replay._slowing import NEAR  # noqa: PLC0415 - as above
    from kanalyze.analyses.unprofiled._sides import sides  # noqa: PLC0415 - as above

    gains = []
    for known, plan, state, end in sides(report)[device]:
        after = mended(report, known, state, change)
        then = replayed(known, plan, after.values, after.lags).end
        gains.append((max(end - then, 0), int(NEAR * max(then - known.start, 0))))
    return gains


def _with(report: Report, one: Finding, gains: _Gains | None) -> Finding:
    """The finding with its gain, and between which bounds: those of nothing are nothing; at most it is the whole."""
    if gains is None:
        return one._replace(mending=None)
    from kanalyze.analyses.unprofiled._sides import sides  # noqa: PLC0415 - as above

    known = sides(report)[one.device][0]
    whole = known.end - known.network.start
    low = int(max(min(ns - (apart if ns else 0) for ns, apart in gains), 0) * (1 - _OF_REMEDIES))
    high = min(int(max(ns + (apart if ns else 0) for ns, apart in gains) * (1 + _OF_REMEDIES)), whole)
    usual, low, high = (min(ns, one.at_stake_ns) if one.at_most else ns for ns in (gains[0][0], low, high))
    return one._replace(
        mending=None,
        replayed_ns=usual,
        replayed_low_ns=low,
        replayed_high_ns=high,
        unmended_ns=whole,
    )
