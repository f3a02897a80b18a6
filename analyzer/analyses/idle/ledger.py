"""The ledger: every nanosecond of a device's window in exactly one bucket."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.communication._recorded import has_partners, told_communication
from kanalyze.analyses.device._operations import exclusive_operations, of_device
from kanalyze.analyses.device._windows import share_of_window, windows
from kanalyze.analyses.idle._attribution import idle_sums
from kanalyze.analyses.shared.analysis import analysis, once_per_report, require
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report
from kanalyze.schema import Column, Table, columns

TABLE = Table(
    "ledger",
    "One bucket of a device's time, by detail; the rows of a device sum to its window exactly.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("bucket", pl.Enum(BUCKETS), "Where the time went: " + ", ".join(BUCKETS) + "."),
        *columns("""
            detail text?: kernel: graph for whole-graph rows; communication: waiting for whom, or transfer, where its
                ranks are in the report; memcpy: the direction; loading: context or the call; launch: call or latency;
                profiler: its own word; allocation, sync, api: the call; unknown: recording begins, or null.
            ns int: Time.
            share float: Part of the device's window.
        """),
    ),
    purpose="where each GPU's time went, to the nanosecond",
)

_BUCKET: Final = pl.Enum(BUCKETS)
_TALKS: Final = pl.col("bucket") == "communication"

_ROW: Final = (pl.col("bucket").cast(pl.String).cast(_BUCKET), pl.col("detail").cast(pl.String), pl.col("ns"))


@analysis
def ledger(report: Report) -> pl.DataFrame:
    """Time of each device by bucket and detail.

    Returns:
        :data:`TABLE`: one row per device, bucket and detail with any time; sorted by device, bucket (in the order of
        :data:`BUCKETS`) and time. A device without operations has no rows.

    Raises:
        CannotTellError: The report records no device operations at all.
    """
    rows = bucket_sums(report)
    if rows.filter(_TALKS).is_empty() or not has_partners(report):
        return rows
    told = [rows.filter(~_TALKS)]
    for device in windows(report).get_column("device"):
        # by whom it waited for and what it transferred
        sums = told_communication(report, of_device(exclusive_operations(report), device))
        number, bucket = pl.lit(device, dtype=pl.Int64), pl.lit("communication", dtype=_BUCKET)
        named = sums.with_columns(device=number, bucket=bucket).with_columns(share_of_window(report))
        told.append(TABLE.select(named))
    return _sorted(pl.concat(told))


@once_per_report
def bucket_sums(report: Report) -> pl.DataFrame:
    """The ledger without details of communication, for what is computed from its buckets: :data:`TABLE`.

    Raises:
        CannotTellError: The report records no device operations at all.
    """
    require(report, TABLE, *DEVICE_KINDS)
    work = exclusive_operations(report).group_by("device", "bucket", "detail").agg(ns=pl.col("exclusive_ns").sum())
    rows = pl.concat(part.select("device", *_ROW) for part in (work, idle_sums(report)))
    lengths = windows(report).select("device", window=pl.col("end") - pl.col("start"))
    sums = rows.group_by("device").agg(pl.col("ns").sum(), least=pl.col("ns").min())
    sums = lengths.join(sums, on="device", how="left").fill_null(0)
    wrong = sums.filter((pl.col("ns") != pl.col("window")) | (pl.col("least") < 0))
    for device, window, found, _ in wrong.iter_rows():
        raise AssertionError(f"the ledger of device {device} sums to {found} ns, its window is {window} ns: {rows}")
    return _sorted(TABLE.select(rows.filter(pl.col("ns") > 0).with_columns(share_of_window(report))))


def _sorted(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sort("device", "bucket", "ns", "detail", descending=[False, False, True, False])
