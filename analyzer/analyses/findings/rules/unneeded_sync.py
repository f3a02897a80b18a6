"""Blocking calls that nothing in the report needs: the host could have launched ahead instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.host._call_kinds import shown
from kanalyze.analyses.host._range_lines import ranges_at
from kanalyze.analyses.idle._avoidable_syncs import avoidable
from kanalyze.analyses.idle._by_name import range_names
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches._steady_window import worth_saying
from kanalyze.analyses.shared.lookup import gathered
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import count, plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: A program may well wait once or twice, between its phases; from so many on it is a habit.
_FEWEST: Final = 3

#: Where the ledger has the time at stake.
_BUCKETS: Final = ("sync", "launch")


def find(report: Report) -> list[Finding]:
    """At most one finding per device, on all such calls."""
    found = []
    for device, calls in unneeded(report).items():
        rows = ledger(report).filter((pl.col("device") == device) & pl.col("bucket").is_in(_BUCKETS))
        stake = min(total(calls, "gain_ns"), total(rows, "ns"))
        blocked = int((calls.get_column("end") - calls.get_column("start")).sum())
        text = (
            f"{plural(calls.height, 'blocking call')} ({_most(report, calls)}), {time(blocked)} of host time, after "
            f"which the host launched more work, with no copy to the host pending: GPU {device} idled {time(stake)} "
            f"until they had returned and the next launch was through. That is unneeded unless the host or another "
            f"process reads what kernels wrote without a copy."
        )
        remedy = (
            "Leave them out, or order streams by events, so that the host launches ahead; wait where a result is read."
        )
        found.append(Finding("unneeded-sync", device, stake, text, remedy, "syncs --by api"))
    return found


def unneeded(report: Report) -> dict[int, pl.DataFrame]:
    """The rows of :func:`avoidable` by device, where there are enough of them to speak of."""
    rows = ledger(report).filter(pl.col("bucket").is_in(_BUCKETS))
    if not any(worth_saying(report, ns) for ns in rows.group_by("device").agg(pl.col("ns").sum()).get_column("ns")):
        return {}
    parts = avoidable(report).partition_by("device", as_dict=True, maintain_order=True)
    return {int(device): calls for (device,), calls in parts.items() if calls.height >= _FEWEST}


def _most(report: Report, calls: pl.DataFrame) -> str:
    """The name and range of most of `calls`."""
    points = calls.select("process_id", "thread_id", at="start")
    ranges = gathered(range_names(report), ranges_at(report, points)).cast(pl.String)
    named = calls.select(shown(pl.col("name")).alias("api")).with_columns(ranges.alias("range"))
    top = named.group_by("api", "range").len().sort("len", "api", "range", descending=[True, False, False]).row(0)
    name, span, times = top
    what = f"{literal(str(name))} in {literal(span)}" if span else literal(str(name))
    return what if times == calls.height else f"{count(times)} of them {what}"
