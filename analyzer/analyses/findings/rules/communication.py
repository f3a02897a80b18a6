"""Communication between GPUs that nothing hides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._kernel_families import decoded
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.columns.lookup import beside
from kanalyze.units import percent, plural

if TYPE_CHECKING:
    from kanalyze.report import Report
    from kanalyze.window import PerIteration

#: How many times as much as of other findings is worth one: the last collective of a step has nothing to hide behind.
_NOTABLE: Final = 10

#: Maximum number of collectives named, and the maximum length of a name in the headline.
_NAMED: Final = 3
_LONGEST: Final = 30

#: Ranks of one program run equally many collectives, but for this part of them at the edges of a window.
_ALIKE: Final = 0.1

_IN_TORCH: Final = (
    "Let it run beside computation: DistributedDataParallel overlaps gradients with the backward pass (bucket_cap_mb, "
    "static_graph=True), FSDP prefetches (backward_prefetch, forward_prefetch); of own collectives use async_op=True "
    "and wait where the result is used. If ranks differ in their work, balance that first: a collective waits for the "
    "slowest."
)
_ELSEWHERE: Final = (
    "Let it run beside computation: on a stream of its own, ordered by events, in pieces that begin as soon as their "
    "data are ready. If ranks differ in their work, balance that first: a collective waits for the slowest."
)


def exposed_communication(report: Report) -> list[Finding]:
    """At most one finding per device, on all its collectives."""
    exposed = bucket_sums(report).filter(pl.col("bucket") == "communication").group_by("device").agg(pl.col("ns").sum())
    if exposed.is_empty():
        return []
    work = exclusive_operations(report).filter(pl.col("bucket") == "communication")
    many = work.group_by("device").agg(pl.len())
    ranks = [_Rank(*row) for row in exposed.join(many, on="device").sort("device").iter_rows()]
    least = {device: _NOTABLE * ns for device, ns in least_worth_saying(report).items()}
    return [_finding(report, one, _least_of(one, ranks), least) for one in ranks if one.ns >= least[one.device]]


class _Rank(NamedTuple):
    """A device, how long it does nothing but communicate, and how many collectives it runs."""

    device: int
    ns: int
    collectives: int


def _least_of(one: _Rank, ranks: list[_Rank]) -> _Rank:
    """Of the devices that run as many collectives, as ranks of one program do, the one that is exposed least."""
    alike = [rank for rank in ranks if abs(rank.collectives - one.collectives) <= _ALIKE * one.collectives]
    return min(alike, key=lambda rank: rank.ns)


def _finding(report: Report, rank: _Rank, least: _Rank, worth: dict[int, float]) -> Finding:
    device, everywhere = rank.device, least.ns >= worth[rank.device]
    work = exclusive_operations(report).filter((pl.col("device") == device) & (pl.col("bucket") == "communication"))
    per, whole = per_iteration(report), intervals.length(intervals.union(work))
    sums = _by_kind(report, work)
    named = ", ".join(
        f"{literal(kind)} {per.time(ns)} ({per.plural(count, 'kernel')})"
        for kind, count, ns in sums.head(_NAMED).iter_rows()
    )
    more = f", and {plural(sums.height - _NAMED, 'other kind')}" if sums.height > _NAMED else ""
    text = (
        f"GPU {device} does nothing but communicate for {per.time(rank.ns)}, {percent(rank.ns / whole)} of the time of "
        f"its collectives: {named}{more}. Any waiting for the slowest rank is in it{_waits(per, rank, least)}."
    )
    top, torch = sums.item(0, "kind"), in_pytorch(report)
    return Finding(
        "exposed-communication",
        device,
        least.ns if everywhere else rank.ns,
        text,
        _IN_TORCH if torch else _ELSEWHERE,
        "exposure",
        headline=f"The GPU does nothing beside {literal(top[:_LONGEST])}",
        action=f"Overlap it with computation{': DDP buckets, FSDP prefetch, async_op=True' if torch else ''}"
        if everywhere
        else f"Balance the work of ranks: GPU {least.device} hardly communicates alone",
        where=literal(top),
    )


def _waits(per: PerIteration, rank: _Rank, least: _Rank) -> str:
    """How much of it may be that, where the report has other ranks."""
    if least.device == rank.device:
        return ""
    return f": GPU {least.device}, which runs as many, has {per.time(least.ns)}, and what is more here may be a wait"


def _by_kind(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """Exposed time by collective, the longest first: kind, count, ns. As recorded, else by the kernel's name."""
    told = beside(work, report.table("collective_detail"), "collective")
    named = decoded(report, told, "operation").with_columns(
        kind=pl.coalesce(pl.col("collective").cast(pl.String), "operation")
    )
    sums = named.group_by("kind").agg(count=pl.len(), ns=pl.col("exclusive_ns").sum())
    return sums.filter(pl.col("ns") > 0).sort("ns", "kind", descending=[True, False])


RULES: Final = (exposed_communication,)
