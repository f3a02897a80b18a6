"""Ledgers of many windows in one pass, each equal to the table `ledger` of that window.

Windows may overlap. The bucket of an instant does not depend on the window, so attribution runs once over the time that
all windows span, and is then summed over each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, of_device, operations
from kanalyze.analyses.idle._idle_intervals import idle_devices
from kanalyze.analyses.idle._idle_parts import reasons, split_idle
from kanalyze.analyses.idle.ledger import BUCKETS
from kanalyze.columns.lookup import gathered
from kanalyze.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses.idle._idle_intervals import IdleBatch, IdleDevice
    from kanalyze.report import Report

_BUCKET: Final = pl.Enum(BUCKETS)
_PIECES: Final[dict[str, DataType | DataTypeClass]] = {"start": pl.Int64, "end": pl.Int64, "bucket": _BUCKET}


def window_ledgers(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """The ledger of each window in `spans` (start, end; longer than 0) on each device that has a ledger.

    Columns: window (row in `spans`), device, and ``<bucket>_ns`` per bucket of the ledger.

    Raises:
        AssertionError: The buckets of a window do not sum to its length.
    """
    columns = {"window": pl.UInt32, "device": pl.Int64, **{f"{bucket}_ns": pl.Int64 for bucket in BUCKETS}}
    if spans.is_empty():
        return pl.DataFrame(schema=columns)
    hull = Window(*spans.select(pl.col("start").min(), pl.col("end").max()).row(0))
    parts = [pl.DataFrame(schema=columns)]
    for device in idle_devices(report.narrow(window=hull)):
        sums = _of_device(device, spans).with_row_index("window")
        parts.append(sums.with_columns(device=pl.lit(device.device, dtype=pl.Int64)).select(*columns))
    return pl.concat(parts)


def _of_device(idle: IdleDevice, spans: pl.DataFrame) -> pl.DataFrame:
    sums = {bucket: pl.zeros(spans.height, dtype=pl.Int64, eager=True) for bucket in BUCKETS}
    start, end = spans.get_column("start"), spans.get_column("end")
    for pieces in _pieces(idle):
        for (bucket,), own in pieces.partition_by("bucket", as_dict=True).items():
            sums[str(bucket)] += intervals.overlap(start, end, own.sort("start"))
    wrong = (sum(sums.values(), start=pl.zeros(spans.height, dtype=pl.Int64, eager=True)) != end - start).arg_true()
    if len(wrong):
        row = int(wrong[0])
        found = {bucket: times[row] for bucket, times in sums.items()}
        raise AssertionError(f"the ledger of device {idle.device} in {spans.row(row)} sums to another time: {found}")
    return pl.DataFrame([times.alias(f"{bucket}_ns") for bucket, times in sums.items()])


def _pieces(idle: IdleDevice) -> Iterator[pl.DataFrame]:
    """Disjoint intervals by bucket that cover the time from the first to the last window: columns of `_PIECES`."""
    yield _busy(idle)
    edges = pl.DataFrame([(idle.low, idle.begun), (idle.ended, idle.high)], schema=intervals.SPANS, orient="row")
    yield _in_bucket(edges.filter(pl.col("end") > pl.col("start")), "unknown")
    for found in idle.of_batches(_idle, idle.idle):
        yield from found


def _in_bucket(spans: pl.DataFrame, bucket: str) -> pl.DataFrame:
    return spans.select("start", "end", bucket=pl.lit(bucket, dtype=_BUCKET))


def _busy(device: IdleDevice) -> pl.DataFrame:
    """Busy intervals by bucket; where several overlap, the first bucket takes precedence."""
    work = of_device(operations(device.report).select("device", "start", "end", "bucket"), device.device)
    found, above = [pl.DataFrame(schema=_PIECES)], pl.DataFrame(schema=intervals.SPANS)
    for bucket in BUSY_BUCKETS:
        own = intervals.union(intervals.clip(work.filter(pl.col("bucket") == bucket), device.low, device.high))
        found.append(_in_bucket(intervals.subtract(own, above), bucket))
        above = intervals.union(pl.concat([above, own]))
    return pl.concat(found)


def _idle(batch: IdleBatch) -> list[pl.DataFrame]:
    buckets = reasons(batch.of.report).table.get_column("bucket").cast(_BUCKET)
    pieces = []
    for split in split_idle(batch):
        rows = split.lanes.back(split.rows) if split.lanes else split.rows
        pieces.append(rows.select("start", "end", gathered(buckets, rows.get_column("reason")).alias("bucket")))
    return pieces
