"""Clocks of hosts: their offsets, with bounds that no rank may break by leaving before all have entered.

Definition: docs/definitions.md, section 11, "Clocks". All of it is linear in the number of collectives: the longest
paths over hosts go through the collectives, so that no matrix of hosts is made.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.communication._matching import (
    DRIFT,
    STAMP_ERROR_NS,
    Bools,
    Floats,
    Ints,
    Matches,
    Rows,
    Slice,
    Small,
    shows,
)
from kanalyze.analyses.communication._waits import CLOCKS, OF_SLICE, Clocks, of_one_clock

#: Collectives in a part of the run, and most parts.
_OF_PART: Final = 64
_PARTS: Final = 256

#: The fewest differences of ends that tell an offset from which a drift is told, and by how many times their error
#: the offsets at both ends of the run have to differ; a clock that is set in between lies off the line between these.
_FEWEST: Final = 8
_SURE: Final = 4
_STRAIGHT: Final = 0.25

#: The error of a median as a part of the scatter of nine of ten values, times the root of their number.
_OF_MEDIAN: Final = 0.76

#: Beyond all offsets, and far from overflow.
_FAR: Final = 1 << 60

#: The part of differences of ends that the scatter of an offset covers.
_MOST: Final = 0.9


class _Rows(NamedTuple):
    """Some matched collectives, by match: clock and part as one number (node), times, and what they show."""

    match: Ints | Small
    first: Ints
    node: Ints
    start: Ints
    end: Ints
    enters: Bools
    leaves: Bools


def clocks_of(rows: Rows, matching: Matches, clock: Ints, reference: int, origin_ns: int) -> Clocks:
    """The offsets of all clocks to that of `reference`, from matched collectives; without any, of a part at the origin.

    `clock` is that of each member.
    """
    base = int(matching.begun[0]) if matching.number else origin_ns  # Unix times nearly fill int64
    used = np.unique(clock[np.unique(rows.member[matching.match >= 0])])
    number = int(used.max(initial=0)) + 1
    if len(used) < 2:  # noqa: PLR2004 - one clock has no offset
        return of_one_clock(rows, matching, reference, base, number)
    times, latest = matching.begun - base, int(rows.start[matching.match >= 0].max()) - base
    parts = int(min(_PARTS, max(1, len(times) // _OF_PART)))
    part, edges = _parts(times, latest, parts)
    middle = (edges[:-1] + edges[1:]) // 2
    cuts = _cuts(matching.first, part)
    run = _Run(rows, matching, clock, number, base, part, middle, np.zeros(number), shows(rows.calls))
    run = run._replace(rate=_rates(run, *_parts(times, latest, max(parts, 3)), reference))
    origins = np.arange(parts) * number + reference
    low, high = run.bounds(cuts, origins)
    broken = (low > high).reshape(parts, number).any(axis=1)
    # what cannot be true says nothing of the parts beside it
    untold = broken.repeat(number) & ~np.isin(np.arange(parts * number), origins)
    low, high = _drifting(np.where(untold, -_FAR, low), np.where(untold, _FAR, high), run.middle, number)
    broken |= (low > high).reshape(parts, number).any(axis=1)
    offset, spread, _ = run.estimates(cuts, origins, low, high)
    half = (DRIFT * (edges[1:] - edges[:-1]) / 2).astype(np.int64)
    half = np.where(np.arange(number)[None, :] == reference, 0, half[:, None]).ravel()
    known = (low > -_FAR // 2) & (high < _FAR // 2)
    low, high = np.where(known, low - half, low), np.where(known, high + half, high)
    error = np.minimum(np.where(known, np.maximum(high - offset, offset - low), _FAR), spread)
    return Clocks(
        offset,
        run.rate,
        times - middle[part],
        error,
        number,
        part,
        cuts,
        _table((offset, low, high, known), edges + base, run.rate),
        tuple(int(one) for one in np.flatnonzero(broken)),
    )


def _rates(run: _Run, part: Ints, edges: Ints, reference: int) -> Floats:
    """By what part of the time each clock runs faster, as offsets tell that lie on a line; 0 where they do not."""
    finer = run._replace(part=part, middle=(edges[:-1] + edges[1:]) // 2)
    origins = np.arange(len(edges) - 1) * run.number + reference
    unbounded = np.full(len(origins) * run.number, _FAR)
    estimates = finer.estimates(_cuts(run.matching.first, part), origins, -unbounded, unbounded)
    offsets, _, errors = (one.reshape(-1, run.number) for one in estimates)
    rates = np.zeros(run.number)
    for clock in range(run.number):
        thirds = np.array_split(np.flatnonzero(errors[:, clock] < _FAR), 3)
        if clock == reference or not len(thirds[-1]):
            continue
        first, between, last = (float(np.median(offsets[one, clock])) for one in thirds)
        begin, middle, end = (float(np.median(finer.middle[one])) for one in thirds)
        error = np.hypot(*(np.median(errors[one, clock]) for one in (thirds[0], thirds[-1])))
        rate = (last - first) / (end - begin)
        bend = abs(between - first - rate * (middle - begin))
        if abs(last - first) > _SURE * error and bend <= _STRAIGHT * abs(last - first) and abs(rate) <= DRIFT:
            rates[clock] = rate
    return rates


def _parts(times: Ints, latest: int, parts: int) -> tuple[Ints, Ints]:
    """The part of the run that each collective is in, by its time, and the edges of so many parts."""
    cuts = times[(np.arange(1, parts) * len(times)) // parts]
    return np.searchsorted(cuts, times, side="right"), np.r_[times[0], cuts, max(latest, int(times[-1])) + 1]


def _cuts(first: Ints, part: Ints) -> Ints:
    """Begins of slices of the run, each of some parts."""
    begins = np.flatnonzero(np.diff(part, prepend=-1))
    slices = first[begins] // OF_SLICE
    return np.asarray(np.r_[begins[np.diff(slices, prepend=-1) > 0], len(part)])


class _Run(NamedTuple):
    """Evidence for clocks."""

    rows: Rows  # the collectives
    matching: Matches  # which are the same
    clock: Ints  # the clock of each member
    number: int  # how many clocks there are
    base: int  # what times are counted from
    part: Ints  # the part of each collective
    middle: Ints  # the middle of each part
    rate: Floats  # by what part of the time each clock runs faster, as far as that is known
    shows: tuple[Bools, Bools, Bools]  # what calls show of clocks: enters, leaves, together

    def _of_slice(self, one: Slice) -> tuple[_Rows, Ints]:
        """The rows of a slice with nodes from its first part on, and the part of each."""
        start = self.rows.start[one.at] - self.base
        call, part = self.rows.call[one.at], self.part[one.low + one.which]
        node = (part - part[0]) * self.number + self.clock[self.rows.member[one.at]]
        enters, leaves = (flags[call] for flags in self.shows[:2])
        end = start + self.rows.dur[one.at]
        return _Rows(one.which, one.first, node, start, end, enters, leaves), part

    def bounds(self, cuts: Ints, origins: Ints) -> tuple[Ints, Ints]:
        """Lower and upper bounds of the offset of each node."""
        sides = []
        for one in self.matching.slices(cuts):
            rows, part = self._of_slice(one)
            slack = (DRIFT * np.abs(rows.start - self.middle[part])).astype(np.int64) + STAMP_ERROR_NS
            loose = rows._replace(start=rows.start - slack, end=rows.end + slack)
            parts = int(part[-1] - part[0]) + 1
            sides.append(_bounds(loose, origins[:parts], parts * self.number))
        low, high = zip(*sides, strict=True)
        return np.concatenate(low), np.concatenate(high)

    def estimates(self, cuts: Ints, origins: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints, Ints]:
        """The offset of each node, how far it may be off, and the error of the median that it is."""
        sides = []
        for one in self.matching.slices(cuts):
            rows, part = self._of_slice(one)
            together = self.shows[2][self.rows.call[one.at]]
            since = self.matching.begun[one.low + one.which] - self.base - self.middle[part]
            drift = (self.rate[self.clock[self.rows.member[one.at]]] * since).astype(np.int64)
            rows = rows._replace(start=rows.start - drift, end=rows.end - drift)
            nodes = slice(part[0] * self.number, (part[-1] + 1) * self.number)
            parts = int(part[-1] - part[0]) + 1
            sides.append(_estimates(rows, together, origins[:parts], low[nodes], high[nodes]))
        offset, spread, error = (np.concatenate(one) for one in zip(*sides, strict=True))
        return offset, spread, error


def _bounds(rows: _Rows, origins: Ints, nodes: int) -> tuple[Ints, Ints]:
    """Lower and upper bounds of the offset of each node: longest paths from the clock of reference, and to it.

    A path has fewer steps than there are clocks: what still grows then does so for ever, and cannot be true.
    """
    low, high = np.full(nodes, -_FAR, dtype=np.int64), np.full(nodes, _FAR, dtype=np.int64)
    low[origins], high[origins] = 0, 0
    stuck = np.zeros(len(rows.node), dtype=np.bool_)
    for _ in range(nodes // len(origins) + 1):
        # theta_b >= theta_a + start_b - end_a, for a that leaves after b entered
        reached = np.where(rows.leaves & (low[rows.node] > -_FAR // 2), rows.end - low[rows.node], _FAR)
        least = np.minimum.reduceat(reached, rows.first)[rows.match]
        fair = rows.enters & (least < _FAR // 2) & ~stuck
        new_low = low.copy()
        np.maximum.at(new_low, rows.node[fair], rows.start[fair] - least[fair])
        entered = np.where(rows.enters & (high[rows.node] < _FAR // 2), high[rows.node] - rows.start, _FAR)
        most = np.minimum.reduceat(entered, rows.first)[rows.match]
        fair = rows.leaves & (most < _FAR // 2) & ~stuck
        new_high = high.copy()
        np.minimum.at(new_high, rows.node[fair], rows.end[fair] + most[fair])
        grown = (new_low != low) | (new_high != high)
        if not grown.any():
            break
        low, high = new_low, new_high
        # a part that cannot be true would go on for ever; the others are not held up by it
        wrong = np.flatnonzero((low > high).reshape(len(origins), -1).any(axis=1))
        stuck = np.isin(rows.node // (nodes // len(origins)), wrong)
    else:
        low = np.where(grown, high + 1, low)
    return low, high


def _drifting(low: Ints, high: Ints, middle: Ints, number: int) -> tuple[Ints, Ints]:
    """The bounds narrowed by those of the parts before and after, which hold but for the drift between."""
    lows, highs = low.reshape(-1, number), high.reshape(-1, number)
    drift = np.cumsum((DRIFT * np.diff(middle, prepend=middle[0])).astype(np.int64))[:, None]
    for _ in range(2):  # from the first part on, and back from the last
        lows = (np.maximum.accumulate(lows + drift) - drift)[::-1]
        highs = (np.minimum.accumulate(highs - drift) + drift)[::-1]
        drift = (drift[-1] - drift)[::-1]
    return lows.ravel(), highs.ravel()


def _estimates(rows: _Rows, together: Bools, origins: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints, Ints]:
    """The offset of each node, how far it may be off, and its error: the median difference of ends, within its bounds.

    All leave about together: at most the shortest duration apart, and as far as differences scatter.
    """
    nodes = len(low)
    offset, spread = np.zeros(nodes, dtype=np.int64), np.full(nodes, _FAR, dtype=np.int64)
    known, error = np.zeros(nodes, dtype=np.bool_), spread.copy()
    known[origins], spread[origins] = True, 0
    shortest = np.minimum.reduceat(rows.end - rows.start, rows.first)[rows.match]
    whole = pl.DataFrame({"match": rows.match, "node": rows.node, "end": rows.end, "shortest": shortest})
    frame = whole.filter(pl.Series(together))
    while True:
        at = frame.get_column("node").to_numpy()
        ends = frame.with_columns(seen=pl.Series(known[at]), offset=pl.Series(offset[at]))
        left = ends.filter("seen").group_by("match").agg(left=(pl.col("end") - pl.col("offset")).median())
        new = ends.filter(~pl.col("seen")).join(left, on="match", how="inner")
        if new.is_empty():
            break
        sums = new.with_columns(apart=pl.col("end") - pl.col("left")).group_by("node").agg(
            offset=pl.col("apart").median(),
            scatter=(pl.col("apart") - pl.col("apart").median()).abs().quantile(_MOST),
            shortest=pl.col("shortest").min(),
            number=pl.len(),
        )  # fmt: skip
        at = sums.get_column("node").to_numpy()
        offset[at] = sums.get_column("offset").cast(pl.Int64).to_numpy()
        spread[at] = sums.select((pl.col("scatter") + pl.col("shortest")).ceil().cast(pl.Int64)).to_series().to_numpy()
        of_median = (_OF_MEDIAN * pl.col("scatter") / pl.col("number").sqrt()).ceil().cast(pl.Int64) + 1
        error[at] = sums.select(pl.when(pl.col("number") >= _FEWEST).then(of_median).otherwise(_FAR)).to_series()
        known[at] = True
    bounded = (low > -_FAR // 2) & (high < _FAR // 2)
    offset = np.where(known, offset, np.where(bounded, (low + high) // 2, 0))
    return np.where(bounded & (low <= high), np.clip(offset, low, high), offset), spread, error


def _table(bounds: tuple[Ints, Ints, Ints, Bools], edges: Ints, rate: Floats) -> pl.DataFrame:
    """:data:`CLOCKS` of offset, lower and upper bound of each node, and of whether it has bounds."""
    part, clock = np.divmod(np.arange((len(edges) - 1) * len(rate)), len(rate))
    *values, known = bounds
    times = dict(zip(("offset_ns", "low_ns", "high_ns"), values, strict=True))
    spans = {"start_ns": edges[:-1][part], "end_ns": edges[1:][part]}
    columns = {"clock": clock, "part": part, **spans, **times, "drift_ppm": rate[clock] * 1e6}
    return pl.DataFrame(columns, schema=CLOCKS).with_columns(pl.when(pl.Series(known)).then(pl.col(*times)))
