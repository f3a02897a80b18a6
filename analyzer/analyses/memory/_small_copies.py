"""Runs of small copies: one after the other in a stream, in one direction, that one copy of all of it could replace.

One copy in place of them would begin with the first and end with the last. So nothing may lie between them that could
have written what a copy reads, or read what it wrote: no work that the process launched on that device, and no call
that orders streams; between copies to the host no wait either, after which the host may have looked at the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.host._call_kinds import names_that
from kanalyze.analyses.host._launching_call import calls_of, launch_rows
from kanalyze.analyses.idle._blocking_calls import WAITING, scope_of
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.lookup import beside
from kanalyze.analyses.shared.statistics import longest
from kanalyze.analyses.streams._serialised import ordering_calls
from kanalyze.analyses.streams._waited_for import streams
from kanalyze.frames import rows_at

if TYPE_CHECKING:
    from kanalyze.report import Report

#: A copy of no more than this is small: below, its time hardly depends on its size.
SMALL_BYTES: Final = 64 << 10

#: A copy of no less than this shows the bandwidth that large copies reach.
LARGE_BYTES: Final = 1 << 20

#: Fewer small copies in a row than this are not worth joining.
RUN: Final = 10

#: Copies to the host, whose data it may look at once it has waited.
_TO_HOST: Final = "Device-to-Host"

_STREAM: Final = ("process_id", "device", "context_id", "stream")

#: What was sent where by whom: the same calls cut all runs of it.
_SENT: Final = ("process_id", "device", "detail")

#: What a copy is, so that only like is compared with like.
ALIKE: Final = ("device", "detail", "source_memory", "target_memory")


@once_per_report
def small_copies(report: Report) -> pl.DataFrame:
    """The copies in scope that are in a run of at least :data:`RUN` small ones, in the order of stream and time.

    A run is copies of one direction, each of its own call, that follow one another in one stream without any other
    operation of it between them. It begins anew where the process, between the calls of two of them, launched other
    work than such copies on the device, or made a call of :func:`ordering_calls`; of copies to the host also where it
    made a call that only waits. Copies without a call, such as those of unified memory, and of graphs are in none.

    Columns: run (its number), row (of `operations`), device, process_id, detail (the direction), source_memory,
    target_memory, size_bytes, dur_ns, exclusive_ns, thread_id, call_row, call_start, call_end, call_name.
    """
    small = _called(report)
    if small.height < RUN:
        return small.with_columns(run=pl.lit(0, dtype=pl.Int64)).clear()
    many = small.filter(pl.len().over(*_STREAM, "detail") >= RUN)
    line = many.sort(*_STREAM, "began", "event_id")
    others, found = _without_calls(report, line), [line.clear().with_columns(fresh=pl.lit(value=True))]
    for (process, device, direction), part in line.partition_by(_SENT, as_dict=True, maintain_order=True).items():
        cuts = _cutting_calls(report, process, int(str(device)), str(direction))
        by_stream = part.partition_by(_STREAM, maintain_order=True)
        found += [copies.with_columns(fresh=_begins(copies, others, cuts)) for copies in by_stream]
    numbered = pl.concat(found)
    numbered = numbered.with_columns(run=pl.col("fresh").cum_sum().cast(pl.Int64)).drop("fresh")
    return numbered.filter(pl.len().over("run") >= RUN)


def most_small_copies_take(report: Report) -> int:
    """No less than what all small copies in scope and their calls take on one device: cheaper to tell than runs."""
    took = pl.col("exclusive_ns").sum() + (pl.col("call_end") - pl.col("call_start")).sum()
    return longest(_called(report).group_by("device").agg(ns=took), "ns")


@once_per_report
def _called(report: Report) -> pl.DataFrame:
    """The small copies in scope that have a call of their own."""
    small = _copies(report).filter((pl.col("size_bytes") <= SMALL_BYTES) & pl.col("graph_node_id").is_null())
    calls = calls_of(report, small.get_column("row"), "call_row", "thread_id", "call_start", "call_end", "call_name")
    on = rows_at(streams(report), small.get_column("row"))
    small = pl.concat([small, on, calls], how="horizontal").filter(pl.col("call_row").is_not_null())
    return small.filter(~pl.col("call_row").is_duplicated())


@once_per_report
def large_copies(report: Report) -> pl.DataFrame:
    """The bandwidth of copies of at least :data:`LARGE_BYTES`: columns of :data:`ALIKE`, size_bytes, dur_ns (sums)."""
    large = _copies(report).filter((pl.col("size_bytes") >= LARGE_BYTES) & (pl.col("dur_ns") > 0))
    return large.group_by(ALIKE).agg(pl.col("size_bytes", "dur_ns").sum())


@once_per_report
def _copies(report: Report) -> pl.DataFrame:
    work = exclusive_operations(report).filter(pl.col("kind") == "memcpy")
    keys = ("row", "event_id", "began", "device", "process_id", "detail", "dur_ns", "exclusive_ns")
    return beside(
        work.select(keys), report.copy_detail, "size_bytes", "source_memory", "target_memory", "graph_node_id"
    )


def _begins(copies: pl.DataFrame, others: pl.DataFrame, cuts: pl.Series) -> pl.Series:
    """Whether a run begins with each of the small copies of one stream and direction, in their order."""
    here = others.filter(pl.col(key).eq_missing(copies.item(0, key)) for key in _STREAM)
    passed = here.get_column("start").sort().search_sorted(copies.get_column("began"))
    calls = copies.get_column("call_start")
    earlier = calls.shift(1)
    low, high = pl.select(low=pl.min_horizontal(calls, earlier), high=pl.max_horizontal(calls, earlier))
    between = cuts.search_sorted(high, side="left") > cuts.search_sorted(low, side="right")
    return (between | (passed != passed.shift(1))).fill_null(value=True)


def _without_calls(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """The operations but for `copies` that :func:`_cutting_calls` does not tell of: start and :data:`_STREAM`.

    They have no call, or are copies: those of the same direction may be large, or of one call that makes several.
    """
    work = operations(report).select("row", "event_id", "kind", "process_id", "device", "start")
    untold = launch_rows(report).is_null() | work.select(pl.col("kind") == "memcpy").to_series()
    rest = work.filter(untold & ~work.get_column("row").is_in(copies.get_column("row").implode()))
    on = rows_at(streams(report), rest.get_column("row"))
    return rest.with_columns(on.get_columns())


def _cutting_calls(report: Report, process: object, device: int, direction: str) -> pl.Series:
    """When a process called what ends a run of copies of one direction on a device, sorted."""
    work = operations(report).select("device", "process_id", "detail", call=launch_rows(report)).drop_nulls("call")
    own = work.filter((pl.col("device") == device) & pl.col("process_id").eq_missing(process))
    other = own.filter(pl.col("detail").ne_missing(pl.lit(direction))).get_column("call")
    calls = report.kind("api").select("process_id", "name", "start_ns")
    launched = calls.get_column("start_ns").gather(other)
    asked = ordering_calls(report).filter(pl.col("process_id").eq_missing(process)).get_column("at")
    found = [launched, asked]
    if direction == _TO_HOST:
        waiting = names_that(report, lambda name: scope_of(name) in WAITING)
        waits = calls.filter(pl.col("name").is_in(waiting) & pl.col("process_id").eq_missing(process))
        found.append(waits.get_column("start_ns"))
    return pl.concat([times.rename("at") for times in found]).sort()
