"""Answers kept per report: computed when first asked for, shared by all analyses that build on them."""

from __future__ import annotations

from functools import update_wrapper, wraps
from threading import RLock
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    import polars as pl

    from kanalyze.report import Report, Where


T = TypeVar("T")


Others = TypeVarTuple("Others")


class Remembered(Generic[T]):
    """A function of a report whose answer is kept as long as the report lives; see :func:`once_per_report`."""

    def __init__(self, compute: Callable[[Report], T]) -> None:
        """Remember what `compute` gives."""
        self._compute = compute
        self._lock = RLock()
        update_wrapper(self, compute)

    def __call__(self, report: Report) -> T:
        """The answer, computed when it is first asked for."""
        with self._lock:
            if self not in report.answers:
                report.answers[self] = self._compute(report)
            found: T = report.answers[self]
            return found

    def forget(self, report: Report) -> None:
        """Let go of the answer; it is computed again if it is asked for again."""
        with self._lock:
            report.answers.pop(self, None)


def once_per_report(compute: Callable[[Report], T]) -> Remembered[T]:
    """Keep what `compute` gives for a report as long as the report lives: several analyses build on it."""
    return Remembered(compute)


class _OfWhole(Remembered[T]):
    """A function of the whole of a report, of which all parts of the report have the answer."""

    def __call__(self, report: Report) -> T:
        """The answer, computed when it is first asked for."""
        return super().__call__(report.whole)

    def forget(self, report: Report) -> None:
        """Let go of the answer."""
        super().forget(report.whole)


def once_per_process(compute: Callable[[Report], T]) -> Remembered[T]:
    """As :func:`once_per_report`, for what neither window nor device changes: the parts of a report share it."""
    return _OfWhole(compute)


def once_together(compute: Callable[[Report, *Others], T]) -> Callable[[Report, *Others], T]:
    """Keep what `compute` gives for several reports as long as the first of them lives; the others live with it."""

    @once_per_report
    def known(report: Report) -> dict[tuple[int, ...], tuple[tuple[*Others], T]]:
        del report
        return {}

    @wraps(compute)
    def remembered(first: Report, *others: *Others) -> T:
        found, key = known(first), tuple(map(id, others))  # which are kept, so that ids stay theirs
        if key not in found:
            found[key] = others, compute(first, *others)
        return found[key][1]

    return remembered


class Analysis(Protocol):
    """A function from a report, or the part of it that keywords name, to one table."""

    def __call__(self, report: Report, **where: Unpack[Where]) -> pl.DataFrame:
        """The table; `where` is a window, device or process to look at alone."""


def analysis(compute: Callable[[Report], pl.DataFrame]) -> Analysis:
    """Make a function of a report one that also takes the part to look at, and that remembers its answer."""
    remembered = once_per_report(compute)

    def narrowed(report: Report, **where: Unpack[Where]) -> pl.DataFrame:
        return remembered(report.narrow(**where))

    # not functools.wraps: help() is to show the keywords, which the wrapped function does not have
    for name in ("__doc__", "__name__", "__qualname__", "__module__"):
        setattr(narrowed, name, getattr(compute, name))
    return narrowed
