"""Host threads one after the other on one line of time, so that what is done for each of them is done for all at once.

The time of each thread is moved to a lane of its own: the first one stays where it is, every further one is `width`
later. What is sorted and apart on every thread is so on the line, and nothing of two threads meets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: What tells one host thread from another, and its values.
THREAD: Final = ("process_id", "thread_id")
ThreadKey = tuple[int | None, int | None]


#: A line of stretches of time, each of a row of something.
LINE: Final = {"start": pl.Int64, "end": pl.Int64, "row": pl.UInt32}

#: All lanes together are no longer than this, so that no time overflows.
_LONGEST: Final = 1 << 62


@dataclass(frozen=True)
class Lanes:
    """The lanes of some threads.

    Attributes:
        keys: The threads, in the order of their lanes.
        low: The first time of a lane.
        high: The last one.
    """

    keys: tuple[ThreadKey, ...]
    low: int
    high: int

    @property
    def width(self) -> int:
        """How far apart two lanes begin."""
        return self.high - self.low + 2

    def moved(self, time: int, lane: int) -> int:
        """A time of a thread on its lane, the nearest one if it is outside of it."""
        if len(self.keys) == 1:
            return time
        return min(max(time, self.low), self.high) + lane * self.width

    def placed(self, lane: int, *times: str) -> list[pl.Expr]:
        """Columns of times of the thread of a `lane` on it; those outside are moved to its ends."""
        if len(self.keys) == 1:
            return [pl.col(time) for time in times]
        low, high, later = (pl.lit(at, dtype=pl.Int64) for at in (self.low, self.high, lane * self.width))
        return [pl.max_horizontal(pl.min_horizontal(time, high), low).alias(time) + later for time in times]

    def shifts(self, counts: Sequence[int]) -> pl.Series:
        """How much later its lane is than the first one, of so many rows of each thread one after the other."""
        each = [pl.Series([lane * self.width], dtype=pl.Int64) for lane in range(len(counts))]
        return pl.concat([later.new_from_index(0, count) for later, count in zip(each, counts, strict=True)])

    def line(self, lines: Mapping[ThreadKey, pl.DataFrame]) -> pl.DataFrame:
        """What `lines` of threads (start, end, row; sorted and apart) have to tell of the lanes, as one line."""
        parts = [pl.DataFrame(schema=LINE)]
        for lane, key in enumerate(self.keys):
            line = lines.get(key, parts[0])
            first = bisect_right(line.get_column("end"), self.low)
            stop = max(bisect_left(line.get_column("start"), self.high), first)
            parts.append(line.slice(first, stop - first).select(*self.placed(lane, "start", "end"), "row"))
        return pl.concat(parts, rechunk=True)

    def back(self, pieces: pl.DataFrame) -> pl.DataFrame:
        """`pieces` of the line (start, end, and what else they have) at the times of their threads."""
        if len(self.keys) == 1:
            return pieces
        later = (pl.col("start") - self.low) // self.width * self.width
        return pieces.with_columns(pl.col("start") - later, pl.col("end") - later)

    def of_each(self, pieces: pl.DataFrame) -> Iterator[tuple[ThreadKey, pl.DataFrame]]:
        """The `pieces` (start, end, and what else they have; sorted) of each thread that has any, at its times."""
        begins = [self.low + lane * self.width for lane in range(1, len(self.keys))]
        places = [0, *(bisect_left(pieces.get_column("start"), begin) for begin in begins), pieces.height]
        for key, (first, stop) in zip(self.keys, pairwise(places), strict=True):
            if stop > first:
                yield key, self.back(pieces.slice(first, stop - first))


def lanes_of(keys: Sequence[ThreadKey], low: int, high: int) -> Iterator[Lanes]:
    """The lanes of the threads `keys` from `low` to `high`: one line of them, or more where it would be too long."""
    most = max(_LONGEST // (high - low + 2), 1)
    for first in range(0, len(keys), most):
        yield Lanes(tuple(keys[first : first + most]), low, high)
