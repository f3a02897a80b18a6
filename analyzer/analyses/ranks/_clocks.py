"""Clocks of hosts: their offsets, with bounds that no rank may break by leaving before all have entered.

Definition: docs/definitions.md, section 11, "Clocks". All of it is linear in the number of collectives: the longest
paths over hosts go through the collectives, so that no matrix of hosts is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.communication._matching import DRIFT, STAMP_ERROR_NS, shows

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

#: Collectives in a part of the run, and most parts.
_OF_PART: Final = 64
_PARTS: Final = 256

#: Beyond all offsets, and far from overflow.
_FAR: Final = 1 << 60

#: The part of differences of ends that the scatter of an offset covers.
_MOST: Final = 0.9

#: Rounds of propagation: as many hosts as a path may have.
_ROUNDS: Final = 64


class Clocks(NamedTuple):
    """Offsets of clocks.

    Attributes:
        offsets: By row of the matched collectives, the offset of its clock.
        error_ns: By row, how far the offset may be off, to either side; 0 on the clock of reference.
        table: A row per clock and part: clock, part, start_ns, end_ns, offset_ns, low_ns, high_ns.
        broken: Parts in which no offsets let all collectives be true.
    """

    offsets: Ints
    error_ns: Ints
    table: pl.DataFrame
    broken: tuple[int, ...]


_TABLE: Final = {
    "clock": pl.Int64,
    "part": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "offset_ns": pl.Int64,
    "low_ns": pl.Int64,
    "high_ns": pl.Int64,
}


class _Rows(NamedTuple):
    """The matched collectives, by match: clock and part as one number (node), times, and what they show."""

    match: Ints
    first: Ints
    node: Ints
    start: Ints
    end: Ints
    enters: Bools
    leaves: Bools
    together: Bools


def clocks_of(rows: pl.DataFrame, reference: int, origin_ns: int) -> Clocks:
    """The offsets of all clocks to that of `reference`, from matched collectives; without any, of a part at the origin.

    `rows` is sorted by `match` and has match, clock, kind, own, source, target, start_ns and dur_ns.
    """
    clock = rows.get_column("clock").to_numpy()
    number = int(clock.max()) + 1 if len(clock) else 1
    base = rows.select(pl.col("start_ns").min().fill_null(origin_ns)).item()  # Unix times nearly fill int64
    start = rows.get_column("start_ns").to_numpy() - base
    end = start + rows.get_column("dur_ns").to_numpy()
    if len(np.unique(clock)) < 2:  # noqa: PLR2004 - one clock has no offset
        zeros = np.zeros(len(start), dtype=np.int64)
        whole = (base, base + int(end.max(initial=0)))
        table = pl.DataFrame([(reference, 0, *whole, 0, 0, 0)], schema=_TABLE, orient="row")
        return Clocks(zeros, zeros, table, ())
    match = rows.get_column("match").to_numpy()
    first = np.flatnonzero(np.r_[True, match[1:] != match[:-1]])
    part, edges = _parts(match, first, start)
    middle = (edges[:-1] + edges[1:]) // 2
    enters, leaves, together = shows(rows)
    slack = (DRIFT * np.abs(start - middle[part])).astype(np.int64) + STAMP_ERROR_NS
    index = np.cumsum(np.r_[0, np.diff(match) != 0])
    found = _Rows(index, first, part * number + clock, start - slack, end + slack, enters, leaves, together)
    parts = len(middle)
    origins = np.arange(parts) * number + reference
    low, high = _bounds(found, origins, parts * number)
    broken = (low > high).reshape(parts, number).any(axis=1)
    # what cannot be true says nothing of the parts beside it
    untold = broken.repeat(number) & ~np.isin(np.arange(parts * number), origins)
    low, high = _drifting(np.where(untold, -_FAR, low), np.where(untold, _FAR, high), middle, number)
    broken |= (low > high).reshape(parts, number).any(axis=1)
    offset, spread = _estimates(found._replace(start=start, end=end), origins, low, high)
    half = (DRIFT * (edges[1:] - edges[:-1]) / 2).astype(np.int64)
    half = np.where(np.arange(number)[None, :] == reference, 0, half[:, None]).ravel()
    known = (low > -_FAR // 2) & (high < _FAR // 2)
    low, high = np.where(known, low - half, low), np.where(known, high + half, high)
    error = np.minimum(np.where(known, np.maximum(high - offset, offset - low), _FAR), spread)
    return Clocks(
        offset[found.node],
        error[found.node],
        _told(_Bounds(offset, low, high, known), edges + base, number),
        tuple(int(one) for one in np.flatnonzero(broken)),
    )


def _parts(match: Ints, first: Ints, start: Ints) -> tuple[Ints, Ints]:
    """The part of the run that each row is in, by the time of its collective, and the edges of the parts."""
    times = np.minimum.reduceat(start, first)
    parts = int(min(_PARTS, max(1, len(first) // _OF_PART)))
    cuts = np.sort(times)[(np.arange(1, parts) * len(times)) // parts]
    part = np.searchsorted(cuts, times, side="right")
    counts = np.diff(np.r_[first, len(match)])
    edges = np.r_[times.min(), cuts, max(int(start.max()), int(times.max())) + 1]
    return np.repeat(part, counts), edges


def _bounds(rows: _Rows, origins: Ints, nodes: int) -> tuple[Ints, Ints]:
    """Lower and upper bounds of the offset of each node: longest paths from the clock of reference, and to it."""
    low, high = np.full(nodes, -_FAR, dtype=np.int64), np.full(nodes, _FAR, dtype=np.int64)
    low[origins], high[origins] = 0, 0
    stuck = np.zeros(len(rows.node), dtype=np.bool_)
    for _ in range(_ROUNDS):
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
        if (new_low == low).all() and (new_high == high).all():
            break
        low, high = new_low, new_high
        # a part that cannot be true would go on for ever; the others are not held up by it
        wrong = np.flatnonzero((low > high).reshape(len(origins), -1).any(axis=1))
        stuck = np.isin(rows.node // (nodes // len(origins)), wrong)
    return low, high


def _drifting(low: Ints, high: Ints, middle: Ints, number: int) -> tuple[Ints, Ints]:
    """The bounds narrowed by those of the parts before and after, which hold but for the drift between."""
    lows, highs = low.reshape(-1, number).copy(), high.reshape(-1, number).copy()
    drift = (DRIFT * np.diff(middle)).astype(np.int64)
    for at in range(1, len(lows)):
        lows[at] = np.maximum(lows[at], lows[at - 1] - drift[at - 1])
        highs[at] = np.minimum(highs[at], highs[at - 1] + drift[at - 1])
    for at in range(len(lows) - 2, -1, -1):
        lows[at] = np.maximum(lows[at], lows[at + 1] - drift[at])
        highs[at] = np.minimum(highs[at], highs[at + 1] + drift[at])
    return lows.ravel(), highs.ravel()


def _estimates(rows: _Rows, origins: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """The offset of each node, and how far it may be off: the median difference of ends, within its bounds.

    All leave about together: at most the shortest duration apart, and as far as differences scatter.
    """
    nodes = len(low)
    offset, spread = np.zeros(nodes, dtype=np.int64), np.full(nodes, _FAR, dtype=np.int64)
    known = np.zeros(nodes, dtype=np.bool_)
    known[origins], spread[origins] = True, 0
    whole = pl.DataFrame({"match": rows.match, "node": rows.node, "end": rows.end, "ns": rows.end - rows.start})
    shortest = pl.col("ns").min().over("match")
    frame = whole.with_columns(shortest=shortest).filter(pl.Series(rows.together))
    for _ in range(_ROUNDS):
        at = frame.get_column("node").to_numpy()
        told = frame.with_columns(seen=pl.Series(known[at]), offset=pl.Series(offset[at]))
        left = told.filter("seen").group_by("match").agg(left=(pl.col("end") - pl.col("offset")).median())
        new = told.filter(~pl.col("seen")).join(left, on="match", how="inner")
        if new.is_empty():
            break
        sums = new.with_columns(apart=pl.col("end") - pl.col("left")).group_by("node").agg(
            offset=pl.col("apart").median(),
            scatter=(pl.col("apart") - pl.col("apart").median()).abs().quantile(_MOST),
            shortest=pl.col("shortest").min(),
        )  # fmt: skip
        at = sums.get_column("node").to_numpy()
        offset[at] = sums.get_column("offset").cast(pl.Int64).to_numpy()
        spread[at] = sums.select((pl.col("scatter") + pl.col("shortest")).ceil().cast(pl.Int64)).to_series().to_numpy()
        known[at] = True
    bounded = (low > -_FAR // 2) & (high < _FAR // 2)
    offset = np.where(known, offset, np.where(bounded, (low + high) // 2, 0))
    return np.where(bounded & (low <= high), np.clip(offset, low, high), offset), spread


class _Bounds(NamedTuple):
    """Offset, lower and upper bound of each node, and whether it has bounds."""

    offset: Ints
    low: Ints
    high: Ints
    known: Bools


def _told(found: _Bounds, edges: Ints, number: int) -> pl.DataFrame:
    parts = len(edges) - 1
    part, clock = np.divmod(np.arange(parts * number), number)
    frame = pl.DataFrame(
        {
            "clock": clock,
            "part": part,
            "start_ns": edges[:-1][part],
            "end_ns": edges[1:][part],
            "offset_ns": found.offset,
            "low_ns": found.low,
            "high_ns": found.high,
            "known": found.known,
        }
    )
    sides = [pl.when("known").then(name).alias(name) for name in ("offset_ns", "low_ns", "high_ns")]
    return frame.with_columns(sides).select(list(_TABLE)).cast(_TABLE)  # type: ignore[arg-type]
