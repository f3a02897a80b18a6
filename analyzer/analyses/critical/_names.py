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
from kanalyze.analyses.shared.cut import overlaid, touched
from kanalyze.analyses.shared.thread_lanes import LINE, THREAD
from kanalyze.analyses.shared.thread_nesting import innermost_lines
from kanalyze.columns.grouping import of_parts, parts_by
from kanalyze.columns.lookup import gathered
from kanalyze.columns.ordering import in_order

if TYPE_CHECKING:
    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report

    Lines = dict[ThreadKey, pl.DataFrame]

#: Causes of what a host thread does, whose pieces have the time of that thread.
ON_HOST: Final = ("launch", "return of a wait", "call", "host")

_IN_CALLS: Final = tuple(cause for cause in ON_HOST if cause != "host")


def with_names(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name` to the pieces of a path, in the order of time: see :func:`named_pieces`."""
    return in_order(named_pieces(report, pieces), "start")


def named_pieces(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name` to the pieces of a path, in no order; pieces of the host are cut by what their thread was in.

    Of an operation, or of the time before it, its name; of a call its name; of the host the innermost operator, range
    or Python function, else the calls before and after.
    """
    of_host = pieces.get_column("cause") == "host"
    others = pieces.filter(~of_host)
    in_call = others.get_column("cause").is_in(_IN_CALLS)
    names = gathered(operations(report).get_column("name"), others.get_column("row"))
    of_call = shown_calls(report, gathered(report.kind("api").get_column("name"), others.get_column("call")))
    others = others.hstack([names.zip_with(~in_call & names.is_not_null(), of_call).alias("name")])
    return pl.concat([others, _host_names(report, pieces.filter(of_host))])


def by_range(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name`, the innermost NVTX range in which a piece was asked for; pieces of the host are cut by it."""
    return _around(pieces, range_lines(report), range_names(report))


def by_operator(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name`, the innermost operator in which a piece was asked for; pieces of the host are cut by it."""
    events = report.kind("op")
    table = events.select(*THREAD, start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0))
    # where a piece runs on its thread, and the moment at which it was asked for there
    moments = pl.concat([pieces.select("start", "end"), pieces.select(start="at", end=pl.col("at") + 1).drop_nulls()])
    return _around(pieces, _lines(table, intervals.union(moments)), events.get_column("name"))


def _host_names(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Cuts pieces of the host by the innermost event of their thread, and adds its name."""
    table = pl.concat([named_events(report), program_functions(report)])
    cut = _cut(pieces, _lines(table, pieces), table.get_column("name"))
    known = cut.get_column("name").is_not_null()
    found = [cut.filter(known)]
    for key, part in parts_by(cut.filter(~known), THREAD).items():
        found.append(part.with_columns(neighbours(report, (key[0], key[1]), part).alias("name")))
    return pl.concat(found)


def _lines(table: pl.DataFrame, spans: pl.DataFrame) -> Lines:
    """Timelines of the innermost of the events `table` (start, end) that overlap any of `spans`, by thread."""
    near = table.with_row_index("row").filter(touched(table, spans))
    return innermost_lines(near)


def _around(pieces: pl.DataFrame, lines: Lines, names: pl.Series) -> pl.DataFrame:
    """Adds to each piece the name of what `lines` have at it: of the host, cut by that; else where it was asked for."""
    running = pieces.get_column("cause").is_in(ON_HOST)
    asked = pieces.filter(~running)
    where = of_parts(
        asked.select(*THREAD, "at"), THREAD, pl.UInt32, lambda key, part: _asked(lines.get((key[0], key[1])), part)
    )
    told = asked.hstack([gathered(names, where).alias("name")])
    return pl.concat([_cut(pieces.filter(running), lines, names), told])


def _asked(line: pl.DataFrame | None, part: pl.DataFrame) -> pl.Series:
    at = part.get_column("at")
    return pl.Series([None], dtype=pl.UInt32).new_from_index(0, len(at)) if line is None else on_line(line, at)


def _cut(pieces: pl.DataFrame, lines: Lines, names: pl.Series) -> pl.DataFrame:
    """Cuts pieces, which follow each other, by what `lines` have at them, and adds its name."""
    found = [pieces.clear().with_columns(around=pl.lit(None, dtype=pl.UInt32))]
    for key, part in parts_by(pieces, THREAD).items():
        line = lines.get((key[0], key[1]), pl.DataFrame(schema=LINE))
        found.append(overlaid(part, line.rename({"row": "around"}), "around"))
    cut = pl.concat(found)
    return cut.drop("around").hstack([gathered(names, cut.get_column("around")).alias("name")])
