"""``kanalyze compare``: faster or slower, by how much, where the difference went, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from kanalyze.cli._options import (
    Where,
    in_one_thread_if_small,
    output,
    part,
    progress_shown,
    scope,
    top,
)
from kanalyze.cli._output import colour, emit, refuse_overwriting, width
from kanalyze.errors import BadThresholdError
from kanalyze.machinery.memory import sparing_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.sides import Asked


@click.command()
@click.argument("reports", nargs=-1, type=click.Path(path_type=Path))
@click.option("--base", "base", multiple=True, type=click.Path(path_type=Path), help="A run of base; may be repeated.")
@scope
@top(None, "Rows in each table of the page.")
@click.option("--least", default="2%", metavar="SHARE", help="The least change that counts.  [default: 2%]")
@click.option("--format", "form", type=click.Choice(["terminal", "markdown", "json"]), default="terminal")
@output
@in_one_thread_if_small
def compare(  # noqa: PLR0913 - the options of the command
    reports: Sequence[Path],
    base: Sequence[Path],
    top: int | None,
    least: str,
    form: str,
    output: Path | None,
    **where: Unpack[Where],
) -> None:
    """Compare BASE with NEW: reports, folders of them, captures with --repeat, or baselines."""
    for report in (*reports, *base):
        refuse_overwriting(report, output)
    with sparing_memory():
        from kanalyze import sides  # noqa: PLC0415 - --help need not import polars
    asked = _asked(where, least)
    before, after = sides.given(reports, base)
    found = sides.comparison(before, after, asked)
    if form == "json":
        from kanalyze.renderers.formats.json import render as render_json  # noqa: PLC0415 - one format is used

        emit(render_json([found]).encode(), output)
    elif form == "markdown":
        from kanalyze.renderers.formats.markdown import render as render_markdown  # noqa: PLC0415 - as above

        emit(render_markdown([found], top).encode(), output)
    else:
        from kanalyze.renderers.formats.terminal import render  # noqa: PLC0415 - as above
        from kanalyze.renderers.text.grid import Look  # noqa: PLC0415 - as above

        emit(render([found], Look(width(), colour(output)), top), output)


def _asked(where: Where, least: str) -> Asked:
    from kanalyze.analyses.comparing._pair import Limits  # noqa: PLC0415 - as above
    from kanalyze.sides import Asked  # noqa: PLC0415 - as above
    from kanalyze.units import parse_percent  # noqa: PLC0415 - as above

    effect = parse_percent(least)
    if effect is None or not 0 < effect < 1:
        raise BadThresholdError.of(least, "a share", "2%")
    return Asked(part(where), cache=not where["no_cache"], progress=progress_shown(), limits=Limits(effect))
