"""Time in which a device waits for the pinning of the host's memory, as programs do when they start."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._telling import in_pytorch
from kanalyze.analyses.findings.rules.memory import in_window
from kanalyze.analyses.host._call_kinds import names_that, shown
from kanalyze.analyses.idle._attribution import idle_within
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._steady_window import worth_saying
from kanalyze.analyses.memory._allocations import allocating_calls
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.units import plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Calls that pin memory of the host.
_PINNING: Final = re.compile(
    r"cudaHostAlloc|cudaMallocHost|cudaHostRegister|cuMemHostAlloc|cuMemAllocHost|cuMemHostRegister"
)


def pinned_allocation(report: Report) -> list[Finding]:
    """One finding per device that waited in calls that pin memory, other than in loops."""
    names = names_that(report, _PINNING.match)
    calls = allocating_calls(report).filter(pl.col("name").is_in(names) & pl.col("round").is_null())
    calls = in_window(report, calls)
    held = bucket_sums(report).filter((pl.col("bucket") == "allocation") & pl.col("detail").is_in(_shown(names)))
    if calls.is_empty() or not any(worth_saying(report, ns) for ns in held.get_column("ns")):
        return []
    found = []
    for device, pieces in idle_within(report, calls.select(*THREAD, "start", "end")).items():
        own = pieces.filter((pl.col("bucket") == "allocation") & pl.col("detail").is_in(_shown(names)))
        if stake := intervals.length(own):
            found.append(_pinning(report, device, stake, calls))
    return found


def _shown(names: list[str]) -> list[str]:
    return pl.DataFrame({"name": names}).select(shown(pl.col("name"))).to_series().to_list()


def _pinning(report: Report, device: int, stake: int, calls: pl.DataFrame) -> Finding:
    names = calls.select(name=shown(pl.col("name"))).to_series().unique().sort()
    text = (
        f"GPU {device} waits {time(stake)} for {plural(calls.height, 'call')} to pin memory of the host, not in a loop "
        f"({literal(', '.join(names))}). It takes time for each page."
    )
    remedy = "A cost of starting up: pin less, pin once, or pin while the GPU has work."
    one = Finding("pinned-allocation", device, stake, text, remedy, "memory --by call")
    action = "pin less, and keep it" if in_pytorch(report) else "one cudaHostAlloc for all buffers, reused"
    return one._replace(headline=f"Pinning memory of the host takes {time(stake)}", action=action)


RULES: Final = (pinned_allocation,)
