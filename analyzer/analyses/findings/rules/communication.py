"""Communication between GPUs that nothing hides."""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.communication._recorded import TRANSFER, WAITING
from kanalyze.analyses.device._operations import decoded, exclusive_operations
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches._launch_costs import least_worth_saying
from kanalyze.columns import beside
from kanalyze.report import Report
from kanalyze.units import percent, plural

#: How many times as much as of other findings is worth one: the last collective of a step has nothing to hide behind.
_NOTABLE: Final = 10

#: Maximum number of collectives named, and the maximum length of a name in the headline.
_NAMED: Final = 3
_LONGEST: Final = 30

#: Ranks of one program run equally many collectives, but for this part of them at the edges of a window.
_ALIKE: Final = 0.1

#: How to overlap, in CUDA and in PyTorch: in a line, and in a sentence.
_ACTION: Final = (
    "Overlap it with computation",
    "Overlap it with computation: DDP buckets, FSDP prefetch, async_op=True",
)
_OVERLAP: Final = (
    (
        "Let it run beside computation: on a stream of its own, ordered by events, in pieces that begin as soon as "
        "their data are ready."
    ),
    (
        "Let it run beside computation: DistributedDataParallel overlaps gradients with the backward pass "
        "(bucket_cap_mb, static_graph=True), FSDP prefetches (backward_prefetch, forward_prefetch); of own collectives "
        "use async_op=True and wait where the result is used."
    ),
)
_MAY_WAIT: Final = " If ranks differ in their work, balance that first: a collective waits for the slowest."
_BALANCE: Final = (
    "Balance the work of the ranks, or look at what holds up the one that comes last: its ledger before the collective "
    "says so (`kanalyze ranks` compares them). Overlap does not end such waits."
)


class _Rank(NamedTuple):
    """A device, how long it does nothing but communicate, and its collectives.

    Of the exposed time `ns` the report may tell that it waits for partners, mostly for one, and that it transfers.
    """

    device: int
    ns: int
    waited_ns: int
    transfer_ns: int
    partner: str | None
    collectives: int


def exposed_communication(report: Report) -> list[Finding]:
    """On all collectives of a device; one finding on their transfer and one on waits, where the report tells them."""
    rows = ledger(report).filter(pl.col("bucket") == "communication")
    if rows.is_empty():
        return []
    ns, detail, waits = pl.col("ns"), pl.col("detail"), pl.col("detail").str.starts_with(WAITING)
    exposed = rows.group_by("device").agg(
        ns=ns.sum(),
        waited_ns=ns.filter(waits).sum(),
        transfer_ns=ns.filter(detail == TRANSFER).sum(),
        partner=detail.filter(waits).sort_by(ns.filter(waits), descending=True).first().str.strip_prefix(WAITING),
    )
    work = exclusive_operations(report).filter(pl.col("bucket") == "communication")
    many = work.group_by("device").agg(collectives=pl.len())
    ranks = [_Rank(**row) for row in exposed.join(many, on="device").sort("device").iter_rows(named=True)]
    least = {device: _NOTABLE * ns for device, ns in least_worth_saying(report).items()}
    found: list[Finding] = []
    for one in ranks:
        if not one.waited_ns + one.transfer_ns:
            found.append(_untold(report, one, ranks, least[one.device]))
        else:
            found += [_transfer(report, one), _waiting(report, one)]
    return [one for one in found if one.at_stake_ns >= least[one.device]]


def _finding(report: Report, rank: _Rank, stake: int, text: str, remedy: str) -> Finding:
    """The finding on communication that nothing hides."""
    kind = literal(_by_kind(report, _work(report, rank)).item(0, "kind")[:_LONGEST])
    headline = f"The GPU does nothing beside {kind}"
    one = Finding("exposed-communication", rank.device, stake, text, remedy, "exposure")
    return one._replace(headline=headline, action=_ACTION[in_pytorch(report)])


def _untold(report: Report, rank: _Rank, ranks: list[_Rank], worth: float) -> Finding:
    """Of a rank whose partners are not in the report, or where it does not tell what belongs together.

    Of the devices that run as many collectives, as ranks of one program do, the least exposed one tells what overlap
    can gain.
    """
    alike = [one for one in ranks if abs(one.collectives - rank.collectives) <= _ALIKE * rank.collectives]
    least, waits = min(alike, key=lambda one: one.ns), ""
    if least.device != rank.device:
        exposed = per_iteration(report).time(least.ns)
        waits = f": GPU {least.device}, which runs as many, has {exposed}, and what is more here may be a wait"
    text = f"{_exposed(report, rank)} Any waiting for the slowest rank is in it{waits}."
    remedy = _OVERLAP[in_pytorch(report)] + _MAY_WAIT
    if least.ns >= worth:  # everywhere
        return _finding(report, rank, least.ns, text, remedy)
    action = f"Balance the work of ranks: GPU {least.device} hardly communicates alone"
    return _finding(report, rank, rank.ns, text, remedy)._replace(action=action)


def _transfer(report: Report, rank: _Rank) -> Finding:
    """Exposed communication without waiting for partners."""
    per, moved = per_iteration(report), rank.ns - rank.waited_ns
    waited = f" {per.time(rank.waited_ns)} of that is waiting, mostly for {rank.partner}." if rank.partner else ""
    rest = moved - rank.transfer_ns
    more = f" Of {per.time(rest)} it is not told whether it waits for ranks elsewhere." if rest else ""
    return _finding(report, rank, moved, f"{_exposed(report, rank)}{waited}{more}", _OVERLAP[in_pytorch(report)])


def _waiting(report: Report, rank: _Rank) -> Finding:
    """Part of exposed communication that is waiting for a partner that comes later."""
    text = (
        f"GPU {rank.device} waits {per_iteration(report).time(rank.waited_ns)} in collectives with nothing else to do, "
        f"mostly for {rank.partner}, which comes later; that is {percent(rank.waited_ns / rank.ns)} of the time in "
        "which it does nothing but communicate."
    )
    return _finding(report, rank, rank.waited_ns, text, _BALANCE)._replace(
        table="ledger",
        action=f"Balance the work of ranks: {rank.partner} comes last",
        headline=f"The GPU waits for {rank.partner}, which is late to collectives",
        where=literal(_by_kind(report, _work(report, rank)).item(0, "kind")),
    )


def _exposed(report: Report, rank: _Rank) -> str:
    """How long a device does nothing but communicate, and in what."""
    per, work = per_iteration(report), _work(report, rank)
    whole, sums = intervals.length(intervals.union(work)), _by_kind(report, work)
    named = ", ".join(
        f"{literal(kind)} {per.time(ns)} ({per.plural(count, 'kernel')})"
        for kind, count, ns in sums.head(_NAMED).iter_rows()
    )
    more = f", and {plural(sums.height - _NAMED, 'other kind')}" if sums.height > _NAMED else ""
    return (
        f"GPU {rank.device} does nothing but communicate for {per.time(rank.ns)}, {percent(rank.ns / whole)} of the "
        f"time of its collectives: {named}{more}."
    )


def _work(report: Report, rank: _Rank) -> pl.DataFrame:
    own = (pl.col("device") == rank.device) & (pl.col("bucket") == "communication")
    return exclusive_operations(report).filter(own)


def _by_kind(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """Exposed time by collective, the longest first: kind, count, ns. As recorded, else by the kernel's name."""
    told = beside(work, report.table("collective_detail"), "collective")
    named = decoded(report, told, "operation").with_columns(
        kind=pl.coalesce(pl.col("collective").cast(pl.String), "operation")
    )
    sums = named.group_by("kind").agg(count=pl.len(), ns=pl.col("exclusive_ns").sum())
    return sums.filter(pl.col("ns") > 0).sort("ns", "kind", descending=[True, False])


RULES: Final = (exposed_communication,)
