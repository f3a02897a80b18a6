"""Total and exposed time of each kind of device work."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import (
    BUSY_BUCKETS,
    exclusive_operations,
    launching_rows,
    of_device,
    operations,
)
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.analyses.shared.statistics import total
from kanalyze.columns import rows_at
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report
from kanalyze.schema import Column, Table, columns

CATEGORIES: Final = (*BUSY_BUCKETS, "launch")

#: Category, detail, sum of durations, length of their union, exposed time, and the part of that within the union (ns).
_Row = tuple[str, str | None, int, int, int, int]

TABLE: Final = Table(
    "exposure",
    "One kind of work of a device: how long it took in all, and how much of that the device did nothing more useful.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("category", pl.Enum(CATEGORIES), "kernel, communication, memcpy, memset; launch: the launching calls."),
        *columns("""
            detail text?: Direction of the copies; null for all of the category together.
            total_ns int: Sum of the durations inside the window.
            union_ns int: Time in which at least one was running.
            exposed_ns int: The part that nothing hid, as in the ledger.
            hidden_share float?: Part of the union that ran behind more useful work; null where there is none. Of
                launches, the part of the calls in which the device did not wait for them; the latency after a call is
                in no call.
        """),
    ),
    purpose="how much of each kind of work was not hidden",
)


@analysis
def exposure(report: Report) -> pl.DataFrame:
    """Total, union and exposed time by device and category, inside the windows.

    Returns:
        :data:`TABLE`: categories that occur, in the order of :data:`CATEGORIES`; copies also by direction.

    Raises:
        CannotTellError: The report records no device operations.
    """
    require(report, TABLE, *DEVICE_KINDS)
    rows: list[tuple[int, str, str | None, int, int, int, int]] = []
    needed = ("device", "bucket", "detail", "start", "end", "exclusive_ns")
    for device, low, high in windows(report).iter_rows():
        work = of_device(exclusive_operations(report).select(needed), device)
        rows += [(device, *row) for row in _busy(work)]
        rows += [(device, *row) for row in _launching(report, device, low, high)]
    schema = {column.name: column.dtype for column in TABLE.columns[:-1]} | {"own_ns": pl.Int64}
    hidden = pl.when(pl.col("union_ns") > 0).then(1 - pl.col("own_ns") / pl.col("union_ns"))
    return TABLE.select(pl.DataFrame(rows, schema=schema, orient="row").with_columns(hidden_share=hidden))


def _busy(work: pl.DataFrame) -> list[_Row]:
    """The rows of the buckets of a device, and of the directions of its copies, the longest first."""
    rows = []
    for bucket in BUSY_BUCKETS:
        part = work.filter(pl.col("bucket") == bucket)
        rows += [_row(bucket, None, part)] if part.height else []
        directions = part.partition_by("detail", as_dict=True) if bucket == "memcpy" else {}
        of_each = [_row(bucket, direction, copies) for (direction,), copies in directions.items()]
        rows += sorted(of_each, key=lambda row: -row[2])
    return rows


def _row(category: str, detail: str | None, work: pl.DataFrame) -> _Row:
    whole, exposed = intervals.length(work), int(work.get_column("exclusive_ns").sum())
    together = whole if exposed == whole else intervals.length(intervals.union(work))
    return category, detail, whole, together, exposed, exposed


def _launching(report: Report, device: int, low: int, high: int) -> list[_Row]:
    """The row of the launch calls of a device, deduplicated; their exposed time is the ledger's bucket `launch`.

    Of that, the time inside the calls lies within their union; the latency after them does not.
    """
    every = operations(report, "call_row").select("device", "call_row")
    work, called = of_device(every, device), launching_rows(report)
    if work.height < every.height:
        called = work.get_column("call_row").drop_nulls().unique().sort()
    calls = rows_at(report.kind("api").select("start_ns", "dur_ns"), called)
    inside = intervals.clip(calls.select(start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns")), low, high)
    if inside.is_empty():
        return []
    waited = bucket_sums(report).filter((pl.col("device") == device) & (pl.col("bucket") == "launch"))
    calling = total(waited.filter(pl.col("detail") == "call"), "ns")
    together = intervals.length(intervals.union(inside))
    return [("launch", None, intervals.length(inside), together, total(waited, "ns"), calling)]
