"""``kanalyze tree``, ``source`` and ``roofline``: what launched kernels, what they are made of, and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kanalyze.cli import _options
from kanalyze.cli._answers import answered
from kanalyze.cli._options import OUTPUT, REPORT, REPORTS, SCOPE, Where, argument, command, formats, option
from kanalyze.cli._output import Out, emit, width
from kanalyze.cli.tables import drawn_form
from kanalyze.errors import CannotTellError, UnknownNameError
from kanalyze.machinery import late
from kanalyze.units import parse_percent

with late():
    from kanalyze.analyses.counters import counters
    from kanalyze.analyses.counters import roofline as rooflines
    from kanalyze.analyses.joining import joined
    from kanalyze.analyses.operators import tree as trees_of
    from kanalyze.readers.capture import reports as captures
    from kanalyze.renderers.tables import fitted, listings, plots

if TYPE_CHECKING:
    from kanalyze.report import Report

_REMEDY: Final = (
    "Compile it with -lineinfo (nvcc), record it with `ncu --set full --import-source yes`, and give the .ncu-rep "
    "file, since pages have no lines; or ask for --sass."
)


@command(
    REPORT,
    *SCOPE,
    option("--by", "Whose time matters; the device's where there is any.", type=click.Choice(["device", "host"])),
    option("--depth", "At most so many nodes below each other.", "N", type=_options.COUNT),
    option("--min-share", "Leave out what takes less.", "SHARE", default="1%", show_default=True),
    formats("json"),
    OUTPUT,
)
def tree(  # noqa: PLR0913 - a click command has a parameter per option
    report: Path, where: Where, to: Out, *, by: str | None, depth: int | None, min_share: str
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
    if to.form == "json":
        to.emit(listings.tree_json({name: nodes for name, (nodes, _) in trees.items()}))
        return
    texts = [listings.call_tree(nodes, by or order, to.look(), name or "") for name, (nodes, order) in trees.items()]
    to.emit("\n".join(texts))


@command(
    REPORT,
    argument("kernel"),
    option("--sass view", "The GPU's assembly.", flag_value="sass"),
    option("--ptx view", "The PTX that each instruction was made of.", flag_value="ptx"),
    formats("json"),
    OUTPUT,
)
def source(report: Path, kernel: str, view: str | None, to: Out) -> None:
    """Show the source of KERNEL in REPORT, a report of ncu, with samples, instructions and coalescing by line.

    Of a folder that `kanalyze collect` wrote, REPORT is what ncu wrote there. KERNEL is a number of the table
    `counters` or a part of a name; of several such kernels the longest is shown.
    """
    opened = _options.closed_at_end(captures.counters_at(report))
    event_id, name = _chosen(opened, kernel)
    rows = opened.table("instructions") if view else counters.hot_lines(opened).drop_nulls("line")
    rows = rows.filter(rows.get_column("event_id") == event_id)
    if rows.is_empty() or (view == "ptx" and rows.get_column("ptx").null_count() == rows.height):
        raise CannotTellError.without_source(report, view.upper() if view else "source lines of this kernel", _REMEDY)
    if to.form == "json":
        to.emit(listings.source_json(name, rows))
    elif view:
        to.emit(listings.instructions(name, rows, view, to.look()))
    else:
        texts = {file: text.split("\n") for file, text in opened.table("source_files").iter_rows()}
        to.emit(listings.source_lines(name, rows, texts, to.look()))


def _chosen(report: Report, kernel: str) -> tuple[int, str]:
    """The kernel that is meant: its event_id and name."""
    frame = counters.counters(report).select("event_id", "name", "dur_ns")
    rows = [(number, name or "", duration or 0) for number, name, duration in frame.iter_rows()]
    meant = [row for row in rows if str(row[0]) == kernel] or [row for row in rows if kernel in row[1]]
    if not meant:
        raise UnknownNameError.of("kernel", kernel, [name for _, name, _ in rows])
    number, name, _ = max(meant, key=lambda row: (row[2], -row[0], row[1]))
    return number, name


@command(
    REPORTS,
    option("--plot", "Draw it: all kernels, sized by their time; .svg, .png or .html.", "FILE", type=_options.WRITTEN),
)
def roofline(reports: Sequence[Path], plot: Path | None) -> None:
    """Show work, bytes and distance to the roof of each kernel of REPORTS, one of them with counters of ncu."""
    form = drawn_form(plot, plots.ROOFLINE_FORMATS) if plot else None
    opened = _options.opened_together(reports, Where())
    if form is not None:
        emit(plots.roofline(joined.roof_points(opened), form), plot)
        return
    rows = rooflines.roofline(joined.counted_of(opened))
    choice = fitted.Choice(rooflines.TABLE.telling, how="kanalyze show roofline has --columns")
    emit(fitted.terminal(rows, width(), choice))
