"""``kanalyze verify``: whether the tools tell the same of one program; a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from kanalyze import outlets
from kanalyze.cli._options import (
    Where,
    in_one_thread_if_small,
    no_formulas,
    opened_together,
    output,
    part,
    reports_argument,
    scope,
)
from kanalyze.cli._output import emit, width
from kanalyze.machinery.memory import sparing_memory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FAILED = 1


@click.command()
@reports_argument
@scope
@click.option("--all", "every", is_flag=True, help="Also what is equal.")
@click.option("--format", "form", type=click.Choice(["terminal", "csv", "json"]), default="terminal")
@no_formulas
@output
@in_one_thread_if_small
def verify(
    reports: Sequence[Path],
    form: str,
    output: Path | None,
    *,
    every: bool,
    no_formulas: bool,
    **where: Unpack[Where],
) -> None:
    """Hold REPORTS of one program by different tools, or a capture's folder, against each other.

    Shows what two tools tell differently and why; ends with status 1 where nothing explains it.
    """
    with sparing_memory():
        from kanalyze.analyses.joining.agreement import agreement  # noqa: PLC0415 - --help need not import polars
    from kanalyze.renderers.tables import frame as rendered  # noqa: PLC0415 - as above
    from kanalyze.renderers.tables.agreement import render  # noqa: PLC0415 - as above

    rows = agreement(*opened_together(reports, where), **part(where))
    shown = rows if every else rows.filter(rows.get_column("verdict") != "equal")
    if form == "terminal":
        emit(render(rows, shown, width()), output)
    else:
        safe = outlets.spreadsheet(shown) if no_formulas and form == "csv" else shown
        emit(rendered.FORMATS[form](safe), output)
    if "unexplained" in rows.get_column("verdict"):
        raise click.exceptions.Exit(_FAILED)  # which leaves the reports open until their doubts are told
