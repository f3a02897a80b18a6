"""Checks that a report has the kinds of events, and the times, that a table needs; and lines of the program.

Where the lines and loops that a capture has are damaged there are none, which is noted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.errors import CannotTellError, KanalyzeError, UnknownNameError
from kanalyze.model import LOOP_PASSES, SOURCE_LINES
from kanalyze.report import Report
from kanalyze.schema import Table

if TYPE_CHECKING:
    import polars as pl


def require(report: Report, table: Table | str, *kinds: str) -> None:
    """Raises :class:`CannotTellError` unless the report records one of `kinds`, which `table` needs, with times."""
    if report.meta.timeless:
        raise CannotTellError.timeless(name_of(table), report.meta.path)
    _require_kinds(report, name_of(table), *kinds)


def require_kernels(report: Report, table: Table) -> None:
    """As :func:`require`, for a table that needs the durations of kernels.

    Kernels of ncu suffice, though it measured them one by one, without a place in time; they are in no window.
    """
    if report.meta.timeless and report.scope.window is not None:
        raise CannotTellError.timeless(f"{table.name} of a window", report.meta.path)
    _require_kinds(report, table.name, "kernel")


def check_grouping(table: Table, by: str | None) -> None:
    """Raises :class:`UnknownNameError` unless `by` is a grouping of `table`, or none."""
    if by not in (None, *table.groupings):
        raise UnknownNameError.of(f"grouping of {table.name}", by, table.groupings)


def name_of(table: Table | str) -> str:
    """The name of a table that is given by its declaration, or by its name."""
    return table if isinstance(table, str) else table.name


def _require_kinds(report: Report, table: str, *kinds: str) -> None:
    if not set(kinds).intersection(report.kinds):
        raise CannotTellError.without(table, report.meta.path, kinds, report.meta.tool)


@once_per_process
def source_lines(report: Report) -> pl.DataFrame:
    """The lines that threads were in, :data:`SOURCE_LINES`, of the process in scope."""
    return _of_capture(report, SOURCE_LINES)


@once_per_process
def loop_passes(report: Report) -> pl.DataFrame:
    """When loops began a pass, :data:`LOOP_PASSES`, of the process in scope."""
    return _of_capture(report, LOOP_PASSES)


def _of_capture(report: Report, table: Table) -> pl.DataFrame:
    try:
        rows = report.table(table.name)
    except KanalyzeError as damage:
        report.go_without("of the program's lines", damage)
        return table.empty()
    process = report.scope.process
    return rows if process is None else rows.filter(rows.get_column("process_id") == process)
