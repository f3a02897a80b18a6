"""The walk: what the host thread behind each idle interval was doing.

Definitions: definitions.md, section 5, rules 5 to 13.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from threading import RLock
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.host._context_creation import unrecorded_contexts
from kanalyze.analyses.host._recording_start import BEGINS
from kanalyze.analyses.host._thread_timeline import labels
from kanalyze.analyses.idle._attribution import late_time, launch_times, walks
from kanalyze.analyses.idle._by_name import PARTS, blamed, cut_by_ranges, walks_for_blame
from kanalyze.analyses.idle._sums_per_gap import coded, of_each_gap
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.cut import touched
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.frames import rows_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses.idle._attribution import Batch, Cut, Cuts, Walk
    from kanalyze.analyses.idle._by_name import Blamed
    from kanalyze.analyses.shared.thread_lanes import Lanes
    from kanalyze.report import Report

#: Bucket and detail of what no call or overhead covers, by phase of the idle interval from its launch on.
_REST: Final = {
    "call": ("launch", "call"),
    "latency": ("launch", "latency"),
    "queued": ("queued", None),
    "unseen": ("unknown", BEGINS),
}

_ROWS: Final = {"bucket": pl.String, "detail": pl.String, "ns": pl.Int64}
_WAITS: Final = {"row": pl.UInt32, "launch_ns": pl.Int64}
_WAITED: Final = pl.col("launch_ns") > 0
_QUEUED: Final = {"row": pl.UInt32, "queued_ns": pl.Int64}

#: What tells idle time by name apart, and the sums of it.
_KEYS: Final = ("bucket", "culprit", "range")
_SUMS: Final[dict[str, DataType | DataTypeClass]] = {
    **{key: PARTS[key] for key in _KEYS},
    "ns": pl.Int64,
    "gaps": pl.Int64,
    "longest_ns": pl.Int64,
}


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

    def merged(self) -> Walked:
        """The same with one part of waits, and one of queued waits, each sorted by row."""
        return replace(self, waits=[_by_row(self.waits, _WAITS)], queued=[_by_row(self.queued, _QUEUED)])

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
        times = launched.select("row", *launch_times(), queued_ns=late_time("queued"), unseen_ns=late_time("unseen"))
        for detail, column in (("call", "call_ns"), ("latency", "latency_ns")):
            self.rows.append(_row("launch", detail, total(times, column)))
        self.rows.append(_row("queued", None, total(times, "queued_ns")))
        self.rows.append(_row("unknown", BEGINS, total(times, "unseen_ns")))
        self.waits.append(times.select("row", launch_ns=pl.col("call_ns") + pl.col("latency_ns")).filter(_WAITED))
        self.queued.append(times.select(*_QUEUED).filter(pl.col("queued_ns") > 0))

    def _look_at_pieces(self, report: Report, after: pl.DataFrame) -> None:
        """Account for the time from launch calls on that is cut by what wins over it."""
        self.rows.append(_by_label(report, after).drop_nulls("bucket"))
        rest = after.filter(pl.col("label").is_null()).select("row", "phase", launch_ns=pl.col("end") - pl.col("start"))
        sums = rest.group_by("phase").agg(pl.col("launch_ns").sum())
        self.rows += [_row(*_REST[phase], ns) for phase, ns in sums.iter_rows()]
        queued, launching = pl.col("phase") == "queued", pl.col("phase").is_in(["call", "latency"])
        by_row = rest.group_by("row").agg(
            pl.col("launch_ns").filter(launching).sum(), pl.col("launch_ns").filter(queued).sum().alias("queued_ns")
        )
        self.waits.append(by_row.select(*_WAITS).filter(_WAITED))
        self.queued.append(by_row.select(*_QUEUED).filter(pl.col("queued_ns") > 0))


class _Walks:
    """The walks of a report: that for the ledger, and that with names, which tells the ledger, too.

    It does not hold the report, which holds it.
    """

    def __init__(self) -> None:
        """Nothing is walked yet."""
        self.names_wanted = False
        self._lock = RLock()
        self._walked: dict[int, Walked] | None = None
        self._names: dict[int, pl.DataFrame] | None = None

    def walked(self, report: Report) -> dict[int, Walked]:
        """What :func:`walked` gives."""
        with self._lock:
            if self._walked is None and self.names_wanted:
                self.names(report)
            if self._walked is None:
                self._walked = {walk.device: _walked(walk) for walk in walks(report, reading=[exclusive_operations])}
            return self._walked

    def names(self, report: Report) -> dict[int, pl.DataFrame]:
        """What :func:`named_idle` gives."""
        with self._lock:
            if self._names is None:
                found = {walk.device: _walked_by_name(walk) for walk in walks_for_blame(report)}
                self._names = {device: sums for device, (sums, _) in found.items()}
                if self._walked is None:
                    self._walked = {device: walk for device, (_, walk) in found.items()}
            return self._names


@once_per_report
def _walks(report: Report) -> _Walks:
    del report
    return _Walks()


def want_names(report: Report) -> None:
    """Have both :func:`walked` and :func:`named_idle` come of one walk, whichever is asked for first."""
    _walks(report).names_wanted = True


def walked(report: Report) -> dict[int, Walked]:
    """The walk of every device in scope.

    The cause of an interval is looked for in the whole report, and only then is it cut by the window.
    """
    return _walks(report).walked(report)


def named_idle(report: Report) -> dict[int, pl.DataFrame]:
    """The idle time of every device in scope by name: columns bucket, culprit, range, ns, gaps and longest_ns."""
    return _walks(report).names(report)


def _walked(walk: Walk) -> Walked:
    found = _unwalked(walk)
    for part in walk.of_batches(_walked_batch, walk.idle):
        found.include(part)
    return found.merged()


def _walked_by_name(walk: Walk) -> tuple[pl.DataFrame, Walked]:
    missing = (walk.high - walk.low) - (walk.ended - walk.begun)
    unknown = pl.DataFrame([("unknown", None, None, missing, 1, missing)], schema=_SUMS, orient="row")
    parts, found = [unknown.filter(pl.col("ns") > 0)], _unwalked(walk)
    for sums, part in walk.of_batches(_batch_by_name, walk.idle.with_row_index("gap")):
        parts.append(sums)
        found.include(part)
    together = pl.concat(parts).group_by(_KEYS)
    sums = together.agg(pl.col("ns").sum(), pl.col("gaps").sum(), pl.col("longest_ns").max())
    return sums, found.merged()


def _batch_by_name(batch: Batch) -> tuple[pl.DataFrame, Walked]:
    cuts, found = cut_by_ranges(batch), Walked()
    found.add(batch.walk.report, cuts)
    return _summed(blamed(batch, cuts)), found


def _summed(parts: Blamed) -> pl.DataFrame:
    """The sums over gaps of what :func:`blamed` gives."""
    together = pl.concat([parts.often, parts.once])
    numbered, size = coded(together, _KEYS)
    each = of_each_gap(parts.often.get_column("gap"), numbered.head(parts.often.height), size)
    longest = pl.col("ns").max().alias("longest_ns")
    sums = pl.concat([each, numbered.tail(parts.once.height)]).group_by("code")
    found = sums.agg(pl.col("ns").sum(), pl.len().alias("gaps"), longest, pl.col("at").first())
    told = found.with_columns(together.select(pl.col(_KEYS).gather(found.get_column("at"))))
    return told.select(pl.col(name).cast(dtype) for name, dtype in _SUMS.items())


def _unwalked(walk: Walk) -> Walked:
    """What is found of a device before its batches are walked: the part of its window that was not recorded."""
    return Walked([_row("unknown", None, (walk.high - walk.low) - (walk.ended - walk.begun))])


def _walked_batch(batch: Batch) -> Walked:
    """The walk of a batch."""
    found = Walked()
    found.add(batch.walk.report, batch.cut())
    return found


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
    return _by_row([part for device in walked(report).values() for part in device.waits], _WAITS)


@once_per_report
def queued_waits(report: Report) -> pl.DataFrame:
    """How long the device waited for each operation that was already submitted: columns row, queued_ns.

    Sorted by row; sums to the ledger's `queued` bucket.
    """
    return _by_row([part for device in walked(report).values() for part in device.queued], _QUEUED)


def _by_row(parts: list[pl.DataFrame], schema: Mapping[str, DataTypeClass]) -> pl.DataFrame:
    """Parts of waits in one, sorted by row; of each row there is one, since an operation ends one interval."""
    if len(parts) == 1 and parts[0].get_column("row").is_sorted():
        return parts[0]  # a large report has no room for it twice
    return pl.concat([pl.DataFrame(schema=schema), *parts]).sort("row")
