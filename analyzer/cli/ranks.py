"""``kanalyze ranks``: the ranks of one job, who waits for whom, why, and at what bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kanalyze.cli import _options
from kanalyze.cli._late import late
from kanalyze.cli._output import emit_pages

with late():
    from kanalyze.several import jobs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@click.command()
@_options.reports_argument
@click.option("--one-host", is_flag=True, help="All ranks ran on one host: their clocks are one.")
@click.option("--no-cache", is_flag=True, help="Read the report itself, not what is kept of it; keep nothing.")
@_options.top(None, "Rows in each table of the page.")
@_options.formats("markdown", "json")
@_options.output
@_options.in_one_thread_if_small
def ranks(  # noqa: PLR0913 - a click command has a parameter per option
    reports: Sequence[Path], top: int | None, form: str, output: Path | None, *, one_host: bool, no_cache: bool
) -> None:
    """Show one page on the ranks of a job, from their traces, from nsys reports, folders of them, or a capture."""
    found = jobs.job(
        reports,
        jobs.Asked(one_host, not no_cache, _options.progress_shown(), _options.doubted, _options.print_left_out),
    )
    emit_pages([found], form, top, output)
