"""Concatenates the timelines of host threads on one time axis, so that one vectorised call handles all threads.

Each thread has a lane, a segment of that axis: the first one keeps its times, every further one is shifted by `width`.
Intervals that are sorted and disjoint per thread stay so on the axis, and those of two threads never overlap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import polars as pl

from kanalyze.columns.lookup import rows_by

#: Key columns of a host thread, and the type of its values.
THREAD: Final = ("process_id", "thread_id")
ThreadKey = tuple[int | None, int | None]


#: Schema of a timeline: disjoint intervals, each with a row number of another table.
LINE: Final = {"start": pl.Int64, "end": pl.Int64, "row": pl.UInt32}

#: Longest total length of all lanes, so that no time overflows.
_LONGEST: Final = 1 << 62

#: Events of small threads that are looked at together: a call of polars for each thread costs more than its events.
_TOGETHER: Final = 1 << 16


class Lanes(NamedTuple):
    """The lanes of some threads (process id and thread id), in order, each from time `low` to time `high` (ns)."""

    keys: tuple[ThreadKey, ...]
    low: int
    high: int

    @property
    def width(self) -> int:
        """Distance between the starts of two lanes."""
        return self.high - self.low + 2

    def placed(self, lane: int, *times: str) -> list[pl.Expr]:
        """Expressions that convert columns of times of one thread to lane times, clipped to the lane."""
        if len(self.keys) == 1:
            return [pl.col(time) for time in times]
        low, high, later = (pl.lit(at, dtype=pl.Int64) for at in (self.low, self.high, lane * self.width))
        return [pl.max_horizontal(pl.min_horizontal(time, high), low).alias(time) + later for time in times]

    def shifts(self, counts: Sequence[int]) -> pl.Series:
        """Shift of the lane of each row, where `counts` is the number of rows of each thread, in lane order."""
        each = [pl.Series([lane * self.width], dtype=pl.Int64) for lane in range(len(counts))]
        return pl.concat([later.new_from_index(0, count) for later, count in zip(each, counts, strict=True)])

    def line(self, lines: Mapping[ThreadKey, pl.DataFrame]) -> pl.DataFrame:
        """Concatenates timelines of threads (start, end, row; sorted, disjoint) in lane times, clipped to the lanes."""
        parts = [pl.DataFrame(schema=LINE)]
        for lane, key in enumerate(self.keys):
            line = lines.get(key, parts[0])
            first = bisect_right(line.get_column("end"), self.low)
            stop = max(bisect_left(line.get_column("start"), self.high), first)
            parts.append(line.slice(first, stop - first).select(*self.placed(lane, "start", "end"), "row"))
        return pl.concat(parts, rechunk=True)

    def back(self, pieces: pl.DataFrame) -> pl.DataFrame:
        """Converts `pieces` (start, end, any others) from lane times back to times of their threads."""
        if len(self.keys) == 1:
            return pieces
        later = (pl.col("start") - self.low) // self.width * self.width
        return pieces.with_columns(pl.col("start") - later, pl.col("end") - later)

    def of_each(self, pieces: pl.DataFrame) -> Iterator[tuple[ThreadKey, pl.DataFrame]]:
        """Splits sorted `pieces` (start, end, any others) by thread, with times converted back."""
        begins = [self.low + lane * self.width for lane in range(1, len(self.keys))]
        places = [0, *(bisect_left(pieces.get_column("start"), begin) for begin in begins), pieces.height]
        moved = self.back(pieces)
        for key, (first, stop) in zip(self.keys, pairwise(places), strict=True):
            if stop > first:
                yield key, moved.slice(first, stop - first)


def lanes_of(keys: Sequence[ThreadKey], low: int, high: int) -> Iterator[Lanes]:
    """Lanes of the threads `keys` from `low` to `high`; several groups where one axis would overflow."""
    most = max(_LONGEST // (high - low + 2), 1)
    for first in range(0, len(keys), most):
        yield Lanes(tuple(keys[first : first + most]), low, high)


def laned(events: pl.DataFrame) -> Iterator[tuple[Lanes, pl.DataFrame]]:
    """The `events` (:data:`THREAD`, start, end, any others) in lane times, thread by thread, small threads together.

    Threads come in the order of `events` that are sorted by thread.
    """
    parts = rows_by(events, THREAD)
    sides = [pl.col("start", "end").min(), pl.col("start", "end").max().name.suffix("s")]
    times = events.select(sides).row(0)
    groups: dict[int, list[ThreadKey]] = {}
    for key, reached in zip(parts, accumulate(map(len, parts.values())), strict=True):
        groups.setdefault(reached // _TOGETHER, []).append((key[0], key[1]))
    for keys in groups.values():
        for lanes in lanes_of(keys, min(times), max(times)):
            rows = [parts[key] for key in lanes.keys]
            moved = [] if len(rows) == 1 else [pl.col("start", "end") + lanes.shifts([len(own) for own in rows])]
            own = events if len(parts) == 1 else events[pl.concat(rows, rechunk=True)]
            yield lanes, own.with_columns(moved)
