"""Until when anything can have been recorded: an event that is said to end later does not stretch a window.

Definitions: docs/definitions.md, section 5, the window of a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.model import DEVICE_KINDS

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Where no report says when the recording ended: an event may outlast the start of all others by so much.
_OUTLASTS_NS: Final = 60_000_000_000

_END: Final = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)


@once_per_process
def recorded_until(report: Report) -> int | None:
    """When the last CUDA call or operation can have ended; None where all of them ended in time.

    That is the end of the recording, unless most events begin after that: it is then what is wrong. Where the report
    does not say it, an event ends too late that outlasts the start of every other by a minute and by all the time
    before, while nothing on the other side (a call, or an operation) ends nearly as late; all that ended before counts.
    """
    end = report.meta.end_ns
    sides = [_side(report, DEVICE_KINDS), _side(report, ("api",))]
    known = [side for side in sides if side is not None]
    if not known:
        return None
    latest = max(side[2] for side in known)
    if end is not None:
        return end if latest > end and _mostly_before(report, end) else None
    first, last = min(side[0] for side in known), max(side[1] for side in known)
    limit = last + max(_OUTLASTS_NS, last - first)
    late = [side[2] > limit for side in known]
    if not any(late) or (all(late) and len(late) > 1):
        return None
    ends = [report.kind(kind).select(_END.filter(limit >= _END).max()).item() for kind in _kinds(report)]
    return max((one for one in ends if one is not None), default=None)


def in_time(report: Report, events: pl.DataFrame) -> pl.DataFrame:
    """The `events` of a report, calls or operations, with the columns start and end cut at what can have been recorded.

    Looks at other events only where one of these may have ended too late.
    """
    last, latest = events.select(last=pl.col("start").max(), latest=pl.col("end").max()).row(0)
    end = report.meta.end_ns
    if latest is None or latest <= (last + _OUTLASTS_NS if end is None else end):
        return events
    limit = recorded_until(report)
    return events if limit is None else events.with_columns(pl.col("start", "end").clip(upper_bound=limit))


def _kinds(report: Report) -> list[str]:
    return [kind for kind in (*DEVICE_KINDS, "api") if kind in report.kinds]


def _side(report: Report, kinds: tuple[str, ...]) -> tuple[int, int, int] | None:
    """First and last start, and last end, of the events of some kinds; None where there are none."""
    starts = pl.col("start_ns")
    found = [
        report.kind(kind)
        .select(starts.min().alias("first"), starts.max().alias("last"), _END.max().alias("end"))
        .row(0)
        for kind in kinds
        if kind in report.kinds
    ]
    known = [one for one in found if one[0] is not None]
    if not known:
        return None
    firsts, lasts, ends = zip(*known, strict=True)
    return min(firsts), max(lasts), max(ends)


def _mostly_before(report: Report, end_ns: int) -> bool:
    """Whether at least half of all calls and operations begin before `end_ns`."""
    counts = [report.kind(kind).select(pl.len(), (pl.col("start_ns") < end_ns).sum()).row(0) for kind in _kinds(report)]
    return bool(2 * sum(before for _, before in counts) >= sum(every for every, _ in counts))
