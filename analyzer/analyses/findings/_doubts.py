"""Doubts about a report that its events show without any analysis.

Kept apart from the table `health`, since every command checks for doubts before it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import operations, recorded_until
from kanalyze.analyses.findings._damage import (
    HOST_KINDS,
    host_times,
    lost_waits,
    operation_times,
    repetitions,
    shapes,
    sizes,
    unplaced,
)
from kanalyze.analyses.host._call_kinds import is_launch_name, names_that
from kanalyze.analyses.host._graph_calls import captures
from kanalyze.analyses.host._launching_call import launch_rows, launching_rows
from kanalyze.analyses.shared.statistics import total
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kanalyze.report import Report

    Check = tuple[str, int, int | None, str]

#: Checks whose result is no fault of the report.
_USUAL: Final = (
    "unified-memory copies",
    "launches captured into graphs",
    "events in the trace",
    "arrows between events",
    "ranges drawn on devices",
    "recordings of CUDA events",
    "names and marks",
)

TABLE: Final = Table(
    "health",
    "One thing that was looked at; a count of 0 means that it was found in order.",
    (
        Column("check", pl.String, "What was looked at."),
        Column("count", pl.Int64, "How many rows, tables or columns are not in order."),
        Column("ns", pl.Int64, "The time that they stand for; null where that is not known.", nullable=True),
        Column("effect", pl.String, "What cannot be trusted or told if there are any."),
        Column(
            "doubt",
            pl.Boolean,
            "Whether the page says so: there are some, and they are not just how the tool works.",
        ),
    ),
)


def doubts(report: Report, *, everything: bool) -> pl.DataFrame:
    """The doubtful rows of :func:`health`, without those on what its analyses could not tell, which say so themselves.

    With `everything`, checks the whole report; else only the event tables that are already loaded, and the reader's
    notes on them, which takes no noticeable time.
    """
    whole = report.whole
    notes = whole.table("notes") if everything else whole.notes_of_read()
    checks: list[Check] = []
    for kinds, check in CHECKS[-1:] if report.meta.timeless else CHECKS:
        if everything or all(whole.was_read(kind) for kind in kinds if kind in whole.kinds):
            checks += check(whole)
    return told(checks, notes).filter("doubt")


def told(checks: list[Check], notes: pl.DataFrame, usual: Sequence[str] = ()) -> pl.DataFrame:
    """The table of these checks and notes; `usual` ones and those of :data:`_USUAL` are no doubts."""
    schema = {column.name: column.dtype for column in TABLE.columns[:-1]}
    found = pl.DataFrame(checks, schema=schema, orient="row")
    every = pl.concat([found, notes.with_columns(pl.col("count").fill_null(1))])
    return TABLE.select(every.with_columns(doubt=(pl.col("count") > 0) & ~pl.col("check").is_in([*_USUAL, *usual])))


def pairing(report: Report) -> list[Check]:
    alone = operations(report).filter(launch_rows(report).is_null())
    moved_by_driver = pl.col("detail").cast(pl.String).str.starts_with("Unified").fill_null(value=False)
    unified, lost = alone.filter(moved_by_driver), alone.filter(~moved_by_driver)
    unused = unused_launches(report)
    inside = unused.filter("captured")
    outside = unused.filter(~pl.col("captured"))
    return [
        (
            "launches without an operation",
            outside.height,
            total(outside, "dur_ns"),
            "failed, captured into a graph, or their operations were not recorded",
        ),
        (
            "launches captured into graphs",
            inside.height,
            total(inside, "dur_ns"),
            "they ran nothing by themselves; the graph's launches did",
        ),
        (
            "operations without a launch",
            lost.height,
            _length(lost),
            "the idle time before them is attributed by their process's most recent launch",
        ),
        (
            "unified-memory copies",
            unified.height,
            _length(unified),
            "the driver makes them without a call; idle time before them is attributed by the most recent launch",
        ),
    ]


def unused_launches(report: Report) -> pl.DataFrame:
    """Launching calls that no operation refers to: columns dur_ns and captured (inside a capture on their thread)."""
    calls = report.kind("api").select("name", "process_id", "thread_id", "start_ns", "dur_ns")
    launching = names_that(report, is_launch_name)
    lost = calls.select(pl.col("name").is_in(launching).fill_null(value=False)).to_series()
    found = calls.filter(lost.scatter(launching_rows(report), False)).sort("start_ns")  # noqa: FBT003 - polars has no name for it
    spans = captures(report).select("process_id", "thread_id", "end", start_ns="start").sort("start_ns")
    last = found.join_asof(spans, on="start_ns", by=["process_id", "thread_id"], check_sortedness=False)
    return last.select("dur_ns", captured=(pl.col("start_ns") < pl.col("end")).fill_null(value=False))


def _times(report: Report) -> list[Check]:
    work = operations(report).with_columns(start="began", end=pl.col("began") + pl.col("dur_ns"))
    backwards, instant = work.filter(pl.col("dur_ns") < 0), work.filter(pl.col("dur_ns") == 0)
    calls = report.kind("api").filter(pl.col("dur_ns") < 0)
    end = recorded_until(report) if report.meta.end_ns is None else report.meta.end_ns
    early = pl.lit(value=False) if report.meta.end_ns is None else pl.col("start") < 0
    outside = work.clear() if end is None else work.filter(early | (pl.col("end") > end))
    count, ns = _overlap_in_streams(report)
    return [
        (
            "negative durations",
            backwards.height + calls.height,
            -_length(backwards) - int(calls.get_column("dur_ns").sum()),
            "they count as nothing in the ledger, and as they are in sums",
        ),
        (
            "operations of zero duration",
            instant.height,
            0,
            "below the clock's resolution: their time is too low",
        ),
        ("operations outside the recording", outside.height, _length(outside), "their times cannot be right"),
        (
            "kernels that overlap within a stream",
            count,
            ns,
            "programmatic dependent launch, or wrong times; sums of durations exceed the busy time",
        ),
    ]


def _overlap_in_streams(report: Report) -> tuple[int, int]:
    """The number of kernels that start before the previous one in their stream ends, and the total overlap in ns."""
    kernels = report.kind("kernel").select("process_id", "device", "context_id", "stream", "start_ns", "dur_ns")
    line = kernels if kernels.get_column("start_ns").is_sorted() else kernels.sort("start_ns", maintain_order=True)
    end = pl.col("start_ns") + pl.col("dur_ns")
    if not line.select((pl.col("start_ns") < end.cum_max().shift(1)).any()).item():
        return 0, 0
    before = end.shift(1).over("process_id", "device", "context_id", "stream")
    over = line.drop_nulls("stream").select(over=before - pl.col("start_ns")).filter(pl.col("over") > 0)
    return over.height, total(over, "over")


def _graphs(report: Report) -> list[Check]:
    whole = operations(report).filter(pl.col("kind") == "graph")
    effect = "the kernels inside are in no kernel table; record with --cuda-graph-trace=node to see them"
    return [("graph launches without nodes", whole.height, _length(whole), effect)]


def names(report: Report) -> list[Check]:
    unnamed = operations(report).filter(pl.col("name").is_null())
    calls = report.kind("api").filter(pl.col("name").is_null())
    return [
        (
            "events without a name",
            unnamed.height + calls.height,
            _length(unnamed) + int(calls.get_column("dur_ns").sum()),
            "the report's string table is incomplete; they are summed under an empty name",
        ),
    ]


def _host_times(report: Report) -> list[Check]:
    return host_times(report, [kind for kind in HOST_KINDS if kind in report.kinds])


#: The checks on the events alone, in the table's order, each with the kinds of events that it reads.
CHECKS: Final[tuple[tuple[tuple[str, ...], Callable[[Report], list[Check]]], ...]] = (
    ((*DEVICE_KINDS, "api"), pairing),
    ((*DEVICE_KINDS, "api"), _times),
    (HOST_KINDS, _host_times),
    ((*DEVICE_KINDS, "api"), operation_times),
    ((*DEVICE_KINDS, "api"), unplaced),
    ((*DEVICE_KINDS, "api"), repetitions),
    (("api", "sync"), lost_waits),
    (("memcpy", "memset", "memory"), sizes),
    (("kernel",), shapes),
    (DEVICE_KINDS, _graphs),
    ((*DEVICE_KINDS, "api"), names),
)


def _length(work: pl.DataFrame) -> int:
    return int((work.get_column("end") - work.get_column("start")).sum())
