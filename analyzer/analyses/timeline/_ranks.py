"""Timelines of several ranks as one, on the clock of the first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.timeline._counters import Counter
    from kanalyze.analyses.timeline._tracks import Timeline, Track


def on_one_clock(timelines: Sequence[tuple[str, int, Timeline]]) -> Timeline:
    """Puts timelines below each other.

    Args:
        timelines: What each is called, by how much its times are moved (ns), and the timeline; at least one.
    """
    tracks: list[Track] = []
    counters: list[Counter] = []
    events: list[pl.DataFrame] = []
    rows = 0
    for label, moved_ns, own in timelines:
        shift = pl.lit(moved_ns, dtype=pl.Int64)
        events.append(
            own.events.with_columns(
                pl.col("start", "end") + shift,
                (pl.col("track").cast(pl.UInt32) + len(tracks)).cast(pl.UInt16),
                pl.col("launch") + rows,
            )
        )
        rows += own.events.height
        tracks += [track._replace(group=f"{label}, {track.group}") for track in own.tracks]
        counters += [
            one._replace(group=f"{label}, {one.group}", points=one.points.with_columns(pl.col("t_ns") + shift))
            for one in own.counters
        ]
    _, moved_ns, first = timelines[0]
    return replace(
        first,
        start_ns=min(own.start_ns + moved for _, moved, own in timelines),
        end_ns=max(own.end_ns + moved for _, moved, own in timelines),
        zero_ns=first.zero_ns + moved_ns,
        tracks=tracks,
        events=pl.concat(events),
        counters=counters,
        left_out=sum(own.left_out for *_, own in timelines),
        whole=first.whole and (first.whole[0] + moved_ns, first.whole[1] + moved_ns),
        one_clock=False,
        tracks_left_out=sum(own.tracks_left_out for *_, own in timelines),
    )
