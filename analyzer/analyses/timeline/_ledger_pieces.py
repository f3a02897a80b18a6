"""The ledger piece by piece: which bucket each moment of a device's window belongs to, and its culprit.

The pieces of a device partition its window, so their sums are its ledger. Definitions: definitions.md, section 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.idle._idle_parts import TIMED, idle_devices_with_names, split_idle, timed_parts
from kanalyze.analyses.shared.buckets import BUCKETS

if TYPE_CHECKING:
    from kanalyze.analyses.idle._idle_intervals import IdleBatch, IdleDevice
    from kanalyze.report import Report

_BUCKET: Final = pl.Enum(BUCKETS)

#: Schema of the pieces: device, interval, bucket, and for idle time its culprit and the range that it lies in.
PIECES: Final = {"device": pl.Int64, **TIMED, "bucket": _BUCKET}


def ledger_pieces(report: Report) -> pl.DataFrame:
    """The pieces of the window of each device in scope, by device and time: :data:`PIECES`."""
    found = [pl.DataFrame(schema=PIECES)]
    for device, low, high in windows(report).select("device", "start", "end").iter_rows():
        own = device_operations(report).filter(pl.col("device") == device)
        found += [_of_device(part, device) for part in _busy(own, low, high)]
    for device in idle_devices_with_names(report):
        found += [
            _of_device(part, device.device) for part in device.of_batches(_idle, device.idle.with_row_index("gap"))
        ]
        found.append(_of_device(_unrecorded(device), device.device))
    return pl.concat(found).sort("device", "start")


def _of_device(part: pl.DataFrame, device: int) -> pl.DataFrame:
    missing = {name: pl.lit(None, dtype=kind) for name, kind in PIECES.items() if name not in part.columns}
    columns = {"device": pl.lit(device, dtype=pl.Int64), "bucket": pl.col("bucket").cast(pl.String).cast(_BUCKET)}
    return part.with_columns(**(missing | columns)).select(*PIECES)


def _busy(work: pl.DataFrame, low: int, high: int) -> list[pl.DataFrame]:
    """Busy time by bucket within a window; where operations overlap, the bucket that comes first counts."""
    found, taken = [], pl.DataFrame(schema=intervals.SPANS)
    for rank, bucket in enumerate(BUSY_BUCKETS):
        spans = intervals.clip(intervals.union(work.filter(pl.col("rank") == rank).select("start", "end")), low, high)
        found.append(intervals.subtract(spans, taken).with_columns(pl.lit(bucket).alias("bucket")))
        taken = intervals.union(pl.concat([taken, spans]))
    return found


def _idle(batch: IdleBatch) -> pl.DataFrame:
    return timed_parts(split_idle(batch, by_range=True), batch.of.device)


def _unrecorded(device: IdleDevice) -> pl.DataFrame:
    """Parts of the window outside the recording."""
    sides = [(device.low, device.begun), (device.ended, device.high)]
    spans = pl.DataFrame([side for side in sides if side[1] > side[0]], schema=intervals.SPANS, orient="row")
    return spans.with_columns(pl.lit("unknown").alias("bucket"))
