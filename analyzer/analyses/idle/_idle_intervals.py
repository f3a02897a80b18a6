"""Idle intervals of each device, each with the operation that ends it and the launch call of that, in batches.

Definitions: definitions.md, section 5, rules 5 to 13. Working in batches keeps peak memory independent of the size of
the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import polars as pl

from kanalyze.analyses.device._operations import (
    facts_of,
    launch_rows,
    launching_calls,
    launching_rows,
    of_device,
    operations,
)
from kanalyze.analyses.device._windows import activity, windows
from kanalyze.analyses.host._context_creation import context_calls, unrecorded_contexts, unseen_starts, unseen_syncs
from kanalyze.analyses.host._thread_timeline import label_codes, threads, winning
from kanalyze.analyses.shared.workers import at_once, in_threads
from kanalyze.columns.grouping import of_parts
from kanalyze.columns.lookup import count_up_to, sure
from kanalyze.machinery.processors import workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kanalyze.analyses.host._thread_timeline import Thread
    from kanalyze.analyses.shared.cached import Remembered
    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report


T = TypeVar("T")

#: Batch sizes, in idle intervals: the smallest batch, and the most that are in flight at one time; large enough to gain
#: more than threads wait for Python's lock (benchmarks/), small enough to bound memory.
FEWEST: Final = 1 << 16
BATCH: Final = 1 << 19

#: Cached answers that every batch looks up: computed beforehand, since batches would otherwise block on them one after
#: the other.
_NEEDED: Final[tuple[Remembered[Any], ...]] = (
    threads,
    unrecorded_contexts,
    context_calls,
    label_codes,
    winning,
    activity,
    launch_rows,
    launching_rows,
    unseen_starts,
    unseen_syncs,
)


class IdleDevice(NamedTuple):
    """The idle intervals of one device, its window and the host threads. Times are in nanoseconds.

    Attributes:
        report: The report.
        threads: The calls and overheads of each host thread, by process id and thread id.
        launching: Launch calls by process: :func:`kanalyze.analyses.device._operations.launching_calls`.
        device: The device.
        low: Start of its window.
        high: End of its window.
        begun: Start of the part of the window that the recording covers.
        ended: End of that part; the rest of the window is `unknown`.
        idle: The idle intervals of the device that overlap that part, not clipped; see :func:`idle_intervals`.
    """

    report: Report
    threads: dict[ThreadKey, Thread]
    launching: dict[int, pl.DataFrame]
    device: int
    low: int
    high: int
    begun: int
    ended: int
    idle: pl.DataFrame

    @property
    def unrecorded_ns(self) -> int:
        """Length of the part of the window that the recording does not cover."""
        return (self.high - self.low) - (self.ended - self.begun)

    def batches(self, idle: pl.DataFrame) -> list[IdleBatch]:
        """Splits `idle` into batches of bounded and about equal size, in order: threads end at the same time."""
        most = workers()
        size = min(max(-(-idle.height // most), FEWEST), max(BATCH // most, 1))
        number = max(-(-idle.height // size), 1)
        return [IdleBatch(self, some) for some in idle.iter_slices(max(-(-idle.height // number), 1))]

    def of_batches(self, work: Callable[[IdleBatch], T], idle: pl.DataFrame) -> Iterator[T]:
        """Maps `work` over the :meth:`batches` of `idle` in a thread pool; results in order."""
        return in_threads(work, self.batches(idle), small=True)


class IdleBatch(NamedTuple):
    """A batch of idle intervals of one device."""

    of: IdleDevice
    idle: pl.DataFrame

    def launched(self) -> pl.DataFrame:
        """The intervals clipped to the recorded window, with their launch calls: :func:`with_phases`."""
        joined = with_launches(self.of.report, self.idle, self.of.launching)
        return clip_phases(with_phases(joined), self.of.begun, self.of.ended)


def idle_devices(
    report: Report, *more: Remembered[Any], beside: Sequence[Remembered[Any]] = ()
) -> Iterator[IdleDevice]:
    """Idle intervals of each device in scope, with all that batches look up computed beforehand.

    `more` are further cached answers that batches look up; those in `beside` are computed at the same time as all else,
    so they should need little memory.
    """

    def prepare(report: Report) -> None:
        for one in (*_NEEDED, *more):
            one(report)
        found.extend(_idle_devices(report))

    def prepare_beside(report: Report) -> None:
        for one in beside:
            one(report)

    found: list[IdleDevice] = []
    at_once(report, [prepare, prepare_beside])
    yield from found


def _idle_devices(report: Report) -> Iterator[IdleDevice]:
    whole, known, launching = activity(report), threads(report), launching_calls(report)
    work, windowed = (
        operations(report).select("device", "start", "end", "rank", "row", "process_id"),
        report.scope.window,
    )
    for device, low, high in windows(report).iter_rows():
        _, first, last = whole.row(by_predicate=pl.col("device") == device)
        begun, ended = _recorded(report, low, high, first, last)
        own = of_device(work, device)
        own = _around(own, begun, ended) if windowed else own
        idle = idle_intervals(own, min(begun, first), max(ended, last))
        idle = idle.filter((pl.col("end") > begun) & (pl.col("start") < ended)) if windowed else idle
        yield IdleDevice(report, known, launching, device, low, high, begun, ended, idle)


def _around(work: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """The operations that tell of idle time in ``[low, high)``: those in it, the last before and the first after it."""
    start, end = work.get_column("start"), work.get_column("end")
    real, before, after = end > start, end <= low, start >= high
    ended, starts = (times.filter(real & side) for times, side in ((end, before), (start, after)))
    near = real & ~before & ~after
    near |= (real & (end == ended.max())) if len(ended) else False
    near |= (real & (start == starts.min())) if len(starts) else False
    return work.filter(near)


def _recorded(report: Report, low: int, high: int, first: int, last: int) -> tuple[int, int]:
    """Start and end of the part of a window that the recording covers, as far as the report tells its end."""
    if report.meta.end_ns is None:
        return low, high
    begun, ended = max(low, min(first, 0)), min(high, max(last, report.meta.end_ns))
    return (begun, ended) if begun < ended else (low, low)


#: What an operation waits for after its launch call has returned.
WAITS: Final = pl.Enum(["launch", "queued", "unseen"])


def idle_intervals(work: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """Idle intervals within ``[low, high)`` of the device whose operations are `work`, sorted by start.

    Columns: start, end, row (of the operation that ends it; null for the trailing interval) and process_id (of that
    operation; for the trailing interval of the operation that ended last, of equals the highest event_id).
    """
    real = work.select("start", "end", "rank", "row", "process_id")
    if not real.select((pl.col("end") > pl.col("start")).all()).item():
        real = real.filter(pl.col("end") > pl.col("start"))
    if not real.get_column("start").is_sorted():
        real = real.sort("start", maintain_order=True)
    same = pl.col("start") == pl.col("start").shift(1)
    if real.select((same & (pl.col("rank") < pl.col("rank").shift(1))).any()).item():
        real = real.sort("start", "rank", "row")  # a sort by several columns takes many times as long
    # in this order, the first operation to start after the latest end so far ends an idle interval
    first, last, time = pl.lit(low, dtype=pl.Int64), pl.lit(high, dtype=pl.Int64), pl.col("end").cum_max()
    gaps = real.select("row", "process_id", start=time.shift(1, fill_value=first), end="start")
    final = real.filter(pl.col("end") == pl.col("end").max()).sort("row").tail(1)
    ended = pl.DataFrame({"row": [None], "process_id": final.get_column("process_id").to_list() or [None]})
    rest = ended.select(
        pl.col("row").cast(pl.UInt32),
        pl.col("process_id").cast(pl.Int64),
        start=pl.lit(real.get_column("end").max(), dtype=pl.Int64) if final.height else first,
        end=last,
    )
    return pl.concat([part.filter(pl.col("end") > pl.col("start")) for part in (gaps, rest)])


def with_launches(report: Report, idle: pl.DataFrame, launching: dict[int, pl.DataFrame]) -> pl.DataFrame:
    """Joins `idle` with the launch call of the operation that ends each interval.

    Adds thread_id, call_start, call_end, and unseen: whether that operation waited for work launched before the
    recording began. `launching` is :func:`kanalyze.analyses.device._operations.launching_calls`. An operation without
    a launch call, and the trailing interval, get null times and the thread of the most recent launch of their process,
    else of the next one.
    """
    calls = facts_of(report, idle.get_column("row"), "thread_id", "call_start", "call_end")
    missing = calls.get_column("call_start").is_null().arg_true()
    if len(missing) and launching:
        nearest = of_parts(
            idle.select("process_id", "end")[missing],
            ["process_id"],
            pl.Int64,
            lambda process, part: _nearest_thread(launching.get(process[0]), part.get_column("end")),
        )
        calls = calls.with_columns(calls.get_column("thread_id").clone().scatter(missing, nearest))
    known = unseen_starts(report)
    none = pl.Series("unseen", [False]).new_from_index(0, idle.height)
    unseen = sure(idle.get_column("row").is_in(known.implode())) if len(known) else none
    return idle.with_columns(*calls, unseen.alias("unseen"))


def _nearest_thread(calls: pl.DataFrame | None, at: pl.Series) -> pl.Series:
    """As-of join: the thread of the last call that started at or before each of `at`, else of the first call."""
    if calls is None:
        return pl.Series("thread_id", [None], dtype=pl.Int64).new_from_index(0, len(at))
    before = count_up_to(calls.get_column("call_start"), at, equal=True).cast(pl.Int64) - 1
    return calls.get_column("thread_id").gather(before.clip(lower_bound=0))


def with_phases(idle: pl.DataFrame) -> pl.DataFrame:
    """Splits each idle interval at its launch call: adds begun, returned, late and lost.

    Before `begun` the launch call had not begun, from `begun` to `returned` the thread was in it (both are clipped to
    the interval). `late` is what the operation waits for after that, of :data:`WAITS`: ``launch`` where the call began
    within the interval, ``queued`` where it began earlier, ``unseen`` where the operation waited for work launched
    before the recording began. `lost` is set where the operation itself was launched before the recording began.
    """
    # without a call both are the end of the interval: min_horizontal and max_horizontal skip nulls
    begun, returned = (pl.max_horizontal("start", pl.min_horizontal(at, "end")) for at in ("call_start", "call_end"))
    within = pl.col("call_start") >= pl.col("start")
    launch, queued, unseen = (pl.lit(name, dtype=WAITS) for name in WAITS.categories)
    late = pl.when(within & pl.col("unseen")).then(unseen).when(within).then(launch).otherwise(queued)
    lost = pl.col("unseen") & pl.col("call_start").is_null()
    phases = {"begun": begun, "returned": pl.max_horizontal(begun, returned), "late": late, "lost": lost}
    return idle.with_columns(**phases).drop("unseen")


def clip_phases(idle: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """Clips the rows of :func:`with_phases`, sorted by start, to ``[low, high)``."""
    if idle.is_empty() or (idle.item(0, "start") >= low and idle.item(-1, "end") <= high):
        return idle
    sides = ("start", "begun", "returned", "end")
    return idle.with_columns(pl.col(*sides).clip(low, high)).filter(pl.col("end") > pl.col("start"))
