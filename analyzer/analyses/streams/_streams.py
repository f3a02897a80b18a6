"""Streams with operations, and their busy time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import device_operations, exclusive_operations
from kanalyze.analyses.device._windows import busy_spans as device_spans
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.grouping import grouped, parts_by
from kanalyze.model import STREAMS

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Key columns of a context; only streams of one context can order each other.
_CONTEXT: Final = ("device", "process_id", "context_id")
STREAM_KEYS: Final = (*_CONTEXT, "stream")

_NUMBERS: Final = ("number", "group")


@once_per_report
def used_streams(report: Report) -> pl.DataFrame:
    """Streams with operations on the devices in scope, at any time, sorted by :data:`STREAM_KEYS`.

    Columns: those keys, number (row index), group (one per device, process and context), type, priority and name (null
    where not recorded). Operations without a stream, such as unified-memory copies, count as a stream that is null.
    """
    found = grouped(device_operations(report, "context_id", "stream"), STREAM_KEYS, [])
    known = report.table(STREAMS.name)
    numbered = found.sort(STREAM_KEYS).with_row_index("number")
    group = pl.struct(_CONTEXT).rank("dense").cast(pl.UInt32).alias("group")
    return numbered.with_columns(group).join(
        known, on=["process_id", "context_id", "stream"], how="left", maintain_order="left"
    )


def streamed_operations(report: Report, *facts: str) -> pl.DataFrame:
    """:func:`device_operations` with number and group of their streams, as in `used_streams`."""
    return pl.concat([device_operations(report, *facts), _stream_numbers(report)], how="horizontal")


@once_per_report
def _stream_numbers(report: Report) -> pl.DataFrame:
    """Number and group of the stream of each of :func:`device_operations`."""
    work, streams = device_operations(report, "context_id", "stream"), used_streams(report)
    keys = [key for key in STREAM_KEYS if streams.get_column(key).n_unique() > 1]
    if not keys:
        only = (pl.lit(0 if streams.is_empty() else streams.item(0, name), dtype=pl.UInt32) for name in _NUMBERS)
        return work.with_columns(**dict(zip(_NUMBERS, only, strict=True))).select(_NUMBERS)
    wanted = streams.select(*_NUMBERS, *keys)
    joined = work.select(keys).join(wanted, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return joined.select(_NUMBERS)


@once_per_report
def placed_operations(report: Report) -> pl.DataFrame:
    """Operations in the window, clipped to it: `exclusive_operations` with number and group of their streams."""
    work = exclusive_operations(report)
    numbers = streamed_operations(report).select("row", *_NUMBERS)
    if not work.get_column("row").equals(numbers.get_column("row")):
        numbers = work.select("row").join(numbers, on="row", how="left", maintain_order="left")
    return pl.concat([numbers.drop("row"), work], how="horizontal")


@once_per_report
def busy_spans(report: Report) -> dict[int, pl.DataFrame]:
    """Span set of busy time within the window, by stream number."""
    streams = used_streams(report)
    if streams.height == 1 and report.scope.window is None:  # equal to that of the device, so one copy is shared
        return {0: device_spans(report)[streams.item(0, "device")]}
    return spans_by_stream(placed_operations(report).select("number", "start", "end"))


def spans_by_stream(work: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """Union of the intervals of `work` (number, start, end), by stream number."""
    return {number: intervals.union(part) for (number,), part in parts_by(work, ["number"]).items()}
