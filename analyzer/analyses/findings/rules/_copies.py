"""Copies in scope, and which of them and of other calls a library of collectives makes itself, not the program."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import communicating, exclusive_operations, operations, with_facts
from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.analyses.streams.concurrency import STREAM
from kanalyze.columns import nearest
from kanalyze.report import Report

PAGEABLE: Final = "Pageable"
PINNED: Final = "Pinned"

#: What nsys and torch call the direction of a copy.
TO_HOST: Final = "Device-to-Host"
TO_DEVICE: Final = "Host-to-Device"

#: Smaller copies do not show the bandwidth of large ones.
LARGE_BYTES: Final = 1 << 20

#: What belongs to a copy besides the columns of `exclusive_operations`.
_OF_COPIES: Final = (
    *("call_row", "call_name", "call_start", "call_end", "thread_id", "context_id", "stream", "size_bytes"),
    *("source_memory", "target_memory", "graph_node_id"),
)

#: Ranges and operators of such a library; by NCCL's own ranges, by PyTorch's.
_OWN: Final = r"^:?(?:[NR]CCL:|nccl[A-Z]|nccl:\w|c10d::|record_param_comms)"

#: Set-up copies are no larger.
_LARGEST_BYTES: Final = 1 << 16


@once_per_report
def device_copies(report: Report) -> pl.DataFrame:
    """The copies in scope: columns of `exclusive_operations`, and :data:`_OF_COPIES`; null what is not recorded."""
    return with_facts(report, exclusive_operations(report).filter(pl.col("kind") == "memcpy"), *_OF_COPIES)


def by_number(values: pl.Series) -> pl.DataFrame:
    """The different values, the most frequent first: value, len."""
    return values.alias("value").to_frame().group_by("value").len().sort("len", "value", descending=[True, False])


def without_set_up(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """Copies of the program itself, of `copies` with row, process_id, thread_id, call_start and size_bytes.

    A set-up copy is called within a range or operator of the library, or on a thread that calls nothing else and has
    none. In processes without such ranges it is small, in a stream without kernels, and before the process' first
    collective or with one of another name as the next kernel that its thread launches.
    """
    work = operations(report).filter(pl.col("kind") == "kernel")
    collective, own = communicating(work, report), _own_ranges(report)
    if copies.is_empty() or (collective is None and own.is_empty()):
        return copies
    asked = copies.select("row", *THREAD, "call_start", "size_bytes").with_row_index("place").sort("call_start")
    within = asked.with_columns(own=_is_within(asked, own, list(THREAD)), any=_is_within(asked, own, ["process_id"]))
    named = pl.struct(THREAD).is_in(own.select(pl.struct(THREAD)).to_series().unique().implode())
    theirs = pl.col("own") | (pl.col("any").all().over(THREAD) & ~named)
    has_ranges = pl.col("process_id").is_in(own.get_column("process_id").unique().implode())
    early = _before_first(report, work, collective, asked) if collective is not None else pl.lit(value=False)
    left = within.filter(~pl.when(has_ranges).then(theirs).otherwise(early)).get_column("place")
    return copies[left.sort()]


def outside_library(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """The `calls` (:data:`THREAD`, start) that the library does not make itself, sorted by start."""
    asked = calls.sort("start").with_columns(call_start="start")
    return asked.filter(~_is_within(asked, _own_ranges(report), list(THREAD))).drop("call_start")


def _own_ranges(report: Report) -> pl.DataFrame:
    """Ranges and operators of the library: :data:`THREAD`, start, end; by start."""
    ops = report.kind("op").select(*THREAD, "name", start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns"))
    ranges = named_ranges(report).select(*THREAD, pl.col("range").alias("name"), "start", "end")
    parts = [part.filter(pl.col("name").cast(pl.String).str.contains(_OWN)).drop("name") for part in (ops, ranges)]
    return pl.concat(parts).sort("start")


def _is_within(asked: pl.DataFrame, spans: pl.DataFrame, by: list[str]) -> pl.Series:
    """Whether each call lies within some of the spans with the same key; both sorted by time."""
    reached = spans.select(*by, "start", until=pl.col("end").cum_max().over(by))
    found = nearest(asked, reached, ("call_start", "start"), by)
    return found.select((pl.col("call_start") < pl.col("until")).fill_null(value=False)).to_series()


def _before_first(report: Report, kernels: pl.DataFrame, collective: pl.Expr, asked: pl.DataFrame) -> pl.Series:
    """Whether each copy is as small and as early as those of a set-up, in a stream without kernels."""
    of, kernels = ["process_id", "name"], with_facts(report, kernels, *STREAM, "thread_id", "call_start")
    line = kernels.select("name", *THREAD, told=collective, at="call_start").drop_nulls("at")
    line = line.with_columns(first=pl.col("told") & (pl.col("at") == pl.col("at").min().over(of)))
    begun = line.filter("first").group_by("process_id").agg(begun=pl.col("at").min())
    then = nearest(asked, line.select(*THREAD, "at", "first"), ("call_start", "at"), THREAD, "after")
    then = then.join(begun, on="process_id", how="left", maintain_order="left")
    place, computing = with_facts(report, asked, *STREAM).select(STREAM), kernels.select(STREAM).unique()
    apart = place.with_row_index("n").join(computing, on=STREAM, how="anti", nulls_equal=True).get_column("n")
    alone = pl.int_range(pl.len()).is_in(apart.implode())
    soon = pl.col("first") | (pl.col("call_start") < pl.col("begun"))
    return then.select((alone & (pl.col("size_bytes") <= _LARGEST_BYTES) & soon).fill_null(value=False)).to_series()
