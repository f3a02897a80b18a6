"""Waiting and transferring of collectives on corrected clocks, and their bandwidth.

Definition: docs/definitions.md, section 11, "Waiting and transferring".
"""

from __future__ import annotations

from typing import Final

import polars as pl

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


def with_waits(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds what each matched collective waited and transferred.

    `rows` has `match`, `rank`, `offset_ns` and `error_ns` beside the columns of
    :data:`kanalyze.reduction.COLLECTIVES`. Added are corrected_ns (start by the clock of reference), arrival_ns (of the
    last rank), wait_ns, transfer_ns, moved_ns (how long the collective as a whole transferred), by_shortest (whether
    that is the shortest duration, since clocks do not tell), last_rank, lateness_ns, present, share and class.
    """
    told = rows.with_columns(corrected_ns=pl.col("start_ns") - pl.col("offset_ns"))
    told = told.with_columns(left_ns=pl.col("corrected_ns") + pl.col("dur_ns"))
    matched = pl.col("match").is_not_null()
    # ranks on the clock of reference have no error among themselves, nor have those on another one
    one_clock = pl.col("clock").n_unique().over("match") == 1
    told = told.with_columns(
        arrival_ns=pl.when(matched).then(pl.col("corrected_ns").max().over("match")),
        ended_ns=pl.when(matched).then(pl.col("left_ns").max().over("match")),
        present=pl.len().over("match"),
        doubt_ns=pl.when(one_clock).then(0).otherwise(pl.col("error_ns").max().over("match")),
    )
    wait = pl.when(matched).then(_wait("arrival_ns"))
    told = told.with_columns(wait_ns=wait, transfer_ns=pl.col("dur_ns") - wait)
    moved = pl.col("ended_ns") - pl.col("arrival_ns")
    unsure = 2 * pl.col("doubt_ns") > moved
    told = told.with_columns(
        moved_ns=pl.when(unsure).then(pl.col("dur_ns").min().over("match")).otherwise(moved),
        by_shortest=unsure,
    )
    return _with_last(_with_class(told))


def _wait(arrival: str) -> pl.Expr:
    """How much of its duration a rank spends until the last one has come."""
    return pl.min_horizontal(pl.max_horizontal(pl.col(arrival) - pl.col("corrected_ns"), 0), "dur_ns")


def _with_class(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds the share of waiting in the durations of all ranks, and the class that it gives within all doubts."""
    doubtful = rows.with_columns(
        early=pl.col("arrival_ns") - pl.col("doubt_ns"), late=pl.col("arrival_ns") + pl.col("doubt_ns")
    )
    whole = pl.col("dur_ns").sum().over("match")
    shares = {
        "share": pl.col("wait_ns").sum().over("match") / whole,
        "least": _wait("early").sum().over("match") / whole,
        "most": _wait("late").sum().over("match") / whole,
    }
    told = doubtful.with_columns(**shares)
    classes = {name: _class(name) for name in shares}
    known = (classes["least"] == classes["most"]) & (pl.col("present") >= pl.col("size").fill_null(0))
    named = pl.when(pl.col("match").is_not_null() & known).then(classes["share"]).otherwise(pl.lit(CANNOT_TELL))
    return told.with_columns(named.alias("class")).drop("early", "late", "least", "most")


def _class(share: str) -> pl.Expr:
    return (
        pl.when(pl.col(share) < _LITTLE)
        .then(pl.lit(TRANSFER_BOUND))
        .when(pl.col(share) > _MUCH)
        .then(pl.lit(SKEW_BOUND))
        .otherwise(pl.lit(MIXED))
    )


def _with_last(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds the rank that came last and by how much, where clocks tell the two last apart and no rank is missing."""
    order = rows.drop_nulls("match").sort("match", "corrected_ns", "rank", descending=[False, True, False])
    firsts = order.group_by("match", maintain_order=True).agg(
        last_rank=pl.col("rank").first(),
        last=pl.col("corrected_ns").first(),
        second=pl.col("corrected_ns").get(1, null_on_oob=True),
        same=pl.col("clock").first() == pl.col("clock").get(1, null_on_oob=True),
        doubt=pl.col("error_ns").head(2).sum(),
        whole=pl.len() >= pl.col("size").max().fill_null(0),
    )
    lateness = pl.col("last") - pl.col("second")
    sure = (lateness > pl.when("same").then(0).otherwise("doubt")) & pl.col("whole")
    told = firsts.select(
        "match",
        last_rank=pl.when(sure).then("last_rank"),
        lateness_ns=pl.when(sure).then(lateness),
    )
    return rows.join(told, on="match", how="left", maintain_order="left")


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


def exposed(rows: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """The exposed pieces of each collective, split where the last rank came.

    Columns: member, number, step, exposed_wait_ns, exposed_transfer_ns and, of what has no match, unmatched_ns.
    """
    arrival = pl.col("arrival_ns") + pl.col("offset_ns")  # by the clock of the rank itself
    known = pieces.join(
        rows.select("member", "number", until=arrival), on=["member", "number"], how="left", maintain_order="left"
    )
    ns, matched = pl.col("end_ns") - pl.col("start_ns"), pl.col("until").is_not_null()
    wait = (pl.min_horizontal("end_ns", "until") - pl.col("start_ns")).clip(lower_bound=0)
    told = known.with_columns(wait=pl.when(matched).then(wait).otherwise(0))
    return told.group_by("member", "number", "step").agg(
        exposed_wait_ns=pl.col("wait").sum(),
        exposed_transfer_ns=(ns - pl.col("wait")).filter(matched).sum(),
        unmatched_ns=ns.filter(~matched).sum(),
    )
