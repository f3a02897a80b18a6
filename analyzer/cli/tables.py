"""``kanalyze tables``: what tables there are, and the columns of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kanalyze.cli import _complete
from kanalyze.cli._late import late
from kanalyze.cli._options import formats, output
from kanalyze.cli._output import emit, width

with late():
    from kanalyze import catalog
    from kanalyze.renderers.tables import declarations as rendered

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("table", required=False, shell_complete=_complete.tables)
@formats("markdown", "json")
@output
def tables(table: str | None, form: str, output: Path | None) -> None:
    """List the tables, a line each; or the columns of TABLE with units and meaning.

    The other formats have all of that: with TABLE of one, else of every table.
    """
    if form == "terminal" and table is None:
        listed = {subject: [catalog.table(name) for name in names] for subject, names in catalog.subjects().items()}
        emit(rendered.listing(listed, width()), output)
        return
    wanted = [(catalog.table(name), catalog.forms(name)) for name in ([table] if table else catalog.every_name())]
    if form == "terminal":
        emit(rendered.terminal(wanted, width()), output)
    else:
        emit(rendered.FORMATS[form](wanted).encode(), output)
