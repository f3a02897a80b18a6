"""Asynchronous copies of pageable memory: their calls block the host, and they overlap nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.host._rounds import STEP
from kanalyze.analyses.memory._pageable_copies import PINNED, asynchronous_copies, pageable_copies, took
from kanalyze.analyses.shared.statistics import median_of, total
from kanalyze.analyses.streams._streams import placed_operations, spans_by_stream
from kanalyze.exact import rate_of
from kanalyze.units import count, plural, rate, size, time

if TYPE_CHECKING:
    from kanalyze.report import Report


#: Pinned copies smaller than this say nothing of the bandwidth that pinning gives.
_COMPARABLE_BYTES: Final = 1 << 20

#: So much of the name of a range is shown.
_LONGEST: Final = 60

_PIN: Final = "Copy from pinned memory: cudaHostAlloc, or pin_memory() and DataLoader(pin_memory=True) in PyTorch."
_ONCE: Final = "If it is a cost of starting up, as the upload of a model is, leave it out of what you compare."


def find(report: Report) -> list[Finding]:
    """Of each device a finding on the copies that recur, and one on those that do not."""
    found = []
    copies = pageable_copies(report)
    for (device, when), part in copies.partition_by("device", "when", as_dict=True, maintain_order=True).items():
        number = int(str(device))
        stake = gained_at_most(report, number, part.get_column("row"), part.select(start="spared", end="until"))
        if stake:
            text = f"{_what(report, part)} {_WHEN[str(when)](part)}."
            recurs = Finding("pageable-copy", number, stake, text, _PIN, "copies")
            once = Finding("pageable-copy-once", number, stake, text, _ONCE, "copies")
            found.append(once if when == "once" else recurs)
    return found


def _what(report: Report, copies: pl.DataFrame) -> str:
    """How many copies of how much memory, beside pinned ones of the same direction."""
    pinned = asynchronous_copies(report).filter(
        pl.col("device") == copies.item(0, "device"),
        pl.col("memory") == PINNED,
        pl.col("detail").is_in(copies.get_column("detail").unique().implode()),
        pl.col("size_bytes") >= _COMPARABLE_BYTES,
    )
    against = f", pinned ones {rate(_bandwidth(pinned))}" if pinned.height else ""
    moved = f"{size(total(copies, 'size_bytes'))} at {rate(_bandwidth(copies))}{against}"
    return f"{plural(copies.height, 'asynchronous copy')} of pageable memory, {moved}:"


def _recurring(copies: pl.DataFrame) -> str:
    """What recurs: of the rounds of the name that has most of it, and of a round in the median."""
    names = copies.group_by("round_name").agg(took().sum().alias("took"), pl.col("instances").first())
    top = names.sort("took", "round_name", descending=[True, False]).row(0, named=True)
    own = copies.filter(pl.col("round_name") == top["round_name"])
    blocked = pl.col("call_end") - pl.col("call_start")
    each = own.group_by("round").agg(copies=pl.len(), blocked=blocked.sum(), covered=took().sum())
    others = f", and in {plural(names.height - 1, 'other range')}" if names.height > 1 else ""
    name = top["round_name"] if len(top["round_name"]) <= _LONGEST else f"{top['round_name'][:_LONGEST]}…"
    every = plural(top["instances"], "step") if name == STEP else f"{count(top['instances'])} rounds of {literal(name)}"
    of = f"{every}{others}"
    return (
        f"they recur, in {count(each.height)} of {of}; in the median {median_of(each, 'copies'):.3g} in each, "
        f"whose calls block the host for {time(median_of(each, 'blocked'))}: at most "
        f"{time(median_of(each, 'covered'))} in each can be gained"
    )


def _once(copies: pl.DataFrame) -> str:
    return (
        f"they do not recur as the program's rounds do. Their calls blocked the host for {time(_called(copies))} in all"
    )


def _unknown(copies: pl.DataFrame) -> str:
    return (
        f"their calls blocked the host for {time(_called(copies))}. The report has no steps and no range that occurs "
        "often, which would tell whether they recur"
    )


_WHEN: Final = {"recurs": _recurring, "once": _once, "unknown": _unknown}


def _called(copies: pl.DataFrame) -> int:
    return intervals.length(intervals.union(copies.select(start="call_start", end="call_end")))


def _bandwidth(copies: pl.DataFrame) -> float:
    return rate_of(total(copies, "size_bytes"), total(copies, "dur_ns"))


def gained_at_most(report: Report, device: int, rows: pl.Series, calls: pl.DataFrame) -> int:
    """How much shorter the window of a device can get, in ns, if some of its operations and their calls took no time.

    The longest way through what depends on each other is in one of them at each instant of what is gained, so that it
    is no more than all of them cover together. Whatever else a stream ran it still runs, one after the other: the
    window stays at least as long as the other work of its busiest stream.

    Args:
        report: Where to look, through its window.
        device: Whose window.
        rows: The operations, by row of `operations`.
        calls: Their calls, and whatever else of the host is done away with: columns start, end.
    """
    window = windows(report).row(by_predicate=pl.col("device") == device, named=True)
    low, high = int(window["start"]), int(window["end"])
    wanted = rows.implode()
    own = exclusive_operations(report).filter(pl.col("row").is_in(wanted)).select("start", "end")
    covered = intervals.length(
        intervals.union(intervals.clip(pl.concat([own, calls.select("start", "end")]), low, high))
    )
    others = placed_operations(report).filter((pl.col("device") == device) & ~pl.col("row").is_in(wanted))
    busiest = max(map(intervals.length, spans_by_stream(others.select("number", "start", "end")).values()), default=0)
    return min(covered, high - low - busiest)
