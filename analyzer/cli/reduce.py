"""``kanalyze reduce``: reports of ranks as small tables, of which `kanalyze ranks` makes one page."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kanalyze import outlets
from kanalyze.cli._late import late
from kanalyze.cli._memory import limits_of_process, most_at_once
from kanalyze.cli._options import COUNT, print_left_out
from kanalyze.cli._output import InputPath, OutputPath, emit, print_message, stderr_is_terminal
from kanalyze.errors import OutputError
from kanalyze.files.stores import is_address
from kanalyze.machinery.processors import processors
from kanalyze.units import plural

with late():
    from kanalyze.several import reducing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.several.reducing import Reduced

#: The exit status where some reports were left out.
_SOME_LEFT_OUT = 1


@click.command()
@click.argument("reports", nargs=-1, required=True, type=InputPath())
@click.option(
    "-o",
    "--output",
    "out",
    type=OutputPath(),
    required=True,
    metavar="DIR",
    help="The folder of the reductions; may exist.",
)
@click.option(
    "-j",
    "--jobs",
    type=COUNT,
    metavar="N",
    help="So many reports at once; as many as there are processors and memory unless told.",
)
@click.option("--dask", metavar="ADDRESS", help="Let the workers of a dask scheduler do it, such as tcp://host:8786.")
def reduce(reports: Sequence[str], out: str, jobs: int | None, dask: str | None) -> None:
    """Keep what `kanalyze ranks` needs of REPORTS in DIR: traces, nsys reports, folders of them, captures.

    A report that DIR has already is not read again, unless it changed. One that cannot be read is named, the others are
    reduced, and the exit status is 1. `kanalyze ranks DIR` makes the page of all that is in DIR, whoever put it there.
    """
    if is_address(out):
        raise OutputError.because(Path(out), "an address on an object store; what is in a folder can be copied there")
    progress = _print_progress if stderr_is_terminal() else lambda *_: None
    with ExitStack() as at_end:
        if dask is not None:
            engine = at_end.enter_context(reducing.by_dask(dask))
        else:
            engine = reducing.by_processes(
                1 if limits_of_process() else jobs or min(processors(), most_at_once(reports))
            )
        found = reducing.reduce_reports(reports, Path(out), engine, progress=progress, left_out=print_left_out)
    emit(_summary(found), None)
    if found.left_out:
        raise click.exceptions.Exit(_SOME_LEFT_OUT)


def _summary(found: Reduced) -> str:
    """Summary of the reports' outcomes, and what to do with them."""
    parts = [f"{plural(len(found.made), 'report')} reduced"]
    parts += [f"{len(found.there):,} there already"] if found.there else []
    parts += [f"{len(found.left_out):,} left out"] if found.left_out else []
    return f"{', '.join(parts)}. The page of all: {outlets.command('kanalyze', 'ranks', found.out)}\n"


def _print_progress(done: int, every: int) -> None:
    """Shows how many ranks' reports are done, on one line of the terminal."""
    print_message(f"\r{done:,} of {plural(every, 'report')} reduced", newline=done == every)
