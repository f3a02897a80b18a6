"""Reduction of the events of a timeline: the longest stay single, the rest are summed in bins of time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.columns.grouping import numbered

if TYPE_CHECKING:
    from kanalyze.analyses.timeline._tracks import Timeline

#: The part of the events that stay single, where there are too many.
_SINGLE: Final = 0.6

_KEYS: Final = ("track", "lane", "tone")
_ORDER: Final = ("track", "lane", "several", "start")

#: What sums of events have, for an event that stands for itself alone.
_LENGTH: Final = pl.col("end") - pl.col("start")
_ALONE: Final = {
    "covered_ns": _LENGTH,
    "longest_ns": _LENGTH,
    "count": pl.lit(1, dtype=pl.UInt32),
    "several": pl.lit(value=False),
}


def reduced(events: pl.DataFrame, length_ns: int, most: int, whole: tuple[int, int] | None = None) -> pl.DataFrame:
    """Sums short events in bins where there are more than `most`; adds covered_ns and count.

    Args:
        events: track, lane, start, end, name, tone and others, any order; sums, too, where it was reduced before.
        length_ns: Time that is shown.
        most: Number of events to keep, about.
        whole: A time in which all stay single, unless that is most of them.

    Returns:
        Sorted by track, lane, `several` and start. An event with a count above 1 stands for those of one tone in a bin:
        from the first start to the last end, covered_ns of it, with the name and longest_ns of the longest.
    """
    again = "covered_ns" in events.columns
    of = {name: pl.col(name) for name in _ALONE} if again else _ALONE
    if events.height <= most:
        return events.with_columns(**of).sort(_ORDER, maintain_order=True)
    kept = int(most * _SINGLE)
    inside = _inside(events, of["several"], whole, kept)
    others = of["covered_ns"].filter(~of["several"] & ~inside).top_k(kept - int(inside.sum()))
    alone = ~of["several"] & ((of["covered_ns"] > (events.select(others.min()).item() or 0)) | inside)
    long, short = events.filter(alone).with_columns(**of), events.filter(~alone)
    binned = short.with_row_index("place").with_columns(_bins(short, length_ns, most - kept).alias("bin"))
    by_bin = binned.group_by("bin", maintain_order=True).agg(
        pl.col("place").get(of["longest_ns"].arg_max()),
        pl.col(*_KEYS).first(),
        pl.col("start").min(),
        pl.col("end").max(),
        of["longest_ns"].max().alias("longest_ns"),
        of["covered_ns"].sum().alias("covered_ns"),
        pl.col("count").sum() if again else pl.len().alias("count"),
    )
    own = [name for name in short.columns if name not in (*_KEYS, "start", "end", *_ALONE)]
    longest = short.select(own)[by_bin.get_column("place")]
    summed = by_bin.hstack(longest).with_columns(several=pl.col("count") > 1).select(long.columns)
    return pl.concat([long, summed]).sort(_ORDER, maintain_order=True)


def _bins(events: pl.DataFrame, length_ns: int, most: int) -> pl.Series:
    """Number of track, lane, tone and slice of time of each event, so that there are `most` numbers, about."""
    keys = events.select(numbered(events, _KEYS)[0].cast(pl.Int64)).to_series()
    slices = max(most // max(keys.n_unique(), 1), 1)
    time = events.get_column("start") // max(-(-length_ns // slices), 1)
    told = pl.DataFrame([keys.alias("key"), time.alias("time")])
    first, last = pl.col("time").min(), pl.col("time").max()
    return told.select(pl.col("key") * (last - first + 1) + pl.col("time") - first).to_series()


def _inside(events: pl.DataFrame, several: pl.Expr, whole: tuple[int, int] | None, kept: int) -> pl.Series:
    """Events in the time that stays whole; none where that would be most of what is kept."""
    low, high = whole or (0, 0)
    inside = events.select(~several & (pl.col("end") > low) & (pl.col("start") < high)).to_series()
    return inside if whole and 2 * int(inside.sum()) <= kept else inside & False


def fewer(timeline: Timeline, most: int) -> Timeline:
    """The timeline with `most` events or about as many."""
    events = reduced(timeline.events.with_row_index("row"), timeline.end_ns - timeline.start_ns, most, timeline.whole)
    rows = events.select(launch=pl.col("row").cast(pl.Int64), found=pl.int_range(pl.len(), dtype=pl.Int64))
    linked = events.join(rows, on="launch", how="left", maintain_order="left")
    return replace(timeline, events=linked.with_columns(launch="found").drop("row", "found"))
