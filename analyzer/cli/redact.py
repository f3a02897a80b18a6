"""``kanalyze redact``: a copy of a report that may be shown to others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kanalyze import outlets
from kanalyze.cli._late import late
from kanalyze.cli._options import report_argument
from kanalyze.cli._output import emit
from kanalyze.units import count

with late():
    from kanalyze import redact as redaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.redact import Removed


@click.command()
@report_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT", help="The copy; it must not exist yet.")
@click.option("--keep", multiple=True, metavar="TEXT", help="Leave TEXT, although it looks like a name of yours.")
@click.option("--remove", multiple=True, metavar="TEXT", help="Take out TEXT too, such as the name of a project.")
@click.option("--source", is_flag=True, help="Leave what stands in the lines of the program.")
@click.option("--check", is_flag=True, help="Only say what would be taken out.")
def redact(  # noqa: PLR0913 - click's
    report: Path,
    output: Path | None,
    keep: Sequence[str],
    remove: Sequence[str],
    source: bool,  # noqa: FBT001 - click's
    check: bool,  # noqa: FBT001 - click's
) -> None:
    """Copy REPORT without what identifies its machine and user, and say what was taken out.

    REPORT is an nsys export (.sqlite), a trace of torch.profiler, a report or page of ncu, or a capture's folder.
    """
    if (output is None) is not check:
        raise click.UsageError("Give either -o OUT or --check.")
    removed = redaction.redact(report, output, keep=keep, remove=remove, source=source)
    emit(_summary(removed, f"{report}: would be taken out:" if check else f"{output}: written. Taken out:"), None)


def _summary(removed: Removed, head: str) -> str:
    """Summary of what was removed, as lines."""
    counts = {what: count(number) for what, number in removed.counts.most_common()}
    wide = max(map(len, counts.values()), default=0)
    lines = [f"  {number:>{wide}}  {what}" for what, number in counts.items()] or ["  nothing"]
    left_out = [f"left out: {name}, {why}" for name, why in removed.left_out.items()]
    advice = "Names of kernels, ranges and files stay: look at it before you show it; --remove takes out more."
    return "\n".join(outlets.line(line) for line in (head, *lines, *left_out, *removed.notes, advice)) + "\n"
