"""Iterations of a program: steps of the framework's profiler, or instances of a range that repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import as_of, rows_at
from kanalyze.named_ranges import without_ids

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Fewest instances that make a range an iteration.
_LEAST_INSTANCES: Final = 3

#: Numbers in range names, which are masked so that all iterations of a loop share one name.
_NUMBER: Final = r"\d+"

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

#: Prefix of the names of ranges in the default domain.
_DEFAULT_DOMAIN: Final = ":"


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
        name = without_ids(pl.col("range")).str.strip_prefix(_DEFAULT_DOMAIN)
        named = ranges.select(*THREAD, "start", "end", name=name, alike=name.str.replace_all(_NUMBER, "#"))
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
