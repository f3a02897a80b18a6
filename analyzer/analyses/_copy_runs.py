"""Runs of small copies: one after the other in a stream, in one direction, with nothing else between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._common import longest, once_per_report
from kanalyze.analyses._launch import calls_of
from kanalyze.analyses._lookup import beside, positions
from kanalyze.analyses._operations import exclusive_operations
from kanalyze.model import DEVICE_KINDS

if TYPE_CHECKING:
    from kanalyze.report import Report

#: A copy of no more than this is small: below, its time hardly depends on its size.
SMALL_BYTES: Final = 64 << 10

#: A copy of no less than this shows the bandwidth that large copies reach.
LARGE_BYTES: Final = 1 << 20

#: Fewer small copies in a row than this are not worth joining.
RUN: Final = 10

_STREAM: Final = ("process_id", "device", "context_id", "stream")

#: What a copy is, so that only like is compared with like.
ALIKE: Final = ("device", "detail", "source_memory", "target_memory")


@once_per_report
def small_copies(report: Report) -> pl.DataFrame:
    """The copies in scope that are in a run of at least :data:`RUN` small ones, in the order of stream and time.

    A run is copies of one direction, each of its own call, that follow one another in one stream without any other
    operation between them. Copies without a call, such as those of unified memory, and copies of graphs are in none.

    Columns: run (its number), row (of `operations`), device, process_id, detail (the direction), source_memory,
    target_memory, size_bytes, dur_ns, exclusive_ns, thread_id, call_row, call_start, call_end, call_name.
    """
    small = _called(report)
    if small.height < RUN:
        return small.with_columns(run=pl.lit(0, dtype=pl.Int64)).clear()
    line = _line(report, small)
    fresh = pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift(1)) for key in (*_STREAM, "detail"))
    numbered = line.with_columns(run=fresh.fill_null(value=True).cum_sum().cast(pl.Int64)).drop_nulls("row")
    return numbered.filter(pl.len().over("run") >= RUN)


def most_small_copies_take(report: Report) -> int:
    """No less than what all small copies in scope and their calls take on one device: cheaper to tell than runs."""
    took = pl.col("exclusive_ns").sum() + (pl.col("call_end") - pl.col("call_start")).sum()
    return longest(_called(report).group_by("device").agg(ns=took), "ns")


@once_per_report
def _called(report: Report) -> pl.DataFrame:
    """The small copies in scope that have a call of their own."""
    small = _copies(report).filter((pl.col("size_bytes") <= SMALL_BYTES) & pl.col("graph_node_id").is_null())
    calls = calls_of(report, small.get_column("row")).drop("call_id")
    small = pl.concat([small, calls], how="horizontal").filter(pl.col("call_row").is_not_null())
    return small.filter(~pl.col("call_row").is_duplicated())


@once_per_report
def large_copies(report: Report) -> pl.DataFrame:
    """The bandwidth of copies of at least :data:`LARGE_BYTES`: columns of :data:`ALIKE`, size_bytes, dur_ns (sums)."""
    large = _copies(report).filter((pl.col("size_bytes") >= LARGE_BYTES) & (pl.col("dur_ns") > 0))
    return large.group_by(ALIKE).agg(pl.col("size_bytes", "dur_ns").sum())


@once_per_report
def _copies(report: Report) -> pl.DataFrame:
    work = exclusive_operations(report).filter(pl.col("kind") == "memcpy")
    keys = ("row", "event_id", "device", "process_id", "detail", "dur_ns", "exclusive_ns")
    return beside(
        work.select(keys), report.copy_detail, "size_bytes", "source_memory", "target_memory", "graph_node_id"
    )


def _line(report: Report, small: pl.DataFrame) -> pl.DataFrame:
    """All operations of the streams with small copies, in order; all but these copies have no row and no direction."""
    keys = ("event_id", "start_ns", *_STREAM)
    every = pl.concat([report.seen(kind).select(keys) for kind in DEVICE_KINDS]).sort("event_id")
    at = positions(every.get_column("event_id"), small.get_column("event_id"))
    streams = every.select(pl.col(_STREAM).gather(at)).unique()
    own = every.join(streams, on=_STREAM, how="semi", nulls_equal=True)
    known = own.join(small.drop("process_id", "device"), on="event_id", how="left")
    return known.sort(*_STREAM, "start_ns", "event_id")
