"""``kanalyze sql``: the answer to an SQL statement over the tables of reports."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, Unpack

import click

from kanalyze import outlets
from kanalyze.cli._answers import Opened, rows_of
from kanalyze.cli._late import late
from kanalyze.cli._memory import apart, limits_of_process, noted
from kanalyze.cli._options import Where, formats, in_one_thread_if_small, no_formulas, output, reports_argument, scope
from kanalyze.cli._output import emit, emit_rows, print_message, width
from kanalyze.errors import OutputError, SqlError

with late():
    from kanalyze import catalog, queries
    from kanalyze.renderers.tables import fitted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import polars as pl

#: How to see the columns that do not fit.
_HOW = "--format csv has all"

#: The environment variables that limit a statement, in seconds and GiB beside its tables, and what they are unless set.
_SECONDS: Final = ("KANALYZE_SQL_SECONDS", 60)
_GIB: Final = ("KANALYZE_SQL_GIB", 4)


@click.command()
@reports_argument
@click.argument("statement")
@scope
@formats("csv", "json", "parquet")
@no_formulas
@output
@in_one_thread_if_small
def sql(
    reports: Sequence[Path],
    statement: str,
    form: str,
    output: Path | None,
    *,
    no_formulas: bool,
    **where: Unpack[Where],
) -> None:
    """Answer STATEMENT, in SQL, over the tables of REPORTS.

    Tables have the names and columns that `kanalyze tables` lists; those that the statement names are made. Of several
    reports each has the rows of all, and a first column `report`. The SQL is that of polars; docs/sql.md has examples.
    """
    from polars.exceptions import PolarsError  # noqa: PLC0415 - --help need not import polars

    if form == "parquet" and output is None:
        raise OutputError.needs_file(form)
    opened = Opened()

    def make(name: str) -> pl.DataFrame:
        return rows_of(reports, catalog.table(name), where, opened=opened)

    rows = queries.answer(statement, make, _bounded if apart() else nullcontext)
    for told in opened.origins.values():
        print_message(outlets.line(f"kanalyze: {told}"))
    if form == "terminal":
        emit(fitted.terminal(rows, width(), fitted.Choice(tuple(rows.columns), _HOW)), output)
    else:
        try:
            emit_rows(rows, form, output, no_formulas=no_formulas)
        except PolarsError as error:  # lists, which CSV cannot hold
            raise queries.refused(error) from error


@contextmanager
def _bounded() -> Iterator[None]:
    """Lets a statement open neither files nor sockets in here, and ends this process where it takes too much."""
    import resource  # noqa: PLC0415 - there is none on Windows

    seconds, gib = _limit(*_SECONDS), _limit(*_GIB)
    limits = {resource.RLIMIT_NOFILE: 0}
    fewer = "Ask for fewer rows, with WHERE or a condition of each JOIN"
    reasons: dict[int, tuple[str, str]] = {
        signal.SIGALRM: (f"it takes more than {seconds:g} s", f"{fewer}; {_SECONDS[0]}={seconds * 10:g} allows more."),
        signal.SIGSEGV: ("it is nested too deeply", "Take fewer parts, or a list: `x IN (…)`."),
    }
    if not limits_of_process():
        limits[resource.RLIMIT_DATA] = _data_bytes() + int(gib * 2**30)
        more = f"it takes more than {gib:g} GiB of memory beside its tables"
        reasons[signal.SIGABRT] = (more, f"{fewer}; {_GIB[0]}={gib * 2:g} allows more.")
    before = {kind: resource.getrlimit(kind) for kind in limits}
    with noted(reasons):
        for kind, limit in limits.items():
            hard = before[kind][1]
            resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for kind, both in before.items():
                resource.setrlimit(kind, both)


def _data_bytes() -> int:
    """Memory of this process that counts against RLIMIT_DATA, about; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - as quick as may be
            return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _limit(name: str, usual: float) -> float:
    """The limit that an environment variable sets, or the usual one."""
    text = os.environ.get(name, "") or str(usual)
    try:
        limit = float(text)
    except ValueError:
        limit = 0
    if not 0 < limit < 1e6:  # noqa: PLR2004 - ten days, a million GiB
        raise SqlError.of(f"{name} is {text!r}, no number above 0 and below 1,000,000", f"Set {name}={usual}, or more.")
    return limit
