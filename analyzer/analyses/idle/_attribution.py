"""Splits the idle intervals of each device by host activity, batch by batch.

Definitions: definitions.md, section 5, rules 5 to 13. Working in batches keeps peak memory independent of the size of
the report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import polars as pl

from kanalyze.analyses.device._operations import of_device, operations
from kanalyze.analyses.device._windows import activity, windows
from kanalyze.analyses.host._context_creation import context_calls, unrecorded_contexts
from kanalyze.analyses.host._launching_call import calls_of, launch_rows, launching_calls, launching_rows
from kanalyze.analyses.host._range_lines import on_line
from kanalyze.analyses.host._recording_start import unseen_starts, unseen_syncs
from kanalyze.analyses.host._thread_timeline import Stretch, label_codes, threads, unseen_label, winning
from kanalyze.analyses.shared.cut import overlaid, touched
from kanalyze.analyses.shared.thread_lanes import THREAD, lanes_of
from kanalyze.analyses.shared.workers import at_once, in_threads
from kanalyze.columns.grouping import of_parts, rows_by
from kanalyze.columns.lookup import count_up_to, gathered
from kanalyze.machinery.processors import workers
from kanalyze.model import DEVICE_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kanalyze.analyses.host._thread_timeline import Thread
    from kanalyze.analyses.shared.cached import Remembered
    from kanalyze.analyses.shared.thread_lanes import Lanes, ThreadKey
    from kanalyze.report import Report


T = TypeVar("T")

#: Batch sizes, in idle intervals: the smallest batch, the smallest with more than two processors, and the most that
#: are in flight at one time; large enough to amortise the overhead of a batch, small enough to bound memory.
FEWEST: Final = 1 << 14
_SHARED_BATCH: Final = 1 << 16
BATCH: Final = 1 << 19

#: Cached answers that every batch reads: computed beforehand, in the order in which their tables are read, since
#: batches would otherwise block on them one after the other.
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


@dataclass(frozen=True)
class Walk:
    """Input of idle attribution for one device: its window, its idle intervals and the host threads.

    Times are in nanoseconds.

    Attributes:
        report: The report.
        threads: The calls and overheads of each host thread, by process id and thread id.
        launching: Launch calls by process: :func:`kanalyze.analyses.host._launching_call.launching_calls`.
        device: The device.
        low: Start of its window.
        high: End of its window.
        begun: Start of the part of the window that the recording covers.
        ended: End of that part; the rest of the window is `unknown`.
        idle: The idle intervals of the device in the whole report, not clipped; see :func:`idle_intervals`.
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

    def batches(self, idle: pl.DataFrame) -> list[Batch]:
        """Splits `idle` into batches of bounded size, in order."""
        most = workers()
        each, half = -(-idle.height // most), -(-idle.height // 2)
        size = min(max(each, min(half, _SHARED_BATCH), FEWEST), max(BATCH // most, 1))
        return [Batch(self, some) for some in idle.iter_slices(size)]

    def of_batches(self, work: Callable[[Batch], T], idle: pl.DataFrame) -> Iterator[T]:
        """Maps `work` over the :meth:`batches` of `idle` in a thread pool; results in order."""
        return in_threads(work, self.batches(idle), small=True)


@dataclass(frozen=True)
class Batch:
    """A batch of idle intervals of one device."""

    walk: Walk
    idle: pl.DataFrame

    def cut(self, *more: str, ranges: Mapping[ThreadKey, pl.DataFrame] | None = None) -> Cuts:
        """Splits the intervals by the activity of the host thread that each is attributed to.

        `more` are further columns of the intervals to keep. `ranges` are the range timelines of threads (start, end,
        row): with them, the time before a launch call is split by range as well, `range` being that row; from the
        launch call on, `range` is the one in which that call began, and :attr:`Cut.around` has it for every interval.
        """
        walk = self.walk
        idle = clip_phases(with_phases(with_launches(walk.report, self.idle, walk.launching)), walk.begun, walk.ended)
        by_thread = rows_by(idle, THREAD)
        known = {key: rows for key, rows in by_thread.items() if key in walk.threads and key[1] is not None}
        lost = [rows for key, rows in by_thread.items() if key not in known]
        unknown = (idle[pl.concat(lost)] if lost else idle.clear()).select("start", "end", *more)
        if not known:
            return Cuts(unknown, [])
        # lanes have to span the launch calls, too: their enclosing ranges are looked up on them
        ends = pl.max_horizontal(pl.col("end").max(), pl.col("call_start").max() + 1).alias("high")
        begins = pl.min_horizontal(pl.col("start").min(), pl.col("call_start").min()).alias("low")
        begun, ended, low, high = idle.select(pl.col("start").min(), pl.col("end").max(), begins, ends).row(0)
        cuts = []
        for lanes in lanes_of([*known], low, high):
            threads = Stretch(walk.report, [walk.threads[key] for key in lanes.keys], lanes, begun, ended)
            cuts.append(_cut(_on_lanes(idle, lanes, known), threads, more, ranges))
        return Cuts(unknown, cuts)


@dataclass(frozen=True)
class Cut:
    """Idle intervals attributed to some host threads, split by the activity of those; times are lane times.

    Attributes:
        threads: The activity of the threads.
        before: The time before launch calls: start, end, and label (row of :func:`labels` for the call or overhead
            that the thread was in; null for none), sorted by start.
        launched: The intervals from their launch calls on, where nothing takes precedence over the launch: begun,
            returned, end and late (see :func:`with_phases`), and row.
        after: The remaining intervals from their launch calls on, split: start, end, row, phase, and label (only of
            what takes precedence over a launch); no columns where there are none.
        around: The range in which each launch call began, a row per interval; empty without ranges.
    """

    threads: Stretch
    before: pl.DataFrame
    launched: pl.DataFrame
    after: pl.DataFrame
    around: pl.DataFrame

    @property
    def lanes(self) -> Lanes:
        """The lanes of the threads."""
        return self.threads.lanes


class Cuts(NamedTuple):
    """The idle time of a batch, split by host activity.

    Attributes:
        unknown: Intervals without a known host thread: start, end.
        known: The others, per group of lanes.
    """

    unknown: pl.DataFrame
    known: list[Cut]


def launch_times() -> list[pl.Expr]:
    """Time that the device waited for a launch: call_ns and latency_ns, from the columns of :attr:`Cut.launched`."""
    return [(pl.col("returned") - pl.col("begun")).alias("call_ns"), late_time("latency").alias("latency_ns")]


def late_time(phase: str) -> pl.Expr:
    """Time from the return of the launch call to the end of the interval, in ns, where `late` is `phase`; else 0."""
    return pl.when(pl.col("late") == phase).then(pl.col("end") - pl.col("returned")).otherwise(0)


def walks(
    report: Report, *, reading: Sequence[Remembered[Any]] = (), preparing: Sequence[Remembered[Any]] = ()
) -> Iterator[Walk]:
    """Inputs of idle attribution, one per device in scope, with all that batches look up computed beforehand.

    `reading` and `preparing` are further cached answers to prefetch: those that read tables of the file, and the rest.
    The two groups are computed at the same time.
    """

    def read(report: Report) -> None:
        # one thread reads while the other computes: SQLite takes the GIL for every row, so more readers gain nothing
        for kind in DEVICE_KINDS:
            report.kind(kind)
        for one in reading:
            one(report)

    def prepare(report: Report) -> None:
        for one in (*_NEEDED, *preparing):
            one(report)
        found.extend(_walks(report))

    found: list[Walk] = []
    at_once(report, [prepare, read])
    yield from found


def _walks(report: Report) -> Iterator[Walk]:
    whole, known, launching = activity(report), threads(report), launching_calls(report)
    work = operations(report).select("device", "start", "end", "rank", "row", "process_id")
    for device, low, high in windows(report).iter_rows():
        _, first, last = whole.row(by_predicate=pl.col("device") == device)
        begun, ended = _recorded(report, low, high, first, last)
        idle = idle_intervals(of_device(work, device), min(begun, first), max(ended, last))
        yield Walk(report, known, launching, device, low, high, begun, ended, idle)


def _recorded(report: Report, low: int, high: int, first: int, last: int) -> tuple[int, int]:
    """Start and end of the part of a window that the recording covers, as far as the report tells its end."""
    if report.meta.end_ns is None:
        return low, high
    begun, ended = max(low, min(first, 0)), min(high, max(last, report.meta.end_ns))
    return (begun, ended) if begun < ended else (low, low)


def _cut(
    idle: pl.DataFrame, threads: Stretch, more: Sequence[str], ranges: Mapping[ThreadKey, pl.DataFrame] | None
) -> Cut:
    """Splits intervals, given in lane times, by the activity of their threads; see :meth:`Batch.cut`."""
    before = idle.filter(pl.col("begun") > pl.col("start")).select("start", *more, "lost", end="begun")
    around, line = pl.DataFrame(), threads.line(before)
    if ranges is not None:
        spans = threads.lanes.line(ranges)
        before = overlaid(before, spans.rename({"row": "range"}), "range")
        around = idle.select(*more, on_line(spans, idle.get_column("call_start")).alias("range"))
        idle, more = idle.with_columns(around.get_column("range")), (*more, "range")
    launched = idle.filter(pl.col("end") > pl.col("begun")).select("begun", "returned", "end", "late", "row", *more)
    before, after = _relabel_unseen(threads.report, overlaid(before, line, "label")), pl.DataFrame()
    above = line.filter(winning(threads.report)[line.get_column("label")])
    held = touched(launched.select("end", start="begun"), above)
    if held.any():
        after = overlaid(launch_pieces(launched.filter(held)), above, "label")
        launched = launched.filter(~held)
    return Cut(threads, before, launched, after, around)


def _relabel_unseen(report: Report, before: pl.DataFrame) -> pl.DataFrame:
    """Relabels idle time whose launch call was made before the recording began as `unknown`."""
    wins = gathered(winning(report), before.get_column("label")).fill_null(value=False)
    waits = before.get_column("lost") & ~wins
    if not waits.any():
        return before.drop("lost")
    label = pl.when(waits).then(unseen_label(report)).otherwise("label").alias("label")
    return before.with_columns(label).drop("lost")


def _on_lanes(idle: pl.DataFrame, lanes: Lanes, rows: Mapping[ThreadKey, pl.Series]) -> pl.DataFrame:
    """Converts the intervals of some threads (their `rows` in `idle`) to lane times."""
    own = [rows[key] for key in lanes.keys]
    every = pl.concat(own, rechunk=True)
    idle = idle.drop(*THREAD, "call_end")
    if len(own) == 1:
        return idle if len(every) == idle.height else idle[every]
    moved = pl.col("start", "begun", "returned", "end", "call_start") + lanes.shifts([len(one) for one in own])
    return idle[every].with_columns(moved)


# Joins each idle interval with the operation that ended it, the launch call of that, and the host thread to look at.
#
# Definitions: definitions.md, section 5, rules 5 to 13.

#: Phases of an idle interval from its launch call on.
PHASES: Final = ("call", "latency", "queued", "unseen")


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
    recording began. `launching` is :func:`kanalyze.analyses.host._launching_call.launching_calls`. An operation without
    a launch call, and the trailing interval, get null times and the thread of the most recent launch of their process,
    else of the next one.
    """
    calls = calls_of(report, idle.get_column("row"), "thread_id", "call_start", "call_end")
    missing = calls.get_column("call_start").is_null().arg_true()
    if len(missing) and launching:
        nearest = of_parts(
            idle.select("process_id", "end")[missing],
            ["process_id"],
            pl.Int64,
            lambda process, part: _nearest_thread(launching.get(process[0]), part.get_column("end")),
        )
        calls = calls.with_columns(calls.get_column("thread_id").clone().scatter(missing, nearest))
    unseen = idle.get_column("row").is_in(unseen_starts(report).implode()).fill_null(value=False)
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
    the interval). `late` is the phase after that: ``latency`` where the call began within the interval, ``queued``
    where it began earlier, ``unseen`` where the operation waited for work launched before the recording began. `lost`
    is set where the operation itself was launched before the recording began.
    """
    # without a call both are the end of the interval: min_horizontal and max_horizontal skip nulls
    begun, returned = (pl.max_horizontal("start", pl.min_horizontal(at, "end")) for at in ("call_start", "call_end"))
    within = pl.col("call_start") >= pl.col("start")
    hidden = pl.when(within & pl.col("unseen")).then(_phase("unseen"))
    late = hidden.when(within).then(_phase("latency")).otherwise(_phase("queued"))
    lost = pl.col("unseen") & pl.col("call_start").is_null()
    phases = {"begun": begun, "returned": pl.max_horizontal(begun, returned), "late": late, "lost": lost}
    return idle.with_columns(**phases).drop("unseen")


def clip_phases(idle: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """Clips the rows of :func:`with_phases`, sorted by start, to ``[low, high)``."""
    if idle.is_empty() or (idle.item(0, "start") >= low and idle.item(-1, "end") <= high):
        return idle
    sides = ("start", "begun", "returned", "end")
    return idle.with_columns(pl.col(*sides).clip(low, high)).filter(pl.col("end") > pl.col("start"))


def launch_pieces(launched: pl.DataFrame) -> pl.DataFrame:
    """Splits idle intervals from their launch calls on (begun, returned, end, late) into one row per phase.

    Columns: start, end, phase, and all others of `launched`; sorted by start.
    """
    others = [name for name in launched.columns if name not in ("begun", "returned", "end", "late")]
    parts = (
        launched.select(pl.col("begun").alias("start"), pl.col("returned").alias("end"), _phase("call"), *others),
        launched.select(pl.col("returned").alias("start"), "end", pl.col("late").alias("phase"), *others),
    )
    return pl.concat([part.filter(pl.col("end") > pl.col("start")) for part in parts]).sort("start")


def _phase(name: str) -> pl.Expr:
    return pl.lit(name, dtype=pl.Enum(PHASES)).alias("phase")
