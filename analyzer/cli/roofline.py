"""``kanalyze roofline``: where the kernels stand under the roof of their GPU, as a table or a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kanalyze.cli._options import WHOLE, WRITTEN, in_one_thread_if_small, opened_together, reports_argument
from kanalyze.cli._output import emit, width
from kanalyze.errors import UnknownNameError
from kanalyze.machinery.memory import sparing_memory

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
    with sparing_memory():
        from kanalyze.analyses.joining._roof_points import counted_of, roof_points  # noqa: PLC0415 - --help need not import polars
    from kanalyze.analyses.counters.roofline import TABLE as ROOFLINE  # noqa: PLC0415 - as above
    from kanalyze.analyses.counters.roofline import roofline as table_of  # noqa: PLC0415 - as above
    from kanalyze.renderers.tables import plots  # noqa: PLC0415 - as above
    from kanalyze.renderers.tables.fitted import Choice, terminal  # noqa: PLC0415 - as above

    if plot is not None and plot.suffix.removeprefix(".") not in plots.ROOFLINE_FORMATS:
        raise UnknownNameError.of("kind of picture", plot.suffix.removeprefix("."), plots.ROOFLINE_FORMATS)
    found = opened_together(reports, WHOLE)
    if plot is not None:
        emit(plots.roofline(roof_points(found), plot.suffix.removeprefix(".")), plot)
        return
    rows = table_of(counted_of(found))
    emit(terminal(rows, width(), Choice(ROOFLINE.telling, how="kanalyze show roofline has --columns")), None)
