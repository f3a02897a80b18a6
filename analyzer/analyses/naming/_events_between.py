"""Names what a thread of a trace did between two launches, by the event that most of the time was in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.host._thread_names import named_events, neighbours, program_functions

if TYPE_CHECKING:
    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report

#: An event names the time between two launches from this part of it on that the thread is in it.
_MOST: Final = 0.5

#: What torch calls the range in which a loader gets a batch.
_LOADER: Final = r"enumerate\(DataLoader\)#\w*\.__next__"

#: What neither tool would name otherwise: between two calls of CUDA.
_CALLS: Final = r"^(?:between|after|before) (?:cu|hip)\w+(?: and (?:cu|hip)\w+)?$"


def events_between(report: Report, key: ThreadKey, gaps: pl.DataFrame) -> pl.DataFrame:
    """Names intervals of a thread by what it did in them outside of CUDA calls.

    Args:
        report: The trace.
        key: Process id and thread id.
        gaps: start and end of the intervals, sorted and disjoint.

    Returns:
        A row per interval: free_ns (outside of CUDA calls) and name, as in :mod:`kanalyze.analyses.host._thread_names`:
        of the innermost event that at least half of that was in, in the program's innermost function of which that
        holds; ``between A and B`` where half of it was in no event; else null.
    """
    gaps = gaps.select("start", "end").with_row_index("gap")
    free = _outside_calls(report, key, gaps)
    told = gaps.with_columns(free_ns=intervals.overlap(gaps.get_column("start"), gaps.get_column("end"), free))
    what = _innermost(named_events(report), key, told, free)
    where = _innermost(program_functions(report), key, told, free)
    both = told.join(what, on="gap", how="left").join(where, on="gap", how="left", suffix="_around").sort("gap")
    both = both.with_columns(_alone(report, key, gaps, free, told).alias("between"))
    return both.select("free_ns", name=_text())


def _text() -> pl.Expr:
    """The name, of columns name, ns (of the event), name_around, ns_around (of the function) and between."""
    inside = (pl.col("ns") < pl.col("ns_around")).fill_null(value=False)
    within = pl.format("{} in {}", "name", "name_around")
    told = pl.when(inside).then(within).otherwise(pl.coalesce("name_around", "name", "between"))
    return told.str.replace_all(_LOADER, "DataLoader.__next__")


def _outside_calls(report: Report, key: ThreadKey, gaps: pl.DataFrame) -> pl.DataFrame:
    """The span set of a thread in no CUDA call, as far as the `gaps` go."""
    calls = report.kind("api").filter(_of(key))
    spans = calls.select(start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0))
    low, high = gaps.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return intervals.gaps(intervals.union(spans.filter(pl.col("end") > pl.col("start"))), low or 0, high or 0)


def _of(key: ThreadKey) -> pl.Expr:
    process, thread = (pl.lit(value, dtype=pl.Int64) for value in key)
    return pl.col("process_id").eq_missing(process) & pl.col("thread_id").eq_missing(thread)


def _innermost(events: pl.DataFrame, key: ThreadKey, gaps: pl.DataFrame, free: pl.DataFrame) -> pl.DataFrame:
    """The innermost event that at least half of the free time of a gap is in: gap, name, ns (its whole duration)."""
    own = events.filter(_of(key)).select("start", "end", "name").with_row_index("event")
    inside = _in_gaps(own, gaps)
    sides = inside.select(start=pl.max_horizontal("start", "from"), end=pl.min_horizontal("end", "until"))
    time = intervals.overlap(sides.get_column("start"), sides.get_column("end"), free)
    enough = inside.with_columns(time.alias("time")).filter(
        (pl.col("time") >= pl.col("free_ns") * _MOST) & (pl.col("time") > 0)
    )
    # events of a thread nest: of those that half of the time is in, the shortest is the innermost
    last = enough.sort("gap", pl.col("end") - pl.col("start"), "event", descending=[False, False, True])
    found = last.group_by("gap", maintain_order=True).first()
    return found.select("gap", pl.col("name").cast(pl.String), ns=pl.col("end") - pl.col("start"))


def _in_gaps(events: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """A row for each event and gap that overlap: the columns of the event, gap, from, until, free_ns."""
    first = gaps.get_column("end").search_sorted(events.get_column("start"), side="right")
    stop = gaps.get_column("start").search_sorted(events.get_column("end"), side="left")
    numbers = pl.DataFrame([first.alias("first"), stop.alias("stop")])
    numbers = numbers.select(gap=pl.int_ranges("first", pl.max_horizontal("first", "stop"), dtype=pl.UInt32))
    every = events.with_columns(numbers).explode("gap").drop_nulls("gap")
    told = gaps.select("gap", "free_ns", until="end", **{"from": pl.col("start")})
    return every.join(told, on="gap", how="inner")


def _alone(report: Report, key: ThreadKey, gaps: pl.DataFrame, free: pl.DataFrame, told: pl.DataFrame) -> pl.Series:
    """For each gap of which at least half is in no event, what its longest such piece is between; null for others."""
    events = [
        table.filter(_of(key)).select("start", "end") for table in (named_events(report), program_functions(report))
    ]
    covered = intervals.union(pl.concat(events).filter(pl.col("end") > pl.col("start")))
    pieces = intervals.cut(gaps, intervals.subtract(free, covered))
    length = pl.col("end") - pl.col("start")
    sums = pieces.group_by("gap").agg(length.sum().alias("ns")).join(told.select("gap", "free_ns"), on="gap")
    most = sums.filter(pl.col("ns") >= pl.col("free_ns") * _MOST).select("gap")
    longest = pieces.join(most, on="gap", how="semi").sort("gap", length, "start", descending=[False, True, False])
    longest = longest.group_by("gap", maintain_order=True).first().sort("start")
    names = neighbours(report, key, longest).cast(pl.String)
    names = names.set(names.str.contains(_CALLS).fill_null(value=False), None)
    at = longest.select("gap").with_columns(names.alias("text"))
    return gaps.select("gap").join(at, on="gap", how="left", maintain_order="left").get_column("text")
