"""What the walk goes along: the idle intervals of each device, in batches, cut by what its host threads did.

Definitions: definitions.md, section 5, rules 5 to 13. The intervals are cut in batches, so that what is in memory at
once does not grow with the report.
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
from kanalyze.analyses.shared.lookup import gathered
from kanalyze.analyses.shared.thread_lanes import THREAD, lanes_of
from kanalyze.analyses.shared.workers import at_once, in_threads
from kanalyze.frames import constant, count_up_to, of_parts, rows_by
from kanalyze.model import DEVICE_KINDS
from kanalyze.processors import workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kanalyze.analyses.host._thread_timeline import Thread
    from kanalyze.analyses.shared.cached import Remembered
    from kanalyze.analyses.shared.thread_lanes import Lanes, ThreadKey
    from kanalyze.report import Report


T = TypeVar("T")

#: Idle intervals that are walked together: at least so many by one of two processors, so many where more of them share
#: the work, and so many by all of them at one time; enough to be worth it, few enough for little memory.
FEWEST: Final = 1 << 14
_ENOUGH: Final = 1 << 16
BATCH: Final = 1 << 19

#: What batches would have to wait for one after the other, in an order in which their tables are read.
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
    """What the walk of one device needs.

    Attributes:
        report: The report.
        threads: What each host thread did, by process id and thread id.
        launching: The calls of :func:`kanalyze.analyses.host._launching_call.launching_calls`.
        device: The device.
        low: Start of its window.
        high: End of its window.
        begun: Start of the part of the window that the recording covers.
        ended: End of that part; nothing is known of the rest.
        idle: The idle intervals of the device, in the whole report and not cut; see :func:`idle_intervals`.
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
        """`idle` in parts that are walked one by one."""
        most = workers()
        each, half = -(-idle.height // most), -(-idle.height // 2)
        size = min(max(each, min(half, _ENOUGH), FEWEST), max(BATCH // most, 1))
        return [Batch(self, some) for some in idle.iter_slices(size)]

    def of_batches(self, work: Callable[[Batch], T], idle: pl.DataFrame) -> Iterator[T]:
        """What `work` gives for each of the :meth:`batches` of `idle`, in their order."""
        return in_threads(work, self.batches(idle), small=True)


@dataclass(frozen=True)
class Batch:
    """Some idle intervals of one device."""

    walk: Walk
    idle: pl.DataFrame

    def cut(self, *more: str, ranges: Mapping[ThreadKey, pl.DataFrame] | None = None) -> Cuts:
        """The intervals cut by what the threads did that account for them.

        `more` are further columns of the intervals to keep. With `ranges`, lines of threads (start, end, row), the time
        before launch calls is cut by these as well, with that row as `range`, which is elsewhere the one that the
        launch call began in, and :attr:`Cut.around` holds that of all intervals.
        """
        walk = self.walk
        idle = clip_phases(with_phases(with_launches(walk.report, self.idle, walk.launching)), walk.begun, walk.ended)
        by_thread = rows_by(idle, THREAD)
        known = {key: rows for key, rows in by_thread.items() if key in walk.threads and key[1] is not None}
        lost = [rows for key, rows in by_thread.items() if key not in known]
        unknown = (idle[pl.concat(lost)] if lost else idle.clear()).select("start", "end", *more)
        if not known:
            return Cuts(unknown, [])
        # the ranges that launch calls began in are looked for on the lanes, too
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
    """The idle time that some host threads are to account for, cut by what the threads did; times are on their lanes.

    Attributes:
        threads: What the threads did.
        before: The time before launch calls: columns start, end, and label (of the call or overhead that it was spent
            in, by row of :func:`labels`; null for none), in the order of time.
        launched: The intervals from their launch calls on where nothing wins over the launch: columns begun, returned,
            end and late (:func:`kanalyze.analyses.idle._attribution.with_phases`), and row.
        after: The others from their launch calls on, in pieces: start, end, row, phase, and label (only of what wins
            over a launch); no columns where there are none.
        around: The ranges that their launch calls began in, row by row; empty without ranges.
    """

    threads: Stretch
    before: pl.DataFrame
    launched: pl.DataFrame
    after: pl.DataFrame
    around: pl.DataFrame

    @property
    def lanes(self) -> Lanes:
        """The threads' lanes."""
        return self.threads.lanes


class Cuts(NamedTuple):
    """The idle time of a batch.

    Attributes:
        unknown: The intervals of which nothing is known: start, end.
        known: The others.
    """

    unknown: pl.DataFrame
    known: list[Cut]


def launch_times() -> list[pl.Expr]:
    """What the device waited for a launch, of the rows of :attr:`Cut.launched`: call_ns and latency_ns."""
    return [(pl.col("returned") - pl.col("begun")).alias("call_ns"), late_time("latency").alias("latency_ns")]


def late_time(phase: str) -> pl.Expr:
    """What the device waited, of the same rows, from the return of the launch call on, where that is of a phase."""
    return pl.when(pl.col("late") == phase).then(pl.col("end") - pl.col("returned")).otherwise(0)


def walks(
    report: Report, *, reading: Sequence[Remembered[Any]] = (), preparing: Sequence[Remembered[Any]] = ()
) -> Iterator[Walk]:
    """The walk of each device in scope.

    What its batches are asked for besides is found at once: `reading` what needs further tables, `preparing` the rest.
    """

    def read(report: Report) -> None:
        # by one thread, for which the other one need not wait: SQLite takes Python's lock for every row
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
    """The part of a window that the recording covers, as far as the report says; nothing is known of the rest."""
    if report.meta.end_ns is None:
        return low, high
    begun, ended = max(low, min(first, 0)), min(high, max(last, report.meta.end_ns))
    return (begun, ended) if begun < ended else (low, low)


def _cut(
    idle: pl.DataFrame, threads: Stretch, more: Sequence[str], ranges: Mapping[ThreadKey, pl.DataFrame] | None
) -> Cut:
    """The intervals that some threads account for, which are on their lanes, cut; see :meth:`Batch.cut`."""
    before = idle.filter(pl.col("begun") > pl.col("start")).select("start", *more, "lost", end="begun")
    around, line = pl.DataFrame(), threads.line(before)
    if ranges is not None:
        spans = threads.lanes.line(ranges)
        before = overlaid(before, spans.rename({"row": "range"}), "range")
        around = idle.select(*more, on_line(spans, idle.get_column("call_start")).alias("range"))
        idle, more = idle.with_columns(around.get_column("range")), (*more, "range")
    launched = idle.filter(pl.col("end") > pl.col("begun")).select("begun", "returned", "end", "late", "row", *more)
    before, after = _lost(threads.report, overlaid(before, line, "label")), pl.DataFrame()
    above = line.filter(winning(threads.report)[line.get_column("label")])
    held = touched(launched.select("end", start="begun"), above)
    if held.any():
        after = overlaid(launch_pieces(launched.filter(held)), above, "label")
        launched = launched.filter(~held)
    return Cut(threads, before, launched, after, around)


def _lost(report: Report, before: pl.DataFrame) -> pl.DataFrame:
    """The time before launch calls, where there is none because it was made before the recording began told apart."""
    wins = gathered(winning(report), before.get_column("label")).fill_null(value=False)
    waits = before.get_column("lost") & ~wins
    if not waits.any():
        return before.drop("lost")
    label = pl.when(waits).then(unseen_label(report)).otherwise("label").alias("label")
    return before.with_columns(label).drop("lost")


def _on_lanes(idle: pl.DataFrame, lanes: Lanes, rows: Mapping[ThreadKey, pl.Series]) -> pl.DataFrame:
    """The intervals of the threads of some lanes, which are the `rows` of `idle`, on their lanes."""
    own = [rows[key] for key in lanes.keys]
    every = pl.concat(own, rechunk=True)
    idle = idle.drop(*THREAD, "call_end")
    if len(own) == 1:
        return idle if len(every) == idle.height else idle[every]
    moved = pl.col("start", "begun", "returned", "end", "call_start") + lanes.shifts([len(one) for one in own])
    return idle[every].with_columns(moved)


# Why a device waited: each idle interval, the operation that ended it, and the thread that is walked.
#
# Definitions: definitions.md, section 5, rules 5 to 13.

#: What an idle interval is spent in from its launch call on.
PHASES: Final = ("call", "latency", "queued", "unseen")


def idle_intervals(work: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """The idle intervals within ``[low, high)`` of the device whose operations are `work`.

    Columns: start, end, row (of the operation that ends it; null for the last one) and process_id (of that operation,
    or of the one that ended last; of several, of the one with the highest event_id).
    """
    real = work.select("start", "end", "rank", "row", "process_id")
    if not real.select((pl.col("end") > pl.col("start")).all()).item():
        real = real.filter(pl.col("end") > pl.col("start"))
    if not real.get_column("start").is_sorted():
        real = real.sort("start", maintain_order=True)
    same = pl.col("start") == pl.col("start").shift(1)
    if not constant(real, "rank") and real.select((same & (pl.col("rank") < pl.col("rank").shift(1))).any()).item():
        real = real.sort("start", "rank", "row")  # by several columns, which takes many times as long
    # sorted like this, the first operation to begin after all before it have ended is the one that ends the interval
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
    """`idle` with thread_id, call_start and call_end of the launch of the operation that ends each interval.

    And with `unseen`: whether that operation waited for what was launched before the recording began.

    `launching` are the calls of :func:`kanalyze.analyses.host._launching_call.launching_calls`.
    An operation without launch, and the last interval, take the thread of their process's most recent launch, or of
    its next one, and no call.
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
    """The thread of the call that started last before each of `at`, or else of the first one."""
    if calls is None:
        return pl.Series("thread_id", [None], dtype=pl.Int64).new_from_index(0, len(at))
    before = count_up_to(calls.get_column("call_start"), at, equal=True).cast(pl.Int64) - 1
    return calls.get_column("thread_id").gather(before.clip(lower_bound=0))


def with_phases(idle: pl.DataFrame) -> pl.DataFrame:
    """Idle intervals with `begun` and `returned`, when their launch calls did so within them, `late` and `lost`.

    Until `begun` the call had not begun; from then to `returned` it was in it. `late` says what follows: ``latency``
    where the call began within the interval, ``queued`` where it began before that, ``unseen`` where what was waited
    for was launched before the recording began. `lost` says that the operation itself was.
    """
    # which is the end where there is no call: a null is neither the least nor the greatest
    begun, returned = (pl.max_horizontal("start", pl.min_horizontal(at, "end")) for at in ("call_start", "call_end"))
    within = pl.col("call_start") >= pl.col("start")
    hidden = pl.when(within & pl.col("unseen")).then(_phase("unseen"))
    late = hidden.when(within).then(_phase("latency")).otherwise(_phase("queued"))
    lost = pl.col("unseen") & pl.col("call_start").is_null()
    phases = {"begun": begun, "returned": pl.max_horizontal(begun, returned), "late": late, "lost": lost}
    return idle.with_columns(**phases).drop("unseen")


def clip_phases(idle: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """What :func:`with_phases` gives inside ``[low, high)``; `idle` is in the order of time."""
    if idle.is_empty() or (idle.item(0, "start") >= low and idle.item(-1, "end") <= high):
        return idle
    sides = ("start", "begun", "returned", "end")
    return idle.with_columns(pl.col(*sides).clip(low, high)).filter(pl.col("end") > pl.col("start"))


def launch_pieces(launched: pl.DataFrame) -> pl.DataFrame:
    """Idle intervals from their launch calls on (begun, returned, end, late) as pieces: start, end, phase, the rest.

    In the order of time.
    """
    others = [name for name in launched.columns if name not in ("begun", "returned", "end", "late")]
    parts = (
        launched.select(pl.col("begun").alias("start"), pl.col("returned").alias("end"), _phase("call"), *others),
        launched.select(pl.col("returned").alias("start"), "end", pl.col("late").alias("phase"), *others),
    )
    return pl.concat([part.filter(pl.col("end") > pl.col("start")) for part in parts]).sort("start")


def _phase(name: str) -> pl.Expr:
    return pl.lit(name, dtype=pl.Enum(PHASES)).alias("phase")
