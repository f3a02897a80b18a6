"""Lanes of tracks: in a lane any two slices nest or are apart, as stacks of calls do."""

from __future__ import annotations

from typing import Final

import polars as pl

#: Where a slice begins and ends, in an order in which each end closes the slice that was opened last.
EDGES: Final = {"track": pl.UInt32, "t": pl.Int64, "slice": pl.UInt32, "begins": pl.Boolean}


def edges(slices: pl.DataFrame) -> pl.DataFrame:
    """The edges of slices that nest in their tracks: :data:`EDGES`, by track and time.

    At one instant those end first that began before, the innermost first; then begin those that last, the outermost
    first, and then those without a duration, each of which ends before the next begins.

    Args:
        slices: track, start, end; sorted by track, start and, of equal ones, the latest end.
    """
    row = pl.int_range(pl.len(), dtype=pl.Int64)
    begin = slices.select("track", t="start", order=2 * row, slice=row.cast(pl.UInt32), begins=pl.lit(value=True))
    instant = pl.col("start") == pl.col("end")
    order = pl.when(instant).then(2 * row + 1).otherwise(-row - 1)
    end = slices.select("track", t="end", order=order, slice=row.cast(pl.UInt32), begins=pl.lit(value=False))
    return pl.concat([begin, end]).sort("track", "t", "order").select(*EDGES)


def lanes(slices: pl.DataFrame) -> pl.Series:
    """Lane of each slice of its track, from 0: the first in which it nests in, or is apart from, all before it.

    Args:
        slices: as of :func:`edges`.
    """
    found = pl.Series("lane", [0], dtype=pl.UInt32).new_from_index(0, slices.height)
    crossed = _crossed(slices)
    if not crossed:
        return found
    rows = slices.get_column("track").is_in(crossed).arg_true()
    return found.scatter(rows, _placed(slices[rows]))


def _crossed(slices: pl.DataFrame) -> list[int]:
    """The tracks in which slices overlap without nesting.

    Where all nest, the edges of one depth are pairs: the begin of a slice and the end of the same one.
    """
    found = edges(slices)
    step = pl.when("begins").then(1).otherwise(-1)
    depth = step.cum_sum() + pl.when("begins").then(0).otherwise(1)
    line = found.with_columns(depth=depth).sort("depth", maintain_order=True)
    pairs = line.select("track", first=pl.col("slice"), second=pl.col("slice").shift(-1)).gather_every(2)
    return pairs.filter(pl.col("first") != pl.col("second")).get_column("track").unique().sort().to_list()


def _placed(slices: pl.DataFrame) -> list[int]:
    """Lanes of slices one by one, each with the ends of what is open in it; only tracks that need it come here."""
    found: list[int] = []
    current, open_lanes = None, list[list[int]]()
    for track, start, end in slices.select("track", "start", "end").iter_rows():
        if track != current:
            current, open_lanes = track, []
        for number, ends in enumerate(open_lanes):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or ends[-1] >= end:
                ends.append(end)
                found.append(number)
                break
        else:
            found.append(len(open_lanes))
            open_lanes.append([end])
    return found
