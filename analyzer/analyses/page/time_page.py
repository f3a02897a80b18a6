"""Pages with all tables: of a recording ("where did the time go?"), of what ncu measured, and of one program's both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import median
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
from kanalyze.analyses.device import kernels as of_kernels
from kanalyze.analyses.device import occupancy
from kanalyze.analyses.device._operations import device_operations
from kanalyze.analyses.findings import health
from kanalyze.analyses.findings._claims import MOST_REPLAYED
from kanalyze.analyses.findings._doubts import with_late
from kanalyze.analyses.findings.findings import by_gain
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.host import calls
from kanalyze.analyses.host._call_kinds import interface
from kanalyze.analyses.idle import code, culprits, ledger
from kanalyze.analyses.joining._kernel_groups import same_kernels
from kanalyze.analyses.joining._report_set import Together, together
from kanalyze.analyses.joining.joined import gains_among, joined_of
from kanalyze.analyses.launches import graphs, hot_kernels
from kanalyze.analyses.memory import memory, migrations
from kanalyze.analyses.operators import ops
from kanalyze.analyses.operators._host_names import told
from kanalyze.analyses.page.overview_page import (
    Overview,
    made,
    overview,
    page_answer,
    process_count,
    sampled_beside,
    windows_of,
)
from kanalyze.analyses.ranges import instances, ranges
from kanalyze.analyses.streams import concurrency
from kanalyze.decoder.decode import decode
from kanalyze.report import Meta, Report, Where
from kanalyze.schema import Table
from kanalyze.tools import CUDA, worded
from kanalyze.units import percent, plural, time
from kanalyze.window import Scope


@dataclass(frozen=True)
class Summary:
    """Content of the time page, with complete tables; a renderer decides how many rows to print.

    Attributes:
        kind: Kind of page, by which renderers dispatch without importing the class.
        meta: Where the report came from.
        scope: The part of the report that was analysed.
        answer: Headline, one or two sentences.
        windows: The devices and their windows, :data:`WINDOWS`.
        processes: The table of processes, as read.
        process_count: Processes with device operations; where there are none, processes with CUDA calls.
        tables: The other tables by name, without those that the report cannot give.
        findings: The findings, what gains most first.
        cannot_tell: Reason by table, for missing tables that every CUDA trace gives.
        not_recorded: Reason by table, for missing tables of optional traces.
        remarks: One-sentence summary by table, for some tables.
        interface: Programming interface, CUDA or another of :mod:`kanalyze.tools`.
        zero_ns: Origin of displayed times.
    """

    kind: ClassVar[Literal["time"]] = "time"

    meta: Meta
    scope: Scope
    answer: str
    windows: pl.DataFrame
    processes: pl.DataFrame
    process_count: int
    tables: dict[str, pl.DataFrame]
    findings: list[Finding]
    cannot_tell: dict[str, str]
    not_recorded: dict[str, str]
    remarks: dict[str, str]
    interface: str = CUDA
    zero_ns: int = 0


#: The tables that every CUDA trace gives, and those of optional traces, in the page's order, each with its module.
_ALWAYS: Final = (
    *((ledger, ledger.TABLE), (ledger, ledger.EXPOSURE), (hot_kernels, hot_kernels.TABLE)),
    *((of_kernels, of_kernels.COPIES), (calls, calls.LAUNCH_SUMMARY), (calls, calls.API), (health, health.TABLE)),
)
_OPTIONAL: Final = (
    *((culprits, culprits.TABLE), (ledger, ledger.UTILISATION), (instances, instances.STEPS_TABLE)),
    *((ranges, ranges.RANGES), (ranges, ranges.RANGE_GPU), (occupancy, occupancy.BY_KERNEL), (ops, ops.TABLE)),
    *((graphs, graphs.TABLE), (migrations, migrations.TOTALS), (memory, memory.TABLE)),
    (concurrency, concurrency.TABLE),
)

#: What the page asks of them beside the report.
_ASKED: Final[dict[str, dict[str, Any]]] = {
    "utilisation": {"chunks": 60},
    "ranges": {"by": ranges.BY_NAME},
    "range_gpu": {"by": ranges.BY_NAME, "graphs": True},
    "occupancy": {"by": "kernel"},
}

#: The declarations of all these tables.
TABLES: Final[tuple[Table, ...]] = (*(table for _, table in (*_ALWAYS, *_OPTIONAL)), code.TABLE)

_NAMES: Final = [table.name for _, table in _ALWAYS]


def summarize(report: Report) -> Summary:
    """Makes the page of a report: all tables that it allows, the findings, and the headline."""
    tables, reasons = tables_of(report)
    spans, words = windows_of(report), interface(report)
    answer = " ".join(filter(None, (page_answer(report, spans, tables), sampled_beside(report, report))))
    processes = report.processes
    if report.scope.process is not None:
        processes = processes.filter(pl.col("process_id") == report.scope.process)
    # the sentence below a table
    tellers: dict[str, Callable[[pl.DataFrame], str]] = {
        "steps": instances.in_words,
        "memory": memory.told,
        "culprits": partial(told, report),
    }
    remarks = {name: tell(tables[name]) for name, tell in tellers.items() if name in tables}
    return Summary(
        meta=report.meta,
        scope=report.scope,
        answer=worded(answer, words),
        windows=spans,
        processes=processes,
        process_count=process_count(report) if device_operations(report).height else processes.height,
        tables=tables,
        findings=by_gain(report, MOST_REPLAYED) if "ledger" in tables else [],
        cannot_tell={name: reason for name, reason in reasons.items() if name in _NAMES},
        not_recorded={name: reason for name, reason in reasons.items() if name not in _NAMES},
        remarks={name: worded(text, words) for name, text in remarks.items() if text},
        interface=words,
        zero_ns=report.zero_ns,
    )


def tables_of(report: Report) -> tuple[dict[str, pl.DataFrame], dict[str, str]]:
    """The tables of the page that the report allows by name, and the reason why for each other one."""
    makers = {
        table.name: partial(getattr(module, table.name), **_ASKED.get(table.name, {}))
        for module, table in (*_ALWAYS, *_OPTIONAL)
    }
    if code.has_lines(report):
        makers[code.TABLE.name] = partial(code.code)
    # idle time is attributed with names first, which serves the other tables, too
    first, reason = made(report, {"culprits": makers.pop("culprits")})
    tables, reasons = made(report, dict(sorted(makers.items(), key=lambda one: one[0] in _NAMES)))
    return first | tables, reason | reasons


def repeated(runs: Sequence[Summary | Overview]) -> Summary | Overview:
    """The page of the first of several runs, with the variation of all runs added to its headline."""
    first = runs[0]
    if len(runs) == 1:
        return first
    windows = [int(run.windows.get_column("window_ns").sum()) for run in runs]
    busy = [int(run.windows.get_column("busy_ns").sum()) for run in runs]
    told = f": their windows are {_spread(windows)}, and their busy times {_spread(busy)}."
    if idle := windows.count(0):
        told = f"; in {idle:,} of them nothing that a GPU did was recorded."
    return replace(first, answer=f"{first.answer} This is the first of {plural(len(runs), 'run')}{told}")


def _spread(values: Sequence[int]) -> str:
    middle = median(values)
    apart = f", {percent((max(values) - min(values)) / middle)} apart" if middle else ""
    return f"{time(min(values))} to {time(max(values))} (median {time(middle)}{apart})"


# What ncu measured, of its own report.


@dataclass(frozen=True)
class CounterSummary:
    """Content of the page of an ncu report, with complete tables; a renderer decides how many rows to print."""

    #: Kind of page, by which renderers dispatch without importing the class.
    kind: ClassVar[Literal["counters"]] = "counters"

    meta: Meta  # where the report came from
    scope: Scope  # the part of the report that was analysed
    answer: str  # headline, one or two sentences
    devices: pl.DataFrame  # the GPUs that kernels ran on, as in `devices`
    #: A row per kernel: the columns of `counters` and `roofline`, blocks, family, product, and verdict and conclusion
    #: (:mod:`kanalyze.analyses.counters.advice`).
    kernels: pl.DataFrame
    #: The kernels of one name and launch shape: first (event_id of the longest), count, total_ns; the longest total
    #: first.
    groups: pl.DataFrame
    stalls: pl.DataFrame  # the table `stalls`
    advice: pl.DataFrame  # the table `advice`
    health: pl.DataFrame  # the table `health`


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
        health=health.health(report),
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
    """Content of the page of several reports."""

    kind: ClassVar[Literal["joint"]] = "joint"  # kind of page, by which renderers dispatch without importing the class

    summary: Summary  # the page of the report that gives the time
    metas: list[Meta]  # origin of all reports, that one first
    joined: pl.DataFrame  # the table `joined`
    gains: pl.DataFrame | None  # the table `gains`; None where no report has counters
    #: Number of kernel groups by other tool that have no time because they ran outside the window.
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
    found, others = _of_programs(reports, where)
    return [*map(_page, found), *_alone(found, others, summarize)]


def overviews_together(
    *reports: Report, whole: bool = False, as_recorded: bool = False, **where: Unpack[Where]
) -> list[Overview | CounterSummary]:
    """Makes the first pages of reports of one program by different tools, as :func:`summarize_together` does."""
    found, others = _of_programs(reports, where)
    page = partial(overview, whole=whole, as_recorded=as_recorded)
    return [*(_overview(each, page) for each in found), *_alone(found, others, page)]


def _of_programs(reports: Sequence[Report], where: Where) -> tuple[list[Together], list[Report]]:
    """The reports around each that gives the time; and those of other programs, which share no kernel with any."""
    found = together("joined", reports, where)
    beside = dict.fromkeys(one for each in found for one in each.given[1:])
    others = [one for one in beside if not any(_may_be_one_program(each.base.whole, one) for each in found)]
    if others:
        found = together("joined", [one for one in reports if one not in others], where)
    return found, [one if one.meta.timeless else one.narrow(**where) for one in others]


def _may_be_one_program(base: Report, other: Report) -> bool:
    """Whether two reports are of one capture, or share a kernel, or one of them has none."""
    of_capture = base.meta.capture is not None and base.meta.capture == other.meta.capture
    if of_capture or "kernel" not in base.kinds or not (other.meta.timeless or "kernel" in other.kinds):
        return True
    return not same_kernels(base, other).is_empty()


def _can_join(found: Together) -> bool:
    return len(found.reports) > 1 and "kernel" in found.base.kinds


def _alone(
    found: Sequence[Together], others: Sequence[Report], page: Callable[[Report], Page]
) -> list[Page | CounterSummary]:
    """Pages of the reports that are on no page of others, in order; and of the `others`."""
    joint = {one for each in found if _can_join(each) for one in each.given}
    alone = dict.fromkeys([*(one for each in found for one in each.given[1:] if one not in joint), *others])
    return [summarize_counters(one) if one.meta.timeless else page(one) for one in alone]


def _overview(found: Together, made: Callable[..., Overview]) -> Overview:
    if not _can_join(found):
        return made(found.base)
    ncu, rows = found.ncu, cache(partial(joined_of, found))
    beside = None if ncu is None else lambda *kernels: slow_kernels(rows(), ncu, PageKernels(*kernels))
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
    return same_kernels(base.whole, other).join(same_kernels(base, other), on="right", how="anti").height


class PageKernels(NamedTuple):
    """Kernels of a page, for what other reports tell of them."""

    hot: pl.DataFrame  # the table `hot_kernels`
    device: int  # the GPU that it is of
    whole_ns: int  # time of its ledger, without what is apart
    told: set[str]  # names of kernels that findings tell of already


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
        told = facts[event_id]
        causes = (cause for cause in _CAUSES if cause.share(told) >= cause.least)
        cause = None if decode(str(name)).library is not None else next(causes, None)  # of the program's own kernels
        if roof < LOW or (cause is not None and cause.whatever_roof):
            found.append(_finding(page, str(name), took_ns, roof, told, cause))
    return found


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
    """A cause that counters prove of a program's own kernel, before those that only say what holds it back."""

    rule: str  # its name
    share: Callable[[Mapping[str, Any]], float]  # the part of the kernel's accesses, or of its arithmetic, that it is
    least: float  # from which share on it is one
    text: str  # A sentence, with ``{}`` for the share
    headline: str  # the same in a line, with ``{{0}}`` for the kernel
    action: str  # what to do, in a line
    remedy: str  # the same in a sentence
    #: Whether it is one also near the roof, which is that of the arithmetic it does; a half is spared.
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
        "detour through shared memory. `kanalyze show source REPORT KERNEL` shows the lines.",
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
