"""Idle time of the device while the host blocks in a call that is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules.unneeded_sync import unneeded
from kanalyze.analyses.host._call_kinds import shown
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import percent, time

if TYPE_CHECKING:
    from kanalyze.report import Report


def find(report: Report) -> list[Finding]:
    """At most one finding per device, on blocking calls other than those of :mod:`unneeded_sync`."""
    found = []
    for (device,), rows in (
        ledger(report)
        .filter(pl.col("bucket") == "sync")
        .partition_by("device", as_dict=True, maintain_order=True)
        .items()
    ):
        found += _blocking(int(device), rows, unneeded(report).get(int(device)))
    return found


def _blocking(device: int, rows: pl.DataFrame, told: pl.DataFrame | None) -> list[Finding]:
    """The finding on `rows` of the ledger's bucket, less the calls reported elsewhere (`told`)."""
    window = float(rows.get_column("ns").item(0)) / float(rows.get_column("share").item(0))
    if told is not None:
        own = told.group_by(shown(pl.col("name")).alias("detail")).agg(pl.col("sync_ns").sum())
        left = rows.join(own, on="detail", how="left", maintain_order="left")
        rows = left.with_columns((pl.col("ns") - pl.col("sync_ns").fill_null(0)).clip(lower_bound=0).alias("ns"))
    stake = total(rows, "ns")
    calls = ", ".join(
        f"{literal(name)} {time(ns)}"
        for name, ns in rows.sort("ns", "detail", descending=[True, False]).select("detail", "ns").head(3).iter_rows()
        if ns
    )
    besides = "" if told is None else ", besides the calls that look unneeded"
    where = f"{percent(stake / window)} of the window ({calls}){besides}"
    text = f"GPU {device} idle while the host is blocked in a synchronizing call: {where}."
    remedy = (
        "Launch the next work before waiting, or wait for less: an event instead of the device, later instead of now."
    )
    return [Finding("host-blocks", device, stake, text, remedy, "syncs --by api")] if stake else []
