"""``kanalyze mcp``: reports for assistants, by the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kanalyze.cli._late import late

with late():
    from kanalyze.cli import _assistants

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@click.option(
    "--root",
    "roots",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="A folder whose reports may be read; may be given several times.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=2_000),
    default=32_000,
    show_default=True,
    metavar="BYTES",
    help="The most bytes of an answer.",
)
def mcp(roots: Sequence[Path], limit: int) -> None:
    """Serve reports to an assistant over standard input and output, read-only.

    The tools are summarize, show, compare, explain, source and tables.
    """
    _assistants.serve(roots, limit)
