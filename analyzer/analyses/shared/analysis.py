"""What analyses are made with: results cached per report, checks of what a report holds, and threads."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from threading import RLock
from typing import Final, Protocol, TypeVar, TypeVarTuple, Unpack

import polars as pl

from kanalyze import model, schema, window
from kanalyze.errors import CannotTellError, KanalyzeError, UnknownNameError
from kanalyze.machinery import workers
from kanalyze.report import Report, Where

T = TypeVar("T")
J = TypeVar("J")
Others = TypeVarTuple("Others")


#: A function of a report with a cached result; see :func:`once_per_report`.
Remembered = Callable[[Report], T]


def once_per_report(compute: Callable[[Report, *Others], T]) -> Callable[[Report, *Others], T]:
    """Caches the result of `compute` per report, or tuple of them, for the lifetime of the first one."""
    lock = RLock()

    @wraps(compute)
    def remembered(first: Report, *others: *Others) -> T:
        key = (remembered, *map(id, others))
        with lock:
            if key not in first.answers:
                first.answers[key] = others, compute(first, *others)  # the others are kept, so that ids stay unique
            result: T = first.answers[key][1]
            return result

    return remembered


def once_per_process(compute: Callable[[Report], T]) -> Remembered[T]:
    """As :func:`once_per_report`, for results independent of window and device: shared by all parts of a report."""
    of_whole = once_per_report(compute)

    @wraps(compute)
    def remembered(report: Report) -> T:
        return of_whole(report.whole)

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


def part_of(report: Report, where: Where, table: schema.Table, by: str | None, *kinds: str) -> Report:
    """The part of a report that a table is asked of, summed by a grouping of that or not; see :func:`require`.

    Raises:
        UnknownNameError: There is no such grouping.
    """
    part = report.narrow(**where)
    check_grouping(table, by)
    require(part, table, *kinds)
    return part


def require(report: Report, table: schema.Table | str, *kinds: str) -> None:
    """Raises :class:`CannotTellError` unless the report records one of `kinds`, which `table` needs, with times."""
    if report.meta.timeless:
        raise CannotTellError.timeless(name_of(table), report.meta.path)
    _require_kinds(report, name_of(table), *kinds)


def require_kernels(report: Report, table: schema.Table) -> None:
    """As :func:`require`, for a table that needs the durations of kernels.

    Kernels of ncu suffice, though it measured them one by one, without a place in time; they are in no window.
    """
    if report.meta.timeless and report.scope.window is not None:
        raise CannotTellError.timeless(f"{table.name} of a window", report.meta.path)
    _require_kinds(report, table.name, "kernel")


def check_grouping(table: schema.Table, by: str | None) -> None:
    """Raises :class:`UnknownNameError` unless `by` is a grouping of `table`, or none."""
    if by not in (None, *table.groupings):
        raise UnknownNameError.of(f"grouping of {table.name}", by, table.groupings)


#: Kinds of events that a tool records when it is told to, which costs the program time.
_SETTINGS: Final = ("api", "range", "op", "python", "osrt", "fault", "memory")


def recorded_kinds(report: Report) -> str:
    """The kinds of events of a report that its tool records when it is told to, which costs the program time."""
    return " ".join(kind for kind in report.kinds if kind in _SETTINGS)


def name_of(table: schema.Table | str) -> str:
    """The name of a table that is given by its declaration, or by its name."""
    return table if isinstance(table, str) else table.name


def _require_kinds(report: Report, table: str, *kinds: str) -> None:
    if not set(kinds).intersection(report.kinds):
        raise CannotTellError.without(table, report.meta.path, kinds, report.meta.tool)


@once_per_process
def source_lines(report: Report) -> pl.DataFrame:
    """The lines that threads were in, :data:`SOURCE_LINES`, of the process in scope."""
    return _of_capture(report, model.SOURCE_LINES)


@once_per_process
def loop_passes(report: Report) -> pl.DataFrame:
    """When loops began a pass, :data:`LOOP_PASSES`, of the process in scope."""
    return _of_capture(report, model.LOOP_PASSES)


def _of_capture(report: Report, table: schema.Table) -> pl.DataFrame:
    """A table of the capture, of the process in scope; where it is damaged it has no rows, which is noted."""
    try:
        rows = report.table(table.name)
    except KanalyzeError as damage:
        report.go_without("of the program's lines", damage)
        return table.empty()
    process = report.scope.process
    return rows if process is None else rows.filter(rows.get_column("process_id") == process)


def in_threads(work: Callable[[J], T], jobs: Sequence[J]) -> Iterator[T]:
    """Maps `work` over `jobs` in a thread pool, results in order; polars releases the GIL."""
    if len(jobs) <= 1:
        yield from map(work, jobs)
        return
    with ThreadPoolExecutor(min(workers(), len(jobs))) as pool:
        yield from pool.map(work, jobs)


def in_one_thread(work: Callable[[], T]) -> T:
    """Runs `work` with all that polars does for it in the calling thread.

    polars hands filters, sorts, groups and joins to its pool of threads and waits for them, which takes several times
    as long as they do on frames of a few rows. It hands over nothing in a thread in which its streaming engine runs,
    which has one already for each processor; and there it calls what a query maps a frame with. Should it do otherwise
    one day, only speed is lost: without it the page of a report of 0.2 MB takes 0.50 instead of 0.37 s, and of 0.6 MB
    1.25 instead of 0.80 s.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run(frame: pl.DataFrame) -> pl.DataFrame:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - any would come out as an error of polars
            errors.append(error)
        return frame

    try:
        pl.LazyFrame({"any": [0]}).map_batches(run).collect(engine="streaming")
    except KeyboardInterrupt:
        if not errors:
            raise  # else it is the one that `work` ended with, once more
    if errors:
        raise errors.pop()  # held by nothing but what catches it
    return results[0] if results else work()


@once_per_process
def named_ranges(report: Report) -> pl.DataFrame:
    """Ranges of the processes in scope, at any time, sorted by start, then event_id.

    Columns: those of :func:`kanalyze.window.named`.
    """
    return window.named(report.kind("range"), report.table("range_detail"))
