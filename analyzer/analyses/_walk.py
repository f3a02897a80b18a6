"""The walk: what the host thread behind each idle interval was doing.

Definitions: definitions.md, section 5, rules 5 to 13. The idle intervals of a device are walked in batches, so that
what is in memory at once does not grow with the report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses._common import THREAD, Remembered, ThreadKey, at_once, in_threads, once_per_report, total
from kanalyze.analyses._context import unrecorded_contexts
from kanalyze.analyses._host import Thread, labels, threads
from kanalyze.analyses._idle import clip_phases, idle_intervals, launch_pieces, with_launches, with_phases
from kanalyze.analyses._launch import launch_rows, launching_calls
from kanalyze.analyses._operations import of_device, operations
from kanalyze.analyses._overlay import overlaid, touched
from kanalyze.analyses._windows import activity, windows
from kanalyze.frames import parts_by
from kanalyze.processors import workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kanalyze.report import Report

#: Idle intervals that are walked together, and that all processors walk at one time: enough for each of them to get
#: some, few enough for little memory.
FEWEST: Final = 1 << 14
BATCH: Final = 1 << 19

#: What batches would have to wait for one after the other, those that take longest first.
_NEEDED: Final[tuple[Remembered[Any], ...]] = (threads, unrecorded_contexts, launch_rows)

#: The buckets of a thread's calls that win over the launch itself.
_ABOVE_LAUNCH: Final = ("profiler", "loading", "allocation")

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

    def add(self, report: Report, part: Cut) -> None:
        """Account for the idle time of one thread."""
        if part.unknown.height:
            self.rows.append(_row("unknown", None, intervals.length(part.unknown)))
        if part.before.height:
            self._look_at_calls(report, part)
        if part.launched.height:
            self._look_at_launches(part.launched)
        if part.after.height:
            self._look_at_pieces(report, part.after)

    def _look_at_calls(self, report: Report, part: Cut) -> None:
        """Account for the time before launch calls: in the thread's calls, and between them."""
        host = part.before.filter(pl.col("label").is_null())
        self.rows += [_by_label(report, part.before), _row("host", None, intervals.length(host))]
        spans, (process, thread) = intervals.union(host), part.key
        same = pl.col("process_id").eq_missing(process) & pl.col("thread_id").eq_missing(thread)
        own = unrecorded_contexts(report).filter(same)
        if own.height:
            made = intervals.union(own)
            making = intervals.intersect(spans.filter(touched(spans, made)), made)
            keys = {"process_id": pl.lit(process, dtype=pl.Int64), "thread_id": pl.lit(thread, dtype=pl.Int64)}
            self.unrecorded.append(making.select(**keys, start="start", end="end"))
            spans = intervals.subtract(spans, making)
        lengths = spans.select("start", ns=pl.col("end") - pl.col("start"))
        for span in lengths.filter(pl.col("ns") == pl.col("ns").max()).head(1).iter_rows():
            self.longest_host = max(self.longest_host, span, key=lambda span: span[1])

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
        self.rows.append(_by_label(report, after))
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
    """The idle time that one host thread is to account for, cut by what the thread did.

    Attributes:
        key: Process id and thread id.
        thread: The thread; None where it made no calls, so that nothing is known of its time.
        before: The time before launch calls: columns start, end, and label (of the call or overhead that it was spent
            in, by row of :func:`labels`; null for none), in the order of time.
        launched: The intervals from their launch calls on where nothing wins over the launch: columns begun, returned,
            end and late (:func:`kanalyze.analyses._idle.with_phases`), row and call_start.
        after: The others from their launch calls on, in pieces: start, end, row, call_start, phase, and label (only of
            what wins over a launch); no columns where there are none.
        unknown: The time of which nothing is known: start, end.
    """

    key: ThreadKey
    thread: Thread | None
    before: pl.DataFrame
    launched: pl.DataFrame
    after: pl.DataFrame
    unknown: pl.DataFrame


@once_per_report
def walked(report: Report) -> dict[int, Walked]:
    """The walk of every device in scope.

    The cause of an interval is looked for in the whole report, and only then is it cut by the window.
    """
    found: dict[int, Walked] = {}
    for walk in walks(report):
        found[walk.device] = unwalked(walk)
        for part in in_threads(_walked_batch, walk.batches(walk.idle())):
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
    """

    report: Report
    threads: dict[ThreadKey, Thread]
    launching: dict[int, pl.DataFrame]
    device: int
    low: int
    high: int
    begun: int
    ended: int

    def idle(self) -> pl.DataFrame:
        """The idle intervals of the device, in the whole report and not cut; see :func:`idle_intervals`."""
        needed = ("device", "start", "end", "rank", "row", "process_id")
        work = of_device(operations(self.report).select(needed), self.device)
        _, first, last = activity(self.report).row(by_predicate=pl.col("device") == self.device)
        return idle_intervals(work, min(self.begun, first), max(self.ended, last))

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

    def cut(self, *more: str, finer: Callable[[ThreadKey, pl.DataFrame], pl.DataFrame] | None = None) -> Iterator[Cut]:
        """The intervals by the threads that account for them, cut by what these did; see :class:`Cut`.

        `more` are further columns of the intervals to keep; `finer` may cut a thread's pieces before launch calls, and
        add columns.
        """
        walk = self.walk
        idle = with_phases(with_launches(walk.report, self.idle, walk.launching))
        for key, part in parts_by(clip_phases(idle, walk.begun, walk.ended), THREAD).items():
            thread = walk.threads.get(key)
            before = part.filter(pl.col("begun") > pl.col("start")).select("start", *more, end="begun")
            launched = part.filter(pl.col("end") > pl.col("begun"))
            launched = launched.select("begun", "returned", "end", "late", "row", "call_start", *more)
            if thread is None or key[1] is None:
                unknown = part.select("start", "end", *more)
                yield Cut(key, None, before.clear(), launched.clear(), pl.DataFrame(), unknown)
                continue
            line = thread.line(walk.report, part.item(0, "start"), part.item(-1, "end"))
            above = _above_launches(walk.report, line)
            before, after = overlaid(finer(key, before) if finer else before, line, "label"), pl.DataFrame()
            held = touched(launched.select("end", start="begun"), above)
            if held.any():
                after = overlaid(launch_pieces(launched.filter(held)), above, "label")
                launched = launched.filter(~held)
            yield Cut(key, thread, before, launched, after, part.clear())


def launch_times() -> list[pl.Expr]:
    """What the device waited for a launch, of the rows of :attr:`Cut.launched`: call_ns and latency_ns."""
    late = pl.when(pl.col("late") == "latency").then(pl.col("end") - pl.col("returned")).otherwise(0)
    return [(pl.col("returned") - pl.col("begun")).alias("call_ns"), late.alias("latency_ns")]


def queued_time() -> pl.Expr:
    """What the device waited for what was already submitted, of the same rows."""
    return pl.when(pl.col("late") == "queued").then(pl.col("end") - pl.col("returned")).otherwise(0)


def walks(report: Report, *needed: Remembered[Any]) -> Iterator[Walk]:
    """The walk of each device in scope; `needed` is what its batches are asked for besides."""
    at_once(report, [*_NEEDED, *needed])
    whole, known, launching = activity(report), threads(report), launching_calls(report)
    for device, low, high in windows(report).iter_rows():
        _, first, last = whole.row(by_predicate=pl.col("device") == device)
        yield Walk(report, known, launching, device, low, high, *_recorded(report, low, high, first, last))


def _recorded(report: Report, low: int, high: int, first: int, last: int) -> tuple[int, int]:
    """The part of a window that the recording covers, as far as the report says; nothing is known of the rest."""
    if report.meta.end_ns is None:
        return low, high
    begun, ended = max(low, min(first, 0)), min(high, max(last, report.meta.end_ns))
    return (begun, ended) if begun < ended else (low, low)


def _walked_batch(batch: Batch) -> Walked:
    """The walk of a batch."""
    found = Walked()
    for part in batch.cut():
        found.add(batch.walk.report, part)
    return found


def _above_launches(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    """The part of a thread's line that wins over launches."""
    winning = labels(report).with_row_index("label").filter(pl.col("bucket").is_in(_ABOVE_LAUNCH)).get_column("label")
    return line.filter(pl.col("label").is_in(winning.implode()))


def _row(bucket: str, detail: str | None, ns: int) -> pl.DataFrame:
    return pl.DataFrame([(bucket, detail, ns)], schema=_ROWS, orient="row")


def _by_label(report: Report, parts: pl.DataFrame) -> pl.DataFrame:
    """How much of `parts` the calls and overheads of their labels take, by bucket and detail."""
    ns = (pl.col("end") - pl.col("start")).alias("ns")
    sums = parts.select("label", ns).group_by("label").agg(pl.col("ns").sum()).drop_nulls("label")
    told = labels(report).select(pl.col("bucket", "detail").gather(sums.get_column("label")))
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
