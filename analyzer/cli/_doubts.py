"""Warnings on standard error about doubtful data in the reports that a command printed figures of, a line for each.

A page says it as well, but not where to look; a table or a file for another program does not say it at all.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Final

import click

from kanalyze import outlets, units
from kanalyze.cli._output import tell
from kanalyze.errors import KanalyzeError

if TYPE_CHECKING:
    import polars as pl

    from kanalyze.report import Report

#: Where a command's context keeps the reports that it opened, and did not speak of yet.
_OPENED: Final = "kanalyze.opened"

#: The same of the files that it did.
_SPOKEN_OF: Final = "kanalyze.spoken_of"

#: Most doubts listed, and characters of each.
_NAMED: Final = 6
_WIDE: Final = 120

#: Doubts reported by the tool itself; they have no count.
_SAID: Final = "nsys: "


def figures_of(report: Report) -> None:
    """Note that the command prints figures of `report`; it is held until :func:`tell_doubts`."""
    click.get_current_context().meta.setdefault(_OPENED, []).append(report)


def no_doubts_told() -> None:
    """Say nothing of the reports so far: what is printed says it, or another page will be made of them."""
    click.get_current_context().meta.pop(_OPENED, None)


def tell_doubts(*, everything: bool) -> None:
    """Say of each report what is in doubt, once; it is let go of then.

    With `everything` of the whole report, else of what the command read of it, since reading the rest may take long.
    """
    meta = click.get_current_context().meta
    spoken_of: set[str] = meta.setdefault(_SPOKEN_OF, set())
    for report in meta.pop(_OPENED, ()):
        file = _file(report)
        if file not in spoken_of and (line := _line(report, file, everything=everything)):
            tell(f"kanalyze: {outlets.line(line)}")
        spoken_of.add(file)


def _line(report: Report, file: str, *, everything: bool) -> str:
    from kanalyze.analyses.findings._doubts import doubts  # noqa: PLC0415 - --help need not import polars

    try:
        return doubt_line(file, doubts(report, everything=everything))
    except KanalyzeError as error:  # in a table that the command did not need
        return f"not all of it can be read: {error} See `{command(file)}`"


def _file(report: Report) -> str:
    """The file whose health is that of the report: of a capture it is that of nsys, so one of ncu has its own."""
    path = report.meta.path
    if not report.meta.timeless or not os.path.isdir(path):  # noqa: PTH112 - never raises
        return str(path)
    from kanalyze.readers.capture.read_capture import accepts  # noqa: PLC0415 - as above
    from kanalyze.readers.ncu.runs import runs_in  # noqa: PLC0415 - few reports need it

    runs = runs_in(path, "ncu") if accepts(path, b"") else []
    return str(next((file for run in runs for file in (run.report, *run.pages.values()) if file), path))


def doubt_line(file: str, doubts: pl.DataFrame) -> str:
    """The warning for the report in `file`, from doubtful rows of the table `health`; empty if there are none."""
    told = [_told(*row) for row in doubts.head(_NAMED).select("check", "count", "ns").iter_rows()]
    if not told:
        return ""
    more = doubts.height - len(told)
    rest = f"; and {units.count(more)} more" if more else ""
    return f"{file}: not all of this can be trusted: {'; '.join(told)}{rest}. See `{command(file)}`"


def command(file: str) -> str:
    """The command that prints the full health checks of `file`."""
    return f"kanalyze show health {shlex.quote(file)}"


def _told(check: str, count: int, ns: int | None) -> str:
    text = check.rstrip(".")
    text = text if len(text) <= _WIDE else text[: _WIDE - 1] + "…"
    once = count == 1 and text.startswith(_SAID)
    return ("" if once else f"{units.count(count)} ") + text + (f" ({units.time(ns)})" if ns else "")
