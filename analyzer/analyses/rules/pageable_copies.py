"""Asynchronous copies of pageable memory: their calls block the host, and they overlap nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses._bounds import gained_at_most
from kanalyze.analyses._common import median_of, total
from kanalyze.analyses._pageable import PINNED, asynchronous_copies, pageable_copies, took
from kanalyze.analyses._rounds import STEP
from kanalyze.analyses.rules import Finding, literal
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
