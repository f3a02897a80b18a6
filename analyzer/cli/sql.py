"""``kanalyze sql``: the answer to an SQL statement over the tables of reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kanalyze import outlets
from kanalyze.cli._answers import Opened, rows_of
from kanalyze.cli._options import Where, in_one_thread_if_small, no_formulas, output, reports_argument, scope
from kanalyze.cli._output import emit, print_message, refuse_overwriting, width
from kanalyze.errors import OutputError
from kanalyze.machinery.memory import sparing_memory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

#: How to see the columns that do not fit.
_HOW = "--format csv has all"


@click.command()
@reports_argument
@click.argument("statement")
@scope
@click.option("--format", "form", type=click.Choice(["terminal", "csv", "json", "parquet"]), default="terminal")
@no_formulas
@output
@in_one_thread_if_small
def sql(  # noqa: PLR0913 - a click command has a parameter per option
    reports: Sequence[Path],
    statement: str,
    form: str,
    output: Path | None,
    *,
    no_formulas: bool,
    window: str | None,
    device: int | None,
    process: int | None,
    no_cache: bool,
) -> None:
    """Answer STATEMENT, in SQL, over the tables of REPORTS.

    Tables have the names and columns that `kanalyze tables` lists; those that the statement names are made. Of several
    reports each has the rows of all, and a first column `report`. The SQL is that of polars; docs/sql.md has examples.
    """
    with sparing_memory():
        from kanalyze import catalog  # noqa: PLC0415 - --help need not import polars
    from polars.exceptions import PolarsError  # noqa: PLC0415 - as above

    from kanalyze.queries import answer, refused  # noqa: PLC0415 - as above
    from kanalyze.renderers.tables.fitted import Choice, terminal  # noqa: PLC0415 - as above
    from kanalyze.renderers.tables.frame import FORMATS  # noqa: PLC0415 - as above

    if form == "parquet" and output is None:
        raise OutputError.needs_file(form)
    for report in reports:
        refuse_overwriting(report, output)
    where, opened = Where(window=window, device=device, process=process, no_cache=no_cache), Opened()

    def make(name: str) -> pl.DataFrame:
        return rows_of(reports, catalog.table(name), where, opened=opened)

    rows = answer(statement, make)
    for told in opened.origins.values():
        print_message(outlets.line(f"kanalyze: {told}"))
    if form == "terminal":
        emit(terminal(rows, width(), Choice(tuple(rows.columns), _HOW)), output)
    else:
        rows = outlets.spreadsheet(rows) if no_formulas and form == "csv" else rows
        try:
            data = FORMATS[form](rows)
        except PolarsError as error:  # lists, which CSV cannot hold
            raise refused(error) from error
        emit(data, output)
