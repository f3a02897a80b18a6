"""``kanalyze plot``: tables as pictures for print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack

import click

from kanalyze.cli import _options
from kanalyze.cli._answers import answered, expanded, rows_of
from kanalyze.cli._late import late
from kanalyze.cli._output import emit
from kanalyze.errors import CannotTellError, UnknownNameError

with late():
    from kanalyze import catalog
    from kanalyze.analyses.iterations import iterations
    from kanalyze.analyses.joining import _roof_points
    from kanalyze.analyses.timeline import _tracks
    from kanalyze.renderers.tables import plots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

#: What can be drawn.
_PICTURES: Final = ("ledger", "timeline", "steps", "durations", "roofline", "ranks", "compare")

#: Those of them that are of one report, and those that are of a table.
_OF_ONE: Final = ("timeline", "steps", "durations")
_OF_TABLES: Final = ("ledger", "compare", "ranks")

#: Events of a timeline in print, single ones and sums.
_EVENTS: Final = 6000


@click.command()
@_options.reports_argument
@click.argument("picture", type=click.Choice(_PICTURES))
@_options.scope
@click.option("--kernel", metavar="TEXT", help="durations: of the longest kernel with this in its name.")
@_options.output_to("A file that ends in .svg, .png or .pdf.", required=True)
@_options.in_one_thread_if_small
def plot(
    reports: Sequence[Path],
    picture: str,
    kernel: str | None,
    output: Path,
    **where: Unpack[_options.Where],
) -> None:
    """Draw a PICTURE of REPORTS.

    ledger: where the time of each GPU went. timeline: what ran when, of a window. steps: the ledger of each iteration.
    durations: how long the launches of one kernel took. roofline: kernels that ncu measured under their roofs. ranks:
    the steps of a job's ranks, and who was late. compare: from the first report to the second, bucket by bucket.
    """
    form = output.suffix.removeprefix(".")
    if form not in plots.FORMATS:
        raise UnknownNameError.of("kind of picture", form, plots.FORMATS)
    if picture in _OF_ONE and len(reports) > 1:
        raise click.UsageError(f"{picture} is of one report.")
    emit(_drawn(reports, picture, where, kernel, form), output)


def _drawn(reports: Sequence[Path], picture: str, where: _options.Where, kernel: str | None, form: str) -> bytes:
    if picture in _OF_TABLES:
        draw = {"ledger": plots.ledger, "compare": plots.waterfall, "ranks": plots.ranks}[picture]
        return draw(rows_of(reports, catalog.table(picture), where), form)
    if picture == "durations":
        return _durations(reports[0], where, kernel, form)
    if picture == "steps":
        return plots.steps(_iterations(reports[0], where), form)
    if picture == "roofline":
        return plots.roofline(_roof_points.roof_points(_options.opened_together(expanded(reports), where)), form)
    parts = _options.opened_parts(reports[0], where)
    if len(parts) > 1:
        raise click.UsageError("a timeline is of one window; name one of them, such as step#3.")
    return plots.timeline(_tracks.timeline(next(iter(parts.values())), _EVENTS), form)


def _iterations(report: Path, where: _options.Where) -> pl.DataFrame:
    import polars as pl  # noqa: PLC0415 - --help need not import polars

    found = pl.concat(answered(report, catalog.table("iterations"), where, iterations.iteration_ledgers).values())
    if found.is_empty():
        raise CannotTellError(
            f"{report}: cannot tell steps, because nothing in it repeats.",
            "Mark the program's steps by NVTX ranges or torch.profiler, or draw the ledger.",
        )
    return found


def _durations(report: Path, where: _options.Where, kernel: str | None, form: str) -> bytes:
    """The durations of the kernel that took longest, of those with a text in their names."""
    import polars as pl  # noqa: PLC0415 - --help need not import polars

    rows = rows_of([report], catalog.table("events"), where).filter(pl.col("kind") == "kernel")
    line = rows.select(pl.col("name").cast(pl.String), "dur_ns").drop_nulls()
    sums = line.group_by("name").agg(pl.col("dur_ns").sum()).sort("dur_ns", "name", descending=[True, False])
    if kernel is not None:
        known = sums.get_column("name").to_list()
        sums = sums.filter(pl.col("name").str.to_lowercase().str.contains(kernel.lower(), literal=True))
        if sums.is_empty():
            raise UnknownNameError.of("kernel", kernel, known)
    if sums.is_empty():
        raise CannotTellError.without("durations", report, ["kernel"])
    name = sums.item(0, "name")
    return plots.durations(name, line.filter(pl.col("name") == name).get_column("dur_ns"), form)
