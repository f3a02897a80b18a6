"""Launches by which a library times kernels to choose among them, as torch.compile and Triton do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import launching_calls, operations, with_facts
from kanalyze.analyses.host._call_kinds import names_that
from kanalyze.analyses.iterations._launch_line import launch_lines
from kanalyze.analyses.iterations._marks import of_process
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.columns.lookup import count_up_to, gathered
from kanalyze.intervals import AFTER_ALL

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Fewest launches that are timed after fills of one size, and most launches between two fills.
_FEWEST: Final = 50
_MOST: Final = 16

#: A fill by PyTorch, of which a block writes so many values at least; the least values in one that may clear a cache.
_CLEARS: Final = "FillFunctor"
_BLOCK: Final = 512
_VALUES: Final = 1 << 20

#: A run that is followed by the next one after more than so many times the usual distance ends with its last event.
_PAUSE: Final = 3

_RECORDS: Final = re.compile(r"(?:cuda|cu)EventRecord")
#: Calls that no such run has: waits, copies, and graphs, which hold many kernels.
_OTHERS: Final = re.compile(r"(?:cuda|cu)(?:StreamWaitEvent|(?:Event|Stream|Device|Ctx)Synchronize|Memcpy|GraphLaunch)")

_RUNS: Final = {"process_id": pl.Int64, "start": pl.Int64, "end": pl.Int64}


def without_timed(line: pl.DataFrame) -> pl.DataFrame:
    """A line of launches without those that are timed; the line itself where there are none.

    Before each of them the cache is cleared, by a fill of always the same size. What is between two such fills is timed
    if it is short, and the same as before the first or after the second of them: each kernel is timed several times.
    """
    counts = line.filter("fill").get_column("exact").value_counts(name="number")
    for code in counts.filter(pl.col("number") >= _FEWEST).get_column("exact").sort():
        line = _without(line, code)
    return line


def _without(line: pl.DataFrame, code: int) -> pl.DataFrame:
    """The line without what is timed after fills with this code."""
    number = (line.get_column("exact") == code).cum_sum().alias("fill")
    after = line.select(number, "exact").filter(pl.col("fill") > 0)
    parts = after.group_by("fill", maintain_order=True).agg(pl.len(), pl.col("exact").sum())
    same = (pl.col("exact") == pl.col("exact").shift(1)) | (pl.col("exact") == pl.col("exact").shift(-1))
    timed = parts.filter((pl.col("len") <= _MOST + 1) & same).get_column("fill")
    return line if len(timed) < _FEWEST else line.filter(~number.is_in(timed.implode()))


@once_per_process
def timed_runs(report: Report) -> pl.DataFrame:
    """The runs of kernels that were timed, by the calls of the host: process_id, start and end, sorted.

    A run begins with a fill by PyTorch of at least :data:`_VALUES` values, and ends where the next one begins, or, if
    that is far, with its last event. After the fill come up to :data:`_MOST` launches, with CUDA events recorded before
    and after them, as `triton.testing.do_bench` and autotuners do, and none of the calls :data:`_OTHERS`. There are at
    least :data:`_FEWEST` runs of a process with the same fill.
    """
    none, recording = pl.DataFrame(schema=_RUNS), names_that(report, _RECORDS.match)
    fills = _fills(report) if recording else none
    if fills.height < _FEWEST:
        return none
    calls = report.kind("api").select("process_id", "name", at="start_ns")
    records = calls.filter(pl.col("name").is_in(recording))
    if _recorded_after(report, fills, records) < _FEWEST:
        return none
    others, found = calls.filter(pl.col("name").is_in(names_that(report, _OTHERS.match))), [none]
    for process, launches in launch_lines(report).items():
        own = fills.filter(of_process(process)).get_column("call_start")
        clears = pl.col("since").is_in(own.implode()) & (pl.col("blocks") * _BLOCK >= _VALUES)
        line = launches.with_columns(clears=clears)
        at = [some.filter(of_process(process)).get_column("at").sort() for some in (records, others)]
        many = line.filter("clears").group_by("exact").len().filter(pl.col("len") >= _FEWEST)
        for code in many.get_column("exact").sort():
            runs = _runs(line, (line.get_column("exact") == code) & line.get_column("clears"), *at)
            if runs.height >= _FEWEST:
                found.append(runs.with_columns(process_id=pl.lit(process, dtype=pl.Int64)).select(*_RUNS))
    return pl.concat(found).sort("process_id", "start")


def _fills(report: Report) -> pl.DataFrame:
    """Fills by PyTorch with a launch call: process_id and call_start."""
    work = operations(report)
    names = work.get_column("name").unique()
    names = names.filter(names.cast(pl.String).str.contains(_CLEARS, literal=True).fill_null(value=False))
    if names.is_empty():
        return pl.DataFrame(schema={"process_id": pl.Int64, "call_start": pl.Int64})
    fills = with_facts(report, work.filter(pl.col("name").is_in(names.implode())), "call_start")
    return fills.select("process_id", "call_start").drop_nulls("call_start")


def _recorded_after(report: Report, fills: pl.DataFrame, records: pl.DataFrame) -> int:
    """The number of fills after which their process records an event before it launches more."""
    number = 0
    for process, calls in launching_calls(report).items():
        own = fills.filter(of_process(process)).get_column("call_start")
        at = records.filter(of_process(process)).get_column("at").sort()
        recorded, launched = (_next(times, own) for times in (at, calls.get_column("call_start")))
        number += int((recorded < launched).sum())
    return number


def _next(times: pl.Series, after: pl.Series) -> pl.Series:
    """The first of `times`, which are sorted, after each of `after`; :data:`AFTER_ALL` for none."""
    ends = pl.Series([AFTER_ALL], dtype=pl.Int64)
    return pl.concat([times, ends]).gather(count_up_to(times, after, equal=True))


def _runs(line: pl.DataFrame, clears: pl.Series, records: pl.Series, others: pl.Series) -> pl.DataFrame:
    """Start and end of the runs after the fills `clears`; `records` and `others` are times of calls."""
    fills = clears.arg_true()
    stops = fills.shift(-1, fill_value=line.height)
    short = (stops - fills).is_between(2, _MOST + 1)
    fills, stops = fills.filter(short), stops.filter(short)
    since, until = (line.get_column(side) for side in ("since", "until"))
    then = gathered(since, stops.set(stops == line.height, None)).fill_null(AFTER_ALL)
    ended, first = until.gather(stops - 1), since.gather(fills + 1)
    before, after = _next(records, until.gather(fills) - 1), _next(records, ended - 1)
    runs = pl.DataFrame({"start": since.gather(fills), "then": then, "after": after})
    calm = count_up_to(others, after, equal=False) == count_up_to(others, since.gather(fills), equal=False)
    runs = runs.filter((before < first) & (after < then) & calm)
    distance = pl.col("then") - pl.col("start")
    near = distance <= _PAUSE * distance.median()
    return runs.select("start", end=pl.when(near).then("then").otherwise("after"))
