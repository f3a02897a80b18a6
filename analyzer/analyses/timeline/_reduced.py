"""Reduction of the events of a timeline: the longest stay single, the rest are summed in bins of time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from kanalyze.analyses.timeline._tracks import Timeline

#: The part of the events that stay single, where there are too many.
_SINGLE: Final = 0.6

_KEYS: Final = ("track", "lane", "tone")
_SUMMED: Final = ("start", "end", "covered_ns", "longest_ns", "count", "several")


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
    every = events if "covered_ns" in events.columns else _single(events)
    order = ("track", "lane", "several", "start")
    if every.height <= most:
        return every.sort(*order, maintain_order=True)
    kept = int(most * _SINGLE)
    inside = _inside(every, whole, kept)
    held = int(inside.sum())
    lengths = every.filter(~pl.col("several") & ~inside).get_column("covered_ns").top_k(kept - held)
    threshold = int(lengths.min()) if lengths.len() else 0  # type: ignore[arg-type]
    alone = ~pl.col("several") & ((pl.col("covered_ns") > threshold) | inside)
    long, short = every.filter(alone), every.filter(~alone)
    bins = max((most - kept) // max(short.select(_KEYS).n_unique(), 1), 1)
    width = max(-(-length_ns // bins), 1)
    own = [name for name in short.columns if name not in (*_KEYS, *_SUMMED)]
    in_bins = [*_KEYS, (pl.col("start") // width).alias("bin")]
    by_bin = (
        short.with_row_index("place")
        .group_by(in_bins, maintain_order=True)
        .agg(
            pl.col("place").get(pl.col("longest_ns").arg_max()),
            pl.col("start").min(),
            pl.col("end", "longest_ns").max(),
            pl.col("covered_ns", "count").sum(),
        )
    )
    longest = short.select(own)[by_bin.get_column("place")]
    summed = by_bin.hstack(longest).with_columns(several=pl.col("count") > 1).select(*long.columns)
    return pl.concat([long, summed]).sort(*order, maintain_order=True)


def _inside(every: pl.DataFrame, whole: tuple[int, int] | None, kept: int) -> pl.Series:
    """Events in the time that stays whole; none where that would be most of what is kept."""
    low, high = whole or (0, 0)
    inside = every.select(~pl.col("several") & (pl.col("end") > low) & (pl.col("start") < high)).to_series()
    return inside if whole and 2 * int(inside.sum()) <= kept else inside & False


def fewer(timeline: Timeline, most: int) -> Timeline:
    """The timeline with `most` events or about as many."""
    events = reduced(timeline.events.with_row_index("row"), timeline.end_ns - timeline.start_ns, most, timeline.whole)
    rows = events.select(launch=pl.col("row").cast(pl.Int64), found=pl.int_range(pl.len(), dtype=pl.Int64))
    linked = events.join(rows, on="launch", how="left", maintain_order="left")
    return replace(timeline, events=linked.with_columns(launch="found").drop("row", "found"))


def _single(events: pl.DataFrame) -> pl.DataFrame:
    length = pl.col("end") - pl.col("start")
    one = pl.lit(1, dtype=pl.UInt32)
    return events.with_columns(covered_ns=length, longest_ns=length, count=one, several=pl.lit(value=False))
