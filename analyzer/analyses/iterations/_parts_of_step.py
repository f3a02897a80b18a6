"""The parts of an iteration by the program's own ranges: its direct children, and what lies between them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.analyses.iterations._marks import SOME, called, outermost
from kanalyze.analyses.iterations._steady import own_ranges
from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.named_ranges import NUMBER, STEP_PREFIX, plain

if TYPE_CHECKING:
    from kanalyze.analyses.iterations._steady import SteadyPart
    from kanalyze.report import Report

#: The name of time in no range of the iteration.
BETWEEN: Final = "(between them)"

#: A part of an iteration, summed over the steady ones: its host time, and the ledger of that time on the main device.
SCHEMA: Final = {
    "range": pl.String,
    "count": pl.Int64,
    "ns": pl.Int64,
    "busy_ns": pl.Int64,
    **{f"{bucket}_ns": pl.Int64 for bucket in BUCKETS},
}

#: The innermost range that holds more than half of what a bucket has in a part of an iteration; maybe that itself.
INNER: Final = {"range": pl.String, "bucket": pl.String, "inner": pl.String, "ns": pl.Int64}

#: Most different ranges that are told apart; the others are one row.
_MOST: Final = 64


def parts_of_step(report: Report, steady: SteadyPart) -> pl.DataFrame:
    """Host time of the steady part by the outermost ranges inside the iterations: :data:`SCHEMA`, in order of time.

    The rows sum to the steady part. Empty where no range lies inside of an iteration.
    """
    children = _children(_within(report, steady)).select("name", "start", "end")
    if children.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    low, high = steady.window.start_ns or 0, steady.window.end_ns or 0
    whole = pl.DataFrame({"name": [BETWEEN], "start": [low], "end": [high]}, schema=children.schema)
    spans = pl.concat([children, whole])
    own = steady.ledgers(report, spans.select("start", "end"))
    named = own.with_columns(
        range=spans.get_column("name").gather(own.get_column("window")),
        ns=pl.sum_horizontal(f"{bucket}_ns" for bucket in BUCKETS),
    )
    sums = named.group_by("range", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("count"), pl.col("ns").sum(), pl.col("^.*_ns$").sum()
    )
    rest = sums.filter(pl.col("range") == BETWEEN)
    inside = sums.filter(pl.col("range") != BETWEEN)
    left = [(pl.col(column) - inside.get_column(column).sum()).alias(column) for column in sums.columns[2:]]
    told = pl.concat([inside.sort("ns", descending=True, maintain_order=True), rest.with_columns(left)])
    busy = pl.sum_horizontal(f"{bucket}_ns" for bucket in BUSY_BUCKETS).alias("busy_ns")
    return told.with_columns(busy).filter(pl.col("ns") > 0).select(list(SCHEMA))


def inner_parts(report: Report, steady: SteadyPart) -> pl.DataFrame:
    """The innermost range that holds most of each bucket in each of :func:`parts_of_step`: :data:`INNER`."""
    every = _within(report, steady)
    outer = _children(every)
    own = every.join(outer, on=THREAD, how="semi", nulls_equal=True).sort("start", "end", descending=[False, True])
    around = outer.sort("start").select("start", range="name", until="end")
    held = own.join_asof(around, on="start").filter(pl.col("end") <= pl.col("until"))
    again = pl.col("start") < pl.col("end").cum_max().shift(1).over("range", "name")  # within one of its own name
    spans = held.filter(~again.fill_null(value=False)).with_row_index("window")
    spans = spans.with_columns(length=(pl.col("end") - pl.col("start")).sum().over("range", "name"))
    named = spans.join(steady.ledgers(report, spans.select("start", "end")), on="window", maintain_order="left")
    buckets = {f"{bucket}_ns": bucket for bucket in BUCKETS}
    sums = named.group_by("range", "name", "length", maintain_order=True).agg(pl.col(*buckets).sum()).rename(buckets)
    parts = sums.unpivot(index=["range", "name", "length"], variable_name="bucket", value_name="ns")
    whole = pl.col("ns").filter(pl.col("name") == pl.col("range")).sum().over("range", "bucket")
    most = parts.filter(2 * pl.col("ns") > whole).sort("length", descending=True, maintain_order=True)
    return most.rename({"name": "inner"}).group_by("range", "bucket").last().select(list(INNER))


def _within(report: Report, steady: SteadyPart) -> pl.DataFrame:
    """The ranges inside the steady iterations: :data:`THREAD`, start, end, name."""
    low, high = steady.window.start_ns or 0, steady.window.end_ns or 0
    own = own_ranges(report, steady.process_id).drop("open").filter(pl.col("start") >= low, pl.col("end") <= high)
    own = own.filter(~_holds_some(own, steady.usual))
    names = {name: plain(name) or name for name in own.get_column("name").unique()}
    masked = {name: [called(re.sub(some, "#", name)) for some in (NUMBER.pattern, SOME)] for name in names}
    steps = [
        name for name, told in names.items() if steady.each in (told, *masked[name]) or told.startswith(STEP_PREFIX)
    ]
    return own.filter(~pl.col("name").is_in(steps)).with_columns(pl.col("name").replace_strict(names, default=None))


def _children(ranges: pl.DataFrame) -> pl.DataFrame:
    """The outermost of `ranges`, on the thread that has most of them."""
    outer = outermost(ranges)
    sums = outer.group_by(THREAD).agg(ns=(pl.col("end") - pl.col("start")).sum())
    main = sums.sort("ns", *THREAD, descending=[True, False, False]).head(1)
    mine = outer.join(main, on=THREAD, how="semi", nulls_equal=True)
    often = (
        mine.group_by("name").agg(ns=(pl.col("end") - pl.col("start")).sum()).sort("ns", descending=True).head(_MOST)
    )
    return mine.filter(pl.col("name").is_in(often.get_column("name").implode()))


def _holds_some(ranges: pl.DataFrame, iterations: pl.DataFrame) -> pl.Series:
    """Whether each range (start, end) holds a whole iteration: it is no part of one, but as an epoch is."""
    known = iterations.sort("start_ns")
    begun = known.get_column("start_ns").search_sorted(ranges.get_column("start"), side="left")
    ends = known.select((pl.col("start_ns") + pl.col("dur_ns")).append(intervals.AFTER_ALL)).to_series()
    return ends.gather(begun) <= ranges.get_column("end")
