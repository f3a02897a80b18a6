"""``kanalyze explain``: what a finding means, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kanalyze.cli import _complete
from kanalyze.cli._late import late
from kanalyze.cli._options import formats, output
from kanalyze.cli._output import emit, width

with late():
    from kanalyze import explanations
    from kanalyze.renderers.tables import explanations as rendered

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("name", required=False, shell_complete=_complete.findings)
@formats("markdown")
@output
def explain(name: str | None, form: str, output: Path | None) -> None:
    """Explain the finding NAME: meaning, evidence, remedy; or list all findings, a line each."""
    wanted = [explanations.explanation(one) for one in ([name] if name else explanations.names())]
    if form == "markdown":
        emit(rendered.markdown(wanted).encode(), output)
    else:
        emit(rendered.terminal(wanted[0], width()) if name else rendered.headlines(wanted, width()), output)
