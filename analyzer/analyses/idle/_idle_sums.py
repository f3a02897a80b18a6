"""Sums of the parts of idle time per device: by bucket, by culprit, by operation; cached per report.

Definitions: definitions.md, section 5, rules 5 to 13.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.host._context_creation import unrecorded_contexts
from kanalyze.analyses.idle._idle_intervals import idle_devices
from kanalyze.analyses.idle._idle_parts import PARTS, idle_devices_with_names, idle_parts, reasons, split_idle
from kanalyze.analyses.idle._window_ledgers import keep, pieces_to_keep
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.cut import touched
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.grouping import LARGEST, numbered
from kanalyze.columns.lookup import rows_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses.idle._idle_intervals import IdleBatch, IdleDevice
    from kanalyze.analyses.idle._idle_parts import Parts, Split
    from kanalyze.analyses.shared.thread_lanes import Lanes
    from kanalyze.report import Report

_BUCKETS: Final = {"reason": pl.UInt32, "ns": pl.Int64, "call_ns": pl.Int64}
_WAITS: Final = {"row": pl.UInt32, "launch_ns": pl.Int64}
_QUEUED: Final = {"row": pl.UInt32, "queued_ns": pl.Int64}

#: Group-by keys of idle time by name, and the schema of its sums.
_KEYS: Final = ("bucket", "culprit", "range")
_SUMS: Final[dict[str, DataType | DataTypeClass]] = {
    **{key: PARTS[key] for key in _KEYS},
    "ns": pl.Int64,
    "gaps": pl.Int64,
    "longest_ns": pl.Int64,
}

#: Longer intervals in no CUDA call are more than the host's work for the next launches.
SHORT_NS: Final = 300_000

_NS: Final = (pl.col("end") - pl.col("start")).alias("ns")


@dataclass(eq=False, repr=False)
class IdleSums:
    """Idle time of one device: sums by reason, and waits per operation. Times are in ns.

    Attributes:
        reasons: Partial sums by reason: reason (row of :func:`reasons`), ns, call_ns.
        waits: Idle time per operation spent waiting for its launch: row (of the operation), launch_ns. The launch call
            and its latency, without the time that goes to loading, allocation and the profiler.
        queued: Idle time per operation that was already submitted: row, queued_ns; without the same.
        longest_host: Start and length of the longest interval in which the host thread was in no CUDA call and made no
            context in an unrecorded one.
        short_host: Summed length and number of such intervals that are shorter than :data:`SHORT_NS`.
        unrecorded: Host time of context creation outside any recorded call: process_id, thread_id, start, end.
    """

    reasons: list[pl.DataFrame] = field(default_factory=list)
    waits: list[pl.DataFrame] = field(default_factory=list)
    queued: list[pl.DataFrame] = field(default_factory=list)
    longest_host: tuple[int, int] = (0, 0)
    short_host: tuple[int, int] = (0, 0)
    unrecorded: list[pl.DataFrame] = field(default_factory=list)

    @property
    def unrecorded_ns(self) -> int:
        """Total length of `unrecorded`, a part of the bucket `host`."""
        return sum(map(intervals.length, self.unrecorded))

    def merged(self) -> IdleSums:
        """Concatenates the frames of `waits`, and those of `queued`, each sorted by row."""
        return replace(self, waits=[_by_row(self.waits, _WAITS)], queued=[_by_row(self.queued, _QUEUED)])

    def include(self, other: IdleSums) -> None:
        """Merges the result of another batch of the same device."""
        self.reasons += other.reasons
        self.waits += other.waits
        self.queued += other.queued
        self.longest_host = max(self.longest_host, other.longest_host, key=lambda span: span[1])
        self._add_short(*other.short_host)
        self.unrecorded += other.unrecorded

    def add(self, split: Split) -> None:
        """Accounts for a split."""
        rows, known = split.rows, reasons(split.report)
        self.reasons.append(rows.group_by("reason").agg(_NS.sum(), pl.col("call_ns").sum()))
        for found, code, name in ((self.waits, known.launch, "launch_ns"), (self.queued, known.queued, "queued_ns")):
            own = rows.select("row", "reason", _NS.alias(name))
            cut = own.head(split.cut).filter(pl.col("reason") == code)
            found.append(cut.group_by("row").agg(pl.col(name).sum()))
            found.append(own.slice(split.cut).filter(pl.col("reason") == code).drop("reason"))
        if lanes := split.lanes:
            self._add_host(split.report, lanes, rows.head(split.cut).filter(pl.col("reason") == known.host))

    def _add_host(self, report: Report, lanes: Lanes, host: pl.DataFrame) -> None:
        """Accounts for the time in no call, whose rows are sorted, and split by range at most."""
        start, end = host.get_column("start"), host.get_column("end")
        first = (start != end.shift(1)).fill_null(value=True)
        spans = pl.DataFrame([start.filter(first), end.filter(first.shift(-1, fill_value=True))])
        made = _unrecorded(report, lanes)
        hit = touched(spans, made)
        if hit.any():
            making = intervals.intersect(spans.filter(hit), made)
            spans = pl.concat([spans.filter(~hit), intervals.subtract(spans.filter(hit), making)]).sort("start")
            for (process, thread), own in lanes.of_each(making):
                keys = {"process_id": pl.lit(process, dtype=pl.Int64), "thread_id": pl.lit(thread, dtype=pl.Int64)}
                self.unrecorded.append(own.select(**keys, start="start", end="end"))
        if spans.height:
            lengths = spans.get_column("end") - spans.get_column("start")
            longest = spans.slice(int((lengths == lengths.max()).arg_true()[0]), 1)
            start, end = lanes.back(longest).row(0)
            self.longest_host = max(self.longest_host, (start, end - start), key=lambda span: span[1])
            short = lengths.filter(lengths < SHORT_NS)
            self._add_short(int(short.sum()), len(short))

    def _add_short(self, ns: int, number: int) -> None:
        self.short_host = self.short_host[0] + ns, self.short_host[1] + number


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


@once_per_report
def _names_wanted(report: Report) -> list[bool]:
    del report
    return []


def want_names(report: Report) -> None:
    """Makes :func:`idle_sums` and :func:`named_idle` share one pass, whichever is asked for first."""
    _names_wanted(report).append(True)


@once_per_report
def idle_sums(report: Report) -> dict[int, IdleSums]:
    """Idle time by reason of every device in scope, by device.

    An idle interval is attributed in the whole report, and clipped to the window after that.
    """
    if _names_wanted(report):
        return {device: sums for device, (_, sums) in _sums_by_name(report).items()}
    found = {}
    for device in idle_devices(report, reasons, beside=[exclusive_operations]):
        found[device.device] = _initial(device)
        for part in device.of_batches(_sums_of_batch, device.idle):
            found[device.device].include(part)
    return {number: sums.merged() for number, sums in found.items()}


def named_idle(report: Report) -> dict[int, pl.DataFrame]:
    """Idle time by name of every device in scope, by device: bucket, culprit, range, ns, gaps and longest_ns."""
    return {device: names for device, (names, _) in _sums_by_name(report).items()}


@once_per_report
def _sums_by_name(report: Report) -> dict[int, tuple[pl.DataFrame, IdleSums]]:
    want_names(report)
    return {device.device: _named_and_summed(device) for device in idle_devices_with_names(report)}


def _named_and_summed(device: IdleDevice) -> tuple[pl.DataFrame, IdleSums]:
    lost = pl.DataFrame([("unknown", None, None, device.unrecorded_ns, 1, device.unrecorded_ns)], _SUMS, orient="row")
    parts, found = [lost.filter(pl.col("ns") > 0)], _initial(device)
    pieces: list[pl.DataFrame] = []
    for sums, part, kept in device.of_batches(_batch_by_name, device.idle.with_row_index("gap")):
        parts.append(sums)
        found.include(part)
        pieces += kept
    keep(device, pieces)
    together = pl.concat(parts).group_by(_KEYS)
    sums = together.agg(pl.col("ns").sum(), pl.col("gaps").sum(), pl.col("longest_ns").max())
    return sums, found.merged()


def _initial(device: IdleDevice) -> IdleSums:
    """The initial sums of a device: the part of its window that was not recorded, as `unknown`."""
    row = (reasons(device.report).unknown, device.unrecorded_ns, 0)
    return IdleSums([pl.DataFrame([row], _BUCKETS, orient="row")])


def _sums_of_batch(batch: IdleBatch) -> IdleSums:
    return _summed(split_idle(batch))


def _summed(splits: Sequence[Split]) -> IdleSums:
    found = IdleSums()
    for split in splits:
        found.add(split)
    return found


def _batch_by_name(batch: IdleBatch) -> tuple[pl.DataFrame, IdleSums, list[pl.DataFrame]]:
    splits = split_idle(batch, by_range=True)
    kept = pieces_to_keep(batch.of.report, splits)
    return _summed_by_name(idle_parts(splits, batch.of.device)), _summed(splits), kept


def _summed_by_name(parts: Parts) -> pl.DataFrame:
    """Sums the parts of idle time over gaps: the columns of :data:`_SUMS`."""
    together = pl.concat([parts.several, parts.single])
    numbered, size = coded(together, _KEYS)
    several = parts.several.height
    each = of_each_gap(parts.several.get_column("gap"), numbered.head(several), size)
    longest = pl.col("ns").max().alias("longest_ns")
    sums = pl.concat([each, numbered.slice(several)]).group_by("code")
    found = sums.agg(pl.col("ns").sum(), pl.len().alias("gaps"), longest, pl.col("at").first())
    told = found.with_columns(together.select(pl.col(_KEYS).gather(found.get_column("at"))))
    return told.select(pl.col(name).cast(dtype) for name, dtype in _SUMS.items())


def idle_rows(report: Report, device: int) -> pl.DataFrame:
    """Idle time of a device by bucket and detail: bucket, detail, ns."""
    known = reasons(report)
    sums = pl.concat(idle_sums(report)[device].reasons).group_by("reason").agg(pl.col("ns", "call_ns").sum())
    rows = rows_at(known.table, sums.get_column("reason")).with_columns(sums)
    launch = pl.col("reason") == known.launch
    calls = rows.filter(launch).with_columns(detail=pl.lit("call"), ns="call_ns")
    latency = rows.filter(launch).with_columns(detail=pl.lit("latency"), ns=pl.col("ns") - pl.col("call_ns"))
    every = pl.concat([rows.filter(~launch), calls, latency])
    return every.group_by("bucket", "detail").agg(pl.col("ns").sum())


@once_per_report
def launch_waits(report: Report) -> pl.DataFrame:
    """Idle time spent waiting for the launch of each operation: row (of `operations`), launch_ns.

    Sorted by row; sums to the ledger's `launch` bucket.
    """
    return _by_row([part for device in idle_sums(report).values() for part in device.waits], _WAITS)


@once_per_report
def queued_waits(report: Report) -> pl.DataFrame:
    """Idle time spent waiting for each operation that was already submitted: row (of `operations`), queued_ns.

    Sorted by row; sums to the ledger's `queued` bucket.
    """
    return _by_row([part for device in idle_sums(report).values() for part in device.queued], _QUEUED)


def _by_row(parts: list[pl.DataFrame], schema: Mapping[str, DataTypeClass]) -> pl.DataFrame:
    """Concatenates waits, sorted by row; rows are distinct, since an operation ends one interval only."""
    if len(parts) == 1 and parts[0].get_column("row").is_sorted():
        return parts[0]  # no copy: in a large report it would double the memory
    return pl.concat([pl.DataFrame(schema=schema), *parts]).sort("row")


def coded(parts: pl.DataFrame, keys: Sequence[str]) -> tuple[pl.DataFrame, int]:
    """Encodes the columns `keys` of each row as one integer; gives the encoded rows and the number of codes.

    Columns: at (row in `parts`), code (ordered by the first key) and ns.
    """
    number, size = numbered(parts, keys)
    return parts.select(number.alias("code"), "ns").with_row_index("at"), size


def of_each_gap(gaps: pl.Series, parts: pl.DataFrame, size: int) -> pl.DataFrame:
    """Sums ns by gap and code, sorted by both: at (of one row of the group), code and ns.

    `parts` are rows of :func:`coded`, `gaps` the gap of each, and `size` the number of codes.
    """
    first, last = gaps.min(), gaps.max()
    if not isinstance(first, int) or not isinstance(last, int):
        return parts
    size, rows = (1 << number.bit_length() for number in (size, parts.height))  # powers of two: division is faster
    if size * (last - first + 1) * rows > LARGEST:
        sums = parts.with_columns(gaps).group_by("gap", "code").agg(pl.col("at").first(), pl.col("ns").sum())
        return sums.sort("gap", "code").select(parts.columns)
    # packing gap, code and row into one integer and sorting takes a tenth of the time of a group-by of four columns
    keys = ((gaps - first).cast(pl.Int64) * size + parts.get_column("code")) * rows + parts.get_column("at")
    keys = keys.sort()
    same, at = keys // rows, (keys & (rows - 1)).cast(pl.UInt32).alias("at")
    reached = pl.DataFrame([at, parts.get_column("ns")[at]])
    sums = last_of_runs(reached, same)
    return parts.select("at", "code")[sums.get_column("at")].with_columns(sums.get_column("ns"))


def last_of_runs(rows: pl.DataFrame, same: pl.Series) -> pl.DataFrame:
    """Sums ns over each run of equal values of `same`; keeps the last row of a run."""
    ends = rows.with_columns(pl.col("ns").cum_sum()).filter((same != same.shift(-1)).fill_null(value=True))
    return ends.with_columns(pl.col("ns").diff().fill_null(pl.col("ns")))
