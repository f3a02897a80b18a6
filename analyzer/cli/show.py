"""``kanalyze show``: one table in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from kanalyze.cli._options import Where, opened, output, report_argument, scope, top
from kanalyze.cli._output import emit, refuse_overwriting, width
from kanalyze.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("table")
@report_argument
@scope
@click.option("--by", metavar="GROUPING", help="Group the table differently; `kanalyze tables` says how.")
@click.option("--sort", metavar="COLUMN", help="Sort by a column; -COLUMN is descending. Missing values come last.")
@top(None, "Only the first N rows.")
@click.option("--format", "form", type=click.Choice(["terminal", "csv", "json", "parquet"]), default="terminal")
@output
def show(  # noqa: PLR0913 - a click command has a parameter per option
    table: str,
    report: Path,
    by: str | None,
    sort: str | None,
    top: int | None,
    form: str,
    output: Path | None,
    **where: Unpack[Where],
) -> None:
    """TABLE of REPORT, all rows and columns. `kanalyze tables` lists the tables."""
    from kanalyze import catalog  # noqa: PLC0415 - --help need not import polars
    from kanalyze.renderers import frame as rendered  # noqa: PLC0415 - as above

    if form == "parquet" and output is None:
        raise OutputError.needs_file(form)
    refuse_overwriting(report, output)
    catalog.table(table)
    rows = rendered.arranged(catalog.make(opened(report, where), table, by), sort, top)
    if form == "terminal":
        emit(rendered.terminal(rows, width()), output)
    else:
        emit(rendered.FORMATS[form](rows), output)
