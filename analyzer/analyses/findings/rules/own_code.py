"""Lines of the program that launch nothing, and for which the device waits."""

from __future__ import annotations

import re
from functools import partial
from keyword import iskeyword
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._operators import launched
from kanalyze.analyses.findings.rules._telling import of_window, per_iteration
from kanalyze.analyses.idle._attribution import host_pieces
from kanalyze.analyses.idle.code import has_lines, place_at, placed_pieces, placed_with_text
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import source_lines
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.report import Report

#: The least part of the window that the device waits so.
_LEAST: Final = 0.1

#: A call in a line of Python, and what is no code in it.
_CALL: Final = re.compile(r"([A-Za-z_][\w.]*)\(")
_NO_CODE: Final = re.compile(r"""'[^']*'|"[^"]*"|#.*""")

_HEADLINE: Final = "The GPU waits for code that launches nothing"
_ACTION: Final = "do it less often, on another thread, or on the GPU"
_REMEDY: Final = (
    "Do it every N iterations, in another thread or process (workers of a DataLoader, a queue), before the loop, or on "
    "the GPU."
)


def own_code(report: Report) -> list[Finding]:
    """At most one finding per device in a window of iterations: idle time in lines that neither launch nor wait."""
    if not per_iteration(report).iterations or not source_lines(report).height or not has_lines(report):
        return []
    launching, found = _launching(report), []
    for device, low, high in windows(report).iter_rows():
        quiet = _quiet(report, device, launching)
        claims = intervals.union(quiet.select("start", "end"))
        if intervals.length(claims) >= _LEAST * (high - low):
            found.append(_told(report, device, quiet, claims))
    return found


def _quiet(report: Report, device: int, launching: pl.Series) -> pl.DataFrame:
    """Idle time in no call of the host, in places that are not `launching`: start, end, ns, place."""
    pieces = placed_pieces(report).filter(pl.col("device") == device, pl.col("place").is_not_null())
    of_host, ns = pl.col("part") == "host", pl.col("ns")
    quiet = 2 * ns.filter(of_host).sum().over("place") > ns.sum().over("place")
    launches = pl.col("place").is_in(launching.implode())
    lines = pieces.filter(quiet & ~launches & of_host & pl.col("own")).select("start", "end", "place").sort("start")
    in_no_call = intervals.union(host_pieces(report)[device].select("start", "end"))
    return intervals.cut(lines, in_no_call).with_columns(ns=pl.col("end") - pl.col("start"))


def _launching(report: Report) -> pl.Series:
    """The places from which anything is launched in the window, on whatever device."""
    calls = launched(report).select(*THREAD, at="call_start", start="call_start", end="call_end")
    return place_at(report, intervals.overlapping(calls, report.scope.sides)).drop_nulls().unique()


def _call_in(line: str) -> str:
    """The first call in a line of Python; empty without one."""
    calls = _CALL.findall(_NO_CODE.sub("", line))
    return next((call for call in calls if not iskeyword(call)), "")


def _told(report: Report, device: int, quiet: pl.DataFrame, claims: pl.DataFrame) -> Finding:
    stake = intervals.length(claims)
    sums = quiet.group_by("place").agg(pl.col("ns").sum()).sort("ns", "place", descending=[True, False])
    place, line = placed_with_text(report, sums.head(1)).select("place", pl.col("text").cast(pl.String)).row(0)
    call = _call_in(line or "")
    text = (
        f"GPU {device} idle while the program runs lines of its own that launch nothing: "
        f"{of_window(report, device, stake)}, most in {literal(place)}."
    )
    return Finding(
        "own-code",
        device,
        stake,
        text,
        _REMEDY,
        "code",
        headline=f"{_HEADLINE}: {literal(call)}()" if call else _HEADLINE,
        action=_ACTION,
        mending=partial(_without, places=sums.get_column("place")),
        claims=claims,
    )


def _without(report: Report, places: pl.Series) -> Mending:
    """The time of the threads that launch in some places is spared."""
    lines = placed_with_text(report, places.to_frame()).select("file", "line", "function")
    rows = source_lines(report).join(lines, on=lines.columns, how="semi", nulls_equal=True)
    rows = rows.join(launched(report).select(THREAD).unique(), on=[*THREAD], how="semi")
    return Mending(host=rows.select("process_id", **intervals.OF_EVENTS))


RULES: Final = (own_code,)
