"""Phases of a recording: what came before, between and after the steady part of what the program repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.host._context_creation import begun_before, context_calls, loading_seen, unrecorded_contexts
from kanalyze.analyses.iterations._launch_line import timed_runs
from kanalyze.analyses.iterations._marks import of_process, outermost
from kanalyze.analyses.iterations._steady import SteadyPart, own_ranges, steady_part
from kanalyze.analyses.iterations.iterations import CUT, ODD, STEADY, WARM_UP
from kanalyze.analyses.ranges._instances import compile_spans
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report
from kanalyze.schema import Column, Table
from kanalyze.window import STEP_PREFIX, plain

BEFORE: Final = "before"
BETWEEN: Final = "between"
AFTER: Final = "after"

#: Kinds of events that show when a process was at work.
_EVENTS: Final = (*DEVICE_KINDS, "api", "range", "op", "overhead")

TABLE: Final = Table(
    "phases",
    "One part of the recording of the process whose iterations are steady; the parts add up to the recording.",
    (
        Column("process_id", pl.Int64, "The process.", nullable=True),
        Column("phase", pl.String, "steady, or before, between or after the steady iterations."),
        Column("part", pl.String, "What the process did."),
        Column(
            "ns", pl.Int64, "Time of it; at each instant the first part that applies, in the order of definitions.md."
        ),
        Column("share", pl.Float64, "Part of the recording."),
        Column("count", pl.Int64, "Number of stretches of time that it was; of iterations, their number."),
        Column("start_ns", pl.Int64, "Start of the first of them."),
    ),
    purpose="what came before and after the steady part",
)

#: Parts that are told by more than their names.
CONTEXT: Final = "context"
MODULES: Final = "modules"
COMPILING: Final = "compiling"
TIMING: Final = "timing of kernels"
IMPORTS: Final = "before the first CUDA call"
PROGRAM: Final = "program"

#: How iterations outside of the steady part are told, by kind.
OTHERS: Final = "other"
_TOLD: Final = {WARM_UP: "first", STEADY: OTHERS, ODD: "odd", CUT: "cut"}

#: A session so many times as long as the events of a process that ran before them is not what the report shows.
_FAR_LONGER: Final = 2

#: Most ranges that are parts of their own in a phase.
_RANGES: Final = 4


@analysis
def phases(report: Report) -> pl.DataFrame:
    """The recording of one process, split by what it did, with its steady part as one of the parts.

    Definition: docs/definitions.md, section 4, "Iterations".

    Returns:
        :data:`TABLE`, in the order of the phases, the longest part first; empty if nothing repeats.

    Raises:
        CannotTellError: The report records no device operations.
    """
    require(report, TABLE, *DEVICE_KINDS)
    steady = steady_part(report)
    if steady is None:
        return TABLE.empty()
    (low, high), (since, until) = _edges(steady.rows), _edges(steady.usual)
    start, end = recorded_of(report, steady.process_id)
    start, end = min(start, low), max(min(end, intervals.AFTER_ALL - 1), high, steady.window.end_ns or 0)
    own = _span(steady.window.start_ns or 0, steady.window.end_ns or 0)
    parts = [(STEADY, steady.each, steady.ns, steady.number, steady.window.start_ns or 0)]
    # the program's own ranges, without those that are the iterations; and when it first called CUDA or ran anything
    ranges = own_ranges(report, steady.process_id).filter(~pl.col("open"))
    names = ranges.get_column("name").unique().drop_nulls()
    steps = [name for name in names if STEP_PREFIX in name or plain(name) == steady.each]
    events = report.kind("api").select("process_id", at="start_ns"), operations(report).select("process_id", at="start")
    first = pl.concat([one.filter(of_process(steady.process_id)).select(pl.col("at").min()) for one in events])
    begun: int | None = first.select(pl.col("at").min()).item()
    known = [*_causes(report, steady)], ranges.filter(~pl.col("name").is_in(steps)), begun
    # before the first steady iteration, after the last, and between them outside of the steady part
    spans = {BEFORE: _span(start, since), BETWEEN: _span(since, until), AFTER: _span(until, end)}
    for phase, span in spans.items():
        parts += [(phase, *part) for part in _parts(*known, intervals.subtract(span, own))]
    columns = {**dict.fromkeys(("phase", "part"), pl.String), **dict.fromkeys(("ns", "count", "start_ns"), pl.Int64)}
    rows = pl.DataFrame(parts, schema=columns, orient="row").filter(pl.col("ns") > 0)
    total = int(rows.get_column("ns").sum())
    if total != end - start:
        message = f"phases add up to {total} ns of {end - start}"
        raise AssertionError(message)
    order = pl.col("phase").replace_strict({BEFORE: 0, STEADY: 1, BETWEEN: 2, AFTER: 3}, return_dtype=pl.Int64)
    told = rows.with_columns(process_id=pl.lit(steady.process_id, dtype=pl.Int64), share=pl.col("ns") / max(total, 1))
    return TABLE.select(told.sort(order, "ns", descending=[False, True], maintain_order=True))


def _edges(iterations: pl.DataFrame) -> tuple[int, int]:
    """When the first iteration begins and the last one ends."""
    return iterations.select(pl.col("start_ns").min(), end=(pl.col("start_ns") + pl.col("dur_ns")).max()).row(0)


def recorded_of(report: Report, process: int | None) -> tuple[int, int]:
    """Start and end of what the report shows of a process: its own events, where it ran before the first of them.

    Such a report holds a slice of a session that is far longer than the events.
    """
    start, end = report.whole.recorded
    if begun_before(report).filter(of_process(process)).is_empty():
        return start, end
    kinds = [report.kind(kind).filter(of_process(process)) for kind in _EVENTS if kind in report.kinds]
    until = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    spans = pl.concat([events.select(first=pl.col("start_ns").min(), last=until.max()) for events in kinds])
    first, last = spans.select(pl.col("first").min(), pl.col("last").max()).row(0)
    return (max(start, first), min(end, last)) if _FAR_LONGER * (last - first) < end - start else (start, end)


def _span(start: int, end: int) -> pl.DataFrame:
    found = pl.DataFrame({"start": [start], "end": [end]}, schema=intervals.SPANS)
    return found.filter(pl.col("end") > pl.col("start"))


def _parts(
    causes: Sequence[tuple[str, pl.DataFrame]], ranges: pl.DataFrame, first: int | None, left: pl.DataFrame
) -> Iterator[tuple[str, int, int, int]]:
    """The parts of a phase: what, ns, how many, start of the first. At each instant the first that applies has it.

    The `causes` take precedence over the program's own `ranges`, and these over the time before its `first` call.
    """
    imports = [] if first is None else [(IMPORTS, _span(intervals.BEFORE_ALL, first))]
    for part, spans in (*causes, *(_outermost_ranges(ranges, left) if left.height else ()), *imports):
        if left.is_empty():
            return
        touched = intervals.overlap(spans.get_column("start"), spans.get_column("end"), left) > 0
        if touched.any():
            taken = intervals.intersect(left, intervals.union(spans.filter(touched)))
            yield part, intervals.length(taken), int(touched.sum()), int(taken.item(0, "start"))
            left = intervals.subtract(left, taken)
    if left.height:
        yield PROGRAM, intervals.length(left), left.height, int(left.item(0, "start"))


def _causes(report: Report, steady: SteadyPart) -> Iterator[tuple[str, pl.DataFrame]]:
    """Named times of the process other than its ranges, by precedence."""
    process = of_process(steady.process_id)
    made = context_calls(report).filter(process).select(start="start_ns", end="made_ns")
    unrecorded = unrecorded_contexts(report).filter(process).select("start", "end")
    yield CONTEXT, pl.concat([made, unrecorded])
    yield COMPILING, compile_spans(report)
    yield TIMING, timed_runs(report).filter(process).select("start", "end")
    yield MODULES, loading_seen(report).filter(process).select("start", "end")
    spans = steady.rows.select("name", "kind", start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns"))
    by_kind = spans.partition_by("name", "kind", as_dict=True)
    for name in spans.get_column("name").unique(maintain_order=True):
        for kind, told in _TOLD.items():
            if (name, kind) in by_kind:
                yield f"{told} {name}", by_kind[name, kind].select("start", "end")


def _outermost_ranges(own: pl.DataFrame, free: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """The outermost of the ranges `own` that overlap `free`, by name, those of most time first."""
    lost = intervals.overlap(own.get_column("start"), own.get_column("end"), free)
    inside = own.with_columns(lost.alias("ns")).filter(pl.col("ns") > 0)
    outer = outermost(inside)
    sums = outer.group_by("name").agg(pl.col("ns").sum()).sort("ns", "name", descending=[True, False])
    for name in sums.head(_RANGES).get_column("name"):
        yield f"in {plain(name) or name}", outer.filter(outer.get_column("name") == name)
