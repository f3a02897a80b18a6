"""The first sentence of a page: what limits an iteration, why and where, and what it would take without that."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.analyses.device._windows import busy_spans
from kanalyze.analyses.iterations._marks import BY_LOOPS
from kanalyze.units import instead
from kanalyze.window import WORDS

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.iterations._steady import SteadyPart
    from kanalyze.report import Report

#: What holds an iteration up, by bucket of the ledger and by cause on its critical path.
_GPU: Final = "the GPU"
_HOST: Final = "the host"
_OF_BUCKET: Final = {
    **dict.fromkeys(("kernel", "memset", "queued"), _GPU),
    "communication": "communication",
    "memcpy": "copies",
    "launch": "launches",
    "sync": "blocking calls",
    "api": "other CUDA calls",
    "allocation": "allocations of memory",
    "loading": "loading of modules",
    "profiler": "the profiler",
    "host": _HOST,
}
_OF_CAUSE: Final = {
    **dict.fromkeys(("kernel", "memset", "stream order", "graph order", "event wait"), _GPU),
    **dict.fromkeys(("communication", "transfer"), "communication"),
    "memcpy": "copies",
    **dict.fromkeys(("launch", "launch latency"), "launches"),
    "return of a wait": "blocking calls",
    "call": "other CUDA calls",
    "host": _HOST,
}
_WORK: Final = {_GPU, "communication", "copies"}
_SINGULAR: Final = (_GPU, _HOST, "communication", "loading of modules", "the profiler")

#: What takes this part of an iteration limits it; two things together, of which each takes so much.
_MOST: Final = 0.5
_NOTABLE: Final = 0.1

#: What takes or gains less than this part of an iteration is no cause of what limits it.
_LEAST_CAUSE: Final = 0.1

#: What is promised gains at least this part of an iteration.
_PROMISED: Final = 0.03

#: Headlines that name the remedy, not the trouble; those that begin with a word that is no name.
_REMEDY: Final = re.compile(r"\bcould\b")
_PLAIN: Final = re.compile(r"(?:A|An|The|Each|Every|No|Page|Small|Images|Layout|Tensors?|Whole|Most|Many)\b(?!:)")


class Limit(NamedTuple):
    """What limits an iteration.

    Attributes:
        text: Its names, as in ``the host and launches``.
        many: Whether that is a plural.
        working: Whether the device's work is in it.
        first: Whether that is most of it.
    """

    text: str
    many: bool
    working: bool
    first: bool


def first_sentence(view: Report, steady: SteadyPart, tables: dict[str, pl.DataFrame], findings: list[Finding]) -> str:
    """The sentence on a steady part: what limits it, the first finding with its place, and what its remedy leaves.

    Empty where nothing takes most of an iteration and there is no finding.

    Args:
        view: The report of that part.
        steady: The same.
        tables: Its tables, of which `ledger` and `critical_path` tell the limit.
        findings: Its findings in order.
    """
    limit = limit_of(steady, tables) if "ledger" in tables else None
    cause = _cause(view, steady, findings)
    each = f"the {steady.each}" if steady.each in WORDS else f"each {steady.each!r}"
    if steady.found_by.startswith(BY_LOOPS):
        each = f"the {steady.found_by}"
    if not limit:
        return f"First: {cause}." if cause else ""
    limits = f"{limit.text[0].upper()}{limit.text[1:]} {'limit' if limit.many else 'limits'} {each}"
    if not limit.working and _busy_share(_own(tables["ledger"], steady)) >= _MOST:
        limits = f"{limits}, though the GPU works for most of it"
    if not cause:
        return f"{limits}."
    small = max(findings[0].at_stake_ns, findings[0].replayed_ns or 0) < _LEAST_CAUSE * steady.ns
    if small or ":" in _headline(findings[0].brief) or _busy_part(view, findings[0]) is not limit.first:
        return f"{limits}. First: {cause}."
    return f"{limits}: {cause}."


def limit_of(steady: SteadyPart, tables: dict[str, pl.DataFrame]) -> Limit | None:
    """What takes at least half of an iteration: of its critical path where that is known, else of its ledger."""
    path, ledger = tables.get("critical_path"), tables["ledger"]
    if path is not None and path.height:
        named, parts = pl.col("cause").cast(pl.String).replace_strict(_OF_CAUSE, default=None), path.get_column("share")
        sums = path.select(named.alias("what"), parts.alias("part"))
    else:
        own = _own(ledger, steady)
        named = pl.col("bucket").cast(pl.String).replace_strict(_OF_BUCKET, default=None)
        sums = own.select(named.alias("what"), part=pl.col("ns") / pl.col("ns").sum())
    shares = sums.group_by("what").agg(pl.col("part").sum()).drop_nulls("what").sort("part", "what", descending=True)
    largest = list(shares.filter(pl.col("part") >= _NOTABLE).head(2).iter_rows())
    number = 1 if largest and largest[0][1] >= _MOST else 2
    chosen = [str(what) for what, _ in largest[:number]]
    if len(chosen) < number or sum(part for _, part in largest[:number]) < _MOST:
        return None
    many = number > 1 or chosen[0] not in _SINGULAR
    return Limit(" and ".join(chosen), many, working=bool(_WORK & {*chosen}), first=chosen[0] in _WORK)


def _own(ledger: pl.DataFrame, steady: SteadyPart) -> pl.DataFrame:
    """The rows of the iterations' device."""
    return ledger if steady.device is None else ledger.filter(pl.col("device") == steady.device)


def _busy_share(ledger: pl.DataFrame) -> float:
    busy_ns = ledger.filter(pl.col("bucket").is_in(BUSY_BUCKETS)).get_column("ns").sum()
    return float(busy_ns) / max(int(ledger.get_column("ns").sum()), 1)


def _cause(view: Report, steady: SteadyPart, findings: list[Finding]) -> str:
    """The first finding with its place, and what its remedy leaves of an iteration where that is told."""
    if not findings or findings[0].vague:
        return ""
    best = findings[0].brief
    headline = _headline(best)
    headline = f"{headline[0].lower()}{headline[1:]}" if _PLAIN.match(headline) else headline
    where = best.line if best.headline.endswith(f" in {best.where}") else best.place
    there = f", in {where.format()}" if where else ""
    return f"{headline}{there}{_promise(view, steady, best)}"


def _headline(finding: Finding) -> str:
    """The headline without names of kernels, which are long."""
    return finding.headline.format(*("…" for _ in finding.names)).removesuffix(": …")


def _promise(view: Report, steady: SteadyPart, best: Finding) -> str:
    """What an iteration takes with a finding's remedy, and without it; empty where that gains little."""
    whole_ns, gain_ns = best.unmended_ns or 0, best.replayed_ns or 0
    if not best.replayed_low_ns or gain_ns < _PROMISED * whole_ns:
        return ""
    how = "with" if _REMEDY.search(best.headline) else "without"
    told = instead((whole_ns - gain_ns) / steady.number, whole_ns / steady.number)
    slower = view.meta.slower is None and whole_ns < (1 - _PROMISED) * steady.ns
    return f"; {how} that about {told}{f' without {view.meta.tool}' if slower else ''}"


def _busy_part(view: Report, finding: Finding) -> bool | None:
    """Whether a finding is about work of its device, not about idle time; None where that is not known."""
    if finding.claims is None or finding.claims.is_empty():
        return True if finding.shortens else None
    claimed = intervals.union(finding.claims.select("start", "end"))
    busy = busy_spans(view).get(finding.device)
    if busy is None:
        return None
    return 2 * intervals.length(intervals.intersect(claimed, busy)) > intervals.length(claimed)
