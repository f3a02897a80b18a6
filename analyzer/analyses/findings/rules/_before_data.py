"""Idle time of a device until the host copies data to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations, launch_calls, with_facts
from kanalyze.analyses.idle._attribution import idle_within
from kanalyze.analyses.shared.thread_lanes import THREAD

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
    copies = with_facts(report, copies, "size_bytes", "thread_id", "call_start")
    copying = copies.filter(pl.col("size_bytes") >= _DATA_BYTES).select(*THREAD, "call_start")
    copying = copying.drop_nulls().sort("call_start")
    launches = launch_calls(report, "thread_id", "call_start", "call_end").drop_nulls()
    launches = launches.rename({"call_start": "at", "call_end": "start"}).sort("at", "start")
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
