"""Launches by which a library times kernels to choose among them, as torch.compile and Triton do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.host._call_kinds import names_that
from kanalyze.analyses.iterations._launch_line import FILL, launch_lines
from kanalyze.analyses.iterations._marks import of_process
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.columns.lookup import count_up_to, gathered
from kanalyze.intervals import AFTER_ALL

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Fewest launches that are timed after fills of one size, and most launches between two fills.
_FEWEST: Final = 50
_MOST: Final = 16

#: Shortest fill, in ns, that may clear a cache.
_CLEARS_NS: Final = 5_000

_RECORDS: Final = re.compile(r"(?:cuda|cu)EventRecord")

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

    A run begins with a fill that clears the cache, and ends where the next one begins. CUDA events are recorded after
    the fill and after what follows it, as `triton.testing.do_bench` does and autotuners do. There are at least
    :data:`_FEWEST` of a process with the same fill.
    """
    none = pl.DataFrame(schema=_RUNS)
    recording = names_that(report, _RECORDS.match)
    fills = operations(report).filter(pl.col("name").cast(pl.String).str.contains(FILL).fill_null(value=False))
    if not recording or fills.filter(pl.col("dur_ns") >= _CLEARS_NS).height < _FEWEST:
        return none
    records = report.kind("api").filter(pl.col("name").is_in(recording)).select("process_id", "start_ns")
    found = [none]
    for process, line in launch_lines(report).items():
        at = records.filter(of_process(process)).get_column("start_ns").sort()
        sizes = line.filter("fill").group_by("exact").agg(pl.len(), pl.col("ns").median())
        for code in sizes.filter(pl.col("len") >= _FEWEST, pl.col("ns") >= _CLEARS_NS).get_column("exact").sort():
            runs = _runs(line, code, at)
            if runs.height >= _FEWEST:
                found.append(runs.with_columns(process_id=pl.lit(process, dtype=pl.Int64)).select(*_RUNS))
    return pl.concat(found).sort("process_id", "start")


def _runs(line: pl.DataFrame, code: int, records: pl.Series) -> pl.DataFrame:
    """Start and end of the runs after fills with this code; `records` are the times at which events are recorded."""
    fills = (line.get_column("exact") == code).arg_true()
    stops = fills.shift(-1, fill_value=line.height)
    short = (stops - fills).is_between(2, _MOST + 1)
    fills, stops = fills.filter(short), stops.filter(short)
    since, until = (line.get_column(side) for side in ("since", "until"))
    then = gathered(since, stops.set(stops == line.height, None)).fill_null(AFTER_ALL)
    ended = until.gather(stops - 1)
    events = [
        count_up_to(records, high, equal=False) > count_up_to(records, low, equal=False)
        for low, high in ((until.gather(fills), since.gather(fills + 1)), (ended, then))
    ]
    end = then.zip_with(stops < line.height, ended)
    return pl.DataFrame({"start": since.gather(fills), "end": end}).filter(events[0] & events[1])
