"""Waiting and transferring of collectives on corrected clocks, and their bandwidth.

Definition: docs/definitions.md, section 11, "Waiting and transferring".
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.communication._matching import Bools, Floats, Ints, Matches, Rows, Slice, Small, matched, rows_of
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


#: Below this share of waiting a collective is bound by its transfer, above that one by skew.
_LITTLE: Final = 0.25
_MUCH: Final = 0.75

#: What collectives are bound by, by rising share of waiting; the last where clocks or missing ranks do not tell.
CANNOT_TELL: Final = "cannot tell"
CLASSES: Final = ("transfer-bound", "mixed", "skew-bound", CANNOT_TELL)

#: Kinds whose busbw is (n-1)/n of algbw, as nccl-tests defines it.
_PARTS: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")

#: Kinds in which each rank gives a part of what each gets, and the other way round.
_GATHERS: Final = ("all_gather", "gather")
_SCATTERS: Final = ("reduce_scatter", "scatter")

_NS_PER_S: Final = 1_000_000_000

#: Before all times.
_FAR: Final = 1 << 62

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


def _of_slice(rows: Rows, part: Slice, clocks: Clocks, clock: Ints, sizes: _Sizes) -> pl.DataFrame:
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
            "bytes": pl.Series(part.most(sizes.of(call, part.counts[part.which]))).replace(_UNKNOWN, None),
            "largest_bytes": pl.Series(part.most(sizes.largest[call])).replace(_UNKNOWN, None),
        }
    ).with_columns(pl.when(known).then(name).alias(name) for name in ("last", "second", "lateness_ns"))


def _last(part: Slice, came: Ints, clock: Ints, error: Ints) -> tuple[Ints, Ints, Ints]:
    """Who came last to each collective, who before it (rows of the slice), and by how much; below 0 if unknown."""
    places, arrival = np.arange(len(came)), part.most(came)
    at = part.least(np.where(came == arrival[part.which], places, len(places)))
    others = came.copy()
    others[at] = -_FAR
    second = part.most(others)
    before = part.least(np.where(others == second[part.which], places, len(places)))
    others += np.where(clock != clock[at][part.which], error + error[at][part.which], 0)
    others[at] = -_FAR
    sure = (arrival > part.most(others)) & (part.counts > 1)
    return at, before, np.where(sure, arrival - np.where(sure, second, 0), -1)


#: What stands for a size that is not recorded.
_UNKNOWN: Final = -1


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
    bytes_ = (
        pl.when(gathers)
        .then(pl.max_horizontal("out_bytes", pl.col("in_bytes") * times))
        .when(scatters)
        .then(pl.max_horizontal("in_bytes", pl.col("out_bytes") * times))
        .otherwise(pl.max_horizontal("in_bytes", "out_bytes"))
    )
    alone = pl.when(gathers).then(pl.col("out_bytes").is_null()).when(scatters).then(pl.col("in_bytes").is_null())
    sizes = calls.select(
        pl.col("size").fill_null(0),
        bytes_.fill_null(_UNKNOWN).alias("bytes"),
        (alone.fill_null(value=False) & pl.col("size").is_null() & (bytes_ >= 0).fill_null(value=False)).alias("times"),
        pl.col("largest_bytes").fill_null(_UNKNOWN),
    )
    return _Sizes(*(sizes.get_column(name).to_numpy() for name in sizes.columns))


def bytes_of(calls: pl.DataFrame) -> pl.Series:
    """The bytes of what has no partner, by call."""
    sizes = _sizes(calls)
    return pl.Series(np.where(sizes.times, _UNKNOWN, sizes.bytes)).replace(_UNKNOWN, None)


def _with_bandwidth(waited: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds algbw_bytes_per_s and busbw_bytes_per_s as nccl-tests defines them, by the time of the transfer."""
    called = calls.get_column("kind").cast(pl.String).gather(waited.get_column("call"))
    kind, size = pl.col("kind"), pl.col("size").fill_null(pl.col("present"))
    seconds = pl.col("moved_ns") / _NS_PER_S
    real = (pl.col("moved_ns") > 0) & (pl.col("present") >= size)
    others = (size - 1) / size
    factor = pl.when(kind == "all_reduce").then(2 * others).when(kind.is_in(_PARTS)).then(others).otherwise(1.0)
    uneven = (kind == "all_to_all") & pl.col("largest_bytes").is_not_null()
    bus = pl.when(uneven).then(pl.col("largest_bytes") / seconds).otherwise(pl.col("bytes") / seconds * factor)
    widths = {"algbw_bytes_per_s": pl.col("bytes") / seconds, "busbw_bytes_per_s": bus}
    return (
        waited.with_columns(kind=called)
        .with_columns(pl.when(real).then(width).cast(pl.Int64).alias(name) for name, width in widths.items())
        .drop("kind", "largest_bytes")
    )


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
    times = pieces.select("member", "step").with_columns(
        exposed_wait_ns=wait, exposed_transfer_ns=transfer, unmatched_ns=np.where(known, 0, end - start)
    )
    into.by_step.append(times.group_by("member", "step").agg(pl.all().sum()))


# Collectives whose ranks are all in one report

#: Ranks that have one group without a recorded one.
_PAIR: Final = 2


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
    if members.height > _PAIR:  # those of several groups may be mixed up
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
