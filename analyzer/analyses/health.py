"""How far the report can be trusted: what it could not tell, and what in it makes no sense."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._calls import is_launch_name, names_that
from kanalyze.analyses._common import analysis, side_by_side, total
from kanalyze.analyses._graph_making import captures
from kanalyze.analyses._launch import launch_rows, launching_rows
from kanalyze.analyses._operations import operations
from kanalyze.analyses.ledger import ledger
from kanalyze.analyses.occupancy import launch_occupancy
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.report import Report

    Check = tuple[str, int, int | None, str]

#: Facts that are no fault of the report.
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


@analysis
def health(report: Report) -> pl.DataFrame:
    """What is wrong or unknown in the report, whole, whatever the window.

    Returns:
        :data:`TABLE`: every check that the report allows, also those that found nothing, then the reader's notes.
    """
    checks = _names(report)
    if not report.meta.timeless:
        pairing, unknown, shapes = side_by_side(report, [_pairing, _attribution, _shapes])
        checks = [*pairing, *_times(report), *_graphs(report), *checks, *unknown, *shapes]
    schema = {column.name: column.dtype for column in TABLE.columns[:-1]}
    found = pl.DataFrame(checks, schema=schema, orient="row")
    every = pl.concat([found, report.table("notes").with_columns(pl.col("count").fill_null(1))])
    return TABLE.select(every.with_columns(doubt=(pl.col("count") > 0) & ~pl.col("check").is_in(_USUAL)))


def _pairing(report: Report) -> list[Check]:
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
    """The launching calls that no operation names: columns dur_ns and captured (their thread was capturing a graph)."""
    calls = report.kind("api").select("name", "process_id", "thread_id", "start_ns", "dur_ns")
    launching = names_that(report, is_launch_name)
    lost = calls.select(pl.col("name").is_in(launching).fill_null(value=False)).to_series()
    found = calls.filter(lost.scatter(launching_rows(report), False)).sort("start_ns")  # noqa: FBT003 - polars has no name for it
    spans = captures(report).select("process_id", "thread_id", "end", start_ns="start").sort("start_ns")
    last = found.join_asof(spans, on="start_ns", by=["process_id", "thread_id"], check_sortedness=False)
    return last.select("dur_ns", captured=(pl.col("start_ns") < pl.col("end")).fill_null(value=False))


def _times(report: Report) -> list[Check]:
    work = operations(report)
    took = pl.col("end") - pl.col("start")
    backwards, instant = work.filter(took < 0), work.filter(took == 0)
    calls = report.kind("api").filter(pl.col("dur_ns") < 0)
    end = report.meta.end_ns
    outside = work.filter((pl.col("start") < 0) | (pl.col("end") > end)) if end else work.clear()
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
    """How many kernels start before the one before them in their stream ends, and by how much in all."""
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


def _names(report: Report) -> list[Check]:
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


def _attribution(report: Report) -> list[Check]:
    if not set(DEVICE_KINDS).intersection(report.kinds):
        return []
    unknown = ledger(report).filter(pl.col("bucket") == "unknown")
    effect = "no launch tells which thread the device waited for; was the CUDA API traced?"
    return [("idle time of unknown cause", unknown.height, int(unknown.get_column("ns").sum()), effect)]


def _shapes(report: Report) -> list[Check]:
    if "kernel" not in report.kinds:
        return []
    whole = replace(report, scope=replace(report.scope, window=None, device=None))
    launches = launch_occupancy(report if report.scope == whole.scope else whole)
    unknown = launches.filter(pl.col("unknown").is_not_null())
    why = unknown.sort("count", "unknown", descending=[True, False]).get_column("unknown").head(1)
    effect = ": ".join(["occupancy, tails and the findings about them leave these out", *why])
    return [("kernels of unknown occupancy", total(unknown, "count"), total(unknown, "total_ns"), effect)]


def _length(work: pl.DataFrame) -> int:
    return int((work.get_column("end") - work.get_column("start")).sum())
