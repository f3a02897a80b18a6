"""``kanalyze html``: a report as one HTML file with a timeline, to look at and to send."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from kanalyze import outlets, units
from kanalyze.cli import _options
from kanalyze.cli._answers import expanded, of_each
from kanalyze.cli._late import late
from kanalyze.cli._output import emit, print_doubts, print_message, refuse_overwriting

with late():
    from kanalyze.analyses.page import file_page
    from kanalyze.readers.capture import reports as captures
    from kanalyze.renderers.report_file import document
    from kanalyze.several import jobs, pictures, sides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.page.file_page import FilePage
    from kanalyze.renderers.page.of_any_kind import Shown

#: Events that the timeline draws one by one or in sums.
_EVENTS = 600_000


@click.command()
@_options.reports_argument
@click.option("--base", multiple=True, type=_options.READ, metavar="RUN", help="A run of the side to compare with.")
@_options.scope
@_options.output_to("The file; the report's name with .html unless told.")
@click.option("--open", "opens", is_flag=True, help="Show it in the browser.")
def html(
    reports: Sequence[Path], base: Sequence[Path], output: Path | None, *, opens: bool, **where: Unpack[_options.Where]
) -> None:
    """Write one HTML file of REPORTS of one program: page, timeline, tables; it opens anywhere, without network.

    With --base, or of a folder of `collect --against`, it is of the comparison of two sides.
    """
    target = output or Path(f"{Path(os.path.realpath(reports[0])).name.split('.')[0]}.html")
    refuse_overwriting(target)
    if base or (len(reports) == 1 and captures.sides_in(reports[0]) is not None):
        asked = _options.asked_of_sides(where)
        page: FilePage[Shown] = pictures.file_page_of_sides(*sides.given(reports, base), asked, _EVENTS)
    else:
        page = _page(reports, where)
    emit(document.document(page).encode(), target)
    print_doubts(everything=True)
    print_message(
        f"kanalyze: {outlets.line(str(target))}, {units.size(target.stat().st_size)}; open it in any browser."
    )
    if opens:
        click.launch(str(target))


def _page(reports: Sequence[Path], where: _options.Where) -> FilePage[Shown]:
    """The content: of the ranks of one job together, else of the report that gives the time."""
    paths = _options.different(expanded(reports))
    found = of_each(paths, lambda report: _options.opened_together([report], where, runs=False))
    opened = [one for some in found for one in some]
    if _options.several_ranks(one.meta for one in opened) or (len(opened) > 1 and jobs.of_ranks(opened)):
        _options.refuse_part(where, "the ranks of a job are shown whole; give one of their reports for a part of it.")
        return pictures.file_page_of_job(jobs.reports_of_one_tool(opened), _options.asked_of_job(where), _EVENTS)
    pages = file_page.file_pages(*opened, most=_EVENTS, **_options.part(where))
    if len(pages) > 1:
        names = ", ".join(outlets.line(page.metas[0].path.name) for page in pages)
        message = f"{len(pages)} reports have a time of their own ({names}): give one of them, and what belongs to it."
        raise click.UsageError(message)
    return pages[0]
