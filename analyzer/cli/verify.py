"""``kanalyze verify``: whether the tools tell the same of one program; a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from kanalyze.cli import _options
from kanalyze.cli._late import late
from kanalyze.cli._output import emit, emit_rows, width

with late():
    from kanalyze.analyses.joining import agreement
    from kanalyze.renderers.tables import fitted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FAILED = 1


@click.command()
@_options.reports_argument
@_options.scope
@click.option("--all", "every", is_flag=True, help="Also what is equal.")
@_options.formats("csv", "json")
@_options.no_formulas
@_options.output
@_options.in_one_thread_if_small
def verify(
    reports: Sequence[Path],
    form: str,
    output: Path | None,
    *,
    every: bool,
    no_formulas: bool,
    **where: Unpack[_options.Where],
) -> None:
    """Hold REPORTS of one program by different tools, or a capture's folder, against each other.

    Shows what two tools tell differently and why; ends with status 1 where nothing explains it.
    """
    rows = agreement.agreement(*_options.opened_together(reports, where), **_options.part(where))
    shown = rows if every else rows.filter(rows.get_column("verdict") != "equal")
    if form == "terminal":
        emit(fitted.agreement(rows, shown, width()), output)
    else:
        emit_rows(shown, form, output, no_formulas=no_formulas)
    if "unexplained" in rows.get_column("verdict"):
        raise click.exceptions.Exit(_FAILED)  # which leaves the reports open until their doubts are told
