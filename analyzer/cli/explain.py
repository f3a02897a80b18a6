"""``kanalyze explain``: what a finding or a word of a page means, and what shows a finding in a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from kanalyze.cli import _complete, _options
from kanalyze.cli._late import late
from kanalyze.cli._output import emit, emit_pages, width
from kanalyze.errors import UnknownNameError, nearest

with late():
    from kanalyze import explanations
    from kanalyze.analyses.page import overview_page
    from kanalyze.renderers.tables import explanations as rendered

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@click.command()
@click.argument("name", required=False, shell_complete=_complete.findings)
@click.argument("reports", nargs=-1, type=_options.READ, metavar="[REPORT]...")
@_options.scope
@_options.top(None, "Rows in each table of the page of a REPORT.")
@_options.formats("markdown", "json")
@_options.output
@_options.in_one_thread_if_small
def explain(
    name: str | None,
    reports: Sequence[Path],
    top: int | None,
    form: str,
    output: Path | None,
    **where: Unpack[_options.Where],
) -> None:
    """Explain the finding NAME, or a word of a page; of a REPORT show what the finding is made of there.

    Without a name all findings are listed, a line each.
    """
    if name is not None and name in explanations.names() and reports:
        parts = [part for report in reports for part in _options.opened_parts(report, where).values()]
        emit_pages([page for part in parts for page in overview_page.evidence(part, name)], form, top, output)
        return
    found = [] if name is None else explanations.meanings(" ".join(map(str, (name, *reports))))
    if found and name not in explanations.names():
        emit(rendered.words(found, width()) if form == "terminal" else rendered.WORDS[form](found).encode(), output)
        return
    wanted = [_explanation(one) for one in ([name] if name else explanations.names())]
    text = rendered.terminal(wanted[0], width()) if name else rendered.headlines(wanted, width())
    emit(text if form == "terminal" else rendered.FORMATS[form](wanted).encode(), output)


def _explanation(name: str) -> explanations.Explanation:
    """The explanation of a finding.

    Raises:
        UnknownNameError: It is neither a finding nor a word of a page.
    """
    try:
        return explanations.explanation(name)
    except UnknownNameError:
        if nearest(name, explanations.names()) is None and nearest(name, [*explanations.words()]) is not None:
            raise UnknownNameError.of("word of a page", name, explanations.words()) from None
        raise
