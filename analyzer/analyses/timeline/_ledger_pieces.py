"""The ledger piece by piece: which bucket each moment of a device's window belongs to, and its culprit.

The pieces of a device partition its window, so their sums are its ledger. Definitions: definitions.md, section 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.idle._idle_parts import IDLE, TIMED, idle_devices_with_names, split_idle, timed_parts
from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from kanalyze.analyses.idle._idle_intervals import IdleBatch, IdleDevice
    from kanalyze.report import Report

_BUCKET: Final = pl.Enum(BUCKETS)

#: Schema of the pieces: device, interval, bucket, and for idle time its culprit and the range that it lies in.
_OF_A_DEVICE: Final = {**TIMED, "bucket": _BUCKET}
PIECES: Final = {"device": pl.Int64, **_OF_A_DEVICE}

#: The bucket of each number of one among those of idle time.
_IDLE: Final = pl.Series(IDLE, dtype=_BUCKET)


def ledger_pieces(report: Report) -> pl.DataFrame:
    """The pieces of the window of each device in scope, by device and time: :data:`PIECES`."""
    found: dict[int, list[pl.DataFrame]] = {}
    for device, low, high in windows(report).select("device", "start", "end").sort("device").iter_rows():
        own = device_operations(report).filter(pl.col("device") == device)
        found[device] = _busy(own, low, high)
    for device in idle_devices_with_names(report):
        found[device.device] += device.of_batches(_idle, device.idle.with_row_index("gap"))
        found[device.device].append(_unrecorded(device))
    each = [_of_device(parts, device) for device, parts in found.items()]
    return pl.concat([pl.DataFrame(schema=PIECES), *each])


def _of_device(parts: list[pl.DataFrame], device: int) -> pl.DataFrame:
    pieces = pl.concat([pl.DataFrame(schema=_OF_A_DEVICE), *parts], how="diagonal").sort("start")
    return pieces.select(device=pl.lit(device, dtype=pl.Int64), **{name: name for name in _OF_A_DEVICE})


def _busy(work: pl.DataFrame, low: int, high: int) -> list[pl.DataFrame]:
    """Busy time by bucket within a window; where operations overlap, the bucket that comes first counts."""
    found, taken = [], pl.DataFrame(schema=intervals.SPANS)
    for rank, bucket in enumerate(BUSY_BUCKETS):
        spans = intervals.clip(intervals.union(work.filter(pl.col("rank") == rank).select("start", "end")), low, high)
        found.append(intervals.subtract(spans, taken).with_columns(pl.lit(bucket, dtype=_BUCKET).alias("bucket")))
        taken = intervals.union(pl.concat([taken, spans]))
    return found


def _idle(batch: IdleBatch) -> pl.DataFrame:
    parts = timed_parts(split_idle(batch, by_range=True), batch.of.device)
    return parts.with_columns(gathered(_IDLE, parts.get_column("bucket").to_physical()).alias("bucket"))


def _unrecorded(device: IdleDevice) -> pl.DataFrame:
    """Parts of the window outside the recording."""
    sides = [(device.low, device.begun), (device.ended, device.high)]
    spans = pl.DataFrame([side for side in sides if side[1] > side[0]], schema=intervals.SPANS, orient="row")
    return spans.with_columns(pl.lit("unknown", dtype=_BUCKET).alias("bucket"))
