"""Calls that take and give back memory over and over between launches, told from those that are made once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._calls import bucket_of, names_that
from kanalyze.analyses._common import longest, once_per_process
from kanalyze.analyses._launch import launching_calls

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Calls of the ledger's bucket `allocation` that take memory, and those that give it back.
_TAKES: Final = r"Malloc|Alloc|HostRegister|MemCreate|Array(?:3D)?Create|MipmappedArrayCreate"
_GIVES: Final = r"Free|Unregister|MemRelease|ArrayDestroy"

#: So many rounds of taking and giving back, with launches in each, are a loop.
LOOP_ROUNDS: Final = 5


@once_per_process
def allocating_calls(report: Report) -> pl.DataFrame:
    """The calls of the processes in scope, at any time, that take or give back memory, in the order of time.

    Columns: row (of the api events), process_id, thread_id, correlation_id, name, start, end, gives (memory back),
    round (in which it is, null outside of loops), launches (of that round).

    A round of a process runs from a call that takes memory, after one that gave some back, up to the next such call.
    Rounds count that hold a launch and give back at least as often as they take. A call is in a loop if its name
    occurs in at least :data:`LOOP_ROUNDS` of them, none further than :data:`LOOP_ROUNDS` from the one before; from the
    second one on: one has to be. What is allocated to stay is in none.
    """
    events = report.kind("api").with_row_index("row")
    wanted = names_that(report, lambda name: bucket_of(name) == "allocation")
    text = pl.col("name").cast(pl.String)
    calls = events.filter(pl.col("name").is_in(wanted)).select(
        "row",
        "process_id",
        "thread_id",
        "correlation_id",
        "name",
        text.str.contains(_GIVES).alias("gives"),
        start="start_ns",
        end=pl.col("start_ns") + pl.col("dur_ns"),
    )
    calls = calls.filter(pl.col("gives") | text.str.contains(_TAKES)).sort("process_id", "start", "row")
    launches, none = launching_calls(report), pl.Series(dtype=pl.Int64)
    parts = [_with_rounds(calls.clear(), none)]
    for (process,), part in calls.partition_by("process_id", as_dict=True).items():
        own = launches.get(process)
        parts.append(_with_rounds(part, none if own is None else own.get_column("call_start")))
    return pl.concat(parts).sort("start", "row")


def _with_rounds(calls: pl.DataFrame, launches: pl.Series) -> pl.DataFrame:
    """The calls of one process, in order, with round and launches."""
    turn = (~pl.col("gives") & pl.col("gives").shift(1)).fill_null(value=False)
    numbered = calls.with_columns(round=turn.cum_sum().cast(pl.Int64))
    if longest(numbered, "round") < LOOP_ROUNDS:
        return calls.with_columns(pl.lit(None, dtype=pl.Int64).alias(name) for name in ("round", "launches"))
    launched = launches.search_sorted(numbered.get_column("start")).cast(pl.Int64)
    rounds = (
        numbered.with_columns(launched.alias("launched"))
        .group_by("round", maintain_order=True)
        .agg(pl.col("launched").first(), surplus=pl.col("gives").sum().cast(pl.Int64) - (~pl.col("gives")).sum())
        .with_columns(launches=pl.col("launched").shift(-1) - pl.col("launched"))
    )
    counting = rounds.filter((pl.col("round") > 0) & (pl.col("launches") > 0) & (pl.col("surplus") >= 0))
    counting = counting.select("round", "launches", turn=pl.int_range(pl.len(), dtype=pl.Int64))
    known = numbered.join(counting, on="round", how="left", maintain_order="left")
    # one program may have several loops, and calls of the same name in between
    apart = pl.col("turn") - pl.col("turn").forward_fill().shift(1) > LOOP_ROUNDS
    known = known.with_columns(loop=apart.fill_null(value=False).cum_sum().over("name"))
    often = pl.col("turn").drop_nulls().n_unique().over("name", "loop") >= LOOP_ROUNDS
    later = pl.col("turn") > pl.col("turn").min().over("name", "loop")
    return known.drop("turn", "loop").with_columns(
        pl.when(known.select(often & later).to_series()).then(pl.col("round", "launches"))
    )
