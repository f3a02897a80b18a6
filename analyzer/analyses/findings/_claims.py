"""Shares the time of a device out among findings: each piece belongs to one, the most specific whose cause is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.units import percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kanalyze.analyses.findings.rules import Finding

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
    *("growing-copies", "allocation-in-loop"),
    # kernels that another type, layout or operator spares
    *("float64", "recomputation", "large-logits", "unfused-attention", "layout-copies", "layout-conversions"),
    *("scatter-atomics", "gathers", "bias-before-batchnorm", "recurring-casts", "no-donation"),
    # waits and copies
    *("small-copies", "blocking-read", "unneeded-sync", "pageable-copy", "serial-copy", "pageable-copy-once"),
    *("unified-memory-thrash", "unified-memory-prefetch", "cpu-page-faults", "default-stream", "exposed-communication"),
    # kernels by how they run
    *("unaligned-gemm", "no-tf32", "no-tensor-cores", "uncoalesced", "few-sms", "old-architecture-gemm"),
    "idle-tensor-cores",
)
_LAST: Final = (
    *("small-batches", "small-grid", "tail", "low-occupancy", "dram-bound", "busy-pcie", "clock-drop"),
    "own-code",
    # help whatever the cause, or name none
    *("fusion", "graph-candidate", "launch-bound", "host-blocks", "host-computes"),
)
ORDER: Final = (*_FIRST, *_LAST)

#: A smaller part of a finding's time that others tell of is nothing.
_WORTH_A_WORD: Final = 0.01

_PLACES: Final = {rule: at for at, rule in enumerate(ORDER)}


def place_in_order(rule: str) -> float:
    """How far back in the order a rule comes; those not named come together, before what is least specific."""
    return _PLACES.get(rule, len(_FIRST) - 0.5)


def shared_out(found: Sequence[Finding], least: Mapping[tuple[str, int], float]) -> list[Finding]:
    """The findings with what of their claims no more specific one takes, in the order that they were given in.

    A finding that loses a part of its claims loses the same part of what is at stake, or is told anew of what is left.
    It is dropped where less is left than is worth saying, and takes no time then.

    Args:
        found: Findings of any devices.
        least: The least at stake that is worth saying (ns), by rule and device.
    """
    taken: dict[int, pl.DataFrame] = {}
    kept: dict[int, Finding] = {}
    order = sorted(range(len(found)), key=lambda at: _key(found[at]))
    for at in order:
        one = found[at]
        claims = intervals.union(pl.DataFrame(schema=intervals.SPANS) if one.claims is None else one.claims)
        before = taken.get(one.device, claims.clear())
        told = _of_left(one, claims, intervals.subtract(claims, before))
        if told is not None and told.at_stake_ns >= max(least[one.rule, one.device], 1):
            kept[at] = told._replace(retold=None)  # which holds the report
            taken[one.device] = intervals.union(pl.concat([before, claims]))
    return [kept[at] for at in sorted(kept)]


def _key(one: Finding) -> tuple[float, bool, int]:
    return place_in_order(one.rule), one.general, -one.at_stake_ns


def _of_left(one: Finding, claims: pl.DataFrame, left: pl.DataFrame) -> Finding | None:
    """A finding on what is `left` of its claims; None where that is nothing."""
    whole, rest = intervals.length(claims), intervals.length(left)
    if rest == whole:
        return one._replace(claims=claims) if whole else one
    if not rest:
        return None
    lost = 1 - rest / whole
    if one.retold:
        told = one.retold(left)
    else:
        text = f"{one.text} Other findings tell of {percent(lost)} of that." if lost > _WORTH_A_WORD else one.text
        told = one._replace(at_stake_ns=one.at_stake_ns * rest // whole, text=text)
    return told and told._replace(claims=left, curtailed=lost > _WORTH_A_WORD)
