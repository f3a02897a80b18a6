"""How much of a device's window can be gained at most by doing away with some of what the host and the device did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze import intervals
from kanalyze.analyses._operations import exclusive_operations
from kanalyze.analyses._streams import placed_operations, spans_by_stream
from kanalyze.analyses._windows import windows

if TYPE_CHECKING:
    from kanalyze.report import Report


def gained_at_most(report: Report, device: int, rows: pl.Series, calls: pl.DataFrame) -> int:
    """How much shorter the window of a device can get, in ns, if some of its operations and their calls took no time.

    The longest way through what depends on each other is in one of them at each instant of what is gained, so that it
    is no more than all of them cover together. Whatever else a stream ran it still runs, one after the other: the
    window stays at least as long as the other work of its busiest stream.

    Args:
        report: Where to look, through its window.
        device: Whose window.
        rows: The operations, by row of `operations`.
        calls: Their calls, and whatever else of the host is done away with: columns start, end.
    """
    window = windows(report).row(by_predicate=pl.col("device") == device, named=True)
    low, high = int(window["start"]), int(window["end"])
    wanted = rows.implode()
    own = exclusive_operations(report).filter(pl.col("row").is_in(wanted)).select("start", "end")
    covered = intervals.length(
        intervals.union(intervals.clip(pl.concat([own, calls.select("start", "end")]), low, high))
    )
    others = placed_operations(report).filter((pl.col("device") == device) & ~pl.col("row").is_in(wanted))
    busiest = max(map(intervals.length, spans_by_stream(others.select("number", "start", "end")).values()), default=0)
    return min(covered, high - low - busiest)
