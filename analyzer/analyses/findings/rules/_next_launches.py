"""The operation that a host thread launched next after some calls, and the idle interval right before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.device._windows import busy_spans
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import gathered, positions

if TYPE_CHECKING:
    from kanalyze.report import Report


def followed(report: Report, waiting: pl.DataFrame) -> pl.DataFrame:
    """`waiting` with the `row` of what its thread launched next on the device; calls without one are dropped."""
    work = operations(report, "call_start", "thread_id").drop_nulls("call_start")
    launches = work.select("row", "device", "start", *THREAD, at="call_start").sort("at", "start", maintain_order=True)
    found = [waiting.with_columns(row=pl.lit(None, dtype=pl.UInt32)).clear()]
    for key, part in waiting.partition_by([*THREAD, "device"], as_dict=True).items():
        own = launches.filter(pl.col(name) == value for name, value in zip([*THREAD, "device"], key, strict=True))
        place = own.get_column("at").search_sorted(part.get_column("end"), side="left")
        row = gathered(own.get_column("row"), place.set(place == own.height, None))
        found.append(part.with_columns(row.alias("row")).drop_nulls("row"))
    return pl.concat(found)


def idle_since(report: Report, device: int, rows: pl.Series) -> pl.Series:
    """When the device became idle before each of the operations `rows`; null where it did not, or had done nothing."""
    spans = busy_spans(report)[device]
    at = positions(spans.get_column("start"), operations(report).get_column("start").gather(rows))
    return spans.get_column("end").shift(1).gather(at).alias("idle")
