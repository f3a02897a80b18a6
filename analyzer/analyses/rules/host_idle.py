"""The device idle because the host blocks in a call or runs the program itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.analyses._walk import walked
from kanalyze.analyses.ledger import ledger
from kanalyze.analyses.rules import Finding
from kanalyze.units import percent, time

if TYPE_CHECKING:
    from kanalyze.report import Report


def find(report: Report) -> list[Finding]:
    """At most one finding per device for the host computing, and one for it blocking."""
    found = []
    for device in ledger(report).get_column("device").unique(maintain_order=True):
        rows = ledger(report).filter(pl.col("device") == device)
        found += _computing(report, device, rows.filter(pl.col("bucket") == "host"))
        found += _blocking(device, rows.filter(pl.col("bucket") == "sync"))
    return found


def _computing(report: Report, device: int, rows: pl.DataFrame) -> list[Finding]:
    if rows.is_empty():
        return []
    stake, share = int(rows.get_column("ns").sum()), float(rows.get_column("share").sum())
    start, length = walked(report)[device].longest_host
    text = (
        f"GPU {device} idle while the program runs its own code, in no CUDA call: {percent(share)} of the window; "
        f"the longest stretch is {time(length)}, from {time(start)} on."
    )
    remedy = "Give the GPU work before the host needs its time: prefetch data, launch ahead, move work off this thread."
    return [Finding("host-computes", device, stake, text, remedy, "ledger")]


def _blocking(device: int, rows: pl.DataFrame) -> list[Finding]:
    if rows.is_empty():
        return []
    stake, share = int(rows.get_column("ns").sum()), float(rows.get_column("share").sum())
    calls = ", ".join(f"{name} {time(ns)}" for name, ns in rows.select("detail", "ns").head(3).iter_rows())
    where = f"{percent(share)} of the window ({calls})"
    text = f"GPU {device} idle while the host is blocked in a synchronizing call: {where}."
    remedy = (
        "Launch the next work before waiting, or wait for less: an event instead of the device, later instead of now."
    )
    return [Finding("host-blocks", device, stake, text, remedy, "ledger")]
