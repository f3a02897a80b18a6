"""NVTX ranges with their names as in nsys, and the timeline of the innermost range of each thread."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.threads import LINE, THREAD, innermost_line
from kanalyze.columns import as_of, count_up_to, gathered, of_parts, rows_at, sure
from kanalyze.report import Report
from kanalyze.window import UNNAMED, named, without_ids


@once_per_process
def named_ranges(report: Report) -> pl.DataFrame:
    """Ranges of the processes in scope, at any time, sorted by start, then event_id.

    Columns: those of :func:`kanalyze.window.named`.
    """
    return named(report.kind("range"), report.table("range_detail"))


@once_per_process
def range_lines(report: Report) -> dict[tuple[int | None, int | None], pl.DataFrame]:
    """Timeline of the innermost range of each thread, by process id and thread id: sorted, disjoint intervals.

    Columns: start, end and row (of :func:`named_ranges`). An instant belongs to the push/pop range of its thread that
    started last, then to the shorter one, then to the higher row; without one, to the start/end range that the thread
    started first, then to the lower row. Time in no range has no row; ranges without a name are none.
    """
    ranges = named_ranges(report).filter((pl.col("end") > pl.col("start")) & (pl.col("range") != UNNAMED))
    found = {}
    for key, part in ranges.partition_by(THREAD, as_dict=True).items():
        pair = (pl.col("style") == "StartEnd").fill_null(value=False)
        stacked, paired = part.filter(~pair), part.filter(pair)
        line = _innermost(stacked)
        if paired.height:
            edges = part.select(pl.col("start").min(), pl.col("end").max()).row(0)
            own = intervals.first_come(paired.sort("start", "row")).select("row", start="own_start", end="own_end")
            own = own.filter(pl.col("end") > pl.col("start")).select(line.columns)
            line = pl.concat([line, intervals.cut(own, intervals.gaps(intervals.union(line), *edges))]).sort("start")
        found[key] = line
    return found


def _innermost(ranges: pl.DataFrame) -> pl.DataFrame:
    """Timeline of push/pop ranges: the one that started last, also where ranges of two domains cross."""
    line = innermost_line(ranges)
    goes_on = (pl.col("row") == pl.col("row").shift(1)) & (pl.col("start") == pl.col("end").shift(1))
    begins = line.select(~goes_on.fill_null(value=False)).to_series()
    ends = begins.shift(-1, fill_value=True)
    return line.filter(begins).with_columns(line.get_column("end").filter(ends))


def ranges_at(report: Report, points: pl.DataFrame) -> pl.Series:
    """The innermost range of a thread at each point, by row of :func:`named_ranges`; null for none.

    `points` has the columns process_id, thread_id and at.
    """
    lines, nothing = range_lines(report), pl.DataFrame(schema=LINE)
    at = points.select(*THREAD, "at")
    return of_parts(at, THREAD, pl.UInt32, lambda key, part: on_line(lines.get(key, nothing), part.get_column("at")))


def on_line(line: pl.DataFrame, at: pl.Series) -> pl.Series:
    """The row of the interval that contains each point, in a timeline of :func:`range_lines`; null for none.

    A null point is in none.
    """
    known = at.fill_null(strategy="forward").fill_null(intervals.BEFORE_ALL) if at.has_nulls() else at
    begun = count_up_to(line.get_column("start"), known, equal=True)
    place = (begun - 1).set(begun == 0, None)
    inside = sure(gathered(line.get_column("end"), place) > at)
    return gathered(line.get_column("row"), place).set(~inside, None)


# Iterations of a program: steps of the framework's profiler, or instances of a range that repeats.

#: Fewest instances that make a range an iteration.
_LEAST_INSTANCES: Final = 3

_ROUNDS: Final = {
    "process_id": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "round": pl.UInt32,
    "name": pl.String,
    "instances": pl.Int64,
}


#: Name of the iterations that are profiler steps, of which two suffice.
STEP: Final = "step"


@once_per_process
def rounds(report: Report) -> pl.DataFrame:
    """Iterations of each process, at any time, disjoint, sorted by process and start.

    Profiler steps, and the outermost ranges whose names, numbers masked, occur at least :data:`_LEAST_INSTANCES` times,
    on the thread that spent most time in such ranges. The time up to the next one of the same name belongs to the
    iteration before it. Columns: process_id, start, end, round (number of the iteration), name (``#`` for numbers that
    differ), instances (number of iterations of that name).
    """
    found = _repeating(report)
    if found.is_empty():
        return pl.DataFrame(schema=_ROUNDS)
    most = found.group_by(THREAD).agg(ns=(pl.col("end") - pl.col("start")).sum())
    most = most.sort("ns", *THREAD, descending=[True, False, False]).unique("process_id", keep="first")
    own = found.join(most, on=THREAD, how="semi", nulls_equal=True)
    own = own.sort("start", "end", descending=[False, True])
    reached = pl.col("end").cum_max().shift(1).over("process_id")
    outermost = own.filter((pl.col("start") >= reached).fill_null(value=True))
    goes_on = pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).shift(-1)) for key in ("process_id", "name"))
    counted = outermost.sort("process_id", "start", maintain_order=True).with_columns(
        end=pl.when(goes_on).then(pl.col("start").shift(-1)).otherwise("end"),
        instances=pl.len().over("process_id", "name").cast(pl.Int64),
    )
    return counted.with_row_index("round").select(list(_ROUNDS))


def _repeating(report: Report) -> pl.DataFrame:
    """Profiler steps, and closed ranges that repeat: :data:`THREAD`, start, end, name."""
    steps = report.steps()
    found = steps.select(*THREAD, "start", "end", name=pl.lit(STEP)).filter(pl.len() > 1)
    if "range" in report.kinds:
        ranges = named_ranges(report).filter(~pl.col("open"))
        ranges = ranges.join(steps.select("event_id"), on="event_id", how="anti")
        name = without_ids(pl.col("range")).str.strip_prefix(":")
        named = ranges.select(*THREAD, "start", "end", name=name, alike=name.str.replace_all(r"\d+", "#"))
        often = named.filter((pl.len().over(*THREAD, "alike") >= _LEAST_INSTANCES) & (pl.col("name") != ""))
        one = pl.col("name").n_unique().over(*THREAD, "alike") == 1
        found = pl.concat([found, often.with_columns(name=pl.when(one).then("name").otherwise("alike")).drop("alike")])
    return found.filter(pl.col("end") > pl.col("start"))


def rounds_at(report: Report, points: pl.DataFrame) -> pl.DataFrame:
    """The iteration around each of `points` (process_id, at): round, round_name and instances; nulls for none."""
    every = rounds(report)
    last = as_of(points.select("process_id", "at"), every.select("process_id", at="start"))
    around = rows_at(every.select("round", "end", "instances", round_name="name"), last)
    inside = (points.get_column("at") < around.get_column("end")).fill_null(value=False)
    return around.select(pl.when(inside).then(name).alias(name) for name in ("round", "round_name", "instances"))
