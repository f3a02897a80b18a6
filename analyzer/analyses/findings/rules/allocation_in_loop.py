"""Memory that is allocated and freed repeatedly between launches while the device waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import used_devices
from kanalyze.analyses.device._windows import idle_spans
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.host._call_kinds import shown
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.memory._allocations import allocating_calls
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Maximum number of calls named in the sentence.
_NAMED: Final = 3


def find(report: Report) -> list[Finding]:
    """One finding per device that waited in such calls, on all of them together."""
    looping = allocating_calls(report).filter(pl.col("round").is_not_null())
    if looping.is_empty():
        return []
    known = looping.with_columns(shown(pl.col("name")).alias("call"))
    used = used_devices(report)
    found = []
    for device, idle in idle_spans(report).items():
        calls = known.join(used.filter(pl.col("device") == device), on="process_id", how="semi", nulls_equal=True)
        finding = _finding(report, device, _in_window(report, calls), idle)
        found += [finding] if finding else []
    return found


def _in_window(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    window = report.scope.window
    if window is not None and window.start_ns is not None:
        calls = calls.filter(pl.col("end") > window.start_ns)
    if window is not None and window.end_ns is not None:
        calls = calls.filter(pl.col("start") < window.end_ns)
    return calls


def _finding(report: Report, device: int, calls: pl.DataFrame, idle: pl.DataFrame) -> Finding | None:
    """The finding on the allocating `calls` of the processes that use a device; `idle` are the device's idle intervals.

    Calls on threads that the device did not wait for cost it nothing: at stake is, of each call, no more than what the
    ledger attributes to it.
    """
    exposed = intervals.overlap(calls.get_column("start"), calls.get_column("end"), idle)
    sums = (
        calls.with_columns(exposed.alias("exposed"))
        .group_by("call")
        .agg(pl.len().alias("count"), pl.col("exposed").sum(), ns=(pl.col("end") - pl.col("start")).sum())
    )
    held = ledger(report).filter((pl.col("device") == device) & (pl.col("bucket").cast(pl.String) == "allocation"))
    known = sums.join(held.select(call="detail", held="ns"), on="call").with_columns(
        stake=pl.min_horizontal("exposed", "held")
    )
    stake = total(known, "stake")
    if not stake:
        return None
    top = sums.sort("exposed", "call", descending=[True, False]).head(_NAMED).get_column("call").to_list()
    rounds = calls.select("process_id", "round", "launches").unique()
    text = (
        f"{literal(_listed(top))} are called over and over between launches: {plural(calls.height, 'call')} in "
        f"{plural(rounds.height, 'round')} with {_launches(rounds)}, {time(total(sums, 'ns'))} of host time. "
        f"The device waited {time(stake)} for them."
    )
    remedy = "Allocate once before the loop and reuse the memory, or take it from a pool that keeps what is freed."
    return Finding("allocation-in-loop", device, stake, text, remedy, "memory --by call")


def _listed(names: list[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _launches(rounds: pl.DataFrame) -> str:
    count = total(rounds, "launches")
    return "1 launch" if count == 1 else f"{count:,} launches"
