"""``kanalyze ranks``: the ranks of one job, who waits for whom, why, and at what bandwidth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kanalyze.cli._options import (
    in_one_thread_if_small,
    output,
    print_doubts_early,
    print_left_out,
    progress_shown,
    top,
)
from kanalyze.cli._output import colour, emit, refuse_overwriting, register_figures, width
from kanalyze.machinery.memory import sparing_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.report import Report


@click.command()
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--one-host", is_flag=True, help="All ranks ran on one host: their clocks are one.")
@click.option("--no-cache", is_flag=True, help="Read the report itself, not what is kept of it; keep nothing.")
@top(None, "Rows in each table of the page.")
@click.option("--format", "form", type=click.Choice(["terminal", "markdown", "json"]), default="terminal")
@output
@in_one_thread_if_small
def ranks(  # noqa: PLR0913 - a click command has a parameter per option
    reports: Sequence[Path], top: int | None, form: str, output: Path | None, *, one_host: bool, no_cache: bool
) -> None:
    """One page on the ranks of a job, from their traces, from nsys reports, folders of them, or a capture."""
    for report in reports:
        refuse_overwriting(report, output)
    with sparing_memory():
        from kanalyze.jobs import Asked, job  # noqa: PLC0415 - --help need not import polars
    found = job(reports, Asked(one_host, not no_cache, progress_shown(), _doubted, print_left_out))
    if form == "json":
        from kanalyze.renderers.formats.json import render as render_json  # noqa: PLC0415 - one format is used

        emit(render_json([found]).encode(), output)
    elif form == "markdown":
        from kanalyze.renderers.formats.markdown import render as render_markdown  # noqa: PLC0415 - as above

        emit(render_markdown([found], top).encode(), output)
    else:
        from kanalyze.renderers.formats.terminal import render  # noqa: PLC0415 - as above
        from kanalyze.renderers.text.grid import Look  # noqa: PLC0415 - as above

        emit(render([found], Look(width(), colour(output)), top), output)


def _doubted(report: Report) -> None:
    """Prints what is in doubt about a report while it is open."""
    register_figures(report)
    print_doubts_early()
