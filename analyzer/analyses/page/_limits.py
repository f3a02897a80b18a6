"""The sentences on a steady part: what limits an iteration, why and where, what it takes, and would without that."""

import re
from statistics import median
from typing import Final, NamedTuple

import polars as pl

from kanalyze import intervals, units, window
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.analyses.device._windows import busy_spans, spans_of_bucket
from kanalyze.analyses.findings.rules import WORDS, Finding
from kanalyze.analyses.idle.ledger import hides_host
from kanalyze.analyses.iterations._marks import BY_LOOPS
from kanalyze.analyses.iterations.iterations import STEADY
from kanalyze.analyses.iterations.phases import BETWEEN, PROGRAM, SteadyPart
from kanalyze.analyses.shared.statistics import total
from kanalyze.report import Report

#: What holds an iteration up, by bucket of the ledger and by cause on its critical path.
_GPU: Final = "the GPU"
_HOST: Final = "the host"
_LIMITS: Final = {
    **dict.fromkeys(("kernel", "memset", "queued", "stream order", "graph order", "event wait"), _GPU),
    **dict.fromkeys(("communication", "transfer"), "communication"),
    **dict.fromkeys(("launch", "launch latency"), "launches"),
    **dict.fromkeys(("sync", "return of a wait"), "blocking calls"),
    **dict.fromkeys(("api", "call"), "other CUDA calls"),
    "memcpy": "copies",
    "allocation": "allocations of memory",
    "loading": "loading of modules",
    "profiler": "the profiler",
    "host": _HOST,
}
_WORK: Final = {_GPU, "communication", "copies"}

#: What takes this part of an iteration limits it, or two things together that each take the next part at least; what is
#: promised gains at least the last.
_MOST: Final = 0.5
_NOTABLE: Final = 0.1
_PROMISED: Final = 0.03

#: Headlines that name the remedy, not the trouble; words of ours, no names, with which headlines begin.
_REMEDY: Final = re.compile(r"\bcould\b")
_OPENING: Final = {row["headline"].split(" ")[0] for row in WORDS["findings"].values() if "headline" in row} - {
    "Python"
}
_PLAIN: Final = re.compile("A|[A-Z][a-z-]+")


_UNRECORDED: Final = pl.col("bucket").cast(pl.String) == "unknown"


class Limit(NamedTuple):
    """What limits an iteration."""

    text: str  # its names, as in ``the host and launches``
    many: bool  # whether that is a plural
    working: bool  # whether the device's work is in it
    first: bool  # whether that is most of it


def first_sentence(view: Report, steady: SteadyPart, tables: dict[str, pl.DataFrame], findings: list[Finding]) -> str:
    """The sentence on a steady part: what limits it, the first finding with its place, and what its remedy leaves.

    Empty where nothing takes most of an iteration and there is no finding. Tables are those of the part.
    """
    limit = limit_of(view, steady, tables) if "ledger" in tables else None
    best = findings[0].brief if findings and not findings[0].vague else None
    headline = cause = ""
    if best is not None:  # without names of kernels, which are long
        headline = re.sub("^…", "a kernel", best.headline.format(*("…" for _ in best.names)).partition(": …")[0])
        where = best.line if best.headline.endswith(f" in {best.where}") else best.place
        opening = headline.split(" ")[0]
        plain = (opening in _OPENING or ": {0}" in best.headline) and _PLAIN.fullmatch(opening)
        cause = f"{headline[0].lower()}{headline[1:]}" if plain else headline
        cause = f"{cause}{f', in {where.format()}' if where else ''}{_promise(view, steady, best)}"
    if not limit:
        return f"First: {cause}." if cause else ""
    each = f"the {steady.each}" if steady.each in window.WORDS else f"each {steady.each!r}"
    if steady.found_by.startswith(BY_LOOPS):
        each = f"the {steady.found_by}"
    limits = f"{limit.text[0].upper()}{limit.text[1:]} {'limit' if limit.many else 'limits'} {each}"
    busy, ns = pl.col("bucket").cast(pl.String).is_in(BUSY_BUCKETS), pl.col("ns")
    works = _of_device(tables, steady).select(ns.filter(busy).sum() / ns.sum().clip(1)).item() >= _MOST
    if works and not limit.working:
        limits = f"{limits}, though the GPU works for most of it"
    if not cause:
        return f"{limits}."
    small = max(findings[0].at_stake_ns, findings[0].replayed_ns or 0) < _NOTABLE * steady.ns
    apart = small or ":" in headline or _busy_part(view, findings[0]) is not limit.first
    if limit.first and not apart:
        claims, exposed = findings[0].claims, spans_of_bucket(view, findings[0].device, "communication")
        communicates = claims is not None and _are_mostly(claims, exposed)
        apart = communicates is not limit.text.startswith("communication")
    return f"{limits}. First: {cause}." if apart else f"{limits}: {cause}."


def _of_device(tables: dict[str, pl.DataFrame], steady: SteadyPart) -> pl.DataFrame:
    return tables["ledger"].filter((pl.col("device") == steady.device) | pl.lit(steady.device is None))


def unrecorded_ns(steady: SteadyPart, tables: dict[str, pl.DataFrame]) -> float:
    """What an iteration has in the mean that the recording does not show; 0 where that is little."""
    if "ledger" not in tables:
        return 0
    ledger = _of_device(tables, steady)
    ns = total(ledger.filter(_UNRECORDED), "ns")
    return ns / steady.number if ns >= max(_NOTABLE * total(ledger, "ns"), 1) else 0


def limit_of(view: Report, steady: SteadyPart, tables: dict[str, pl.DataFrame]) -> Limit | None:
    """What takes at least half of an iteration: of its critical path where that is known, else of its ledger.

    Where the recording does not show a part, of the rest, unless that is what the host did before each launch.
    """
    path, ledger = tables.get("critical_path"), _of_device(tables, steady)
    if path is not None and path.height and not unrecorded_ns(steady, tables):
        sums = path.select(what="cause", part="share")
    else:
        shown = ledger if hides_host(view) else ledger.filter(~_UNRECORDED)
        sums = shown.select(what="bucket", part=pl.col("ns") / pl.col("ns").sum())
    sums = sums.with_columns(pl.col("what").cast(pl.String).replace_strict(_LIMITS, default=None))
    shares = sums.group_by("what").agg(pl.col("part").sum()).drop_nulls("what").sort("part", "what", descending=True)
    largest = shares.filter(pl.col("part") >= _NOTABLE).head(2)
    if largest.height and largest.item(0, "part") >= _MOST:
        largest = largest.head(1)
    elif largest.height <= 1 or largest.get_column("part").sum() < _MOST:
        return None
    chosen = largest.get_column("what").to_list()
    many = len(chosen) > 1 or chosen[0] not in (_GPU, _HOST, "communication", "loading of modules", "the profiler")
    return Limit(" and ".join(chosen), many, working=bool(_WORK & {*chosen}), first=chosen[0] in _WORK)


def _promise(view: Report, steady: SteadyPart, best: Finding) -> str:
    """What an iteration takes with a finding's remedy, and without it; empty where that gains little."""
    whole_ns, gain_ns = best.unmended_ns or 0, best.replayed_ns or 0
    if not (best.replayed_low_ns and whole_ns) or gain_ns < _PROMISED * whole_ns:
        return ""
    how = "with" if _REMEDY.search(best.headline) else "without"
    times = units.instead((whole_ns - gain_ns) / steady.number, whole_ns / steady.number)
    slower = view.meta.slower is None and whole_ns < (1 - _PROMISED) * steady.ns
    return f"; {how} that about {times}{f' without {view.meta.tool}' if slower else ''}"


def _busy_part(view: Report, finding: Finding) -> bool | None:
    """Whether a finding is about work of its device, not about idle time; None where that is not known."""
    if finding.claims is None or finding.claims.is_empty():
        return True if finding.shortens else None
    busy = busy_spans(view).get(finding.device)
    return None if busy is None else _are_mostly(finding.claims, busy)


def _are_mostly(claims: pl.DataFrame, spans: pl.DataFrame) -> bool:
    """Whether more than half of the claimed time lies in a span set."""
    claimed = intervals.union(claims.select("start", "end"))
    return 2 * int(intervals.covered(claimed, spans).sum()) > intervals.length(claimed)


def length_of(steady: SteadyPart, profiled: str, unrecorded: float) -> str:
    """How long an iteration takes: the mean, which its ledger adds up to; beside it the median and the range.

    And what of that the recording does not show (ns).
    """
    lengths = steady.lengths.sort()
    mean, middle, low, high = map(units.time, (steady.ns / steady.number, median(lengths), lengths[0], lengths[-1]))
    what = window.with_article(steady.each) if steady.each in window.WORDS else f"each {steady.each!r}"
    if not steady.adjoining:
        of = f"mean of {steady.number:,}; {what} itself takes {middle} in the median"
        return f"From {what} to the next pass {mean} {profiled} ({of})."
    text = f"{what[0].upper()}{what[1:]} takes {mean} {profiled}"
    text += f", of which the recording does not show {units.time(unrecorded)}" if unrecorded else ""
    if steady.number == 1:
        return f"{text}."
    some = " in a row" if steady.number < steady.usual.height else ""
    return f"{text} (mean of {steady.number:,}{some}; median {middle}, {low} to {high})."


#: What else the program does between rows of iterations is told if so many gaps have each a tenth of it.
_GAPS: Final = 2


def pauses(steady: SteadyPart, phases: pl.DataFrame) -> str:
    """The sentence on what the program does between rows of iterations, again and again, if that takes long.

    `phases` is the table of that name; other iterations and ranges of the program are told elsewhere.
    """
    between, own = pl.col("phase") == BETWEEN, pl.col("part") == PROGRAM
    other = phases.filter(between & (own | pl.col("part").str.starts_with("at ")))
    other_ns, whole_ns = total(other, "ns"), total(phases.filter(between | (pl.col("phase") == STEADY)), "ns")
    gaps_ns = (pl.col("start_ns") - (pl.col("start_ns") + pl.col("dur_ns")).shift(1)).fill_null(0)
    gaps = steady.usual.sort("start_ns").select((gaps_ns >= max(0.1 * other_ns, 1)).sum()).item()
    if other_ns < max(0.25 * whole_ns, 1) or gaps < _GAPS:
        return ""
    line = other.filter(~own).sort("ns").tail(1).rows(named=True)
    place = f", most of it {line[0]['part']}" if line and 2 * line[0]["ns"] >= other_ns else ""
    each = units.plural_of(steady.each) if steady.each in window.WORDS else f"iterations {steady.each!r}"
    of_all = f"{units.percent(other_ns / whole_ns)} of the time from the first to the last"
    return f"Between rows of {each} the program does something else for {units.time(other_ns)}, {of_all}{place}."
