"""Idle time of each device in which its host thread was inside given intervals, such as one kind of range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.idle._idle_intervals import idle_devices
from kanalyze.analyses.idle._idle_parts import IDLE, reasons, split_idle
from kanalyze.analyses.shared.cut import touched
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.grouping import parts_by
from kanalyze.columns.lookup import rows_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses.idle._idle_parts import Split
    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report

#: Schema of a piece of idle time: its host thread, times, and bucket and detail as in the ledger.
PIECES: Final[dict[str, DataType | DataTypeClass]] = {
    **dict.fromkeys((*THREAD, "start", "end"), pl.Int64),
    "bucket": pl.Enum(IDLE),
    "detail": pl.String,
}


def idle_within(report: Report, within: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """Idle time of each device in scope while the thread that it is attributed to is in any of its intervals `within`.

    `within` has the columns process_id, thread_id, start and end. Gives the columns of :data:`PIECES` by device; pieces
    of one device do not overlap, and are parts of the ledger's buckets; of launches the detail is null. Idle time
    without a known thread is left out.
    """
    spans = {key: intervals.union(part) for key, part in parts_by(within, THREAD).items()}
    every = intervals.union(within)
    found = {}
    for device in idle_devices(report, reasons):
        idle = device.idle.filter(touched(device.idle, intervals.clip(every, device.begun, device.ended)))
        parts = [pl.DataFrame(schema=PIECES)]
        for batch in device.batches(idle):
            parts += [part for split in split_idle(batch) for part in _inside(split, spans)]
        found[device.device] = pl.concat(parts)
    return found


def _inside(split: Split, spans: dict[ThreadKey, pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """The parts of a split inside the span set of their thread: :data:`PIECES`."""
    if split.lanes is None:
        return
    table = reasons(split.report).table.select(pl.col("bucket").cast(PIECES["bucket"]), "detail")
    rows = split.rows.select("start", "end", "reason").sort("start")
    for key, own in split.lanes.of_each(rows):
        if (within := spans.get(key)) is None:
            continue
        cut = intervals.cut(own, within)
        keys = {name: pl.lit(value, dtype=pl.Int64) for name, value in zip(THREAD, key, strict=True)}
        yield cut.select(**keys, start="start", end="end").hstack(rows_at(table, cut.get_column("reason")))
