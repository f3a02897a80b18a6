"""Caches results per report: computed on first use, shared by all analyses that need them."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper, wraps
from threading import RLock
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, TypeVarTuple, Unpack

from kanalyze.report import Report, Where

if TYPE_CHECKING:
    import polars as pl


T = TypeVar("T")


Others = TypeVarTuple("Others")


class Remembered(Generic[T]):
    """A function of a report with a cached result; see :func:`once_per_report`."""

    def __init__(self, compute: Callable[[Report], T]) -> None:
        """Wraps `compute`."""
        self._compute = compute
        self._lock = RLock()
        update_wrapper(self, compute)

    def __call__(self, report: Report) -> T:
        """The cached result, computed on the first call."""
        with self._lock:
            if self not in report.answers:
                report.answers[self] = self._compute(report)
            found: T = report.answers[self]
            return found


def once_per_report(compute: Callable[[Report], T]) -> Remembered[T]:
    """Caches the result of `compute` per report, for the lifetime of the report."""
    return Remembered(compute)


class _OfWhole(Remembered[T]):
    """A function of the whole report, with one cached result for all narrowed parts of it."""

    def __call__(self, report: Report) -> T:
        """The cached result for the whole report, computed on the first call."""
        return super().__call__(report.whole)


def once_per_process(compute: Callable[[Report], T]) -> Remembered[T]:
    """As :func:`once_per_report`, for results independent of window and device: shared by all parts of a report."""
    return _OfWhole(compute)


def once_together(compute: Callable[[Report, *Others], T]) -> Callable[[Report, *Others], T]:
    """Caches the result of `compute` for a tuple of reports, for the lifetime of the first one."""

    @once_per_report
    def known(report: Report) -> dict[tuple[int, ...], tuple[tuple[*Others], T]]:
        del report
        return {}

    @wraps(compute)
    def remembered(first: Report, *others: *Others) -> T:
        found, key = known(first), tuple(map(id, others))  # kept alive by the cache, so that ids stay unique
        if key not in found:
            found[key] = others, compute(first, *others)
        return found[key][1]

    return remembered


class Analysis(Protocol):
    """A function from a report, or a part of it given by keywords, to one table."""

    def __call__(self, report: Report, **where: Unpack[Where]) -> pl.DataFrame:
        """The table; `where` is a window, device or process to look at alone."""


def analysis(compute: Callable[[Report], pl.DataFrame]) -> Analysis:
    """Decorator: adds the keywords that narrow a report, and caches the table per part."""
    remembered = once_per_report(compute)

    def narrowed(report: Report, **where: Unpack[Where]) -> pl.DataFrame:
        return remembered(report.narrow(**where))

    # not functools.wraps: help() would show the signature without the keywords
    for name in ("__doc__", "__name__", "__qualname__", "__module__"):
        setattr(narrowed, name, getattr(compute, name))
    return narrowed
