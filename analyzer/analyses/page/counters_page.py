"""Pages with what ncu measured: of its own report, and of one program recorded by several tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeVar, Unpack

import polars as pl

from kanalyze.analyses.counters.advice import (
    COMPUTE,
    FEW_BLOCKS,
    LATENCY,
    LOW,
    MEMORY,
    UNKNOWN,
    advice,
    bound,
    kernel_facts,
    paragraph,
)
from kanalyze.analyses.counters.counters import stalls
from kanalyze.analyses.findings._doubts import with_late
from kanalyze.analyses.findings.health import health
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.joining._kernel_groups import same_kernels
from kanalyze.analyses.joining._report_set import Together, together
from kanalyze.analyses.joining.joined import gains_among, joined_of
from kanalyze.analyses.page.overview_page import Overview, PageKernels, overview
from kanalyze.analyses.page.time_page import Summary, summarize
from kanalyze.decoder.decode import decode
from kanalyze.report import Meta, Report, Where
from kanalyze.units import percent, plural, time
from kanalyze.window import Scope


@dataclass(frozen=True)
class CounterSummary:
    """Content of the page of an ncu report, with complete tables; a renderer decides how many rows to print.

    Attributes:
        kind: Kind of page, by which renderers dispatch without importing the class.
        meta: Where the report came from.
        scope: The part of the report that was analysed.
        answer: Headline, one or two sentences.
        devices: The GPUs that kernels ran on, as in `devices`.
        kernels: A row per kernel: the columns of `counters` and `roofline`, blocks, family, product, and verdict and
            conclusion (:mod:`kanalyze.analyses.counters.advice`).
        groups: The kernels of one name and launch shape: first (event_id of the longest), count, total_ns; the longest
            total first.
        stalls: The table `stalls`.
        advice: The table `advice`.
        health: The table `health`.
    """

    kind: ClassVar[Literal["counters"]] = "counters"

    meta: Meta
    scope: Scope
    answer: str
    devices: pl.DataFrame
    kernels: pl.DataFrame
    groups: pl.DataFrame
    stalls: pl.DataFrame
    advice: pl.DataFrame
    health: pl.DataFrame


def summarize_counters(report: Report) -> CounterSummary:
    """Makes the page of an ncu report.

    Raises:
        CannotTellError: The report has no counters, or a window is asked for: kernels of ncu have no place in time.
    """
    facts = kernel_facts(report)
    rows = facts.to_dicts()
    texts = {"verdict": [bound(row) for row in rows], "conclusion": [paragraph(row) for row in rows]}
    kernels = facts.with_columns(pl.Series(name, told, dtype=pl.String) for name, told in texts.items())
    order = kernels.sort("dur_ns", "event_id", descending=[True, False], nulls_last=True)
    shape = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
    groups = order.group_by("name", "device", *shape, maintain_order=True).agg(
        first=pl.col("event_id").first(), count=pl.len().cast(pl.Int64), total_ns=pl.col("dur_ns").sum()
    )
    groups = groups.select("first", "count", "total_ns").sort("total_ns", "first", descending=[True, False])
    return CounterSummary(
        meta=report.meta,
        scope=report.scope,
        answer=_answer(kernels, groups),
        devices=report.devices.filter(pl.col("device").is_in(kernels.get_column("device").unique().implode())),
        kernels=kernels,
        groups=groups,
        stalls=stalls(report),
        advice=advice(report),
        health=health(report),
    )


def _answer(kernels: pl.DataFrame, groups: pl.DataFrame) -> str:
    """The headline: number of kernels, and their time by verdict."""
    if kernels.height == 1:
        row = kernels.row(0, named=True)
        duration = f" in {time(row['dur_ns'])}" if row["dur_ns"] is not None else ""
        return f"One kernel{duration}, measured alone. {row['conclusion']}"
    ns = pl.col("dur_ns")
    sums = kernels.group_by("verdict").agg(ns.sum(), timed=ns.count(), count=pl.len())
    sums = sums.sort("dur_ns", "verdict", descending=[True, False])
    timed = sums.get_column("timed").sum()
    told = [f"{verdict} {count}{f' ({time(ns)})' if known else ''}" for verdict, ns, known, count in sums.iter_rows()]
    shapes = f", {groups.height} different" if groups.height < kernels.height else ""
    of = "" if timed == kernels.height else f" (of {timed} whose duration was collected)"
    length = f"{time(int(sums.get_column('dur_ns').sum()))} in all{of}" if timed else "of unknown duration"
    return (
        f"{plural(kernels.height, 'kernel')}{shapes}, {length}, each measured alone. "
        f"By what holds them back: {', '.join(told)}."
    )


# One program recorded by several tools: the time page with counters and operators joined to its kernels.

#: Kernels from this share of the time on are told.
_MUCH: Final = 0.1

#: At least this part of a kernel's time is in launch shapes that ncu measured.
_MEASURED: Final = 0.5

#: Launches of one shape are alike up to this factor between their durations: other data may take far more.
_ALIKE: Final = 1.5

#: What to do, by what holds a kernel back.
_ACTIONS: Final = {
    FEW_BLOCKS: "a block for each SM at least, or other kernels beside it",
    MEMORY: "fewer bytes: narrower types, reuse in the cache, neighbours side by side",
    COMPUTE: "another algorithm, narrower types, tensor cores",
    LATENCY: "more independent work in each thread, more resident warps",
    UNKNOWN: "ncu --set full says what holds it back",
}


@dataclass(frozen=True)
class JointSummary:
    """Content of the page of several reports.

    Attributes:
        kind: Kind of page, by which renderers dispatch without importing the class.
        summary: The page of the report that gives the time.
        metas: Origin of all reports, that one first.
        joined: The table `joined`.
        gains: The table `gains`; None where no report has counters.
        outside: Number of kernel groups by other tool that have no time because they ran outside the window.
    """

    kind: ClassVar[Literal["joint"]] = "joint"

    summary: Summary
    metas: list[Meta]
    joined: pl.DataFrame
    gains: pl.DataFrame | None
    outside: Mapping[str, int]

    @property
    def tools(self) -> list[str]:
        """The distinct tools, the one that gives the time first."""
        return list(dict.fromkeys(meta.tool for meta in self.metas))


Page = TypeVar("Page")


def summarize_together(*reports: Report, **where: Unpack[Where]) -> list[JointSummary | Summary | CounterSummary]:
    """Makes the pages of reports of one program by different tools: one per report that gives the time.

    A report that no other belongs to, or without kernels to join with, has a plain page. Reports that are then on no
    page have pages of their own at the end.

    Raises:
        CannotTellError: No report gives the time.
    """
    found = together("joined", reports, where)
    return [*map(_page, found), *_alone(found, summarize)]


def overviews_together(
    *reports: Report, whole: bool = False, as_recorded: bool = False, **where: Unpack[Where]
) -> list[Overview | CounterSummary]:
    """Makes the first pages of reports of one program by different tools, as :func:`summarize_together` does."""
    found = together("joined", reports, where)
    page = partial(overview, whole=whole, as_recorded=as_recorded)
    return [*(_overview(each, page) for each in found), *_alone(found, page)]


def _can_join(found: Together) -> bool:
    return len(found.reports) > 1 and "kernel" in found.base.kinds


def _alone(found: Sequence[Together], page: Callable[[Report], Page]) -> list[Page | CounterSummary]:
    """Pages of the reports that are on no page of others, in order."""
    joint = {one for each in found if _can_join(each) for one in each.given}
    alone = dict.fromkeys(one for each in found for one in each.given[1:] if one not in joint)
    return [summarize_counters(one) if one.meta.timeless else page(one) for one in alone]


def _overview(found: Together, made: Callable[..., Overview]) -> Overview:
    if not _can_join(found):
        return made(found.base)
    ncu, rows = found.ncu, cache(partial(joined_of, found))
    beside = None if ncu is None else lambda kernels: slow_kernels(rows(), ncu, kernels)
    page = made(found.base, beside=beside)
    others = [one.meta for one in found.given[1:]]
    joined = rows() if page.steady is None else None
    return replace(page, others=others, joined=joined, tables=with_late(page.tables, found.base, found.given[1:]))


def _page(found: Together) -> JointSummary | Summary:
    if not _can_join(found):
        return summarize(found.base)
    rows, summary = joined_of(found), summarize(found.base)
    return JointSummary(
        summary=replace(summary, tables=with_late(summary.tables, found.base, found.given[1:])),
        metas=[one.meta for one in found.given],
        joined=rows,
        gains=gains_among(rows, found.ncu) if found.ncu is not None else None,
        outside={other.meta.tool: _outside(found.base, other) for other in found.reports[1:]},
    )


def _outside(base: Report, other: Report) -> int:
    """Number of kernel groups of another report that match the whole of `base`, but not its narrowed part."""
    if base.whole is base:
        return 0
    inside = same_kernels(base, other)
    return same_kernels(base.whole, other).join(inside, on="right", how="anti").height


def slow_kernels(joined: pl.DataFrame, ncu: Report, page: PageKernels) -> list[Finding]:
    """Findings on kernels that take a tenth of the page's time or more, at less than 60 % of their roof, or in double.

    `joined` is the table of that name; of it counts what `ncu` measured of the same launches, or of others of the same
    shape that took about as long.
    """
    took = pl.col("exclusive_ns").alias("took_ns")
    much = page.hot.filter(pl.col("exclusive_ns") >= max(_MUCH * page.whole_ns, 1)).select("name", took)
    known = much.join(_roofs(joined), on="name", maintain_order="left").drop_nulls("roof_share")
    rows = [row for row in known.iter_rows() if page.whole_ns and row[0] not in page.told]
    atomics = _atomics(ncu) if rows else {}
    facts = {
        row["event_id"]: row | {"atomics_share": atomics.get(row["event_id"], 0.0)}
        for row in (kernel_facts(ncu).to_dicts() if rows else ())
    }
    found = []
    for name, took_ns, event_id, roof in rows:
        cause = _cause(str(name), facts[event_id])
        if roof < LOW or (cause is not None and cause.whatever_roof):
            found.append(_finding(page, str(name), took_ns, roof, facts[event_id], cause))
    return found


def _cause(name: str, facts: Mapping[str, Any]) -> _Cause | None:
    """What the counters of a program's own kernel prove; None of libraries' kernels, and of others."""
    if decode(name).library is not None:
        return None
    return next((cause for cause in _CAUSES if cause.share(facts) >= cause.least), None)


def _atomics(ncu: Report) -> dict[int, float]:
    """Of the global accesses of each kernel's threads, the part that adds by atomics; none without instructions."""
    sass, times = pl.col("sass").cast(pl.String), pl.col("thread_instructions")
    adds, accesses = (times.filter(sass.str.contains(names)).sum() for names in (_ADDS, _ACCESSES))
    sums = ncu.table("instructions").group_by("event_id").agg(share=adds / accesses)
    return dict(sums.drop_nulls().iter_rows())


def _roofs(joined: pl.DataFrame) -> pl.DataFrame:
    """How near each kernel comes to its roof, where ncu measured most of its time: name, event_id, roof_share.

    `event_id` is that of the launch shape with most of its time.
    """
    longer = pl.col("ncu_dur_ns") / pl.col("avg_ns")
    alike = (pl.col("ncu_match") == "shape") & longer.is_between(1 / _ALIKE, _ALIKE)
    same = (pl.col("ncu_match") == "exact") | alike.fill_null(value=False)
    sure = same & pl.col("event_id").is_not_null() & pl.col("roof_share").is_not_null()
    ns = pl.col("exclusive_ns").fill_null(0)
    measured = ns.filter(sure).sum()
    sums = (
        joined.sort("exclusive_ns", descending=True, nulls_last=True)
        .group_by("name", maintain_order=True)
        .agg(
            pl.col("event_id").filter(sure).first(),
            roof_share=(ns * pl.col("roof_share")).filter(sure).sum() / measured,
            part=measured / ns.sum(),
        )
    )
    return sums.filter(pl.col("part") >= _MEASURED).select("name", "event_id", "roof_share")


def _finding(  # noqa: PLR0913 - a kernel's time, roof, counters and cause
    page: PageKernels, name: str, took_ns: int, roof_share: float, facts: dict[str, Any], cause: _Cause | None
) -> Finding:
    action, roof = _ACTIONS[bound(facts)], percent(roof_share)
    told = (
        f"{{0}} takes {time(took_ns)}, {percent(took_ns / page.whole_ns)} of the time, and runs at {roof} of its roof."
    )
    one = Finding(
        "far-from-roof",
        page.device,
        int(took_ns * (1 - roof_share)),
        f"{told} {literal(paragraph(facts))}",
        remedy=f"{action[0].upper()}{action[1:]}.",
        table="gains",
        names=(name,),
        headline=f"A kernel at {roof} of its roof: {{0}}",
        action=action,
        shortens=True,
        general=True,
    )
    if cause is None:
        return one
    share = cause.share(facts)
    spared = min(share, 0.5) if cause.whatever_roof else min(share, 1 - roof_share)
    return one._replace(
        rule=cause.rule,
        general=False,
        at_stake_ns=int(took_ns * spared),
        text=f"{one.text} {cause.text.format(percent(share))}",
        remedy=cause.remedy,
        headline=cause.headline.format(percent(share)),
        action=cause.action,
    )


class _Cause(NamedTuple):
    """A cause that counters prove of a program's own kernel, before those that only say what holds it back.

    Attributes:
        rule: Its name.
        share: The part of the kernel's accesses, or of its arithmetic, that it is.
        least: From which share on it is one.
        text: A sentence, with ``{}`` for the share.
        headline: The same in a line, with ``{{0}}`` for the kernel.
        action: What to do, in a line.
        remedy: The same in a sentence.
        whatever_roof: Whether it is one also near the roof, which is that of the arithmetic it does; a half is spared.
    """

    rule: str
    share: Callable[[Mapping[str, Any]], float]
    least: float
    text: str
    headline: str
    action: str
    remedy: str
    whatever_roof: bool = False


#: Atomics are so much of the accesses at least, and the kernel so far from its roof, where they hold it up.
_OF_ACCESSES: Final = 0.2
_FAR: Final = 0.3

#: SASS of additions by atomics in global memory, and of all accesses to it.
_ADDS: Final = r"\b(?:REDG?|ATOMG?)\.E\.(?:\w+\.)*(?:ADD|INC)"
_ACCESSES: Final = r"\b(?:LDG|STG|LD|ST|REDG?|ATOMG?)\.E"
_CAUSES: Final = (
    _Cause(
        "uncoalesced",
        lambda facts: facts["uncoalesced_share"] or 0.0,
        0.3,
        "Threads side by side access bytes far apart: {} of the sectors that they touch would not be needed otherwise.",
        "{} of a kernel's accesses are uncoalesced: {{0}}",
        "threads side by side on elements side by side: x[row * n + lane]",
        "Let neighbouring threads access neighbouring elements: a warp for each row, another order of indices, or a "
        "detour through shared memory. `kanalyze source REPORT KERNEL` shows the lines.",
    ),
    _Cause(
        "scatter-atomics",
        lambda facts: 1.0 if facts["atomics_share"] >= _OF_ACCESSES and facts["roof_share"] < _FAR else 0.0,
        1.0,
        "Each thread adds by an atomic: where many add to few addresses, they wait for each other.",
        "Atomics on global memory hold a kernel up: {{0}}",
        "add up in shared memory or registers first, one atomic per block",
        "Let each block add up in shared memory (a histogram of its own) or by warp shuffles, and add that once.",
    ),
    _Cause(
        "float64",
        lambda facts: (facts["fp64_flop"] or 0.0) / max(facts["flop"] or 0.0, 1.0),
        0.1,
        "{} of its arithmetic is in double precision.",
        "{} of a kernel's arithmetic is in double precision: {{0}}",
        "float literals and functions: 0.5f, expf(x), powf(x, y)",
        "Where float was meant: a literal without f, or exp, pow and sqrt of math.h, compute in double.",
        whatever_roof=True,
    ),
)
