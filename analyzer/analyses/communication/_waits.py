"""Waiting and transferring of collectives on corrected clocks, and their bandwidth.

Definition: docs/definitions.md, section 11, "Waiting and transferring".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

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


def with_waits(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds what each matched collective waited and transferred.

    `rows` has `match`, `rank`, `clock`, `offset_ns` and `error_ns` beside the columns of
    :data:`kanalyze.reduction.COLLECTIVES`, by match and rank, those without a match last. Added are corrected_ns (start
    by the clock of reference), arrival_ns (of the last rank), wait_ns, transfer_ns, moved_ns (how long the collective
    as a whole transferred), by_shortest (whether that is the shortest duration, since clocks do not tell), last_rank,
    lateness_ns, doubt_ns, present and class.
    """
    told = rows.with_columns(corrected_ns=pl.col("start_ns") - pl.col("offset_ns"))
    known = told.head(told.height - told.get_column("match").null_count())
    if known.is_empty():
        nothing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in _ADDED.items()]
        return told.with_columns(nothing).with_columns(pl.lit(CANNOT_TELL, dtype=_ADDED["class"]).alias("class"))
    timed = _Timed(known)
    wait = timed.wait(timed.arrival)
    shortest = timed.least(timed.dur)
    moved = timed.most(timed.came + timed.dur) - timed.arrival
    unsure = 2 * timed.doubt > moved
    last, lateness = timed.last()
    whole = timed.whole
    told_last = pl.Series(whole & (lateness >= 0))
    columns = {"wait_ns": pl.Series(wait), "transfer_ns": pl.Series(timed.dur - wait)}
    of_matches = {
        "arrival_ns": pl.Series(timed.arrival),
        "moved_ns": pl.Series(np.where(unsure, shortest, moved)),
        "by_shortest": pl.Series(unsure),
        "doubt_ns": pl.Series(timed.doubt),
        "present": pl.Series(timed.counts),
        "last_rank": pl.Series(last, dtype=pl.Int64).set(~told_last, None),
        "lateness_ns": pl.Series(lateness, dtype=pl.Int64).set(~told_last, None),
        "class": _classes(timed, wait),
    }
    columns |= {name: one.gather(timed.which) for name, one in of_matches.items()}
    left = told.height - known.height
    added = [
        columns[name].cast(dtype).extend_constant(None if name != "class" else CANNOT_TELL, left).alias(name)
        for name, dtype in _ADDED.items()
    ]
    return told.with_columns(added)


_ADDED: Final[dict[str, pl.DataType]] = {
    "arrival_ns": pl.Int64(),
    "wait_ns": pl.Int64(),
    "transfer_ns": pl.Int64(),
    "moved_ns": pl.Int64(),
    "by_shortest": pl.Boolean(),
    "doubt_ns": pl.Int64(),
    "present": pl.Int64(),
    "last_rank": pl.Int64(),
    "lateness_ns": pl.Int64(),
    "class": pl.Enum([TRANSFER_BOUND, MIXED, SKEW_BOUND, CANNOT_TELL]),
}


class _Timed:
    """The matched collectives as arrays; those of matches have an element per match, the others one per row."""

    def __init__(self, rows: pl.DataFrame) -> None:
        match = rows.get_column("match").to_numpy()
        self.first = np.flatnonzero(np.diff(match, prepend=-1))
        self.counts = np.diff(self.first, append=len(match))
        self.which = np.repeat(np.arange(len(self.first)), self.counts)
        self.came = rows.get_column("corrected_ns").to_numpy()
        self.dur = rows.get_column("dur_ns").to_numpy()
        self.clock = rows.get_column("clock").to_numpy()
        self.error = rows.get_column("error_ns").to_numpy()
        self.rank = rows.get_column("rank").to_numpy()
        self.arrival = self.most(self.came)
        # ranks on the clock of reference have no error among themselves, nor have those on another one
        one_clock = self.least(self.clock) == self.most(self.clock)
        self.doubt = np.where(one_clock, 0, self.most(self.error))
        self.whole = self.counts >= self.most(rows.get_column("size").fill_null(0).to_numpy())

    def most(self, values: Ints) -> Ints:
        """The most of each match."""
        return np.asarray(np.maximum.reduceat(values, self.first))

    def least(self, values: Ints) -> Ints:
        """The least of each match."""
        return np.asarray(np.minimum.reduceat(values, self.first))

    def sums(self, values: Ints) -> Ints:
        """The sum of each match."""
        return np.asarray(np.add.reduceat(values, self.first))

    def wait(self, arrival: Ints) -> Ints:
        """How much of its duration each rank spends until the last one has come."""
        return np.asarray(np.minimum(np.maximum(arrival[self.which] - self.came, 0), self.dur))

    def last(self) -> tuple[Ints, Ints]:
        """The rank that came last to each match and by how much; less than 0 where clocks do not tell who it was."""
        places = np.arange(len(self.came))
        at = self.least(np.where(self.came == self.arrival[self.which], places, len(places)))
        others = self.came.copy()
        others[at] = -_FAR
        second = self.most(others)
        apart = self.clock != self.clock[at][self.which]
        others += np.where(apart, self.error + self.error[at][self.which], 0)
        others[at] = -_FAR
        sure = (self.arrival > self.most(others)) & (self.counts > 1)
        return self.rank[at], np.where(sure, self.arrival - np.where(sure, second, 0), -1)


def _classes(timed: _Timed, wait: Ints) -> pl.Series:
    """The class of each match, by the share of waiting in the durations of all ranks, where all doubts give one."""
    durations = np.maximum(timed.sums(timed.dur), 1)
    arrivals = (timed.arrival - timed.doubt, timed.arrival + timed.doubt)
    least, most = (timed.sums(timed.wait(one)) / durations for one in arrivals)
    codes = [
        (share >= _LITTLE).astype(np.int64) + (share > _MUCH) for share in (timed.sums(wait) / durations, least, most)
    ]
    known = (codes[1] == codes[2]) & timed.whole
    names = pl.Series([TRANSFER_BOUND, MIXED, SKEW_BOUND, CANNOT_TELL], dtype=_ADDED["class"])
    return names.gather(np.where(known, codes[0], 3))


def with_bandwidth(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds bytes, algbw_bytes_per_s and busbw_bytes_per_s as nccl-tests defines them, by the time of the transfer."""
    size = pl.col("size").fill_null(pl.col("present"))
    bytes_ = (
        pl.when(pl.col("kind").is_in(_GATHERS))
        .then(pl.max_horizontal("out_bytes", pl.col("in_bytes") * pl.when("per_rank").then(size).otherwise(1)))
        .when(pl.col("kind").is_in(_SCATTERS))
        .then(pl.max_horizontal("in_bytes", pl.col("out_bytes") * pl.when("per_rank").then(size).otherwise(1)))
        .otherwise(pl.max_horizontal("in_bytes", "out_bytes"))
    )
    told = rows.with_columns(per_rank=pl.col("in_bytes").is_null() | pl.col("out_bytes").is_null())
    told = told.with_columns(bytes=bytes_).with_columns(bytes=_over_match("bytes"))
    seconds = pl.col("moved_ns") / _NS_PER_S
    real = (pl.col("moved_ns") > 0) & pl.col("match").is_not_null() & (pl.col("present") >= size)
    algorithm = pl.when(real).then(pl.col("bytes") / seconds)
    uneven = _over_match("largest_bytes")
    bus = (
        pl.when((pl.col("kind") == "all_to_all") & uneven.is_not_null())
        .then(uneven / seconds)
        .otherwise(pl.col("bytes") / seconds * _factor(size))
    )
    whole = [
        algorithm.cast(pl.Int64).alias("algbw_bytes_per_s"),
        pl.when(real).then(bus).cast(pl.Int64).alias("busbw_bytes_per_s"),
    ]
    return told.with_columns(whole).drop("per_rank")


def _over_match(name: str) -> pl.Expr:
    """The most of a column over the rows of a collective; of what has no match its own."""
    return pl.when(pl.col("match").is_not_null()).then(pl.col(name).max().over("match")).otherwise(name)


def _factor(size: pl.Expr) -> pl.Expr:
    others = (size - 1) / size
    return (
        pl.when(pl.col("kind") == "all_reduce")
        .then(2 * others)
        .when(pl.col("kind").is_in(_PARTS))
        .then(others)
        .otherwise(1.0)
    )


def exposed(pieces: pl.DataFrame, until: Ints) -> tuple[Ints, Ints, pl.DataFrame]:
    """The exposed pieces of collectives, split where the last rank came.

    `pieces` has `at`, the place of the collective in `until`, which is when the last rank came to it by the clock of
    the rank itself; -1 without a match. Returned are exposed waiting and exposed transfer by place, and their sums by
    member and step: exposed_wait_ns, exposed_transfer_ns and, of what has no match, unmatched_ns.
    """
    at = pieces.get_column("at").to_numpy()
    start, end, came = pieces.get_column("start_ns").to_numpy(), pieces.get_column("end_ns").to_numpy(), until[at]
    known = came >= 0
    waits = np.where(known, np.maximum(np.minimum(end, came) - start, 0), 0)
    moves = np.where(known, end - start - waits, 0)
    parts = [np.zeros(len(until), dtype=np.int64) for _ in range(2)]
    for part, ns in zip(parts, (waits, moves), strict=True):
        np.add.at(part, at, ns)
    told = pieces.select("member", "step").with_columns(
        exposed_wait_ns=waits, exposed_transfer_ns=moves, unmatched_ns=np.where(known, 0, end - start)
    )
    return parts[0], parts[1], told.group_by("member", "step").agg(pl.all().sum())
