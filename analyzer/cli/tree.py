"""``kanalyze tree``: operators, modules, Python functions and annotations, with the kernels that they launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from kanalyze.cli import _options
from kanalyze.cli._answers import answered
from kanalyze.cli._late import late
from kanalyze.cli._output import colour, emit, width
from kanalyze.units import parse_percent

with late():
    from kanalyze.analyses.operators import tree as trees_of
    from kanalyze.renderers.tables import listings
    from kanalyze.renderers.text import grid

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@_options.report_argument
@_options.scope
@click.option(
    "--by", type=click.Choice(["device", "host"]), help="Whose time matters; the device's where there is any."
)
@click.option("--depth", type=_options.COUNT, metavar="N", help="At most so many nodes below each other.")
@click.option("--min-share", default="1%", show_default=True, metavar="SHARE", help="Leave out what takes less.")
@_options.formats("json")
@_options.output
@_options.in_one_thread_if_small
def tree(  # noqa: PLR0913 - a click command has a parameter per option
    report: Path,
    by: str | None,
    depth: int | None,
    min_share: str,
    form: str,
    output: Path | None,
    **where: Unpack[_options.Where],
) -> None:
    """Show the calls of REPORT, a trace of torch.profiler or a capture, the kernels they led to, and their time."""
    share = parse_percent(min_share)
    if share is None:
        raise click.BadParameter(f"{min_share!r} is not a share, such as 1%.", param_hint="--min-share")
    trees = answered(
        report,
        trees_of.TABLE,
        where,
        lambda part: (trees_of.tree(part, by=by, depth=depth, min_share=share), trees_of.default_order(part)),
    )
    if form == "json":
        emit(listings.tree_json({name: found for name, (found, _) in trees.items()}), output)
        return
    look = grid.Look(width(), colour(output))
    texts = [listings.call_tree(found, by or order, look, name or "") for name, (found, order) in trees.items()]
    emit("\n".join(texts), output)
