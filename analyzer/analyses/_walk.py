"""The walk: what the host thread behind each idle interval was doing.

Definitions: definitions.md, section 5, rules 5 to 13. The idle intervals of a device are walked in batches, so that
what is in memory at once does not grow with the report.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses._common import in_threads, once_per_report, total
from kanalyze.analyses._context import unrecorded_contexts
from kanalyze.analyses._host import Thread, labels, threads
from kanalyze.analyses._idle import idle_intervals, phases, with_launches
from kanalyze.analyses._launch import launching_calls
from kanalyze.analyses._operations import of_device, operations
from kanalyze.analyses._windows import activity, windows
from kanalyze.frames import constant

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Idle intervals that are walked together: enough for every processor to get some, few enough for little memory.
FEWEST: Final = 1 << 14
BATCH: Final = 1 << 17

#: The buckets of a thread's calls that win over the launch itself.
_ABOVE_LAUNCH: Final = ("profiler", "loading", "allocation")

#: Bucket and detail of what no call or overhead covers, by phase of the idle interval from its launch on.
_REST: Final = {"call": ("launch", "call"), "latency": ("launch", "latency"), "queued": ("queued", None)}

_ROWS: Final = {"bucket": pl.String, "detail": pl.String, "ns": pl.Int64}
_WAITS: Final = {"row": pl.UInt32, "launch_ns": pl.Int64}


@dataclass
class Walked:
    """What the walk of one device found.

    Attributes:
        rows: Idle time by bucket and detail (columns bucket, detail, ns), in parts to be summed.
        waits: What the device waited for the launch of each operation, by its row (columns row, launch_ns), in parts:
            the call and the time from its return, less what loading, allocation and the profiler take of them.
        longest_host: Start and length of the longest time in which its host thread was in no CUDA call.
        unrecorded_ns: Host time in which contexts were made that no recorded call covers.
    """

    rows: list[pl.DataFrame] = field(default_factory=list)
    waits: list[pl.DataFrame] = field(default_factory=list)
    longest_host: tuple[int, int] = (0, 0)
    unrecorded_ns: int = 0

    def include(self, other: Walked) -> None:
        """Add what was found of the same device in another batch."""
        self.rows += other.rows
        self.waits += other.waits
        self.longest_host = max(self.longest_host, other.longest_host, key=lambda span: span[1])
        self.unrecorded_ns += other.unrecorded_ns

    def add(self, pieces: pl.DataFrame, line: pl.DataFrame, known: pl.DataFrame, unrecorded: pl.DataFrame) -> None:
        """Account for idle `pieces` of one thread (columns of :func:`phases`) that did what `line` says.

        `known` are the labels of the line; `unrecorded` the spans in which contexts were made without a record.
        """
        before = pieces.filter(pl.col("phase") == "before")
        after = pieces.filter(pl.col("phase") != "before")
        if before.height:
            told = _by_call(line, before, known)
            host = intervals.length(before) - total(told, "ns")
            self.rows += [told, _row("host", None, host)]
            self._look_at_host(before, line, unrecorded)
        if after.height:
            self._look_at_launches(after.sort("start"), line, known)

    def _look_at_launches(self, after: pl.DataFrame, line: pl.DataFrame, known: pl.DataFrame) -> None:
        """Account for the pieces from a launch call on."""
        winning = known.with_row_index("label").filter(pl.col("bucket").is_in(_ABOVE_LAUNCH)).get_column("label")
        above = line.filter(pl.col("label").is_in(winning.implode()))
        self.rows.append(_by_call(above, after, known))
        start, end = after.get_column("start"), after.get_column("end")
        rest = end - start - intervals.overlap(start, end, intervals.union(above))
        after = after.with_columns(launch_ns=rest)
        sums = after.group_by("phase").agg(pl.col("launch_ns").sum())
        self.rows += [_row(*_REST[phase], ns) for phase, ns in sums.iter_rows()]
        self.waits.append(after.filter(pl.col("phase") != "queued").select(*_WAITS))

    def _look_at_host(self, before: pl.DataFrame, line: pl.DataFrame, unrecorded: pl.DataFrame) -> None:
        """Keep the longest host span in `before`, and add what of it the spans `unrecorded` hold."""
        if unrecorded.height:
            inside = intervals.intersect(_touching(before, unrecorded), unrecorded)
            self.unrecorded_ns += intervals.length(intervals.subtract(inside, _touching(line, inside)))
        lengths = pl.col("end") - pl.col("start")
        while (longer := before.filter(lengths > self.longest_host[1])).height:
            some = longer.top_k(_SPANS_AT_ONCE, by=lengths).sort("start").select("start", "end")
            free = intervals.subtract(intervals.union(some), _touching(line, some)).with_columns(ns=lengths)
            for start, _, length in free.sort("ns", descending=True).head(1).iter_rows():
                self.longest_host = max(self.longest_host, (start, length), key=lambda span: span[1])
            before = longer.join(some, on="start", how="anti")


#: So many idle intervals, the longest first, are looked at together for the longest host span.
_SPANS_AT_ONCE: Final = 1024


@once_per_report
def walked(report: Report) -> dict[int, Walked]:
    """The walk of every device in scope.

    The cause of an interval is looked for in the whole report, and only then is it cut by the window.
    """
    found: dict[int, Walked] = {}
    whole, known, launching = activity(report), threads(report), launching_calls(report)
    for device, low, high in windows(report).iter_rows():
        work = of_device(operations(report).select("device", "start", "end", "rank", "row", "process_id"), device)
        _, first, last = whole.row(by_predicate=pl.col("device") == device)
        begun, ended = _recorded(report, low, high, first, last)
        idle = idle_intervals(work, min(begun, first), max(ended, last))
        share = -(-idle.height // (os.cpu_count() or 1))
        size = min(max(share, FEWEST), BATCH)
        batches = [_Batch(report, known, launching, some, begun, ended) for some in idle.iter_slices(size)]
        found[device] = Walked([_row("unknown", None, (high - low) - (ended - begun))])
        for part in in_threads(_walked_batch, batches):
            found[device].include(part)
    return found


def _recorded(report: Report, low: int, high: int, first: int, last: int) -> tuple[int, int]:
    """The part of a window that the recording covers, as far as the report says; nothing is known of the rest."""
    if report.meta.end_ns is None:
        return low, high
    begun, ended = max(low, min(first, 0)), min(high, max(last, report.meta.end_ns))
    return (begun, ended) if begun < ended else (low, low)


@dataclass(frozen=True)
class _Batch:
    """Some idle intervals of one device, and the window that is asked about."""

    report: Report
    threads: dict[tuple[int | None, int | None], Thread]
    launching: pl.DataFrame
    idle: pl.DataFrame
    low: int
    high: int


def _walked_batch(batch: _Batch) -> Walked:
    """The walk of a batch."""
    found, report = Walked(), batch.report
    unrecorded = unrecorded_contexts(report)
    pieces = intervals.clip(phases(with_launches(report, batch.idle, batch.launching)), batch.low, batch.high)
    for key, part in _by_thread(pieces).items():
        thread = batch.threads.get(key)
        if thread is None or key[1] is None:
            found.rows.append(_row("unknown", None, intervals.length(part)))
        else:
            start, end = part.select(pl.col("start").min(), pl.col("end").max()).row(0)
            own = unrecorded.filter((pl.col("process_id") == key[0]) & (pl.col("thread_id") == key[1]))
            found.add(part, thread.line(report, start, end), labels(report), intervals.union(own))
    return found


def _row(bucket: str, detail: str | None, ns: int) -> pl.DataFrame:
    return pl.DataFrame([(bucket, detail, ns)], schema=_ROWS, orient="row")


def _by_thread(pieces: pl.DataFrame) -> dict[tuple[int | None, int | None], pl.DataFrame]:
    keys = ("process_id", "thread_id")
    if all(constant(pieces.get_column(key)) for key in keys):
        return {pieces.select(keys).row(0): pieces}
    return pieces.partition_by(keys, as_dict=True)


def _by_call(line: pl.DataFrame, pieces: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """How much of `pieces` the calls and overheads of `line` cover, by bucket and detail."""
    hit = intervals.overlap(line.get_column("start"), line.get_column("end"), pieces)
    sums = line.select("label", ns=hit).filter(pl.col("ns") > 0).group_by("label").agg(pl.col("ns").sum())
    told = known.select(pl.col("bucket", "detail").gather(sums.get_column("label")))
    return told.with_columns(sums.get_column("ns"))


def _touching(line: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """The intervals of `line`, sorted and apart, that overlap any of `spans`; columns start and end."""
    first = line.get_column("end").search_sorted(spans.get_column("start"), side="right")
    last = line.get_column("start").search_sorted(spans.get_column("end"), side="left")
    rows = pl.select(pl.int_ranges(first, pl.max_horizontal(first, last))).to_series().explode().drop_nulls()
    return line.select(pl.col("start", "end").gather(rows.unique().sort()))


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
    return pl.concat(parts).group_by("row").agg(pl.col("launch_ns").sum()).sort("row")
