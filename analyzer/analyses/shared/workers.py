"""Thread pools over tables and batches, where a report is large enough to gain and memory suffices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from kanalyze.machinery.one_thread import in_one_thread
from kanalyze.machinery.processes import workers
from kanalyze.report import Report

T = TypeVar("T")
J = TypeVar("J")


def in_threads(work: Callable[[J], T], jobs: Sequence[J], *, small: bool = False) -> Iterator[T]:
    """Maps `work` over `jobs` in a thread pool, results in order; polars releases the GIL.

    With a job per processor or more, or `small` jobs, each runs in one thread, without the thread pool of polars.
    """
    if len(jobs) <= 1:
        yield from map(work, jobs)
        return
    most = workers()

    def alone(job: J) -> T:
        return in_one_thread(partial(work, job))

    with ThreadPoolExecutor(min(most, len(jobs))) as pool:
        yield from pool.map(alone if small or len(jobs) >= most else work, jobs)


#: Thresholds in events: from so many calls or kernels on, tables are made in parallel: below, threads wait for Python's
#: lock (benchmarks/). With more than so many kernels, or so many calls, operators and Python functions, one after the
#: other, to save memory.
_WORTH_WHILE: Final = 1 << 19
_MANY: Final = 1 << 20
_MANY_ON_HOST: Final = 1 << 22

_ON_HOST: Final = ("api", "op", "python")


def _count(report: Report, *kinds: str) -> int:
    return sum(report.kind(kind).height for kind in kinds if kind in report.kinds)


def many(kernels: int) -> bool:
    """Whether memory matters more than time with this number of kernels."""
    return kernels > _MANY


def many_events(report: Report) -> bool:
    """Whether memory matters more than time for a report."""
    return many(_count(report, "kernel")) or ("op" in report.kinds and _count(report, *_ON_HOST) > _MANY_ON_HOST)


def side_by_side(report: Report, makers: Sequence[Callable[[Report], T]]) -> list[T]:
    """Results of `makers` for a report; in parallel, unless the report has :func:`many_events`."""
    return [make(report) for make in makers] if many_events(report) else at_once(report, makers)


def at_once(report: Report, makers: Sequence[Callable[[Report], T]]) -> list[T]:
    """As :func:`side_by_side`, for makers with small intermediate tables: in parallel for large reports, too."""
    if not any(_count(report, kind) >= _WORTH_WHILE for kind in ("api", "kernel")):
        return [make(report) for make in makers]
    return list(in_threads(lambda make: make(report), makers, small=not many(_count(report, "api"))))
