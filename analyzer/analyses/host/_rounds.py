"""The rounds of a program: steps of a framework's profiler, or instances of a range that it was in again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.named_ranges import without_ids

if TYPE_CHECKING:
    from kanalyze.report import Report

#: A range that occurs so often is a round.
_OFTEN: Final = 3

#: What the numbers in names of rounds become, so that those of one loop have one name.
_NUMBER: Final = r"\d+"

_ROUNDS: Final = {
    "process_id": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "round": pl.UInt32,
    "name": pl.String,
    "instances": pl.Int64,
}


#: What the steps of a profiler are called; two of them are rounds already.
STEP: Final = "step"

#: How the default domain's ranges begin.
_DEFAULT: Final = ":"


@once_per_process
def rounds(report: Report) -> pl.DataFrame:
    """The rounds of each process at any time, one after the other, sorted by process and start.

    They are steps of a profiler, and the outermost ranges of those that occur at least :data:`_OFTEN` times, numbers
    in their names aside; on the thread that was in such ranges for longest. What lies between two of one name belongs
    to the first. Columns: process_id, start, end, round (their number), name (with ``#`` for numbers that differ),
    instances (how many of that name there are).
    """
    found = _often(report)
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


def _often(report: Report) -> pl.DataFrame:
    """The steps, and the closed ranges that occur often: :data:`THREAD`, start, end, name."""
    steps = report.steps()
    found = steps.select(*THREAD, "start", "end", name=pl.lit(STEP)).filter(pl.len() > 1)
    if "range" in report.kinds:
        ranges = named_ranges(report).filter(~pl.col("open"))
        ranges = ranges.join(steps.select("event_id"), on="event_id", how="anti")
        name = without_ids(pl.col("range")).str.strip_prefix(_DEFAULT)
        named = ranges.select(*THREAD, "start", "end", name=name, alike=name.str.replace_all(_NUMBER, "#"))
        often = named.filter((pl.len().over(*THREAD, "alike") >= _OFTEN) & (pl.col("name") != ""))
        one = pl.col("name").n_unique().over(*THREAD, "alike") == 1
        found = pl.concat([found, often.with_columns(name=pl.when(one).then("name").otherwise("alike")).drop("alike")])
    return found.filter(pl.col("end") > pl.col("start"))


def rounds_at(report: Report, points: pl.DataFrame) -> pl.DataFrame:
    """The round that each of `points` (process_id, at) is in: round, round_name and instances; nulls for none."""
    found = points.select("process_id", "at").with_row_index("place").sort("at")
    joined = found.join_asof(
        rounds(report).rename({"start": "since"}).sort("since"),
        left_on="at",
        right_on="since",
        by="process_id",
        check_sortedness=False,
    )
    inside = (pl.col("at") < pl.col("end")).fill_null(value=False)
    told = {"round": "round", "round_name": "name", "instances": "instances"}
    return joined.sort("place").select(pl.when(inside).then(of).alias(name) for name, of in told.items())
