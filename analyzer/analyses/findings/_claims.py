"""Shares the time of a device out among findings, and tells what their remedies gain by replays of the recording.

Each piece of time belongs to one finding, the most specific whose cause is seen. Remedies are replayed one after the
other, so that gains add up to that of all together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import CHANNELS_LAST, Finding
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._launch_costs import least_worth_saying
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.streams.concurrency import leaves_room
from kanalyze.machinery import late
from kanalyze.report import Report
from kanalyze.units import percent

with late():  # of reports whose remedies are replayed
    from kanalyze.analyses.replay import _host_time, _unprofiled, _whatif

#: The rules, the most specific first. A rule comes before those that say less of the same time: one that names what the
#: program does (an operator, a module, a loop) before one that names a call or a kernel, and what all programs have in
#: common comes last. Rules that are not named come before :data:`_LAST`.
_FIRST: Final = (
    # another program's
    "shared-gpu",
    # once
    *("unrecorded-context", "context-creation", "pinned-allocation"),
    # what the program has turned on, or computes where it should not
    *("anomaly-detection", "not-jitted", "recompilation", "recurring-loading", "module-loading", "first-launch"),
    "timed-kernels",
    *("data-loading", "cpu-operators", "large-upload", "cpu-tensors", "extra-copy", "boolean-masks", "downloads"),
    # loops in which the program launches
    *("rnn-cells", "host-grid-loop", "repeated-work", "loop-indexing", "unfused-optimizer", "zero-grad-fills"),
    *("no-kv-cache", "growing-copies", "repeated-coalescing", "allocation-in-loop"),
    # kernels that another type, layout or operator spares
    *("float64", "recomputation", "large-logits", "unfused-attention", "layout-copies", "layout-conversions"),
    *("scatter-atomics", "gathers", "full-sort", "bias-before-batchnorm", "recurring-casts", "no-donation"),
    # waits and copies
    *("small-copies", "blocking-read", "unneeded-sync", "pageable-copy", "serial-copy", "pageable-copy-once"),
    *("unified-memory-thrash", "unified-memory-prefetch", "cpu-page-faults", "default-stream", "exposed-communication"),
    # kernels by how they run
    *("unaligned-gemm", "no-tf32", "no-tensor-cores", "uncoalesced", "few-sms", "old-architecture-gemm"),
    *("idle-tensor-cores", "padded-products", "skinny-products", "memory-floor"),
)
_LAST: Final = (
    *("small-batches", "small-grid", "tail", "low-occupancy", "dram-bound", "busy-pcie", "clock-drop"),
    "own-code",
    # help whatever the cause, or name none
    *("fusion", "graph-candidate", "launch-bound", "host-blocks", "host-computes", "far-from-roof"),
)
ORDER: Final = (*_FIRST, *_LAST)

#: Findings that are specific where they are not general come before others': a formula's casts go with the formula.
_SPECIFIC: Final = {"fusion": "recurring-casts"}

_WORTH_A_WORD: Final = 0.01  # a smaller part of a finding's time that others tell of is nothing

_PLACES: Final = {rule: at for at, rule in enumerate(ORDER)}


def place_in_order(rule: str) -> float:
    """How far back in the order a rule comes; those not named come together, before what is least specific."""
    return _PLACES.get(rule, len(_FIRST) - 0.5)


def shared_out(found: Sequence[Finding], least: Mapping[tuple[str, int], float]) -> list[Finding]:
    """The findings with what of their claims no more specific one takes, the most specific first.

    Those of one cause are one finding. A finding that loses a part of its claims loses the same part of what is at
    stake, or is told anew. It is dropped where less is left than the `least` worth saying (ns), by rule and device.
    """
    taken: dict[int, pl.DataFrame] = {}
    kept: list[Finding] = []
    specific = sorted(_joined(found), key=_specificity)
    for one in specific:
        claims = intervals.union(pl.DataFrame(schema=intervals.SPANS) if one.claims is None else one.claims)
        before = taken.get(one.device, claims.clear())
        remaining = _of_left(one, claims, intervals.subtract(claims, before))
        if remaining is not None and remaining.at_stake_ns >= max(least[one.rule, one.device], 1):
            kept.append(remaining._replace(retold=None))  # which holds the report
            taken[one.device] = intervals.union(pl.concat([before, claims]))
    return kept


def _specificity(one: Finding) -> tuple[float, bool, int]:
    place = place_in_order(one.rule)
    if not one.general and one.rule in _SPECIFIC:
        place = place_in_order(_SPECIFIC[one.rule]) - 0.5
    return place, one.general, -one.at_stake_ns


def _joined(found: Sequence[Finding]) -> list[Finding]:
    """The findings by time at stake; what conversions of images and kernels per channel take adds up by device."""
    kept: dict[object, Finding] = {}
    for one in sorted(found, key=lambda one: -one.at_stake_ns):
        key = one.device if one.action == CHANNELS_LAST and one.mending else (len(kept),)
        kept[key] = _both(*sorted((kept[key], one), key=_specificity)) if key in kept else one
    return [*kept.values()]


def _both(first: Finding, other: Finding) -> Finding:
    """Two findings of one cause, with mendings, told as the first one."""
    text = re.sub(r"\{(\d+)\}", lambda place: f"{{{int(place[1]) + len(first.names)}}}", other.text)
    claims = [one.claims for one in (first, other) if one.claims is not None]

    def all_changes(report: Report) -> Mending | None:
        changes = [change for one in (first, other) if (change := one.change(report)) is not None]
        return reduce(Mending.with_all_of, changes) if changes else None

    return first._replace(
        at_stake_ns=first.at_stake_ns + other.at_stake_ns,
        text=f"{first.text} The same cause: {text}",
        names=(*first.names, *other.names),
        at_most=False,
        mending=all_changes,
        claims=pl.concat(claims) if claims else None,
    )


def _of_left(one: Finding, claims: pl.DataFrame, left: pl.DataFrame) -> Finding | None:
    """A finding on what is `left` of its claims; None where that is nothing."""
    whole, rest = intervals.length(claims), intervals.length(left)
    if rest == whole:
        return one._replace(claims=claims) if whole else one
    if not rest:
        return None
    lost = 1 - rest / whole
    if one.retold:
        remaining = one.retold(left)
    else:
        text = f"{one.text} Other findings tell of {percent(lost)} of that." if lost > _WORTH_A_WORD else one.text
        remaining = one._replace(at_stake_ns=one.at_stake_ns * rest // whole, text=text)
    return remaining and remaining._replace(claims=left, curtailed=lost > _WORTH_A_WORD)


MOST_REPLAYED: Final = 1 << 18  # a page replays remedies of reports with at most so many operations and calls

#: Findings that many sound programs have, and that are told only where their remedy gains a hundredth: so many times
#: what is worth saying of any.
_COMMON: Final = ("small-grid", "tail", "low-occupancy")
_HUNDREDTH: Final = 10

#: What a remedy gains differs by so large a part from what an exact replay says, at most, and what it leaves takes so
#: many times as long: in four of five programs of docs/diagnosis.md, and in nineteen of twenty where it gains most.
OF_REMEDIES: Final = 0.25
_LEFT: Final = 2

#: What the window of a device gets shorter by: without the profiler as usual, with least of the host's time, with most;
#: and by how much each of them may be wrong (ns).
_Gains = list[tuple[int, int]]


def with_replays(report: Report, found: Sequence[Finding], most: int) -> list[Finding]:
    """The findings on a report's window with what a replay says that each remedy gains.

    Where specific ones gain less together than one by one, none is told of more than it gains on top of those that gain
    more; no general one of more than on top of all specific ones, and none that others claim a part of, on top of those
    whose time is their own. None is replayed of a report with more than `most` operations and calls.
    """
    least, replayable = least_worth_saying(report), operations(report).height + report.kind("api").height <= most
    gains: dict[int, _Gains] = {}
    for device in {one.device for one in found if one.mending and replayable}:
        changes = {at: one.change(report) for at, one in enumerate(found) if one.device == device}
        gains |= _of_device(report, found, {at: change for at, change in changes.items() if change is not None})
    replayed = [_with(report, one, gains.get(at)) for at, one in enumerate(found)]
    return [
        one
        for one in replayed
        if not (one.general or one.rule in _COMMON) or one.gain_ns >= _HUNDREDTH * least[one.device]
    ]


def _of_device(report: Report, found: Sequence[Finding], changes: Mapping[int, Mending]) -> dict[int, _Gains]:
    """The gains of the remedies of a device, by finding."""
    gains = {at: _replayed(report, found[at].device, change) for at, change in changes.items()}
    later = {at for at in gains if found[at].general or found[at].curtailed}
    own = sorted(gains.keys() - later, key=lambda at: -gains[at][0][0])
    rest = sorted(later, key=lambda at: (found[at].general, _specificity(found[at])[0]))
    union = reduce(Mending.with_all_of, (changes[at] for at in own), Mending())
    before = [(0, 0)] * 3 if not own else gains[own[0]]
    if len(own) > 1:
        before = _replayed(report, found[own[0]].device, union)
    if sum(gains[at][0][0] for at in own) > before[0][0]:
        union, before, rest = changes[own[0]], gains[own[0]], [*own[1:], *rest]
    for at in rest:
        union = union.with_all_of(changes[at])
        after = _replayed(report, found[at].device, union)
        more = [(max(new - old, 0), apart) for (old, _), (new, apart) in zip(before, after, strict=True)]
        gains[at] = [min(sides) for sides in zip(more, gains[at], strict=True)]
        before = after
    return gains


def _replayed(report: Report, device: int, change: Mending) -> _Gains:
    """How much shorter the window of a device gets by a change, and how wrong that may be."""
    # what is paid once is the same with the remedy
    once = total(bucket_sums(report).filter(device=device, bucket="loading"), "ns")
    gains, least_ns = [], _of_full_grids(report, device, change)
    for known, state, end in _unprofiled.sides(report)[device]:
        then = _whatif.replayed(known, _whatif.mended(report, known, state, change)).end
        then = max(then, known.start + least_ns)
        gains.append((max(end - then, 0), int(_host_time.NEAR * max(then - known.start - once, 0))))
    return gains


def _of_full_grids(report: Report, device: int, change: Mending) -> int:
    """What a change leaves of the time of kernels that fill the device (ns): on any streams they run in turn."""
    filling = _filling(report, device)
    filling = filling.filter(~pl.col("row").is_in(change.gone.implode()))
    saved_ns = 0
    if change.shorter is not None:
        saved_ns = total(change.shorter.join(filling, on="row", how="semi"), "saved_ns")
    return intervals.length(intervals.union(filling)) - saved_ns


@once_per_report
def _filling(report: Report, device: int) -> pl.DataFrame:
    """Kernels of several streams of the device whose grids fill it: row, start, end."""
    work = exclusive_operations(report, "stream").filter((pl.col("device") == device) & (pl.col("kind") == "kernel"))
    work = work.filter(pl.col("stream").n_unique() > 1)
    return work.filter(~leaves_room(report, work.get_column("row"))).select("row", "start", "end")


def _unreplayed(report: Report, one: Finding) -> Finding:
    """The finding without a replay: its remedy leaves the device all other work, and gains nothing at the least."""
    if one.vague or one.replayed_high_ns is not None:
        return one._replace(mending=None)
    if one.claims is None:
        return one._replace(mending=None, replayed_low_ns=0, replayed_high_ns=one.at_stake_ns)
    work = exclusive_operations(report).filter(device=one.device).select("start", "end")
    others = intervals.subtract(intervals.union(work), intervals.union(one.claims.select("start", "end")))
    low, high = windows(report).row(by_predicate=pl.col("device") == one.device)[1:]
    most = high - low - intervals.length(intervals.clip(others, low, high))
    bound = one.at_stake_ns if one.at_most else max(most, one.at_stake_ns)
    return one._replace(mending=None, replayed_low_ns=0, replayed_high_ns=bound)


def _with(report: Report, one: Finding, gains: _Gains | None) -> Finding:
    """The finding with its gain, and between which bounds: those of nothing are nothing; at most it is the whole."""
    if gains is None:
        return _unreplayed(report, one)
    known, usual = _unprofiled.sides(report)[one.device][0], gains[0][0]
    whole = known.end - known.network.start
    low = max(min(ns - (apart if ns else 0) for ns, apart in gains), 0) * (1 - OF_REMEDIES)
    low = int(min(max(low, whole * (1 - _host_time.NEAR) - (whole - usual) * _LEFT if low else 0), usual))
    high = int(max(ns + (apart if ns else 0) for ns, apart in gains) * (1 + OF_REMEDIES))
    usual, low, high = (min(ns, one.at_stake_ns if one.at_most else whole) for ns in (usual, low, high))
    return one._replace(mending=None, replayed_ns=usual, replayed_low_ns=low, replayed_high_ns=high, unmended_ns=whole)
