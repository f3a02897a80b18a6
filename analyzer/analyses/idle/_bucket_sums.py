"""Sums of idle time per device by ledger bucket and detail, and by culprit; cached per report.

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
from kanalyze.analyses.idle._culprit_names import PARTS, blamed, cut_by_ranges, walks_for_blame
from kanalyze.analyses.idle._sums_per_gap import coded, of_each_gap
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.cut import touched
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import rows_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses.idle._attribution import Batch, Cut, Cuts, Walk
    from kanalyze.analyses.idle._culprit_names import Blamed
    from kanalyze.analyses.shared.thread_lanes import Lanes
    from kanalyze.report import Report

#: Bucket and detail by phase of the idle interval from its launch call on, where no call or overhead takes precedence.
_PHASE_BUCKETS: Final = {
    "call": ("launch", "call"),
    "latency": ("launch", "latency"),
    "queued": ("queued", None),
    "unseen": ("unknown", BEGINS),
}

_ROWS: Final = {"bucket": pl.String, "detail": pl.String, "ns": pl.Int64}
_WAITS: Final = {"row": pl.UInt32, "launch_ns": pl.Int64}
_HAS_WAIT: Final = pl.col("launch_ns") > 0
_QUEUED: Final = {"row": pl.UInt32, "queued_ns": pl.Int64}

#: Group-by keys of idle time by name, and the schema of its sums.
_KEYS: Final = ("bucket", "culprit", "range")
_SUMS: Final[dict[str, DataType | DataTypeClass]] = {
    **{key: PARTS[key] for key in _KEYS},
    "ns": pl.Int64,
    "gaps": pl.Int64,
    "longest_ns": pl.Int64,
}


@dataclass
class Walked:
    """Idle attribution of one device: partial sums by bucket, and waits per operation. Times are in ns.

    Attributes:
        rows: Partial sums of idle time: bucket, detail, ns.
        waits: Idle time per operation spent waiting for its launch: row (of the operation), launch_ns. The launch call
            and its latency, without the time that goes to loading, allocation and the profiler.
        queued: Idle time per operation that was already submitted: row, queued_ns; without the same.
        longest_host: Start and length of the longest interval in which the host thread was in no CUDA call and made no
            context in an unrecorded one.
        unrecorded: Host time of context creation outside any recorded call: process_id, thread_id, start, end.
    """

    rows: list[pl.DataFrame] = field(default_factory=list)
    waits: list[pl.DataFrame] = field(default_factory=list)
    queued: list[pl.DataFrame] = field(default_factory=list)
    longest_host: tuple[int, int] = (0, 0)
    unrecorded: list[pl.DataFrame] = field(default_factory=list)

    @property
    def unrecorded_ns(self) -> int:
        """Total length of `unrecorded`, a part of the bucket `host`."""
        return sum(map(intervals.length, self.unrecorded))

    def merged(self) -> Walked:
        """Concatenates the frames of `waits`, and those of `queued`, each sorted by row."""
        return replace(self, waits=[_by_row(self.waits, _WAITS)], queued=[_by_row(self.queued, _QUEUED)])

    def include(self, other: Walked) -> None:
        """Merges the result of another batch of the same device."""
        self.rows += other.rows
        self.waits += other.waits
        self.queued += other.queued
        self.longest_host = max(self.longest_host, other.longest_host, key=lambda span: span[1])
        self.unrecorded += other.unrecorded

    def add(self, report: Report, found: Cuts) -> None:
        """Accounts for the idle time of a batch."""
        if found.unknown.height:
            self.rows.append(_row("unknown", None, intervals.length(found.unknown)))
        for part in found.known:
            if part.before.height:
                self._add_before_launches(report, part)
            if part.launched.height:
                self._add_launches(part.launched)
            if part.after.height:
                self._add_split_launches(report, part.after)

    def _add_before_launches(self, report: Report, part: Cut) -> None:
        """Accounts for the time before launch calls: inside other calls, and in no call."""
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

    def _add_launches(self, launched: pl.DataFrame) -> None:
        """Accounts for the time from launch calls on where nothing takes precedence over the launch."""
        times = launched.select("row", *launch_times(), queued_ns=late_time("queued"), unseen_ns=late_time("unseen"))
        for detail, column in (("call", "call_ns"), ("latency", "latency_ns")):
            self.rows.append(_row("launch", detail, total(times, column)))
        self.rows.append(_row("queued", None, total(times, "queued_ns")))
        self.rows.append(_row("unknown", BEGINS, total(times, "unseen_ns")))
        self.waits.append(times.select("row", launch_ns=pl.col("call_ns") + pl.col("latency_ns")).filter(_HAS_WAIT))
        self.queued.append(times.select(*_QUEUED).filter(pl.col("queued_ns") > 0))

    def _add_split_launches(self, report: Report, after: pl.DataFrame) -> None:
        """Accounts for the time from launch calls on that loading, allocation or the profiler take a part of."""
        self.rows.append(_by_label(report, after).drop_nulls("bucket"))
        rest = after.filter(pl.col("label").is_null()).select("row", "phase", launch_ns=pl.col("end") - pl.col("start"))
        sums = rest.group_by("phase").agg(pl.col("launch_ns").sum())
        self.rows += [_row(*_PHASE_BUCKETS[phase], ns) for phase, ns in sums.iter_rows()]
        queued, launching = pl.col("phase") == "queued", pl.col("phase").is_in(["call", "latency"])
        by_row = rest.group_by("row").agg(
            pl.col("launch_ns").filter(launching).sum(), pl.col("launch_ns").filter(queued).sum().alias("queued_ns")
        )
        self.waits.append(by_row.select(*_WAITS).filter(_HAS_WAIT))
        self.queued.append(by_row.select(*_QUEUED).filter(pl.col("queued_ns") > 0))


class _Walks:
    """Cache of idle attribution for one report: by bucket, and by name, from which the buckets follow as well.

    It holds no reference to the report, whose cache holds it.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self.names_wanted = False
        self._lock = RLock()
        self._walked: dict[int, Walked] | None = None
        self._names: dict[int, pl.DataFrame] | None = None

    def walked(self, report: Report) -> dict[int, Walked]:
        """Computes :func:`walked` once."""
        with self._lock:
            if self._walked is None and self.names_wanted:
                self.names(report)
            if self._walked is None:
                self._walked = {walk.device: _walked(walk) for walk in walks(report, reading=[exclusive_operations])}
            return self._walked

    def names(self, report: Report) -> dict[int, pl.DataFrame]:
        """Computes :func:`named_idle` once."""
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
    """Makes :func:`walked` and :func:`named_idle` share one pass, whichever is asked for first."""
    _walks(report).names_wanted = True


def walked(report: Report) -> dict[int, Walked]:
    """Idle attribution by bucket of every device in scope, by device.

    An idle interval is attributed in the whole report, and clipped to the window after that.
    """
    return _walks(report).walked(report)


def named_idle(report: Report) -> dict[int, pl.DataFrame]:
    """Idle time by name of every device in scope, by device: bucket, culprit, range, ns, gaps and longest_ns."""
    return _walks(report).names(report)


def _walked(walk: Walk) -> Walked:
    found = _initial(walk)
    for part in walk.of_batches(_walked_batch, walk.idle):
        found.include(part)
    return found.merged()


def _walked_by_name(walk: Walk) -> tuple[pl.DataFrame, Walked]:
    missing = (walk.high - walk.low) - (walk.ended - walk.begun)
    unknown = pl.DataFrame([("unknown", None, None, missing, 1, missing)], schema=_SUMS, orient="row")
    parts, found = [unknown.filter(pl.col("ns") > 0)], _initial(walk)
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
    """Sums the rows of :func:`blamed` over gaps: the columns of :data:`_SUMS`."""
    together = pl.concat([parts.often, parts.once])
    numbered, size = coded(together, _KEYS)
    each = of_each_gap(parts.often.get_column("gap"), numbered.head(parts.often.height), size)
    longest = pl.col("ns").max().alias("longest_ns")
    sums = pl.concat([each, numbered.tail(parts.once.height)]).group_by("code")
    found = sums.agg(pl.col("ns").sum(), pl.len().alias("gaps"), longest, pl.col("at").first())
    told = found.with_columns(together.select(pl.col(_KEYS).gather(found.get_column("at"))))
    return told.select(pl.col(name).cast(dtype) for name, dtype in _SUMS.items())


def _initial(walk: Walk) -> Walked:
    """The initial sums of a device: the part of its window that was not recorded, as `unknown`."""
    return Walked([_row("unknown", None, (walk.high - walk.low) - (walk.ended - walk.begun))])


def _walked_batch(batch: Batch) -> Walked:
    """Idle attribution of a batch, by bucket."""
    found = Walked()
    found.add(batch.walk.report, batch.cut())
    return found


def _unrecorded(report: Report, lanes: Lanes) -> pl.DataFrame:
    """Span set, in lane times, of context creation outside any recorded call."""
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
    """Sums the length of `parts` by bucket and detail of their label; both null for time without a label."""
    sums = parts.group_by("label").agg((pl.col("end") - pl.col("start")).sum().alias("ns"))
    told = rows_at(labels(report).select("bucket", "detail"), sums.get_column("label"))
    return told.with_columns(sums.get_column("ns"))


def idle_rows(report: Report, device: int) -> pl.DataFrame:
    """Idle time of a device by bucket and detail: bucket, detail, ns."""
    rows = pl.concat([pl.DataFrame(schema=_ROWS), *walked(report)[device].rows])
    return rows.group_by("bucket", "detail").agg(pl.col("ns").sum())


@once_per_report
def launch_waits(report: Report) -> pl.DataFrame:
    """Idle time spent waiting for the launch of each operation: row (of `operations`), launch_ns.

    Sorted by row; sums to the ledger's `launch` bucket.
    """
    return _by_row([part for device in walked(report).values() for part in device.waits], _WAITS)


@once_per_report
def queued_waits(report: Report) -> pl.DataFrame:
    """Idle time spent waiting for each operation that was already submitted: row (of `operations`), queued_ns.

    Sorted by row; sums to the ledger's `queued` bucket.
    """
    return _by_row([part for device in walked(report).values() for part in device.queued], _QUEUED)


def _by_row(parts: list[pl.DataFrame], schema: Mapping[str, DataTypeClass]) -> pl.DataFrame:
    """Concatenates waits, sorted by row; rows are distinct, since an operation ends one interval only."""
    if len(parts) == 1 and parts[0].get_column("row").is_sorted():
        return parts[0]  # no copy: in a large report it would double the memory
    return pl.concat([pl.DataFrame(schema=schema), *parts]).sort("row")
