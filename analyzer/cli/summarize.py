"""``kanalyze summarize``: the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from kanalyze.cli._options import Where, opened, output, report_argument, scope, top
from kanalyze.cli._output import colour, emit, refuse_overwriting, width

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@report_argument
@scope
@top(8, "Rows in each table of the page; 8 unless told.")
@click.option("--format", "form", type=click.Choice(["terminal", "markdown", "json"]), default="terminal")
@output
def summarize(report: Path, top: int, form: str, output: Path | None, **where: Unpack[Where]) -> None:
    """One page that says where the time of REPORT went."""
    from kanalyze.analyses.summary import summarize as summary_of  # noqa: PLC0415 - --help need not import polars

    refuse_overwriting(report, output)
    summary = summary_of(opened(report, where))
    if form == "json":
        from kanalyze.renderers.summary_json import render as render_json  # noqa: PLC0415 - one format is used

        emit(render_json(summary).encode(), output)
    elif form == "markdown":
        from kanalyze.renderers.markdown import render as render_markdown  # noqa: PLC0415 - one format is used

        emit(render_markdown(summary, top).encode(), output)
    else:
        from kanalyze.renderers.terminal import Look, render  # noqa: PLC0415 - one format is used

        emit(render(summary, Look(width(), colour(output)), top), output)
