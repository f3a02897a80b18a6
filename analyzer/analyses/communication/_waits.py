"""Waiting and transferring of collectives on corrected clocks, and their bandwidth.

Definition: docs/definitions.md, section 11, "Waiting and transferring".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    import numpy.typing as npt

    from kanalyze.analyses.communication._matching import Matches, Slice
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


#: Below this share of waiting a collective is bound by its transfer, above that one by skew.
_LITTLE: Final = 0.25
_MUCH: Final = 0.75

TRANSFER_BOUND: Final = "transfer-bound"
SKEW_BOUND: Final = "skew-bound"
MIXED: Final = "mixed"
CANNOT_TELL: Final = "cannot tell"

#: Kinds whose busbw is (n-1)/n of algbw, as nccl-tests defines it.
_PARTS: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")

#: Kinds in which each rank gives a part of what each gets, and the other way round.
_GATHERS: Final = ("all_gather", "gather")
_SCATTERS: Final = ("reduce_scatter", "scatter")

_NS_PER_S: Final = 1_000_000_000


#: Before all times.
_FAR: Final = 1 << 62

_CLASSES: Final = pl.Enum([TRANSFER_BOUND, MIXED, SKEW_BOUND, CANNOT_TELL])


def waits(rows: Rows, found: Matches, clocks: Clocks, clock: Ints) -> pl.DataFrame:
    """Waiting and transfer of ranks in each collective; `clock` is that of each member.

    Columns: call (of its first rank), size (the most that a rank tells, null where none does), present (ranks that have
    it), arrival_ns (of the last rank), moved_ns (how long it transferred as a whole), by_shortest (whether that is the
    shortest duration, since clocks do not tell), doubt_ns, last and second (the rows of who came last and before it;
    null where clocks do not tell), lateness_ns, class, rank_ns and wait_ns (sums over ranks), bytes,
    algbw_bytes_per_s, busbw_bytes_per_s.
    """
    sizes = _sizes(rows.calls)
    parts = [
        _of_slice(_Timed(rows, one, clocks, clock), rows.said("size", 0), sizes) for one in found.slices(clocks.cuts)
    ]
    told = pl.concat([pl.DataFrame(schema=_COLUMNS), *(part.cast(_COLUMNS) for part in parts)])  # type: ignore[arg-type]
    return _with_bandwidth(told, rows.calls)


_COLUMNS: Final = {
    "call": pl.Int32, "size": pl.Int64, "present": pl.Int64, "arrival_ns": pl.Int64, "moved_ns": pl.Int64,
    "by_shortest": pl.Boolean, "doubt_ns": pl.Int64, "last": pl.Int64, "second": pl.Int64, "lateness_ns": pl.Int64,
    "class": _CLASSES, "rank_ns": pl.Int64, "wait_ns": pl.Int64, "bytes": pl.Int64, "largest_bytes": pl.Int64,
}  # fmt: skip


def _of_slice(timed: _Timed, size: Ints, sizes: _Sizes) -> pl.DataFrame:
    """The columns of :func:`waits` of some collectives, but for bandwidth."""
    one = timed.one
    wait = timed.wait(timed.arrival)
    moved = one.most(timed.came + timed.dur) - timed.arrival
    unsure = 2 * timed.doubt > moved
    largest = one.most(size[timed.call])
    whole = one.counts >= largest
    last, second, lateness = timed.last()
    known = pl.Series(whole & (lateness >= 0))
    missing = pl.lit(None, dtype=pl.Int64)
    return pl.DataFrame(
        {
            "call": timed.call[one.first],
            "size": pl.Series(largest).replace(0, None),
            "present": one.counts,
            "arrival_ns": timed.arrival,
            "moved_ns": np.where(unsure, one.least(timed.dur), moved),
            "by_shortest": unsure,
            "doubt_ns": timed.doubt,
            "last": one.at[last],
            "second": one.at[second],
            "lateness_ns": lateness,
            "class": _classes(timed, wait, whole),
            "rank_ns": one.sums(timed.dur),
            "wait_ns": one.sums(wait),
            "bytes": pl.Series(one.most(sizes.of(timed.call, one.counts[one.which]))).replace(_UNKNOWN, None),
            "largest_bytes": pl.Series(one.most(sizes.largest[timed.call])).replace(_UNKNOWN, None),
        }
    ).with_columns(
        pl.when(known).then(name).otherwise(missing).alias(name) for name in ("last", "second", "lateness_ns")
    )


class _Timed:
    """The rows of a slice by the clock of reference."""

    def __init__(self, rows: Rows, one: Slice, clocks: Clocks, clock: Ints) -> None:
        self.one = one
        self.call = rows.call[one.at]
        self.clock = clock[rows.member[one.at]]
        match = one.low + one.which
        self.came = rows.start[one.at] - clocks.ahead(match, self.clock)
        self.dur = rows.dur[one.at]
        self.error = clocks.error[clocks.node(match, self.clock)]
        self.arrival = one.most(self.came)
        # ranks on the clock of reference have no error among themselves, nor have those on another one
        one_clock = one.least(self.clock) == one.most(self.clock)
        self.doubt = np.where(one_clock, 0, one.most(self.error))

    def wait(self, arrival: Ints) -> Ints:
        """How much of its duration each rank spends until the last one has come."""
        return waited(arrival[self.one.which], self.came, self.dur)

    def last(self) -> tuple[Ints, Ints, Ints]:
        """Who came last to each collective, who before it, and by how much; less than 0 where clocks do not tell.

        The first two are rows of the slice.
        """
        one, places = self.one, np.arange(len(self.came))
        at = one.least(np.where(self.came == self.arrival[one.which], places, len(places)))
        others = self.came.copy()
        others[at] = -_FAR
        second = one.most(others)
        before = one.least(np.where(others == second[one.which], places, len(places)))
        apart = self.clock != self.clock[at][one.which]
        others += np.where(apart, self.error + self.error[at][one.which], 0)
        others[at] = -_FAR
        sure = (self.arrival > one.most(others)) & (one.counts > 1)
        return at, before, np.where(sure, self.arrival - np.where(sure, second, 0), -1)


def waited(arrival: Ints, came: Ints, dur: Ints) -> Ints:
    """How much of its duration a rank spends until the last one has come."""
    return np.asarray(np.minimum(np.maximum(arrival - came, 0), dur))


def _classes(timed: _Timed, wait: Ints, whole: npt.NDArray[np.bool_]) -> pl.Series:
    """The class of each collective, by the share of waiting in all ranks' durations, where all doubts give one."""
    one = timed.one
    durations = np.maximum(one.sums(timed.dur), 1)
    arrivals = (timed.arrival - timed.doubt, timed.arrival + timed.doubt)
    least, most = (one.sums(timed.wait(arrival)) / durations for arrival in arrivals)
    codes = [
        (share >= _LITTLE).astype(np.int64) + (share > _MUCH) for share in (one.sums(wait) / durations, least, most)
    ]
    known = (codes[1] == codes[2]) & whole
    return pl.Series(_CLASSES.categories, dtype=_CLASSES).gather(np.where(known, codes[0], 3))


#: What stands for a size that is not recorded.
_UNKNOWN: Final = -1


class _Sizes(NamedTuple):
    """Bytes as nccl-tests counts them, by call; -1 where they are not recorded.

    Attributes:
        bytes: The larger of what a rank gives and gets; of what gathers or scatters all of it.
        times: Whether that has to be taken times the ranks that are there, as the size of the group is not recorded.
        largest: Of uneven parts: bytes sent or received, without a rank's own.
    """

    bytes: Ints
    times: npt.NDArray[np.bool_]
    largest: Ints

    def of(self, call: Small, present: Ints) -> Ints:
        """The bytes of rows, of whose collective so many ranks are there."""
        return np.asarray(self.bytes[call] * np.where(self.times[call], present, 1))


def _sizes(calls: pl.DataFrame) -> _Sizes:
    per_rank = pl.col("in_bytes").is_null() | pl.col("out_bytes").is_null()
    times = pl.when(per_rank).then(pl.col("size").fill_null(1)).otherwise(1)
    gathers, scatters = (pl.col("kind").is_in(kinds) for kinds in (_GATHERS, _SCATTERS))
    bytes_ = (
        pl.when(gathers)
        .then(pl.max_horizontal("out_bytes", pl.col("in_bytes") * times))
        .when(scatters)
        .then(pl.max_horizontal("in_bytes", pl.col("out_bytes") * times))
        .otherwise(pl.max_horizontal("in_bytes", "out_bytes"))
    )
    alone = pl.when(gathers).then(pl.col("out_bytes").is_null()).when(scatters).then(pl.col("in_bytes").is_null())
    told = calls.select(
        bytes_.fill_null(_UNKNOWN).alias("bytes"),
        (alone.fill_null(value=False) & pl.col("size").is_null() & (bytes_ >= 0).fill_null(value=False)).alias("times"),
        pl.col("largest_bytes").fill_null(_UNKNOWN),
    )
    return _Sizes(*(told.get_column(name).to_numpy() for name in told.columns))


def bytes_of(calls: pl.DataFrame) -> pl.Series:
    """The bytes of what has no partner, by call."""
    sizes = _sizes(calls)
    return pl.Series(np.where(sizes.times, _UNKNOWN, sizes.bytes)).replace(_UNKNOWN, None)


def _with_bandwidth(told: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds algbw_bytes_per_s and busbw_bytes_per_s as nccl-tests defines them, by the time of the transfer."""
    kind = calls.get_column("kind").cast(pl.String).gather(told.get_column("call"))
    size = pl.col("size").fill_null(pl.col("present"))
    seconds = pl.col("moved_ns") / _NS_PER_S
    real = (pl.col("moved_ns") > 0) & (pl.col("present") >= size)
    bus = (
        pl.when((pl.col("kind") == "all_to_all") & pl.col("largest_bytes").is_not_null())
        .then(pl.col("largest_bytes") / seconds)
        .otherwise(pl.col("bytes") / seconds * _factor(size))
    )
    whole = [
        pl.when(real).then(pl.col("bytes") / seconds).cast(pl.Int64).alias("algbw_bytes_per_s"),
        pl.when(real).then(bus).cast(pl.Int64).alias("busbw_bytes_per_s"),
    ]
    return told.with_columns(kind=kind).with_columns(whole).drop("kind", "largest_bytes")


def _factor(size: pl.Expr) -> pl.Expr:
    others = (size - 1) / size
    return (
        pl.when(pl.col("kind") == "all_reduce")
        .then(2 * others)
        .when(pl.col("kind").is_in(_PARTS))
        .then(others)
        .otherwise(1.0)
    )


class Exposed(NamedTuple):
    """Exposed communication.

    Attributes:
        wait: Waiting, by row.
        transfer: Transferring, by row.
        by_step: Their sums by member and step: exposed_wait_ns, exposed_transfer_ns and, of what has no match,
            unmatched_ns.
    """

    wait: Ints
    transfer: Ints
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
    told = pieces.select("member", "step").with_columns(
        exposed_wait_ns=wait, exposed_transfer_ns=transfer, unmatched_ns=np.where(known, 0, end - start)
    )
    into.by_step.append(told.group_by("member", "step").agg(pl.all().sum()))
