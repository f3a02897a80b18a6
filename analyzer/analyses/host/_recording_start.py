"""Detects processes that were running before the recording began, and their waits for unrecorded work.

A recording that begins in mid-run lacks the work already under way. What the first operations of such a process waited
for is therefore not known, and the first recorded launch of a kernel need not be its first launch.
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

#: Detail of the bucket `unknown` for waits on work from before the recording.
BEGINS: Final = "recording begins"

#: Longest launch latency of an idle device, with a margin: an operation that starts later waited for other work.
PROMPT_NS: Final = 50_000

#: Calls that look up loaded modules and functions, which a warm process makes as well.
_LOOKUP: Final = re.compile(r"cu\w*Get")

#: Names of profiler overheads for lazy loading by CUDA itself.
_LOADING_WORDS: Final = r"(?i)lazy function loading|module loading"


@once_per_process
def loading_seen(report: Report) -> pl.DataFrame:
    """Evidence that a process was not warm yet: context creation, module loading, CUDA initialisation.

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
    """First calls of processes, where they initialise CUDA: process_id, thread_id, start, end."""
    calls, begins = report.kind("api"), names_that(report, BEGINS_CUDA.match)
    first = calls.group_by("process_id").agg(
        pl.col("thread_id", "name", "start_ns", "dur_ns").get(pl.col("start_ns").arg_min())
    )
    end = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    return first.filter(pl.col("name").is_in(begins)).select(*THREAD, start="start_ns", end=end)


@once_per_process
def begun_before(report: Report) -> pl.DataFrame:
    """Processes that were running before the recording began: process_id, and first (start of the first operation).

    Those with calls and operations, and without :func:`loading_seen` before the first operation.
    """
    ran = operations(report).group_by("process_id").agg(first=pl.col("start").min())
    seen = loading_seen(report).group_by("process_id").agg(cold=pl.col("start").min())
    called = report.kind("api").select("process_id").unique()
    known = ran.join(seen, on="process_id", how="left", nulls_equal=True)
    warm = known.filter(pl.col("cold").is_null() | (pl.col("cold") > pl.col("first")))
    return warm.join(called, on="process_id", how="semi", nulls_equal=True).select("process_id", "first")


@once_per_process
def unseen_starts(report: Report) -> pl.Series:
    """Rows of the operations that waited for work from before the recording, sorted.

    In processes of :func:`begun_before`: the first operation of a stream, if it started more than :data:`PROMPT_NS`
    after its launch call returned, and operations that were launched before the recording began.
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
    """Rows of the blocking calls that waited for work from before the recording: those before any operation."""
    warm = begun_before(report)
    names = names_that(report, lambda name: bucket_of(name) == "sync")
    calls = report.kind("api").select("process_id", "name", "start_ns", "dur_ns").with_row_index("row")
    long = calls.filter((pl.col("dur_ns") > PROMPT_NS) & pl.col("name").is_in(names))
    known = long.join(warm, on="process_id", nulls_equal=True)
    return known.filter(pl.col("start_ns") < pl.col("first")).get_column("row").sort()


def shown_cold(report: Report, launches: pl.DataFrame) -> pl.Series:
    """Whether there is evidence that each of `launches` was cold.

    `launches` has the columns process_id, thread_id, call_start and call_end. Evidence: the process began within the
    recording, or a module was loaded on the thread since the previous launch call.
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
