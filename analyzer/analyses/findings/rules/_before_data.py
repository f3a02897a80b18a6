"""Idle time of a device until the host copies data to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.host._launching_call import calls_of, launching_rows
from kanalyze.analyses.idle._idle_within import idle_within
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import beside, rows_at

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Smaller copies are of single numbers and the like, which take no time to prepare.
_DATA_BYTES: Final = 1 << 16

_TO_DEVICE: Final = "Host-to-Device"


def idle_before_data(report: Report, device: int) -> pl.DataFrame:
    """Pieces of time in which a device idled while the host ran its own code right before it copied data to it.

    That is in no CUDA call, between the call of such a copy and the thread's launching call before. Columns as in
    :func:`idle_within`.
    """
    copies = exclusive_operations(report).filter(
        (pl.col("device") == device) & (pl.col("kind") == "memcpy") & (pl.col("detail").cast(pl.String) == _TO_DEVICE)
    )
    sizes = beside(copies.select("event_id"), report.copy_detail, "size_bytes").get_column("size_bytes")
    copies = copies.filter((sizes >= _DATA_BYTES).fill_null(value=False))
    calls = calls_of(report, copies.get_column("row"), "thread_id", "call_start")
    copying = copies.select("process_id").with_columns(calls.get_columns()).drop_nulls().sort("call_start")
    end = pl.col("start_ns") + pl.col("dur_ns")
    launches = report.kind("api").select(*THREAD, at="start_ns", start=end)
    launches = rows_at(launches, launching_rows(report)).drop_nulls().sort("at", "start")
    spans = copying.join_asof(
        launches,
        left_on="call_start",
        right_on="at",
        by=list(THREAD),
        allow_exact_matches=False,
        check_sortedness=False,
    )
    spans = spans.drop_nulls().select(*THREAD, "start", end="call_start").filter(pl.col("end") > pl.col("start"))
    return idle_within(report, spans)[device].filter(bucket="host")
