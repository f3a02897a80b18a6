"""Whether the beginning of a process is in the recording, and what it waited for first where it is not.

A recording that begins in mid-run finds work under way that it does not hold. What the first operations of such a
process waited for is therefore not known, and a kernel's first launch in it need not be the kernel's first.
Definitions: definitions.md, section 5, "Recordings that begin in mid-run".
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import operations, recorded
from kanalyze.analyses.host._call_kinds import bucket_of, names_that
from kanalyze.analyses.host._context_creation import BEGINS_CUDA, context_calls, moved_by_driver, unrecorded_contexts
from kanalyze.analyses.host._launching_call import calls_of, launch_rows, launching_rows
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD

if TYPE_CHECKING:
    from kanalyze.report import Report

#: The detail of the bucket `unknown` for what was waited for when the recording began.
BEGINS: Final = "recording begins"

#: An idle device starts what is launched within some microseconds; what takes longer to start waited for something.
PROMPT_NS: Final = 50_000

#: Calls that look up what is loaded, which warm programs do as well.
_LOOKUP: Final = re.compile(r"cu\w*Get")

#: The profiler's words for loading that CUDA does by itself.
_LOADING_WORDS: Final = r"(?i)lazy function loading|module loading"


@once_per_process
def loading_seen(report: Report) -> pl.DataFrame:
    """What shows that a process was not warm yet: contexts made, loading, and the first call of all.

    Columns: process_id, thread_id, start, end; sorted by start.
    """
    loads = names_that(report, lambda name: bucket_of(name) == "loading" and not _LOOKUP.match(name))
    words = report.kind("overhead").get_column("name").unique().cast(pl.String).drop_nulls()
    told = words.filter(words.str.contains(_LOADING_WORDS)).to_list()
    end = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    parts = [
        report.kind("api").filter(pl.col("name").is_in(loads)).select(*THREAD, start="start_ns", end=end),
        report.kind("overhead").filter(pl.col("name").is_in(told)).select(*THREAD, start="start_ns", end=end),
        context_calls(report).select(*THREAD, start="start_ns", end="made_ns"),
        unrecorded_contexts(report).select(*THREAD, "start", "end"),
        _beginning_calls(report),
    ]
    return pl.concat(parts).sort("start")


def _beginning_calls(report: Report) -> pl.DataFrame:
    """The first calls of processes that begin their use of CUDA by these: process_id, thread_id, start, end."""
    calls, begins = report.kind("api"), names_that(report, BEGINS_CUDA.match)
    first = calls.group_by("process_id").agg(
        pl.col("thread_id", "name", "start_ns", "dur_ns").get(pl.col("start_ns").arg_min())
    )
    end = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    return first.filter(pl.col("name").is_in(begins)).select(*THREAD, start="start_ns", end=end)


@once_per_process
def begun_before(report: Report) -> pl.DataFrame:
    """The processes that were at work when the recording began: process_id, and `first`, when anything first ran.

    Of others a context was made, or something loaded, before they ran anything. Only of processes with calls.
    """
    ran = operations(report).group_by("process_id").agg(first=pl.col("start").min())
    seen = loading_seen(report).group_by("process_id").agg(cold=pl.col("start").min())
    called = report.kind("api").select("process_id").unique()
    known = ran.join(seen, on="process_id", how="left", nulls_equal=True)
    warm = known.filter(pl.col("cold").is_null() | (pl.col("cold") > pl.col("first")))
    return warm.join(called, on="process_id", how="semi", nulls_equal=True).select("process_id", "first")


@once_per_process
def unseen_starts(report: Report) -> pl.Series:
    """The rows of the operations that waited for what the recording does not hold, sorted.

    In a process that was at work when it began: the first operation of a stream, if it started later than
    :data:`PROMPT_NS` after its launch call returned, and operations that were launched before the recording began.
    """
    warm, work = begun_before(report), operations(report).select("row", "process_id", "device", "start", "detail")
    if warm.is_empty():
        return pl.Series("row", [], dtype=pl.UInt32)
    work = work.with_columns(recorded(report, "context_id", "stream").drop("event_id"), called=launch_rows(report))
    work = work.join(warm, on="process_id", how="semi", nulls_equal=True)
    streams = work.group_by("process_id", "device", "context_id", "stream")
    first = streams.agg(pl.col("row").get(pl.col("start").arg_min())).get_column("row")
    waited = work.select("row", "start").join(first.to_frame(), on="row", how="semi", maintain_order="left")
    returned = calls_of(report, waited.get_column("row"), "call_end").to_series()
    late = waited.filter((waited.get_column("start") - returned > PROMPT_NS).fill_null(value=False))
    alone = work.filter(pl.col("called").is_null() & ~moved_by_driver(pl.col("detail")))
    calls = report.kind("api").select("process_id", "start_ns")[launching_rows(report)]
    launched = calls.group_by("process_id").agg(pl.col("start_ns").min())
    alone = alone.join(launched, on="process_id", nulls_equal=True).filter(pl.col("start") < pl.col("start_ns"))
    return pl.concat([late.get_column("row"), alone.get_column("row")]).unique().sort()


@once_per_process
def unseen_syncs(report: Report) -> pl.Series:
    """The rows of the blocking calls that waited for what the recording does not hold: before anything ran in it."""
    warm = begun_before(report)
    names = names_that(report, lambda name: bucket_of(name) == "sync")
    calls = report.kind("api").select("process_id", "name", "start_ns", "dur_ns").with_row_index("row")
    long = calls.filter((pl.col("dur_ns") > PROMPT_NS) & pl.col("name").is_in(names))
    known = long.join(warm, on="process_id", nulls_equal=True)
    return known.filter(pl.col("start_ns") < pl.col("first")).get_column("row").sort()


def shown_cold(report: Report, launches: pl.DataFrame) -> pl.Series:
    """Whether the report shows that each of `launches` (process_id, thread_id, call_start, call_end) was not warm.

    Its process began in the recording, or something was loaded on its thread since the launch call before it.
    """
    warm = begun_before(report).get_column("process_id")
    began = ~launches.get_column("process_id").is_in(warm.implode(), nulls_equal=True)
    numbered = launches.select(*THREAD, "call_start", "call_end").with_row_index("at")
    calls = report.kind("api").select(*THREAD, before="start_ns")[launching_rows(report)].sort("before")
    seen = loading_seen(report).select(*THREAD, "start", loaded="start")
    asof = partial(pl.DataFrame.join_asof, by=list(THREAD), check_sortedness=False, coalesce=False)
    found = asof(numbered.sort("call_start"), calls, left_on="call_start", right_on="before", allow_exact_matches=False)
    found = asof(found.sort("call_end"), seen, left_on="call_end", right_on="start").sort("at")
    loads = pl.col("loaded").is_not_null() & (pl.col("before").is_null() | (pl.col("loaded") >= pl.col("before")))
    return began | found.select(loads).to_series()
