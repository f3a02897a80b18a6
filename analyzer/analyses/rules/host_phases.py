"""Host-bound phases: the device idles while the program runs its own code, by range or between which calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.analyses._walk import walked
from kanalyze.analyses._windows import WORTH_SAYING
from kanalyze.analyses.culprits import culprits
from kanalyze.analyses.ledger import ledger
from kanalyze.analyses.rules import Finding
from kanalyze.units import percent, plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: So many phases are named, where the next one is not much shorter than the first.
_NAMED: Final = 3
_NOTABLE: Final = 0.1


def find(report: Report) -> list[Finding]:
    """At most one finding per device, with the phases that take most."""
    rows = ledger(report).filter((pl.col("bucket") == "host") & (pl.col("share") >= WORTH_SAYING))
    return [_finding(report, *row) for row in rows.select("device", "ns", "share").iter_rows()]


def _finding(report: Report, device: int, stake: int, share: float) -> Finding:
    start, length = walked(report)[device].longest_host
    phases = culprits(report).filter((pl.col("device") == device) & (pl.col("bucket") == "host"))
    notable = phases.drop_nulls("culprit").filter(pl.col("ns") >= _NOTABLE * pl.col("ns").max()).head(_NAMED)
    named = "; ".join(map(_phase, notable.iter_rows(named=True)))
    most = f"Most {named}. " if named else ""
    text = (
        f"GPU {device} idle while the program runs its own code, in no CUDA call: {percent(share)} of the window. "
        f"{most}The longest stretch is {time(length)}, from {time(start)} on."
    )
    remedy = "Give the GPU work before the host needs its time: prefetch data, launch ahead, move work off this thread."
    return Finding("host-computes", device, stake, text, remedy, "culprits")


def _phase(row: dict[str, Any]) -> str:
    # braces stand for kernel names in a finding's text
    name = str(row["culprit"]).replace("{", "{{").replace("}", "}}")
    where = name if row["range"] is None else f"in {name}"
    longest = f" in {plural(row['gaps'], 'gap')}, the longest {time(row['longest_ns'])}" if row["gaps"] > 1 else ""
    return f"{where}: {time(row['ns'])}{longest}"
