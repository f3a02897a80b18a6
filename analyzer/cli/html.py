"""``kanalyze html``: a report as one HTML file with a timeline, to look at and to send."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from kanalyze import outlets, units
from kanalyze.cli._options import Where, opened_together, part, reports_argument, scope
from kanalyze.cli._output import emit, print_doubts, print_message, refuse_overwriting
from kanalyze.machinery.memory import sparing_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Events that the timeline draws one by one or in sums.
_EVENTS = 600_000


@click.command()
@reports_argument
@scope
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file; the report's name with .html unless told.",
)
@click.option("--open", "opens", is_flag=True, help="Show it in the browser.")
def html(reports: Sequence[Path], output: Path | None, *, opens: bool, **where: Unpack[Where]) -> None:
    """One HTML file of REPORTS of one program: the page, a timeline, tables; it opens anywhere, without network."""
    target = output or Path(f"{reports[0].resolve().name.split('.')[0]}.html")
    for report in reports:
        refuse_overwriting(report, target)
    with sparing_memory():
        from kanalyze.analyses.page.file_page import file_pages  # noqa: PLC0415 - --help need not import polars
    from kanalyze.renderers.report_file.document import document  # noqa: PLC0415 - as above

    pages = file_pages(*opened_together(reports, where, runs=False), most=_EVENTS, **part(where))
    if len(pages) > 1:
        names = ", ".join(outlets.line(page.metas[0].path.name) for page in pages)
        message = f"{len(pages)} reports have a time of their own ({names}): give one of them, and what belongs to it."
        raise click.UsageError(message)
    emit(document(pages[0]).encode(), target)
    print_doubts(everything=True)
    print_message(
        f"kanalyze: {outlets.line(str(target))}, {units.size(target.stat().st_size)}; open it in any browser."
    )
    if opens:
        click.launch(str(target))
