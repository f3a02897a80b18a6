"""Offsets of the clocks of ranks, as they are told; of one clock there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    import numpy.typing as npt

    from kanalyze.analyses.communication._matching import Matches
    from kanalyze.analyses.communication._rows import Ints, Rows, Small

#: Rows that are looked at at once, about.
OF_SLICE: Final = 1 << 18


class Clocks(NamedTuple):
    """Offsets of clocks, by node: part of the run and clock as one number.

    Attributes:
        offset: By node, how much the clock is ahead of that of reference in the middle of the part.
        rate: By clock, by what part of the time it runs faster than that of reference.
        since: From the middle of its part to the begin of each collective.
        error: By node, how far that may be off, to either side; 0 on the clock of reference.
        number: How many clocks there are.
        part: The part of each collective.
        cuts: The collectives at which slices of the run begin, which end with a part, and the number of all.
        table: A row per clock and part: clock, part, start_ns, end_ns, offset_ns, low_ns, high_ns.
        broken: Parts in which no offsets let all collectives be true.
    """

    offset: Ints
    rate: npt.NDArray[np.float64]
    since: Ints
    error: Ints
    number: int
    part: Ints
    cuts: Ints
    table: pl.DataFrame
    broken: tuple[int, ...]

    def node(self, match: Ints | Small, clock: Ints) -> Ints:
        """The node of rows of collectives."""
        return np.asarray(self.part[match] * self.number + clock)

    def ahead(self, match: Ints | Small, clock: Ints) -> Ints:
        """How much the clock of rows of collectives is ahead then."""
        return self.offset[self.node(match, clock)] + (self.rate[clock] * self.since[match]).astype(np.int64)


CLOCKS: Final = {
    "clock": pl.Int64,
    "part": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "offset_ns": pl.Int64,
    "low_ns": pl.Int64,
    "high_ns": pl.Int64,
    "drift_ppm": pl.Float64,
}


def of_one_clock(rows: Rows, found: Matches, reference: int, base: int, number: int) -> Clocks:
    """Clocks of a job that has only one, which has no offset."""
    at = found.order[: found.first[-1]]
    ends = rows.start[at] + rows.dur[at]
    table = pl.DataFrame([(reference, 0, base, int(ends.max(initial=base)), 0, 0, 0, 0.0)], schema=CLOCKS, orient="row")
    part, zeros = np.zeros(found.number, dtype=np.int64), np.zeros(number, dtype=np.int64)
    some = np.arange(0, found.first[-1], OF_SLICE)
    cuts = np.unique(np.r_[np.searchsorted(found.first, some), found.number])
    return Clocks(zeros, zeros.astype(np.float64), part, zeros, number, part, cuts, table, ())
