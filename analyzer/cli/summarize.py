"""``kanalyze summarize``: the page, or one for each of several reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from kanalyze.cli._options import Where, opened_parts, output, reports_argument, scope, top
from kanalyze.cli._output import colour, emit, refuse_overwriting, width

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kanalyze.analyses.instances import Instances
    from kanalyze.analyses.summary import Summary


@click.command()
@reports_argument
@scope
@top(8, "Rows in each table of the page; 8 unless told.")
@click.option("--format", "form", type=click.Choice(["terminal", "markdown", "json"]), default="terminal")
@output
def summarize(reports: Sequence[Path], top: int, form: str, output: Path | None, **where: Unpack[Where]) -> None:
    """One page that says where the time of each REPORT went; of several, a line that compares them."""
    for report in reports:
        refuse_overwriting(report, output)
    pages = [_page(report, where) for report in reports]
    if form == "json":
        from kanalyze.renderers.summary_json import render as render_json  # noqa: PLC0415 - one format is used

        emit(render_json(pages).encode(), output)
    elif form == "markdown":
        from kanalyze.renderers.markdown import render as render_markdown  # noqa: PLC0415 - one format is used

        emit(render_markdown(pages, top).encode(), output)
    else:
        from kanalyze.renderers.terminal import Look, render  # noqa: PLC0415 - one format is used

        emit(render(pages, Look(width(), colour(output)), top), output)


def _page(report: Path, where: Where) -> Summary | Instances:
    """The page of a report, or the comparison of a range's instances where the window names several."""
    from kanalyze.analyses.instances import compare  # noqa: PLC0415 - --help need not import polars
    from kanalyze.analyses.summary import summarize as summary_of  # noqa: PLC0415 - as above

    parts = opened_parts(report, where)
    return summary_of(parts[None]) if None in parts else compare([*parts.values()])
