"""``kanalyze source``: the source of a kernel that ncu measured, with figures beside each line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kanalyze.cli._late import late
from kanalyze.cli._options import closed_at_end, formats, in_one_thread_if_small, output, report_argument
from kanalyze.cli._output import colour, emit, width
from kanalyze.errors import CannotTellError, UnknownNameError

with late():
    from kanalyze.analyses.counters import counters, hot_lines
    from kanalyze.readers.capture import reports as captures
    from kanalyze.renderers.tables import listings
    from kanalyze.renderers.text import grid

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.report import Report

_REMEDY = (
    "Compile it with -lineinfo (nvcc), record it with `ncu --set full --import-source yes`, and give the .ncu-rep "
    "file, since pages have no lines; or ask for --sass."
)


@click.command()
@report_argument
@click.argument("kernel")
@click.option("--sass", "view", flag_value="sass", help="The GPU's assembly.")
@click.option("--ptx", "view", flag_value="ptx", help="The PTX that each instruction was made of.")
@formats("json")
@output
@in_one_thread_if_small
def source(report: Path, kernel: str, view: str | None, form: str, output: Path | None) -> None:
    """Show the source of KERNEL in REPORT, a report of ncu, with samples, instructions and coalescing by line.

    Of a folder that `kanalyze collect` wrote, REPORT is what ncu wrote there. KERNEL is a number of the table
    `counters` or a part of a name; of several such kernels the longest is shown.
    """
    opened = closed_at_end(captures.counters_at(report))
    event_id, name = _chosen(opened, kernel)
    look = grid.Look(width(), colour(output))
    found = opened.table("instructions") if view else hot_lines.hot_lines(opened)
    rows = found.filter(found.get_column("event_id") == event_id)
    if not view:
        rows = rows.drop_nulls("line")
    if rows.is_empty() or (view == "ptx" and rows.get_column("ptx").null_count() == rows.height):
        raise CannotTellError.without_source(report, view.upper() if view else "source lines of this kernel", _REMEDY)
    if form == "json":
        emit(listings.source_json(name, rows), output)
    elif view:
        emit(listings.instructions(name, rows, view, look), output)
    else:
        texts = {file: text.split("\n") for file, text in opened.table("source_files").iter_rows()}
        emit(listings.source_lines(name, rows, texts, look), output)


def _chosen(report: Report, kernel: str) -> tuple[int, str]:
    """The kernel that is meant: its event_id and name."""
    rows = counters.counters(report).select("event_id", "name", "dur_ns").rows()
    named = [(duration or 0, -number, name or "") for number, name, duration in rows if kernel in (name or "")]
    numbered = [(duration or 0, -number, name or "") for number, name, duration in rows if str(number) == kernel]
    if not named and not numbered:
        raise UnknownNameError.of("kernel", kernel, [name or "" for _, name, _ in rows])
    _, number, name = max(numbered or named)
    return -number, name
