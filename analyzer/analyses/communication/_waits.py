"""Clocks of hosts, their offsets and bounds; waiting and transferring of collectives on corrected ones, and bandwidth.

Definition: docs/definitions.md, section 11, "Waiting and transferring".
"""

from typing import Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.communication._matching import (
    DRIFT,
    FAR,
    STAMP_ERROR_NS,
    UNKNOWN,
    Bools,
    Floats,
    Ints,
    Matches,
    Rows,
    Slice,
    Small,
    matched,
    rows_of,
    shows,
)
from kanalyze.analyses.communication._recorded import collectives_of
from kanalyze.columns import gathered
from kanalyze.reduction.tables import COLLECTIVES
from kanalyze.report import Report

#: Rows that are looked at at once, about.
OF_SLICE: Final = 1 << 18


class Clocks(NamedTuple):
    """Offsets of clocks, by node: part of the run and clock as one number."""

    offset: Ints  # by node, how much the clock is ahead of that of reference in the middle of the part
    rate: Floats  # by clock, by what part of the time it runs faster than that of reference
    since: Ints  # from the middle of its part to the begin of each collective
    error: Ints  # by node, how far that may be off, to either side; 0 on the clock of reference
    number: int  # how many clocks there are
    part: Ints  # the part of each collective
    cuts: Ints  # the collectives at which slices of the run begin, which end with a part, and the number of all
    table: pl.DataFrame  # a row per clock and part, :data:`CLOCKS`
    broken: tuple[int, ...]  # parts in which no offsets let all collectives be true

    def node(self, match: Ints | Small, clock: Ints) -> Ints:
        """The node of rows of collectives."""
        return np.asarray(self.part[match] * self.number + clock)

    def ahead(self, match: Ints | Small, clock: Ints) -> Ints:
        """How much the clock of rows of collectives is ahead then."""
        return self.offset[self.node(match, clock)] + (self.rate[clock] * self.since[match]).astype(np.int64)


CLOCKS: Final = {
    **dict.fromkeys(("clock", "part", "start_ns", "end_ns", "offset_ns", "low_ns", "high_ns"), pl.Int64),
    "drift_ppm": pl.Float64,
}


def of_one_clock(rows: Rows, matches: Matches, reference: int, base: int, number: int) -> Clocks:
    """Clocks of a job that has only one, which has no offset."""
    at = matches.order[: matches.first[-1]]
    ends = rows.start[at] + rows.dur[at]
    table = pl.DataFrame([(reference, 0, base, int(ends.max(initial=base)), 0, 0, 0, 0.0)], schema=CLOCKS, orient="row")
    part, zeros = np.zeros(matches.number, dtype=np.int64), np.zeros(number, dtype=np.int64)
    some = np.arange(0, matches.first[-1], OF_SLICE)
    cuts = np.unique(np.r_[np.searchsorted(matches.first, some), matches.number])
    return Clocks(zeros, zeros.astype(np.float64), part, zeros, number, part, cuts, table, ())


# Offsets of the clocks of hosts, with bounds that no rank may break by leaving before all have entered. All of it is
# linear in the number of collectives: the longest paths over hosts go through the collectives, so that no matrix of
# hosts is made. Definition: docs/definitions.md, section 11, "Clocks".

#: The fewest differences of ends that tell an offset from which a drift is told, and by how many times their error
#: the offsets at both ends of the run have to differ; a clock that is set in between lies off the line between these.
_FEWEST: Final = 8
_SURE: Final = 4
_STRAIGHT: Final = 0.25

#: The error of a median as a part of the scatter of nine of ten values, times the root of their number.
_OF_MEDIAN: Final = 0.76


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
    parts = int(min(256, max(1, len(times) // 64)))  # of 64 collectives, and at most so many
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
    low, high = _drifting(np.where(untold, -FAR, low), np.where(untold, FAR, high), run.middle, number)
    broken |= (low > high).reshape(parts, number).any(axis=1)
    offset, spread, _ = run.estimates(cuts, origins, low, high)
    half = (DRIFT * (edges[1:] - edges[:-1]) / 2).astype(np.int64)
    half = np.where(np.arange(number)[None, :] == reference, 0, half[:, None]).ravel()
    known = (low > -FAR // 2) & (high < FAR // 2)
    low, high = np.where(known, low - half, low), np.where(known, high + half, high)
    error = np.minimum(np.where(known, np.maximum(high - offset, offset - low), FAR), spread)
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


def _rates(run: "_Run", part: Ints, edges: Ints, reference: int) -> Floats:
    """By what part of the time each clock runs faster, as offsets tell that lie on a line; 0 where they do not."""
    finer = run._replace(part=part, middle=(edges[:-1] + edges[1:]) // 2)
    origins = np.arange(len(edges) - 1) * run.number + reference
    unbounded = np.full(len(origins) * run.number, FAR)
    estimates = finer.estimates(_cuts(run.matching.first, part), origins, -unbounded, unbounded)
    offsets, _, errors = (one.reshape(-1, run.number) for one in estimates)
    rates = np.zeros(run.number)
    for clock in range(run.number):
        thirds = np.array_split(np.flatnonzero(errors[:, clock] < FAR), 3)
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
    low, high = np.full(nodes, -FAR, dtype=np.int64), np.full(nodes, FAR, dtype=np.int64)
    low[origins], high[origins] = 0, 0
    stuck = np.zeros(len(rows.node), dtype=np.bool_)
    for _ in range(nodes // len(origins) + 1):
        # theta_b >= theta_a + start_b - end_a, for a that leaves after b entered
        reached = np.where(rows.leaves & (low[rows.node] > -FAR // 2), rows.end - low[rows.node], FAR)
        least = np.minimum.reduceat(reached, rows.first)[rows.match]
        fair = rows.enters & (least < FAR // 2) & ~stuck
        new_low = low.copy()
        np.maximum.at(new_low, rows.node[fair], rows.start[fair] - least[fair])
        entered = np.where(rows.enters & (high[rows.node] < FAR // 2), high[rows.node] - rows.start, FAR)
        most = np.minimum.reduceat(entered, rows.first)[rows.match]
        fair = rows.leaves & (most < FAR // 2) & ~stuck
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
    offset, spread = np.zeros(nodes, dtype=np.int64), np.full(nodes, FAR, dtype=np.int64)
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
            scatter=(pl.col("apart") - pl.col("apart").median()).abs().quantile(0.9),
            shortest=pl.col("shortest").min(),
            number=pl.len(),
        )  # fmt: skip
        at = sums.get_column("node").to_numpy()
        offset[at] = sums.get_column("offset").cast(pl.Int64).to_numpy()
        spread[at] = sums.select((pl.col("scatter") + pl.col("shortest")).ceil().cast(pl.Int64)).to_series().to_numpy()
        of_median = (_OF_MEDIAN * pl.col("scatter") / pl.col("number").sqrt()).ceil().cast(pl.Int64) + 1
        error[at] = sums.select(pl.when(pl.col("number") >= _FEWEST).then(of_median).otherwise(FAR)).to_series()
        known[at] = True
    bounded = (low > -FAR // 2) & (high < FAR // 2)
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


# Waiting and transferring on these clocks.

#: Below this share of waiting a collective is bound by its transfer, above that one by skew.
_LITTLE: Final = 0.25
_MUCH: Final = 0.75

#: What collectives are bound by, by rising share of waiting; the last where clocks or missing ranks do not tell.
CANNOT_TELL: Final = "cannot tell"
CLASSES: Final = ("transfer-bound", "mixed", "skew-bound", CANNOT_TELL)

#: Kinds whose busbw is (n-1)/n of algbw, as nccl-tests defines it.
_IN_PARTS: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")

#: Kinds in which each rank gives a part of what each gets, and the other way round.
_GATHERS: Final = ("all_gather", "gather")
_SCATTERS: Final = ("reduce_scatter", "scatter")

#: Before all times.
_BEFORE_ALL: Final = 1 << 62

_CLASSES: Final = pl.Enum(CLASSES)


def waits(rows: Rows, matches: Matches, clocks: Clocks, clock: Ints) -> pl.DataFrame:
    """Waiting and transfer of ranks in each collective; `clock` is that of each member.

    Columns: call (of its first rank), size (the most that a rank tells, null where none does), present (ranks that have
    it), arrival_ns (of the last rank), moved_ns (how long it transferred as a whole), by_shortest (whether that is the
    shortest duration, since clocks do not tell), doubt_ns, last and second (the rows of who came last and before it;
    null where clocks do not tell), lateness_ns, class, rank_ns and wait_ns (sums over ranks), bytes,
    algbw_bytes_per_s, busbw_bytes_per_s.
    """
    sizes = _sizes(rows.calls)
    parts = [_of_slice(rows, part, clocks, clock, sizes) for part in matches.slices(clocks.cuts)]
    table = pl.concat([pl.DataFrame(schema=_COLUMNS), *(part.cast(_COLUMNS) for part in parts)])  # type: ignore[arg-type]
    return _with_bandwidth(table, rows.calls)


_COLUMNS: Final = {
    "call": pl.Int32, "size": pl.Int64, "present": pl.Int64, "arrival_ns": pl.Int64, "moved_ns": pl.Int64,
    "by_shortest": pl.Boolean, "doubt_ns": pl.Int64, "last": pl.Int64, "second": pl.Int64, "lateness_ns": pl.Int64,
    "class": _CLASSES, "rank_ns": pl.Int64, "wait_ns": pl.Int64, "bytes": pl.Int64, "largest_bytes": pl.Int64,
}  # fmt: skip


def _of_slice(rows: Rows, part: Slice, clocks: Clocks, clock: Ints, sizes: "_Sizes") -> pl.DataFrame:
    """The columns of :func:`waits` of some collectives, but for bandwidth."""
    call, dur, own, match = rows.call[part.at], rows.dur[part.at], clock[rows.member[part.at]], part.low + part.which
    came, error = rows.start[part.at] - clocks.ahead(match, own), clocks.error[clocks.node(match, own)]
    arrival, total = part.most(came), part.sums(dur)
    # ranks on the clock of reference have no error among themselves, nor have those on another one
    doubt = np.where(part.least(own) == part.most(own), 0, part.most(error))
    waited = [
        part.sums(np.minimum(np.maximum(latest[part.which] - came, 0), dur))
        for latest in (arrival, arrival - doubt, arrival + doubt)
    ]
    shares = [wait / np.maximum(total, 1) for wait in waited]
    word, least, most = ((share >= _LITTLE).astype(np.int64) + (share > _MUCH) for share in shares)
    moved = part.most(came + dur) - arrival
    unsure = 2 * doubt > moved
    largest = part.most(sizes.group[call])
    whole = part.counts >= largest
    last, second, lateness = _last(part, came, own, error)
    known = pl.Series(whole & (lateness >= 0))
    return pl.DataFrame(
        {
            "call": call[part.first],
            "size": pl.Series(largest).replace(0, None),
            "present": part.counts,
            "arrival_ns": arrival,
            "moved_ns": np.where(unsure, part.least(dur), moved),
            "by_shortest": unsure,
            "doubt_ns": doubt,
            "last": part.at[last],
            "second": part.at[second],
            "lateness_ns": lateness,
            "class": pl.Series(CLASSES, dtype=_CLASSES).gather(np.where((least == most) & whole, word, 3)),
            "rank_ns": total,
            "wait_ns": waited[0],
            "bytes": pl.Series(part.most(sizes.of(call, part.counts[part.which]))).replace(UNKNOWN, None),
            "largest_bytes": pl.Series(part.most(sizes.largest[call])).replace(UNKNOWN, None),
        }
    ).with_columns(pl.when(known).then(name).alias(name) for name in ("last", "second", "lateness_ns"))


def _last(part: Slice, came: Ints, clock: Ints, error: Ints) -> tuple[Ints, Ints, Ints]:
    """Who came last to each collective, who before it (rows of the slice), and by how much; below 0 if unknown."""
    places, arrival = np.arange(len(came)), part.most(came)
    at = part.least(np.where(came == arrival[part.which], places, len(places)))
    others = came.copy()
    others[at] = -_BEFORE_ALL
    second = part.most(others)
    before = part.least(np.where(others == second[part.which], places, len(places)))
    others += np.where(clock != clock[at][part.which], error + error[at][part.which], 0)
    others[at] = -_BEFORE_ALL
    sure = (arrival > part.most(others)) & (part.counts > 1)
    return at, before, np.where(sure, arrival - np.where(sure, second, 0), -1)


class _Sizes(NamedTuple):
    """Bytes as nccl-tests counts them, by call; -1 where they are not recorded."""

    group: Ints  # ranks of the group; 0 where that is not recorded
    bytes: Ints  # the larger of what a rank gives and gets; of what gathers or scatters all of it
    times: Bools  # whether times the ranks that are there: that of the group is not recorded
    largest: Ints  # of uneven parts: bytes sent or received, without a rank's own

    def of(self, call: Small, present: Ints) -> Ints:
        """The bytes of rows, of whose collective so many ranks are there."""
        return np.asarray(self.bytes[call] * np.where(self.times[call], present, 1))


def _sizes(calls: pl.DataFrame) -> _Sizes:
    per_rank = pl.col("in_bytes").is_null() | pl.col("out_bytes").is_null()
    times = pl.when(per_rank).then(pl.col("size").fill_null(1)).otherwise(1)
    gathers, scatters = (pl.col("kind").is_in(kinds) for kinds in (_GATHERS, _SCATTERS))
    given = pl.col("in_bytes") * pl.when(gathers).then(times).otherwise(1)
    got = pl.col("out_bytes") * pl.when(scatters).then(times).otherwise(1)
    bytes_ = pl.max_horizontal(given, got)
    alone = pl.when(gathers).then(pl.col("out_bytes").is_null()).when(scatters).then(pl.col("in_bytes").is_null())
    sizes = calls.select(
        pl.col("size").fill_null(0),
        bytes_.fill_null(UNKNOWN).alias("bytes"),
        (alone.fill_null(value=False) & pl.col("size").is_null() & (bytes_ >= 0).fill_null(value=False)).alias("times"),
        pl.col("largest_bytes").fill_null(UNKNOWN),
    )
    return _Sizes(*(sizes.get_column(name).to_numpy() for name in sizes.columns))


def bytes_of(calls: pl.DataFrame) -> pl.Series:
    """The bytes of what has no partner, by call."""
    sizes = _sizes(calls)
    return pl.Series(np.where(sizes.times, UNKNOWN, sizes.bytes)).replace(UNKNOWN, None)


def _with_bandwidth(waited: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds algbw_bytes_per_s and busbw_bytes_per_s as nccl-tests defines them, by the time of the transfer."""
    called = calls.get_column("kind").cast(pl.String).gather(waited.get_column("call"))
    kind, size = pl.col("kind"), pl.col("size").fill_null(pl.col("present"))
    seconds = pl.col("moved_ns") / 1e9
    real = (pl.col("moved_ns") > 0) & (pl.col("present") >= size)
    others = (size - 1) / size
    factor = pl.when(kind == "all_reduce").then(2 * others).when(kind.is_in(_IN_PARTS)).then(others).otherwise(1.0)
    uneven = (kind == "all_to_all") & pl.col("largest_bytes").is_not_null()
    bus = pl.when(uneven).then(pl.col("largest_bytes") / seconds).otherwise(pl.col("bytes") / seconds * factor)
    widths = {"algbw_bytes_per_s": pl.col("bytes") / seconds, "busbw_bytes_per_s": bus}
    told = {name: pl.when(real).then(width).cast(pl.Int64) for name, width in widths.items()}
    return waited.with_columns(kind=called).with_columns(**told).drop("kind", "largest_bytes")


class Exposed(NamedTuple):
    """Exposed communication, by row, and by member and step."""

    wait: Ints  # waiting, by row
    transfer: Ints  # likewise
    by_step: list[pl.DataFrame]


def split(pieces: pl.DataFrame, at: Ints, came: Ints, into: Exposed) -> None:
    """Splits exposed pieces of collectives, whose rows are `at`, where the last rank came, by the clock of the rank.

    That is -1 for what has no match. All pieces of a member are there.
    """
    start, end = (pieces.get_column(name).to_numpy() for name in ("start_ns", "end_ns"))
    known = came >= 0
    wait = np.where(known, np.maximum(np.minimum(end, came) - start, 0), 0)
    transfer = np.where(known, end - start - wait, 0)
    np.add.at(into.wait, at, wait)
    np.add.at(into.transfer, at, transfer)
    own = {"exposed_wait_ns": wait, "exposed_transfer_ns": transfer, "unmatched_ns": np.where(known, 0, end - start)}
    times = pieces.select("member", "step").with_columns(**own)
    into.by_step.append(times.group_by("member", "step").agg(pl.all().sum()))


# Collectives whose ranks are all in one report


def arrivals(report: Report, work: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """When the last rank came to each collective: row, arrival, last, late, sized.

    `work` has the communication kernels of all ranks, `members` the ranks (device, process_id). Collectives without a
    partner, and those of which ranks are known to be missing, are left out.
    """
    numbered, keys = members.with_row_index("member"), ["device", "process_id"]
    line = work.sort("began", "event_id").join(numbered, on=keys, nulls_equal=True, maintain_order="left")
    line = line.sort("member", maintain_order=True)
    rows = rows_of(pl.concat([_recorded(report, own) for own in line.partition_by("member")]), members.height)
    clock = np.zeros(members.height, dtype=np.int64)
    matches = matched(rows, clock)
    waited = waits(rows, matches, of_one_clock(rows, matches, 0, 0, 1), clock)
    whole = (waited.get_column("present") >= waited.get_column("size").fill_null(0)).to_numpy()
    chosen = matches.order[: matches.first[-1]]
    chosen = chosen[whole[matches.match[chosen]]]
    if members.height > 2:  # noqa: PLR2004 - two have one group, those of several groups may be mixed up
        grouped = pl.col("group").is_not_null() | pl.col("size").eq(members.height).fill_null(value=False)
        chosen = chosen[rows.calls.select(grouped).to_series().to_numpy()[rows.call[chosen]]]
    of_rows = waited.select("last", arrival="arrival_ns", sized=pl.col("size").is_not_null())[matches.match[chosen]]
    # by GPU, or by process where several ranks share one
    alone = pl.format("GPU {}", "device"), pl.format("process {}", "process_id")
    names = members.select(pl.when(pl.col("device").is_unique()).then(alone[0]).otherwise(alone[1])).to_series()
    last = gathered(names, pl.Series(rows.member).gather(of_rows.get_column("last")).cast(pl.Int64)).alias("last")
    own = line[chosen].select("row", "start", match=pl.Series(matches.match[chosen]))
    latest = pl.col("row").sort_by("start", "row", descending=[True, False]).first().over("match")
    late = own.select("row", late=latest)
    table: pl.DataFrame = of_rows.with_columns(last).hstack(late.get_columns())
    return table.select("row", "late", "arrival", "last", "sized")


def _recorded(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    """The collectives of one rank as :func:`rows_of` takes them."""
    collectives = collectives_of(report, line)
    return collectives.select(name for name in COLLECTIVES.schema if name in collectives.columns).with_columns(
        line.select(
            pl.col("member").cast(pl.Int64),
            start_ns=pl.col("start"),
            dur_ns=pl.max_horizontal(pl.col("end") - pl.col("start"), 0),
            exposed_ns=pl.lit(0, dtype=pl.Int64),
        )
    )
