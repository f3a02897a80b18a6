"""Ledgers of many windows in one pass, each equal to the table `ledger` of that window.

Windows may overlap. The bucket of an instant does not depend on the window, so attribution runs once over the time that
all windows span, and is then summed over each; it is kept for further windows. Time that the ledger of a part of the
report was made of can be kept from there, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, of_device, operations
from kanalyze.analyses.device._windows import activity, windows
from kanalyze.analyses.host._context_creation import BEGINS, unseen_starts, unseen_syncs
from kanalyze.analyses.host._launching_call import calls_of
from kanalyze.analyses.idle._idle_intervals import IdleBatch, idle_devices
from kanalyze.analyses.idle._idle_parts import IDLE, reasons, split_idle
from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import gathered
from kanalyze.window import Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses.idle._idle_intervals import IdleDevice
    from kanalyze.analyses.idle._idle_parts import Split
    from kanalyze.report import Report

#: What idle time is told apart by: the bucket, and waits for work from before the recording, which are `unknown`.
_PARTS: Final = (*IDLE, BEGINS)
_PART: Final = pl.Enum(_PARTS)
_PIECES: Final[dict[str, DataType | DataTypeClass]] = {"part": _PART, "start": pl.Int64, "end": pl.Int64}


#: The whole recording is attributed where it has no more operations than these: of so few it takes no longer than of a
#: part; if so large a part of them is asked for, together with the parts before; and after so many parts.
_FEW: Final = 1 << 15
_MUCH: Final = 0.5
_PARTS_MOST: Final = 16


class _Attributed(NamedTuple):
    """The time of each device from `low` to `high`, attributed.

    Attributes:
        low: Start.
        high: End.
        busy: By device, for each of :data:`BUSY_BUCKETS` the span set of the operations in it or one before.
        idle: By device, disjoint intervals (start, end; sorted) by part of :data:`_PARTS`.
    """

    low: int
    high: int
    busy: dict[int, list[pl.DataFrame]]
    idle: dict[int, dict[str, pl.DataFrame]]

    def times(self, device: int, spans: pl.DataFrame) -> dict[str, pl.Series]:
        """The time of a device in each of `spans` (start, end), by busy bucket and part of idle time."""
        start, end = spans.get_column("start"), spans.get_column("end")
        before = until = pl.zeros(spans.height, dtype=pl.Int64, eager=True)
        sums, known = {}, None
        for bucket, covered in zip(BUSY_BUCKETS, self.busy[device], strict=True):
            until = until if covered is known else intervals.overlap(start, end, covered)
            sums[bucket], before, known = until - before, until, covered
        return sums | {part: intervals.overlap(start, end, own) for part, own in self.idle[device].items()}


def window_ledgers(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """The ledger of each window in `spans` (start, end; longer than 0) on each device that has a ledger.

    Columns: window (row in `spans`), device, and ``<bucket>_ns`` per bucket of the ledger.

    Raises:
        AssertionError: The buckets of a window do not sum to its length.
    """
    columns = {"window": pl.UInt32, "device": pl.Int64, **{f"{bucket}_ns": pl.Int64 for bucket in BUCKETS}}
    if spans.is_empty():
        return pl.DataFrame(schema=columns)
    found = _attributed(report, *spans.select(pl.col("start").min(), pl.col("end").max()).row(0))
    parts = [pl.DataFrame(schema=columns)]
    for device in found.busy:
        sums = _of_device(found, device, spans).with_row_index("window")
        parts.append(sums.with_columns(device=pl.lit(device, dtype=pl.Int64)).select(*columns))
    return pl.concat(parts)


def unknown_times(report: Report) -> list[tuple[int, int]] | None:
    """For each device in scope, its idle time of unknown cause, and the waits for work from before the recording.

    None where it takes the whole ledger to tell.
    """
    spans = windows(report)
    low, high = spans.select(pl.col("start").min(), pl.col("end").max()).row(0)
    found = None if low is None else _known(report.whole, low, high)
    if found is None:
        seen = not len(unseen_starts(report)) and not len(unseen_syncs(report))
        return [(_of_no_thread(device), 0) for device in idle_devices(report)] if seen else None
    start, end = (spans.get_column(side) for side in ("start", "end"))
    return [
        (
            int(intervals.overlap(start.slice(at, 1), end.slice(at, 1), found.idle[device]["unknown"]).item()),
            int(intervals.overlap(start.slice(at, 1), end.slice(at, 1), found.idle[device][BEGINS]).item()),
        )
        for at, device in enumerate(spans.get_column("device"))
    ]


def _of_no_thread(device: IdleDevice) -> int:
    """Idle time of a device that was not recorded, or that no host thread is known for: nothing else is unknown.

    That is so where no work from before the recording was waited for. Every thread that launched something is known.
    """
    called = calls_of(device.report, device.idle.get_column("row"), "thread_id").to_series()
    rest = IdleBatch(device, device.idle.filter(called.is_null())).launched()
    sums = rest.group_by(THREAD).agg((pl.col("end") - pl.col("start")).sum().alias("ns"))
    lost = (ns for *key, ns in sums.iter_rows() if tuple(key) not in device.threads or key[1] is None)
    return device.unrecorded_ns + int(sum(lost))


@once_per_report
def attributed(report: Report) -> list[_Attributed]:
    """Attributions of a report, of different times."""
    del report
    return []


@once_per_report
def _kept(report: Report) -> list[bool]:
    del report
    return []


def keep_attributed(report: Report) -> None:
    """Makes the ledger of a part of a report keep the times of its buckets for :func:`window_ledgers` of the whole."""
    _kept(report).append(True)


def pieces_to_keep(report: Report, splits: Sequence[Split]) -> list[pl.DataFrame]:
    """Pieces of split idle intervals for :func:`keep`; none unless :func:`keep_attributed` asks for them."""
    return _pieces(report, splits) if _is_to_keep(report) else []


def _is_to_keep(report: Report) -> bool:
    """Whether the times of a part of a report are to be kept, and are not yet."""
    if not _kept(report):
        return False
    low, high = windows(report).select(pl.col("start").min(), pl.col("end").max()).row(0)
    return low is not None and _known(report.whole, low, high) is None


def keep(device: IdleDevice, pieces: Sequence[pl.DataFrame]) -> None:
    """Keeps the times of a device in the window of a part of a report, if :func:`keep_attributed` asks for it.

    `pieces` are those of all of its idle intervals.
    """
    if not _is_to_keep(device.report):
        return
    known = attributed(device.report.whole)
    found = next((one for one in known if (one.low, one.high) == (device.low, device.high)), None)
    if found is None:
        found = _Attributed(device.low, device.high, {}, {})
        known.append(found)
    found.busy[device.device] = _busy(device)
    found.idle[device.device] = _parts(device, pieces)


def _known(report: Report, low: int, high: int) -> _Attributed | None:
    """Attribution that holds a time of all devices in scope; None if there is none."""
    devices = {*windows(report).get_column("device")}
    kept = (one for one in attributed(report) if one.low <= low and high <= one.high)
    return next((one for one in kept if one.idle.keys() >= devices), None)


def _attributed(report: Report, low: int, high: int) -> _Attributed:
    """The time of each device in scope, attributed at least from `low` to `high`.

    That is all of the recording if this is much of it, also together with the parts before, or after many of these, and
    where there is little of it: it is never gone through many times.
    """
    found = _known(report, low, high)
    if found is None:
        kept, begun = attributed(report), operations(report).get_column("start")
        spans = [(low, high), *((one.low, one.high) for one in kept)]
        inside = sum(int(begun.is_between(*span).sum()) for span in spans)
        if len(begun) <= _FEW or inside >= _MUCH * len(begun) or len(spans) > _PARTS_MOST:
            spans += activity(report).select("start", "end").iter_rows()
            found = _attribute(report, min(start for start, _ in spans), max(end for _, end in spans))
            kept[:] = [found]
        else:
            found = _attribute(report, low, high)
            kept.append(found)
    return found


def _attribute(report: Report, low: int, high: int) -> _Attributed:
    found = _Attributed(low, high, {}, {})
    for device in idle_devices(report.narrow(window=Window(low, high))):
        found.busy[device.device] = _busy(device)
        found.idle[device.device] = _idle(device)
    return found


def _of_device(found: _Attributed, device: int, spans: pl.DataFrame) -> pl.DataFrame:
    sums = found.times(device, spans)
    sums["unknown"] += sums.pop(BEGINS)
    wrong = sum(sums.values(), start=pl.zeros(spans.height, dtype=pl.Int64, eager=True)) != (
        spans.get_column("end") - spans.get_column("start")
    )
    if wrong.any():
        row = int(wrong.arg_true()[0])
        told = {bucket: times[row] for bucket, times in sums.items()}
        raise AssertionError(f"the ledger of device {device} in {spans.row(row)} sums to another time: {told}")
    return pl.DataFrame([sums[bucket].alias(f"{bucket}_ns") for bucket in BUCKETS])


def _busy(device: IdleDevice) -> list[pl.DataFrame]:
    """For each busy bucket the union of its operations and those of the buckets before, which take precedence."""
    work = of_device(operations(device.report).select("device", "start", "end", "bucket"), device.device)
    inside, found = intervals.clip(work, device.low, device.high), [pl.DataFrame(schema=intervals.SPANS)]
    for bucket in BUSY_BUCKETS:
        own = inside.filter(pl.col("bucket") == bucket)
        found.append(intervals.union(pl.concat([found[-1], own.select("start", "end")])) if own.height else found[-1])
    return found[1:]


def _idle(device: IdleDevice) -> dict[str, pl.DataFrame]:
    """Disjoint idle intervals by part of :data:`_PARTS`; what was not recorded is `unknown`."""
    return _parts(device, [piece for found in device.of_batches(_of_batch, device.idle) for piece in found])


def _of_batch(batch: IdleBatch) -> list[pl.DataFrame]:
    return _pieces(batch.of.report, split_idle(batch))


def _parts(device: IdleDevice, pieces: Sequence[pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Pieces of idle time by part, with the time that was not recorded."""
    edges = pl.DataFrame(
        [(device.low, device.begun), (device.ended, device.high)], schema=intervals.SPANS, orient="row"
    )
    unknown = edges.filter(pl.col("end") > pl.col("start")).select(
        pl.lit("unknown", _PART).alias("part"), "start", "end"
    )
    every = pl.concat([pl.DataFrame(schema=_PIECES), unknown, *pieces], rechunk=True)
    known = every.get_column("part").unique().to_list()  # most reports have few
    none = pl.DataFrame(schema=intervals.SPANS)
    return {part: _sides(every.filter(pl.col("part") == part)) if part in known else none for part in _PARTS}


def _sides(pieces: pl.DataFrame) -> pl.DataFrame:
    return pieces.drop("part").sort("start")


def _pieces(report: Report, splits: Sequence[Split]) -> list[pl.DataFrame]:
    """The pieces of idle time that some intervals were split into: columns of :data:`_PIECES`."""
    known = reasons(report)
    parts = known.table.select(
        part=pl.when(pl.int_range(pl.len()) == known.unseen).then(pl.lit(BEGINS)).otherwise("bucket")
    )
    told, pieces = parts.get_column("part").cast(_PART), []
    for split in splits:
        rows = split.lanes.back(split.rows) if split.lanes else split.rows
        pieces.append(rows.select(gathered(told, rows.get_column("reason")).alias("part"), "start", "end"))
    return pieces
