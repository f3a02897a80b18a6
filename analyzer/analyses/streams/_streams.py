"""Streams with operations, and their busy time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import device_operations, exclusive_operations
from kanalyze.analyses.device._windows import busy_spans as device_spans
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.grouping import grouped, parts_by
from kanalyze.columns.lookup import rows_at
from kanalyze.columns.ordering import in_order
from kanalyze.model import DEVICE_KINDS, EVENTS, STREAMS

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Key columns of a context; only streams of one context can order each other.
_CONTEXT: Final = ("device", "process_id", "context_id")
STREAM_KEYS: Final = (*_CONTEXT, "stream")


@once_per_report
def used_streams(report: Report) -> pl.DataFrame:
    """Streams with operations on the devices in scope, at any time, sorted by :data:`STREAM_KEYS`.

    Columns: those keys, number (row index), group (one per device, process and context), type, priority and name (null
    where not recorded). Operations without a stream, such as unified-memory copies, count as a stream that is null.
    """
    found = grouped(_keyed(report), STREAM_KEYS, [])
    known = report.table(STREAMS.name)
    numbered = found.sort(STREAM_KEYS).with_row_index("number")
    group = pl.struct(_CONTEXT).rank("dense").cast(pl.UInt32).alias("group")
    return numbered.with_columns(group).join(
        known, on=["process_id", "context_id", "stream"], how="left", maintain_order="left"
    )


@once_per_report
def stream_numbers(report: Report) -> pl.DataFrame:
    """The stream of each of :func:`device_operations`: row, number and group, as in `used_streams`."""
    work, streams = _keyed(report), used_streams(report)
    keys = [key for key in STREAM_KEYS if streams.get_column(key).n_unique() > 1]
    wanted = streams.select("number", "group", *keys)
    if not keys:
        return work.select("row", *(_literal(name, value) for name, value in _only(wanted)))
    joined = work.select("row", *keys).join(wanted, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return joined.select("row", "number", "group")


@once_per_report
def placed_operations(report: Report) -> pl.DataFrame:
    """Operations in the window, clipped to it, with their streams.

    Columns: number, group, row, device, rank, start, end, began, dur_ns.
    """
    work = exclusive_operations(report).select("row", "device", "rank", "start", "end", "began", "dur_ns")
    numbers = stream_numbers(report)
    if not work.get_column("row").equals(numbers.get_column("row")):
        numbers = work.select("row").join(numbers, on="row", how="left", maintain_order="left")
    return pl.concat([numbers.drop("row"), work], how="horizontal")


def _literal(name: str, value: int) -> pl.Expr:
    return pl.lit(value, dtype=pl.UInt32).alias(name)


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


def _only(streams: pl.DataFrame) -> list[tuple[str, int]]:
    """Number and group of the only stream; zeros if there is none."""
    return [(name, 0 if streams.is_empty() else streams.get_column(name).item(0)) for name in ("number", "group")]


def _keyed(report: Report) -> pl.DataFrame:
    """Operations on the devices in scope: row and :data:`STREAM_KEYS`."""
    columns = ("event_id", "process_id", "context_id", "stream")
    ids = pl.concat([EVENTS.empty().select(columns), *(report.kind(kind).select(columns) for kind in DEVICE_KINDS)])
    ids = in_order(ids, "event_id")
    work = device_operations(report).select("row", "device")
    at = work.get_column("row")
    placed = ids.drop("event_id") if len(at) == ids.height else rows_at(ids.drop("event_id"), at)
    return pl.concat([work, placed], how="horizontal")
