"""Work on several tables at once, where a report is large enough to gain by it and small enough for memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from kanalyze.one_thread import in_one_thread
from kanalyze.processors import workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kanalyze.report import Report


T = TypeVar("T")


J = TypeVar("J")


def in_threads(work: Callable[[J], T], jobs: Sequence[J], *, small: bool = False) -> Iterator[T]:
    """What `work` gives for each of `jobs`, in order; several at once, since polars lets go of Python's lock.

    Where there are enough of them for all processors, or they are `small`, each is done in one thread, without the
    help of polars' pool.
    """
    if len(jobs) <= 1:
        yield from map(work, jobs)
        return
    most = workers()

    def alone(job: J) -> T:
        return in_one_thread(partial(work, job))

    with ThreadPoolExecutor(min(most, len(jobs))) as pool:
        yield from pool.map(alone if small or len(jobs) >= most else work, jobs)


#: So many kernels make it worth while to work on several tables at once; so many of them, or so many calls and
#: operators, make memory count more.
_WORTH_WHILE: Final = 1 << 14


_MANY: Final = 1 << 20


_MANY_ON_HOST: Final = 1 << 22


_ON_HOST: Final = ("api", "op", "python")


def _count(report: Report, *kinds: str) -> int:
    return sum(report.kind(kind).height for kind in kinds if kind in report.kinds)


def many(kernels: int) -> bool:
    """Whether memory counts more than time where there are so many kernels."""
    return kernels > _MANY


def many_events(report: Report) -> bool:
    """Whether memory counts more than time."""
    return many(_count(report, "kernel")) or ("op" in report.kinds and _count(report, *_ON_HOST) > _MANY_ON_HOST)


def side_by_side(report: Report, makers: Sequence[Callable[[Report], T]]) -> list[T]:
    """What each of `makers` gives for a report; several at once where that is worth while."""
    return [make(report) for make in makers] if many_events(report) else at_once(report, makers)


def at_once(report: Report, makers: Sequence[Callable[[Report], T]]) -> list[T]:
    """What :func:`side_by_side` gives, of makers that take little memory beside what they give."""
    if not any(_count(report, kind) >= _WORTH_WHILE for kind in ("api", "kernel")):
        return [make(report) for make in makers]
    return list(in_threads(lambda make: make(report), makers, small=not many(_count(report, "api"))))
