"""What a table needs of a report: kinds of events, and times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze.errors import CannotTellError

if TYPE_CHECKING:
    from kanalyze.report import Report


def require(report: Report, table: str, *kinds: str) -> None:
    """Raise :class:`CannotTellError` unless the report records one of `kinds`, which `table` is made of, in time."""
    if report.meta.timeless:
        raise CannotTellError.timeless(table, report.meta.path)
    _require_kinds(report, table, *kinds)


def require_kernels(report: Report, table: str) -> None:
    """Raise :class:`CannotTellError` unless the report records kernels, of whose durations `table` is made.

    ncu's will do, which it measured one by one: each had the device for itself. They are in no window.
    """
    if report.meta.timeless and report.scope.window is not None:
        raise CannotTellError.timeless(f"{table} of a window", report.meta.path)
    _require_kinds(report, table, "kernel")


def _require_kinds(report: Report, table: str, *kinds: str) -> None:
    if not set(kinds).intersection(report.kinds):
        raise CannotTellError.without(table, report.meta.path, kinds, report.meta.tool)
