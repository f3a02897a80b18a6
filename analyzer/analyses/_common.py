"""What several analyses share: the statistics of a duration, and what a table needs of a report."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial, update_wrapper, wraps
from threading import RLock
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, TypeVarTuple

import polars as pl

from kanalyze.errors import CannotTellError
from kanalyze.one_thread import in_one_thread
from kanalyze.processors import workers
from kanalyze.schema import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Unpack

    from kanalyze.report import Report, Where

#: What tells one host thread from another, and its values.
THREAD: Final = ("process_id", "thread_id")
ThreadKey = tuple[int | None, int | None]

T = TypeVar("T")
J = TypeVar("J")
Others = TypeVarTuple("Others")


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


def total(frame: pl.DataFrame, column: str) -> int:
    """The sum of an integer column; 0 for no rows."""
    return int(frame.get_column(column).sum())


def longest(frame: pl.DataFrame, column: str) -> int:
    """The greatest value of an integer column; 0 for no value."""
    value = frame.get_column(column).max()
    return value if isinstance(value, int) else 0


def median_of(frame: pl.DataFrame, column: str) -> float:
    """The median of a numeric column; 0 for no value."""
    value = frame.get_column(column).median()
    return float(value) if isinstance(value, int | float) else 0.0


#: The columns count…stddev_ns that every summary of durations has, in nsys' order.
DURATION_COLUMNS = (
    Column("count", pl.Int64, "How many."),
    Column("total_ns", pl.Int64, "Sum of their durations, overlaps counted as often as they occur."),
    Column("share", pl.Float64, "Their part of the sum of this table's total_ns (nsys' Time %, as a fraction)."),
    Column("avg_ns", pl.Float64, "Mean duration."),
    Column("median_ns", pl.Float64, "Median duration."),
    Column("min_ns", pl.Int64, "Shortest."),
    Column("max_ns", pl.Int64, "Longest."),
    Column("stddev_ns", pl.Float64, "Sample standard deviation of the durations; 0 for a single one."),
)


def duration_statistics() -> list[pl.Expr]:
    """The aggregations behind :data:`DURATION_COLUMNS`, of the column dur_ns; `share` follows from them all."""
    return [
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("dur_ns").sum().alias("total_ns"),
        *spread("dur_ns", "", "_ns"),
    ]


def spread(column: str, prefix: str, unit: str) -> list[pl.Expr]:
    """Mean, median, least, most and sample deviation of a column, named ``<prefix>avg<unit>`` and so on.

    All but the deviation are null where the column has no values; it is then 0, as nsys prints it.
    """
    value = pl.col(column)
    parts = {
        "avg": value.mean(),
        "median": value.median(),
        "min": value.min(),
        "max": value.max(),
        "stddev": value.std().fill_null(0.0),
    }
    return [expression.alias(f"{prefix}{name}{unit}") for name, expression in parts.items()]


def share_of_total() -> pl.Expr:
    """Each row's part of the sum of total_ns; 0 where that sum is 0."""
    total = pl.col("total_ns").sum()
    return pl.when(total > 0).then(pl.col("total_ns") / total).otherwise(0.0).alias("share")
