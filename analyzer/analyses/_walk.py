"""The walk: what the host thread behind each idle interval was doing.

Definitions: definitions.md, section 5, rules 5 to 13. The idle intervals of a device are walked in batches, so that
what is in memory at once does not grow with the report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses._common import THREAD, Remembered, ThreadKey, at_once, in_threads, once_per_report, total
from kanalyze.analyses._context import context_calls, unrecorded_contexts
from kanalyze.analyses._host import Stretch, Thread, label_codes, labels, threads, winning
from kanalyze.analyses._idle import clip_phases, idle_intervals, launch_pieces, with_launches, with_phases
from kanalyze.analyses._lanes import Lanes, lanes_of
from kanalyze.analyses._launch import launch_rows, launching_calls, launching_rows
from kanalyze.analyses._operations import exclusive_operations, of_device, operations
from kanalyze.analyses._overlay import overlaid, touched
from kanalyze.analyses._ranges import on_line
from kanalyze.analyses._windows import activity, windows
from kanalyze.frames import rows_at, rows_by
from kanalyze.model import DEVICE_KINDS
from kanalyze.processors import workers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kanalyze.report import Report

#: Idle intervals that are walked together, and that all processors walk at one time: enough for each of them to get
#: some, few enough for little memory.
FEWEST: Final = 1 << 14
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
)

#: Bucket and detail of what no call or overhead covers, by phase of the idle interval from its launch on.
_REST: Final = {"call": ("launch", "call"), "latency": ("launch", "latency"), "queued": ("queued", None)}

_ROWS: Final = {"bucket": pl.String, "detail": pl.String, "ns": pl.Int64}
_WAITS: Final = {"row": pl.UInt32, "launch_ns": pl.Int64}
_WAITED: Final = pl.col("launch_ns") > 0
_QUEUED: Final = {"row": pl.UInt32, "queued_ns": pl.Int64}


@dataclass
class Walked:
    """What the walk of one device found.

    Attributes:
        rows: Idle time by bucket and detail (columns bucket, detail, ns), in parts to be summed.
        waits: What the device waited for the launch of each operation, by its row (columns row, launch_ns), in parts:
            the call and the time from its return, less what loading, allocation and the profiler take of them.
        queued: How long it waited for what was already submitted, by row (columns row, queued_ns), in parts; less the
            same.
        longest_host: Start and length of the longest time in which its host thread was in no CUDA call, nor in one
            that was not recorded and made a context.
        unrecorded: Host time in which contexts were made that no recorded call covers (columns process_id, thread_id,
            start, end), in parts.
    """

    rows: list[pl.DataFrame] = field(default_factory=list)
    waits: list[pl.DataFrame] = field(default_factory=list)
    queued: list[pl.DataFrame] = field(default_factory=list)
    longest_host: tuple[int, int] = (0, 0)
    unrecorded: list[pl.DataFrame] = field(default_factory=list)

    @property
    def unrecorded_ns(self) -> int:
        """The length of `unrecorded`: part of the bucket `host`."""
        return sum(map(intervals.length, self.unrecorded))

    def include(self, other: Walked) -> None:
        """Add what was found of the same device in another batch."""
        self.rows += other.rows
        self.waits += other.waits
        self.queued += other.queued
        self.longest_host = max(self.longest_host, other.longest_host, key=lambda span: span[1])
        self.unrecorded += other.unrecorded

    def add(self, report: Report, found: Cuts) -> None:
        """Account for the idle time of a batch."""
        if found.unknown.height:
            self.rows.append(_row("unknown", None, intervals.length(found.unknown)))
        for part in found.known:
            if part.before.height:
                self._look_at_calls(report, part)
            if part.launched.height:
                self._look_at_launches(part.launched)
            if part.after.height:
                self._look_at_pieces(report, part.after)

    def _look_at_calls(self, report: Report, part: Cut) -> None:
        """Account for the time before launch calls: in the threads' calls, and between them."""
        self.rows.append(_by_label(report, part.before).with_columns(pl.col("bucket").fill_null("host")))
        host = part.before.filter(pl.col("label").is_null())
        start, end = host.get_column("start"), host.get_column("end")
        first = (start != end.shift(1)).fill_null(value=True)
        spans = pl.DataFrame([start.filter(first), end.filter(first.shift(-1, fill_value=True))])
        made = _unrecorded(report, part.lanes)
        hit = touched(spans, made)
        if hit.any():
            making = intervals.intersect(spans.filter(hit), made)
            spans = pl.concat([spans.filter(~hit), intervals.subtract(spans.filter(hit), making)]).sort("start")
            for (process, thread), own in part.lanes.of_each(making):
                keys = {"process_id": pl.lit(process, dtype=pl.Int64), "thread_id": pl.lit(thread, dtype=pl.Int64)}
                self.unrecorded.append(own.select(**keys, start="start", end="end"))
        if spans.height:
            lengths = spans.get_column("end") - spans.get_column("start")
            longest = spans.slice(int((lengths == lengths.max()).arg_true()[0]), 1)
            start, end = part.lanes.back(longest).row(0)
            self.longest_host = max(self.longest_host, (start, end - start), key=lambda span: span[1])

    def _look_at_launches(self, launched: pl.DataFrame) -> None:
        """Account for the time from launch calls on where nothing wins over it."""
        times = launched.select("row", *launch_times(), queued_ns=queued_time())
        for detail, column in (("call", "call_ns"), ("latency", "latency_ns")):
            self.rows.append(_row("launch", detail, total(times, column)))
        self.rows.append(_row("queued", None, total(times, "queued_ns")))
        self.waits.append(times.select("row", launch_ns=pl.col("call_ns") + pl.col("latency_ns")).filter(_WAITED))
        self.queued.append(times.select(*_QUEUED).filter(pl.col("queued_ns") > 0))

    def _look_at_pieces(self, report: Report, after: pl.DataFrame) -> None:
        """Account for the time from launch calls on that is cut by what wins over it."""
        self.rows.append(_by_label(report, after).drop_nulls("bucket"))
        rest = after.filter(pl.col("label").is_null()).select("row", "phase", launch_ns=pl.col("end") - pl.col("start"))
        sums = rest.group_by("phase").agg(pl.col("launch_ns").sum())
        self.rows += [_row(*_REST[phase], ns) for phase, ns in sums.iter_rows()]
        queued = pl.col("phase") == "queued"
        by_row = rest.group_by("row").agg(
            pl.col("launch_ns").filter(~queued).sum(), pl.col("launch_ns").filter(queued).sum().alias("queued_ns")
        )
        self.waits.append(by_row.select(*_WAITS).filter(_WAITED))
        self.queued.append(by_row.select(*_QUEUED).filter(pl.col("queued_ns") > 0))


@dataclass(frozen=True)
class Cut:
    """The idle time that some host threads are to account for, cut by what the threads did; times are on their lanes.

    Attributes:
        threads: What the threads did.
        before: The time before launch calls: columns start, end, and label (of the call or overhead that it was spent
            in, by row of :func:`labels`; null for none), in the order of time.
        launched: The intervals from their launch calls on where nothing wins over the launch: columns begun, returned,
            end and late (:func:`kanalyze.analyses._idle.with_phases`), and row.
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


@once_per_report
def walked(report: Report) -> dict[int, Walked]:
    """The walk of every device in scope.

    The cause of an interval is looked for in the whole report, and only then is it cut by the window.
    """
    found: dict[int, Walked] = {}
    for walk in walks(report, reading=[exclusive_operations]):  # which the ledger is made of, too
        found[walk.device] = unwalked(walk)
        for part in in_threads(_walked_batch, walk.batches(walk.idle)):
            found[walk.device].include(part)
    return found


def unwalked(walk: Walk) -> Walked:
    """What is found of a device before its batches are walked: the part of its window that was not recorded."""
    return Walked([_row("unknown", None, (walk.high - walk.low) - (walk.ended - walk.begun))])


@dataclass(frozen=True)
class Walk:
    """What the walk of one device needs.

    Attributes:
        report: The report.
        threads: What each host thread did, by process id and thread id.
        launching: The calls of :func:`kanalyze.analyses._launch.launching_calls`.
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
        size = min(max(-(-idle.height // most), FEWEST), max(BATCH // most, 1))
        return [Batch(self, some) for some in idle.iter_slices(size)]


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
        begun, ended = idle.select(pl.col("start").min(), pl.col("end").max()).row(0)
        least, most = idle.select(pl.col("call_start").min(), pl.col("call_start").max().alias("most")).row(0)
        cuts, low, high = [], min(begun, least or begun), max(ended, most or ended)
        for lanes in lanes_of([*known], low, high):
            threads = Stretch(walk.report, [walk.threads[key] for key in lanes.keys], lanes, begun, ended)
            cuts.append(_cut(_on_lanes(idle, lanes, known), threads, more, ranges))
        return Cuts(unknown, cuts)


def _cut(
    idle: pl.DataFrame, threads: Stretch, more: Sequence[str], ranges: Mapping[ThreadKey, pl.DataFrame] | None
) -> Cut:
    """The intervals that some threads account for, which are on their lanes, cut; see :meth:`Batch.cut`."""
    before = idle.filter(pl.col("begun") > pl.col("start")).select("start", *more, end="begun")
    around, line = pl.DataFrame(), threads.line(before)
    if ranges is not None:
        spans = threads.lanes.line(ranges)
        before = overlaid(before, spans.rename({"row": "range"}), "range")
        around = idle.select(*more, on_line(spans, idle.get_column("call_start")).alias("range"))
        idle, more = idle.with_columns(around.get_column("range")), (*more, "range")
    launched = idle.filter(pl.col("end") > pl.col("begun")).select("begun", "returned", "end", "late", "row", *more)
    before, after = overlaid(before, line, "label"), pl.DataFrame()
    above = line.filter(winning(threads.report)[line.get_column("label")])
    held = touched(launched.select("end", start="begun"), above)
    if held.any():
        after = overlaid(launch_pieces(launched.filter(held)), above, "label")
        launched = launched.filter(~held)
    return Cut(threads, before, launched, after, around)


def _on_lanes(idle: pl.DataFrame, lanes: Lanes, rows: Mapping[ThreadKey, pl.Series]) -> pl.DataFrame:
    """The intervals of the threads of some lanes, which are the `rows` of `idle`, on their lanes."""
    own = [rows[key] for key in lanes.keys]
    every = pl.concat(own, rechunk=True)
    idle = idle.drop(*THREAD, "call_end")
    if len(own) == 1:
        return idle if len(every) == idle.height else idle[every]
    moved = pl.col("start", "begun", "returned", "end", "call_start") + lanes.shifts([len(one) for one in own])
    return idle[every].with_columns(moved)


def _unrecorded(report: Report, lanes: Lanes) -> pl.DataFrame:
    """The span set of the time on some lanes in which contexts were made, of what is recorded of that."""
    own = unrecorded_contexts(report).select(*THREAD, "start", "end").iter_rows()
    lane = {key: number for number, key in enumerate(lanes.keys)}
    made = [
        [lanes.moved(time, lane[process, thread]) for time in sides]
        for process, thread, *sides in own
        if (process, thread) in lane
    ]
    return intervals.union(pl.DataFrame(made, schema=intervals.SPANS, orient="row"))


def launch_times() -> list[pl.Expr]:
    """What the device waited for a launch, of the rows of :attr:`Cut.launched`: call_ns and latency_ns."""
    late = pl.when(pl.col("late") == "latency").then(pl.col("end") - pl.col("returned")).otherwise(0)
    return [(pl.col("returned") - pl.col("begun")).alias("call_ns"), late.alias("latency_ns")]


def queued_time() -> pl.Expr:
    """What the device waited for what was already submitted, of the same rows."""
    return pl.when(pl.col("late") == "queued").then(pl.col("end") - pl.col("returned")).otherwise(0)


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


def _walked_batch(batch: Batch) -> Walked:
    """The walk of a batch."""
    found = Walked()
    found.add(batch.walk.report, batch.cut())
    return found


def _row(bucket: str, detail: str | None, ns: int) -> pl.DataFrame:
    return pl.DataFrame([(bucket, detail, ns)], schema=_ROWS, orient="row")


def _by_label(report: Report, parts: pl.DataFrame) -> pl.DataFrame:
    """How much of `parts` the calls and overheads of their labels take, by bucket and detail; null for none."""
    sums = parts.group_by("label").agg((pl.col("end") - pl.col("start")).sum().alias("ns"))
    told = rows_at(labels(report).select("bucket", "detail"), sums.get_column("label"))
    return told.with_columns(sums.get_column("ns"))


def idle_rows(report: Report, device: int) -> pl.DataFrame:
    """The idle time of a device by bucket and detail: columns bucket, detail, ns."""
    rows = pl.concat([pl.DataFrame(schema=_ROWS), *walked(report)[device].rows])
    return rows.group_by("bucket", "detail").agg(pl.col("ns").sum())


@once_per_report
def launch_waits(report: Report) -> pl.DataFrame:
    """How long the device waited for each operation's launch: columns row (of `operations`), launch_ns.

    Sorted by row; sums to the ledger's `launch` bucket.
    """
    parts = [pl.DataFrame(schema=_WAITS)]
    for device in walked(report).values():
        parts += device.waits
        device.waits.clear()  # nobody else asks for them, and a large report has no room for them twice
    return pl.concat(parts).sort("row")  # of each row there is one, since an operation ends one interval


@once_per_report
def queued_waits(report: Report) -> pl.DataFrame:
    """How long the device waited for each operation that was already submitted: columns row, queued_ns.

    Sorted by row; sums to the ledger's `queued` bucket.
    """
    parts = [pl.DataFrame(schema=_QUEUED)]
    for device in walked(report).values():
        parts += device.queued
        device.queued.clear()  # as in launch_waits
    return pl.concat(parts).sort("row")  # as in launch_waits
