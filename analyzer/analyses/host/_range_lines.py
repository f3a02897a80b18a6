"""NVTX ranges with their names as in nsys, and the timeline of the innermost range of each thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.shared.thread_nesting import innermost_line
from kanalyze.columns.grouping import of_parts
from kanalyze.columns.lookup import count_up_to, gathered, sure
from kanalyze.named_ranges import UNNAMED, named

if TYPE_CHECKING:
    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report


@once_per_process
def named_ranges(report: Report) -> pl.DataFrame:
    """Ranges of the processes in scope, at any time, sorted by start, then event_id.

    Columns: those of :func:`kanalyze.named_ranges.named`.
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
            free = intervals.gaps(
                intervals.union(line), *part.select(pl.col("start").min(), pl.col("end").max()).row(0)
            )
            line = pl.concat([line, intervals.cut(_first_started(paired), free)]).sort("start")
        found[key] = line
    return found


def _innermost(ranges: pl.DataFrame) -> pl.DataFrame:
    """Timeline of push/pop ranges: the one that started last, also where ranges of two domains cross."""
    line = innermost_line(ranges)
    goes_on = (pl.col("row") == pl.col("row").shift(1)) & (pl.col("start") == pl.col("end").shift(1))
    begins = line.select(~goes_on.fill_null(value=False)).to_series()
    ends = begins.shift(-1, fill_value=True)
    return line.filter(begins).with_columns(line.get_column("end").filter(ends))


def _first_started(ranges: pl.DataFrame) -> pl.DataFrame:
    own = intervals.first_come(ranges.sort("start", "row"))
    return own.select(start="own_start", end="own_end", row="row").filter(pl.col("end") > pl.col("start"))


def ranges_at(report: Report, points: pl.DataFrame) -> pl.Series:
    """The innermost range of a thread at each point, by row of :func:`named_ranges`; null for none.

    `points` has the columns process_id, thread_id and at.
    """
    return of_parts(
        points.select(*THREAD, "at"),
        THREAD,
        pl.UInt32,
        lambda thread, part: _thread_ranges_at(report, thread, part.get_column("at")),
    )


def _thread_ranges_at(report: Report, thread: ThreadKey, at: pl.Series) -> pl.Series:
    line = range_lines(report).get(thread)
    return pl.Series([None], dtype=pl.UInt32).new_from_index(0, len(at)) if line is None else on_line(line, at)


def on_line(line: pl.DataFrame, at: pl.Series) -> pl.Series:
    """The row of the interval that contains each point, in a timeline of :func:`range_lines`; null for none.

    A null point is in none.
    """
    known = at.fill_null(strategy="forward").fill_null(intervals.BEFORE_ALL) if at.has_nulls() else at
    begun = count_up_to(line.get_column("start"), known, equal=True)
    place = (begun - 1).set(begun == 0, None)
    inside = sure(gathered(line.get_column("end"), place) > at)
    return gathered(line.get_column("row"), place).set(~inside, None)
