"""NVTX ranges as analyses need them: named as nsys names them, and which one a thread was in at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze import intervals
from kanalyze.analyses._common import once_per_report
from kanalyze.named_ranges import named

if TYPE_CHECKING:
    from kanalyze.report import Report


@once_per_report
def named_ranges(report: Report) -> pl.DataFrame:
    """Every range of the processes in scope, at any time, sorted by start, then event_id.

    Columns: those of :func:`kanalyze.named_ranges.named`.
    """
    return named(report.kind("range"), report.table("range_detail"))


@once_per_report
def range_lines(report: Report) -> dict[tuple[int | None, int | None], pl.DataFrame]:
    """What range each thread was in: by process id and thread id, spans that do not overlap, sorted.

    Columns: start, end and row (of :func:`named_ranges`). An instant belongs to the innermost push/pop range of its
    thread; where there is none, to the start/end range that the thread started first. No span: no range.
    """
    ranges = named_ranges(report).filter(pl.col("end") > pl.col("start"))
    keys, found = ("process_id", "thread_id"), {}
    for key, part in ranges.partition_by(keys, as_dict=True).items():
        stacked, paired = part.filter(pl.col("style") == "PushPop"), part.filter(pl.col("style") == "StartEnd")
        line = _innermost(stacked)
        if paired.height:
            free = intervals.gaps(
                intervals.union(line), *part.select(pl.col("start").min(), pl.col("end").max()).row(0)
            )
            line = pl.concat([line, intervals.cut(_first_started(paired), free)]).sort("start")
        found[key] = line
    return found


def _innermost(ranges: pl.DataFrame) -> pl.DataFrame:
    """The line of ranges that nest, sorted by start: after a start that range, after an end the one around it."""
    ranges = ranges.sort("start", "end", "row", descending=[False, True, False])
    ids = pl.int_range(pl.len(), dtype=pl.Int64)
    edges = pl.concat(
        [
            ranges.select(at="start", step=pl.lit(1), length=-(pl.col("end") - pl.col("start")), id=ids),
            ranges.select(at="end", step=pl.lit(-1), length=pl.col("end") - pl.col("start"), id=-ids),
        ]
    ).sort("at", "step", "length", "id")  # ends before starts; outer starts first, inner ends first
    edges = edges.with_columns(depth=pl.col("step").cum_sum())
    begun = pl.when(pl.col("step") > 0).then(pl.col("id").abs())
    levels = edges.select("at", "depth", begun.alias("id")).with_row_index("place")
    open_at = levels.join_asof(
        levels.drop_nulls("id").select("place", "depth", top="id"), on="place", by="depth", check_sortedness=False
    )
    spans = open_at.select(start="at", end=pl.col("at").shift(-1), id=pl.when(pl.col("depth") > 0).then("top"))
    spans = spans.drop_nulls().filter(pl.col("end") > pl.col("start"))
    return spans.select("start", "end", ranges.get_column("row").gather(spans.get_column("id")).alias("row"))


def _first_started(ranges: pl.DataFrame) -> pl.DataFrame:
    own = intervals.first_come(ranges.sort("start", "row"))
    return own.select(start="own_start", end="own_end", row="row").filter(pl.col("end") > pl.col("start"))


def ranges_at(report: Report, points: pl.DataFrame) -> pl.Series:
    """The range that a thread was in, by row of :func:`named_ranges`; null where it was in none.

    `points` has the columns process_id, thread_id and at.
    """
    found = pl.Series("range_row", [None], dtype=pl.UInt32).new_from_index(0, points.height)
    lines = range_lines(report)
    numbered = points.select("process_id", "thread_id", "at").with_row_index("point")
    if not lines or points.is_empty():
        return found
    for key, part in numbered.partition_by("process_id", "thread_id", as_dict=True).items():
        line = lines.get(key)
        if line is None or line.is_empty():
            continue
        at = line.get_column("start").search_sorted(part.get_column("at"), side="right").cast(pl.Int64) - 1
        place = at.set(at < 0, None)
        inside = (line.get_column("end").gather(place) > part.get_column("at")).fill_null(value=False)
        found = found.scatter(part.get_column("point"), line.get_column("row").gather(place).set(~inside, None))
    return found
