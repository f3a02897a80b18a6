"""Copies of pageable memory that recur, or are made once: slower than those of pinned memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations, with_facts
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._copies import (
    NEEDED,
    PINNED,
    TO_HOST,
    copies_by_calls,
    pageable,
    pageable_copies,
    took,
)
from kanalyze.analyses.findings.rules._places import place_of
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.host._rounds import STEP
from kanalyze.analyses.launches._steady_window import worth_saying
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.statistics import longest, median_of, total
from kanalyze.analyses.streams._streams import placed_operations, spans_by_stream
from kanalyze.exact import rate_of
from kanalyze.units import count, plural, rate, size, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Smaller pinned copies do not show the bandwidth of pinned memory.
_COMPARABLE_BYTES: Final = 1 << 20

#: Maximum length of a range's name in the sentence.
_LONGEST: Final = 60

#: The remedy for copies that recur, in CUDA and in PyTorch.
_PIN: Final = (
    "Copy from pinned memory: cudaHostAlloc, or pin_memory() and DataLoader(pin_memory=True) in PyTorch.",
    "Copy from pinned memory: DataLoader(…, pin_memory=True) or pin_memory(), and .to(device, non_blocking=True).",
)
_ONCE: Final = "If it is a cost of starting up, as the upload of a model is, leave it out of what you compare."


def pageable_copy(report: Report) -> list[Finding]:
    """Findings per device: one on recurring copies, and one on those that happen once."""
    most = pageable(report).group_by("device").agg(ns=took().sum())
    if not worth_saying(report, longest(most, "ns")):
        return []
    copies, found = pageable_copies(report), []
    for (device, when), part in copies.partition_by("device", "when", as_dict=True, maintain_order=True).items():
        number = int(str(device))
        stake = gained_at_most(report, number, part.get_column("row"), part.select(start="spared", end="until"))
        if stake:
            found.append(_pageable_finding(report, part, str(when), stake))
    return found


def _pageable_finding(report: Report, copies: pl.DataFrame, when: str, stake: int) -> Finding:
    per, device = per_iteration(report), int(copies.item(0, "device"))
    text = f"{_what(report, copies)} {_WHEN[when](report, copies, stake)}."
    if when in {"once", "few"}:
        one = Finding("pageable-copy-once", device, stake, text, _ONCE, "copies", vague=True)
        headline = f"{size(total(copies, 'size_bytes'))} of pageable memory are copied once"
        at_most = not copies.select(NEEDED.any()).item()  # the host may do without what it waits for
        return one._replace(headline=headline, action="leave it out of what you compare", at_most=at_most)
    moved = copies.group_by(to_host=pl.col("detail") == TO_HOST).agg(pl.col("size_bytes").sum())
    to_host = bool(moved.sort("size_bytes", "to_host", descending=[True, False]).item(0, "to_host"))
    return Finding(
        "pageable-copy",
        device,
        stake,
        text,
        _PIN[in_pytorch(report)],
        "copies",
        headline=f"{per.clause(copies.height, 'copy', 'block', 'of pageable memory')} the host",
        action=_PINNED_COPY[in_pytorch(report), to_host],
        where=place_of(report, pl.col("row").is_in(copies.get_column("row").implode())),
        mending=partial(_pinned, copies=copies),
    )


def _pinned(report: Report, copies: pl.DataFrame) -> Mending | None:
    """The copies do not block, and take what pinned ones would; None for large ones if there are no pinned ones.

    The host still waits for what a synchronous call copies to it.
    """
    calls = with_facts(report, copies.filter(~NEEDED), "call_row").get_column("call_row").drop_nulls().unique()
    against = _comparable(report, copies)
    if not (bytes_per_s := _bandwidth(against) if against.height else 0.0):
        large = longest(copies, "size_bytes") >= _COMPARABLE_BYTES
        return None if large or copies.select(NEEDED.any()).item() else Mending(unwaited=calls)
    saved = pl.col("dur_ns") - (pl.col("size_bytes") / bytes_per_s * 1e9).ceil().cast(pl.Int64)
    return Mending(shorter=copies.select("row", saved_ns=saved.clip(lower_bound=0)), unwaited=calls)


#: How to copy from pinned memory: whether in PyTorch, and whether to the host.
_PINNED_COPY: Final = {
    (True, False): "DataLoader(…, pin_memory=True), batch.cuda(non_blocking=True)",
    (True, True): "torch.empty(…, pin_memory=True).copy_(result, non_blocking=True)",
    (False, False): "cudaHostAlloc once, then cudaMemcpyAsync from there",
    (False, True): "cudaHostAlloc once, then cudaMemcpyAsync to there",
}


def _what(report: Report, copies: pl.DataFrame) -> str:
    """The number and bytes of the copies, compared with pinned ones of the same direction."""
    pinned = _comparable(report, copies)
    against = f", pinned ones {rate(_bandwidth(pinned))}" if pinned.height else ""
    moved = f"{size(total(copies, 'size_bytes'))} at {rate(_bandwidth(copies))}{against}"
    what = "copy" if copies.get_column("synchronous").any() else "asynchronous copy"
    return f"{per_iteration(report).plural(copies.height, what, 'of pageable memory')}, {moved}:"


def _comparable(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """Large pinned copies of the device and direction of `copies`."""
    return copies_by_calls(report).filter(
        pl.col("device") == copies.item(0, "device"),
        pl.col("memory") == PINNED,
        pl.col("detail").is_in(copies.get_column("detail").unique().implode()),
        pl.col("size_bytes") >= _COMPARABLE_BYTES,
    )


def _recurring(report: Report, copies: pl.DataFrame, stake: int) -> str:
    """The recurring copies, per step: of the range name with most of them, in the median instance."""
    names = copies.group_by("round_name").agg(took().sum().alias("took"), pl.col("instances").first())
    top = names.sort("took", "round_name", descending=[True, False]).row(0, named=True)
    own = copies.filter(pl.col("round_name") == top["round_name"])
    blocked = pl.col("call_end") - pl.col("call_start")
    each = own.group_by("round").agg(copies=pl.len(), blocked=blocked.sum(), covered=took().sum())
    gained = min(median_of(each, "covered"), stake / each.height)
    others = f", and in {plural(names.height - 1, 'other range')}" if names.height > 1 else ""
    name = top["round_name"] if len(top["round_name"]) <= _LONGEST else f"{top['round_name'][:_LONGEST]}…"
    every = plural(top["instances"], "step") if name == STEP else f"{count(top['instances'])} rounds of {literal(name)}"
    # rounds are counted in the whole report, copies in the window
    of = f"{every}{others}" if report.scope.window is None else f"the report's {every}{others}"
    here = "" if report.scope.window is None else "here "
    per = per_iteration(report)
    most = f"{per.time(stake)}" if per.iterations else f"{time(gained)} in each"
    return (
        f"they recur, {here}in {count(each.height)} of {of}; in the median {median_of(each, 'copies'):.3g} in each, "
        f"whose calls block the host for {time(median_of(each, 'blocked'))}: at most "
        f"{most} can be gained by pinning it"
    )


def _once(_: Report, copies: pl.DataFrame, __: int) -> str:
    blocked = time(_call_ns(copies))
    return f"they do not recur as the program's rounds do. Their calls blocked the host for {blocked} in all"


def _few(_: Report, copies: pl.DataFrame, __: int) -> str:
    return f"nothing shows that they recur. Their calls blocked the host for {time(_call_ns(copies))} in all"


def _unknown(report: Report, copies: pl.DataFrame, _: int) -> str:
    per = per_iteration(report)
    if per.iterations:
        return f"their calls block the host for {per.time(_call_ns(copies))}"
    return (
        f"their calls blocked the host for {time(_call_ns(copies))}. Their process has no steps and no range that "
        "occurs often, which would tell whether they recur"
    )


def _often(report: Report, copies: pl.DataFrame, stake: int) -> str:
    if per_iteration(report).iterations:
        return _unknown(report, copies, stake)
    blocked = time(_call_ns(copies))
    return f"they recur. Their calls blocked the host for {blocked}"


_WHEN: Final = {"recurs": _recurring, "once": _once, "unknown": _unknown, "often": _often, "few": _few}


def _call_ns(copies: pl.DataFrame) -> int:
    return intervals.length(intervals.union(copies.select(start="call_start", end="call_end")))


def _bandwidth(copies: pl.DataFrame) -> float:
    return rate_of(total(copies, "size_bytes"), total(copies, "dur_ns"))


def gained_at_most(report: Report, device: int, rows: pl.Series, calls: pl.DataFrame) -> int:
    """Upper bound on how much shorter a device's window gets if some operations and their calls took no time, in ns.

    The critical path passes through one of them at every instant that is gained, so that the gain is at most the union
    of their intervals. Other operations of a stream still run one after the other: the window stays at least as long as
    the other work of its busiest stream.

    Args:
        report: The report; its window is respected.
        device: The device whose window is meant.
        rows: The operations, by row of `operations`.
        calls: Their calls, and other host intervals that would be saved: columns start, end.
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


RULES: Final = (pageable_copy,)
