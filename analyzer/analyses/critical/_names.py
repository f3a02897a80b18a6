"""Names of the pieces of the critical path: kernels, calls, and the ranges, operators and functions around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.host._range_lines import on_line, range_lines
from kanalyze.analyses.host._thread_names import named_events, neighbours, program_functions
from kanalyze.analyses.host._thread_timeline import shown_calls
from kanalyze.analyses.idle._idle_parts import range_names
from kanalyze.analyses.shared.cut import overlaid
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.shared.thread_nesting import innermost_line
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report

    Lines = dict[ThreadKey, pl.DataFrame]

#: Causes of what a host thread does, whose pieces have the time of that thread.
ON_HOST: Final = ("launch", "return of a wait", "call", "host")

_IN_CALLS: Final = tuple(cause for cause in ON_HOST if cause != "host")


def with_names(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name` to the pieces of a path; pieces of the host are cut by what their thread was in.

    Of an operation, or of the time before it, its name; of a call its name; of the host the innermost operator, range
    or Python function, else the calls before and after.
    """
    of_host = pieces.filter(pl.col("cause") == "host")
    others = pieces.filter(pl.col("cause") != "host")
    in_call = others.get_column("cause").is_in(_IN_CALLS)
    names = gathered(operations(report).get_column("name"), others.get_column("row"))
    of_call = shown_calls(report, gathered(report.kind("api").get_column("name"), others.get_column("call")))
    others = others.with_columns(names.zip_with(~in_call & names.is_not_null(), of_call).alias("name"))
    return pl.concat([others, _host_names(report, of_host)]).sort("start")


def by_range(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name`, the innermost NVTX range in which a piece was asked for; pieces of the host are cut by it."""
    return _around(pieces, range_lines(report), range_names(report))


def by_operator(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name`, the innermost operator in which a piece was asked for; pieces of the host are cut by it."""
    events = report.kind("op")
    table = events.select(*THREAD, start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0))
    return _around(pieces, _lines(table, pieces), events.get_column("name"))


def _host_names(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Cuts pieces of the host by the innermost event of their thread, and adds its name."""
    table = pl.concat([named_events(report), program_functions(report)])
    cut = _around(pieces, _lines(table, pieces), table.get_column("name"))
    alone = cut.filter(pl.col("name").is_null())
    found = [cut.filter(pl.col("name").is_not_null())]
    for key, part in alone.partition_by(THREAD, as_dict=True).items():
        found.append(part.with_columns(neighbours(report, (key[0], key[1]), part).alias("name")))
    return pl.concat(found)


def _lines(table: pl.DataFrame, pieces: pl.DataFrame) -> Lines:
    """Timelines of the innermost of the events `table` (start, end) that are around any piece, by thread."""
    if pieces.is_empty():
        return {}
    # where a piece runs on its thread, and the moment at which it was asked for there
    moments = pl.concat([pieces.select("start", "end"), pieces.select(start="at", end=pl.col("at") + 1).drop_nulls()])
    spans = intervals.union(moments)
    begun = spans.get_column("start").search_sorted(table.get_column("end"), side="left")
    over = spans.get_column("end").search_sorted(table.get_column("start"), side="right")
    near = table.with_row_index("row").filter(begun > over)
    parts = near.partition_by(THREAD, as_dict=True).items()
    return {(key[0], key[1]): innermost_line(part) for key, part in parts}


def _around(pieces: pl.DataFrame, lines: Lines, names: pl.Series) -> pl.DataFrame:
    """Adds to each piece the name of what `lines` have at it: of the host, cut by that; else where it was asked for."""
    found = [pieces.clear().with_columns(name=pl.lit(None, dtype=pl.Categorical))]
    for key, part in pieces.partition_by(THREAD, as_dict=True).items():
        line = lines.get((key[0], key[1]))
        if line is None:
            found.append(part.with_columns(name=pl.lit(None, dtype=pl.Categorical)))
            continue
        running = pl.col("cause").is_in(ON_HOST)
        cut = overlaid(part.filter(running).sort("start"), line.rename({"row": "around"}), "around")
        told = part.filter(~running)
        told = told.with_columns(on_line(line, told.get_column("at")).alias("around"))
        both = pl.concat([cut, told.select(cut.columns)])
        found.append(both.with_columns(gathered(names, both.get_column("around")).alias("name")).drop("around"))
    return pl.concat(found).sort("start")
