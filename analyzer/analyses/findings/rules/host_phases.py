"""Host-bound phases: the device is idle while the program runs its own code, by range or by the calls around it.

Excludes the time in which contexts were created outside of recorded calls, which :mod:`cold_start
<kanalyze.analyses.findings.rules.cold_start>` reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.analyses.device._operations import used_devices
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.idle._bucket_sums import walked
from kanalyze.analyses.idle.culprits import context_culprits, culprits
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.memory._unified_moves import faults_seen
from kanalyze.analyses.shared.statistics import total
from kanalyze.named_ranges import located
from kanalyze.units import moment, percent, plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Maximum number of phases named; the next ones only if not much shorter than the first.
_NAMED: Final = 3
_NOTABLE: Final = 0.1


def find(report: Report) -> list[Finding]:
    """At most one finding per device, with its longest phases."""
    found = []
    for device, ns, share in ledger(report).filter(bucket="host").select("device", "ns", "share").iter_rows():
        stake = ns - walked(report)[device].unrecorded_ns
        if stake > 0 and stake >= least_worth_saying(report)[device]:
            found.append(_finding(report, device, stake, share * stake / ns))
    return found


def _finding(report: Report, device: int, stake: int, share: float) -> Finding:
    walk = walked(report)[device]
    start, length = walk.longest_host
    phases = _phases(report, device)
    notable = phases.drop_nulls("culprit").filter((pl.col("ns") > 0) & (pl.col("ns") >= _NOTABLE * pl.col("ns").max()))
    named = "; ".join(map(_phase, notable.head(_NAMED).iter_rows(named=True)))
    faulting = _faulting(report, device)
    most = f"Most {named}. " if named else ""
    making, since = walk.unrecorded_ns, moment(start, report.zero_ns)
    besides = f", besides {time(making)} around the making of contexts" if making else ""
    text = (
        f"GPU {device} idle while the program runs its own code, in no CUDA call: {percent(share)} of the "
        f"window{besides}. {most}The longest stretch is {time(length)}, from {since} on.{faulting}"
    )
    remedy = "Give the GPU work before the host needs its time: prefetch data, launch ahead, move work off this thread."
    return Finding("host-computes", device, stake, text, remedy, "culprits")


def _faulting(report: Report, device: int) -> str:
    """The sentence on CPU page faults meanwhile, which are not the program's code either; empty without any."""
    if "fault" not in report.kinds:
        return ""
    used = used_devices(report).filter(pl.col("device") == device)
    faults = faults_seen(report).filter(pl.col("side") == "CPU").join(used, on="process_id", how="semi")
    _, low, high = windows(report).row(by_predicate=pl.col("device") == device)
    many = total(faults.filter(pl.col("start").is_between(low, high, closed="left")), "faults")
    return f" Part of it may be {plural(many, 'page fault')} of the CPU on managed memory." if many else ""


def _phases(report: Report, device: int) -> pl.DataFrame:
    """The rows of :func:`culprits` on host time, the longest first, less the time of context creation.

    Rows that held such time have no longest_ns: how much of their longest gap it was is unknown.
    """
    rows = culprits(report).filter((pl.col("device") == device) & (pl.col("bucket") == "host"))
    held = context_culprits(report).get(device)
    if held is None:
        return rows
    left = rows.join(held, on=["culprit", "range"], how="left", nulls_equal=True, maintain_order="left")
    ns = (pl.col("ns") - pl.col("making_ns").fill_null(0)).clip(lower_bound=0)
    longest = pl.when(pl.col("making_ns").is_null()).then("longest_ns")
    return left.with_columns(ns.alias("ns"), longest.alias("longest_ns")).sort(
        "ns", descending=True, maintain_order=True
    )


def _phase(row: dict[str, Any]) -> str:
    where = literal(located(str(row["culprit"]), row["range"]))
    several = row["gaps"] > 1 and row["longest_ns"] is not None
    longest = f" in {plural(row['gaps'], 'gap')}, the longest {time(row['longest_ns'])}" if several else ""
    return f"{where}: {time(row['ns'])}{longest}"
