"""Windows by the names of iterations: ``steady``, ``step#2..step#5``, ``step#-1``.

:meth:`kanalyze.report.Report.instances` asks here for what is neither a time nor the name of a range.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.iterations._marks import of_process
from kanalyze.analyses.iterations._steady import steady_part
from kanalyze.analyses.iterations.iterations import STEADY, judged_iterations
from kanalyze.errors import BadWindowError, UnknownNameError
from kanalyze.model import DEVICE_KINDS
from kanalyze.named_ranges import STEPS, place
from kanalyze.window import Window

if TYPE_CHECKING:
    from kanalyze.report import Report

_NUMBERED: Final = re.compile(r"(?P<name>.+)#(?P<number>-?\d{1,9})", re.ASCII)
_STEP: Final = re.compile(r"step:(?P<number>\d{1,18})", re.ASCII)


def windows_named(report: Report, text: str) -> list[Window] | None:
    """The window that `text` names by iterations, as a list of one; None if it names none.

    Raises:
        BadWindowError: It names the steady part, and nothing repeats, or the end is before the start.
        UnknownNameError: There are iterations of that name, but not so many.
    """
    if text == STEADY:
        return [_steady(report, text)]
    first, dots, last = text.partition("..")
    if not dots:
        found = _iteration(report, text)
        return None if found is None else [found]
    sides = [_iteration(report, side) or _range(report, side) for side in (first.strip(), last.strip())]
    if sides[0] is None or sides[1] is None:
        return None
    return [_from_to(report, text, sides[0], sides[1])]


def _steady(report: Report, text: str) -> Window:
    found = steady_part(report) if {*DEVICE_KINDS}.intersection(report.kinds) else None
    if found is None:
        raise BadWindowError.of(text, "nothing in this report repeats, so it has no steady part")
    return found.window


def _iteration(report: Report, text: str) -> Window | None:
    """The iteration ``NAME#NUMBER``, from the end where the number is negative; None if there is no such name."""
    match, step = _NUMBERED.fullmatch(text), _STEP.fullmatch(text)
    if (match is None and step is None) or not {*DEVICE_KINDS}.intersection(report.kinds):
        return None
    rows = judged_iterations(report)
    if step is not None:
        own, number = rows.filter(pl.col("window") == text), 1
    elif match is not None:
        own, number = rows.filter(pl.col("name") == match["name"]).sort("start_ns"), int(match["number"])
    if own.is_empty():
        return None
    at = place(number, own.height)
    if at is None:
        raise UnknownNameError.number(f"iteration of {own.item(0, 'name')!r}", str(number), own.height)
    row = own.row(at, named=True)
    end = row["start_ns"] + row["dur_ns"]
    return Window(row["start_ns"], end, text, process=row["process_id"], count=1, each=row["name"])


def _range(report: Report, text: str) -> Window | None:
    """The window of a range that `text` names; None if it names none."""
    if not text or text.startswith(STEPS):
        return None
    try:
        return report.window(text)
    except (BadWindowError, UnknownNameError):
        return None


def _from_to(report: Report, text: str, first: Window, last: Window) -> Window:
    """The window from the start of one range or iteration to the end of another."""
    start, end = first.start_ns or 0, last.end_ns or 0
    if end <= start:
        raise BadWindowError.of(text, "the end is not after the start")
    if first.each is None or first.each != last.each:
        return Window(start, end, text, process=first.process)
    rows = judged_iterations(report).filter(of_process(first.process))
    own = rows.filter((pl.col("name") == first.each) & pl.col("start_ns").is_between(start, end, closed="left"))
    return Window(start, end, text, process=first.process, count=max(own.height, 1), each=first.each)
