"""``kanalyze roofline``: where the kernels stand under the roof of their GPU, as a table or a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kanalyze.cli._late import late
from kanalyze.cli._options import WHOLE, WRITTEN, in_one_thread_if_small, opened_together, reports_argument
from kanalyze.cli._output import emit, width
from kanalyze.errors import UnknownNameError

with late():
    from kanalyze.analyses.counters import roofline as rooflines
    from kanalyze.analyses.joining import _roof_points
    from kanalyze.renderers.tables import fitted, plots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@click.command()
@reports_argument
@click.option(
    "--plot",
    type=WRITTEN,
    metavar="FILE",
    help="Draw it: all kernels, sized by their time; .svg, .png or .html.",
)
@in_one_thread_if_small
def roofline(reports: Sequence[Path], plot: Path | None) -> None:
    """Show work, bytes and distance to the roof of each kernel of REPORTS, one of them with counters of ncu."""
    form = None if plot is None else plot.suffix.removeprefix(".")
    if form is not None and form not in plots.ROOFLINE_FORMATS:
        raise UnknownNameError.of("kind of picture", form, plots.ROOFLINE_FORMATS)
    found = opened_together(reports, WHOLE)
    if form is not None:
        emit(plots.roofline(_roof_points.roof_points(found), form), plot)
        return
    rows = rooflines.roofline(_roof_points.counted_of(found))
    choice = fitted.Choice(rooflines.TABLE.telling, how="kanalyze show roofline has --columns")
    emit(fitted.terminal(rows, width(), choice), None)
