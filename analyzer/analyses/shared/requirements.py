"""Checks that a report has the kinds of events, and the times, that a table needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze.errors import CannotTellError

if TYPE_CHECKING:
    from kanalyze.report import Report


def require(report: Report, table: str, *kinds: str) -> None:
    """Raises :class:`CannotTellError` unless the report records one of `kinds`, which `table` needs, with times."""
    if report.meta.timeless:
        raise CannotTellError.timeless(table, report.meta.path)
    _require_kinds(report, table, *kinds)


def require_kernels(report: Report, table: str) -> None:
    """Raises :class:`CannotTellError` unless the report records kernels, whose durations `table` needs.

    Kernels of ncu suffice, though it measured them one by one, without a place in time; they are in no window.
    """
    if report.meta.timeless and report.scope.window is not None:
        raise CannotTellError.timeless(f"{table} of a window", report.meta.path)
    _require_kinds(report, table, "kernel")


def _require_kinds(report: Report, table: str, *kinds: str) -> None:
    if not set(kinds).intersection(report.kinds):
        raise CannotTellError.without(table, report.meta.path, kinds, report.meta.tool)
