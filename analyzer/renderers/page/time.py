"""Builds the pages of a timeline report and of all instances of a range, as sections without layout."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import outlets, units
from kanalyze.named_ranges import located
from kanalyze.renderers.page import sections
from kanalyze.renderers.text.grid import Column, Section, section
from kanalyze.renderers.text.kernel_names import short_forms
from kanalyze.window import Window
from kanalyze.wording import processor, worded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.page.time_page import Summary
    from kanalyze.analyses.ranges._instances import Instances
    from kanalyze.renderers.text.grid import Chapter, Row
    from kanalyze.report import Meta
    from kanalyze.window import Scope

    #: Description of a part of a bucket, and its duration.
    _Part = tuple[str | None, int]

#: End of the first sentence of a message.
_SENTENCE_END: Final = r"\.(?=\s|[A-Z])"

#: Self-explanatory bucket names, for buckets without a more specific detail.
NO_DETAIL: Final = {
    "host": "program code outside CUDA",
    "unknown": "no launch tells which thread",
    "queued": "submitted, waited on the device",
}
_DETAILS: Final = 2

#: Communication is told by shares, of which one is named from this one on.
_COMMUNICATION: Final = "communication"
_TRANSFER: Final = "transfer"
_WORTH_NAMING: Final = 0.02

#: Buckets whose details are in the table of culprits, not in the ledger.
_BY_CULPRIT: Final = ("host",)

#: Sections in page order, each with the table that it needs; empty ones are omitted.
_SECTIONS: Final[tuple[tuple[str, Callable[[Mapping[str, pl.DataFrame], int], Section]], ...]] = (
    ("culprits", sections.culprits),
    ("steps", sections.steps),
    ("ranges", sections.ranges),
    ("exposure", sections.exposure),
    ("hot_kernels", sections.kernels),
    ("ops", sections.operators),
    ("graphs", sections.graphs),
    ("copies", sections.copies),
    ("migration_totals", sections.unified_memory),
    ("memory", sections.memory),
    ("concurrency", sections.streams),
    ("launch_summary", sections.launches),
    ("api", sections.calls),
)


#: Tables of GPU activity.
_LEDGER: Final = "ledger"
_OF_GPU: Final = (_LEDGER, "exposure", "hot_kernels", "copies", "launch_summary")


class Share(NamedTuple):
    """One bucket of a ledger: name, share of the bar, texts.

    `detail` says what most of it was; `plain` what it is, where there is no such detail, or no space for it; `spread`
    the least and the most of it, of several iterations, of which each has `each_ns`.
    """

    bucket: str
    ns: int
    each_ns: int
    time: str
    share: str
    detail: str
    plain: str
    spread: str = ""

    @property
    def description(self) -> str:
        """The detail, else the plain description."""
        return self.detail or self.plain


class Ledger(NamedTuple):
    """A device's ledger: heading, buckets (longest first), total, busy share over time."""

    heading: str
    window_ns: int
    shares: list[Share]
    total: str
    busy: list[float]
    title: str = "WHERE THE TIME WENT"
    span: tuple[str, str] = ("", "")


class Point(NamedTuple):
    """A finding on the page: the time that it takes, what is wrong, what to do, and where to read on.

    `headline` has places for kernel names. `saved` is what a replay says that it saves; empty where none was made.
    `beside` is one about other time with the same action.
    """

    worth: str
    finding: Finding
    headline: str
    action: str
    more: str
    saved: str = ""
    beside: Point | None = None

    def together(self) -> list[Point]:
        """Findings of one action: this one, and the one beside it."""
        return [self] if self.beside is None else [self, self.beside]

    def said(self, names: Mapping[str, str], escaped: Callable[[str], str] = str) -> str:
        """The headline, `escaped`, with kernel names shortened by `names`."""
        return escaped(self.headline).format(*(names[name] for name in self.finding.names))

    def sentence(self, names: Mapping[str, str]) -> str:
        """The whole finding, with kernel names shortened by `names`."""
        return self.finding.text.format(*(names[name] for name in self.finding.names))


class Block(NamedTuple):
    """A title and a text beside it."""

    title: str
    text: str


class Page(NamedTuple):
    """A page: heading, answer, ledgers, tables, findings, closing line, chapters per kernel.

    An overview has its findings before the tables, others behind them. `nothing` is told where there is no finding.
    """

    heading: list[str]
    answer: str
    sections: Sequence[Section]
    more: str
    health: str = ""
    ledgers: Sequence[Ledger] = ()
    points: Sequence[Point] = ()
    points_remark: str = ""
    cannot_tell: Sequence[str] = ()
    chapters: Sequence[Chapter] = ()
    blocks: Sequence[Block] = ()
    overview: bool = False
    nothing: str = "Nothing worth a sentence."

    @property
    def beside(self) -> str:
        """The heading behind the name, with the health of the report."""
        return " · ".join([*self.heading[1:], *([self.health] if self.health else [])])


def short_names(page: Page, width: int) -> dict[str, str]:
    """Maps kernel names on the page to unique short forms of at most `width` characters.

    Two kernels that differ never have the same short form.
    """
    tables = [name for section in page.sections for name in section.grid.names()]
    told = [name for point in page.points for one in point.together() for name in one.finding.names]
    return short_forms([*tables, *told, *(chapter.name for chapter in page.chapters)], width)


def page_of(summary: Summary, top: int) -> Page:
    """Builds the page of a summary, at most `top` rows per table."""
    since = {"memory": partial(sections.memory, zero_ns=summary.zero_ns)}
    shown = []
    for name, make in _SECTIONS:
        if name in summary.tables and summary.tables[name].height:
            made = since.get(name, make)(summary.tables, top)
            title = made.title if summary.meta.recorder.nvtx else made.title.removeprefix("NVTX ")
            foot = summary.remarks.get(name, made.foot)
            shown.append(made._replace(title=worded(title, summary.interface), foot=foot))
    points = _points(summary.findings)
    return Page(
        heading=_heading(summary),
        health=health_line(summary.tables["health"]),
        answer=summary.answer,
        ledgers=[_ledger(summary, row) for row in summary.windows.iter_rows(named=True)],
        sections=shown,
        points=points[:top],
        points_remark=_points_remark(points[:top]),
        cannot_tell=_cannot_tell(summary.cannot_tell),
        more=_more(summary, len(points) - top),
    )


def options(scope: Scope) -> list[str]:
    """The options that choose what is in `scope`."""
    chosen = {"--window": scope.window, "--device": scope.device, "--process": scope.process}
    return [word for name, value in chosen.items() if value is not None for word in (name, str(value))]


def show(table: str, *paths: Path, scope: Scope) -> str:
    """The command that shows `table` of the part in `scope` of the reports at `paths`."""
    return outlets.command("kanalyze", "show", table, *paths, *options(scope))


def _more(summary: Summary, hidden: int) -> str:
    """Commands that lead on, a line each, with `hidden` findings first."""
    rest, known = "", _LEDGER if _LEDGER in summary.tables else "health"
    if hidden > 0:
        findings = show("findings", summary.meta.path, scope=summary.scope)
        rest = f"{units.plural(hidden, 'further kind')} of findings: {findings}\n"
    table = show(known, summary.meta.path, scope=summary.scope)
    return f"{rest}any table, such as: {table}\nall tables: kanalyze tables"


def _cannot_tell(reasons: Mapping[str, str]) -> list[str]:
    """Reasons for missing tables; a single sentence for all GPU tables if there was no GPU activity."""
    if _LEDGER not in reasons:
        return list(reasons.values())
    missing = [name for name in _OF_GPU if name in reasons]
    others = [reason for name, reason in reasons.items() if name not in missing]
    return [f"Without what the GPU did there is no table {', '.join(missing[:-1])} or {missing[-1]}.", *others]


def heading(meta: Meta, parts: list[str]) -> list[str]:
    """The heading: file name, tool, then `parts`."""
    return [meta.path.name, meta.recorded_by, *parts]


def _heading(summary: Summary) -> list[str]:
    models = summary.windows.group_by("name", "compute_capability", "sm_count", maintain_order=True).len()
    parts = [f"{f'{count} × ' if count > 1 else ''}{gpu(*model)}" for *model, count in models.iter_rows()]
    parts += [f"driver {summary.meta.driver_version}"] if summary.meta.driver_version else []
    parts += [units.plural(summary.process_count, "process"), *rank_of(summary.meta)]
    if summary.scope.window is not None and summary.scope.window.name:
        parts.append(f"window {summary.scope.window.name}")
    return heading(summary.meta, parts)


def gpu(name: str | None, capability: str | None, sms: int | None) -> str:
    """A GPU with its number of SMs and its architecture, as far as known."""
    known = processor(name, capability, sms)
    return (name or "GPU") + (f", {known}" if known else "")


def rank_of(meta: Meta) -> list[str]:
    """``rank 2 of 8``, where a report names its rank."""
    of = f" of {meta.world_size}" if meta.world_size else ""
    return [] if meta.rank is None else [f"rank {meta.rank}{of}"]


def health_line(health: pl.DataFrame) -> str:
    """How far the report can be trusted, in a line; of what a tool says itself the first sentence."""
    wrong = health.filter(pl.col("doubt"))
    if wrong.is_empty():
        return "health: complete"
    checks = wrong.select("check", "count").iter_rows()
    told = [units.checked(re.split(_SENTENCE_END, check, maxsplit=1)[0], count) for check, count in checks]
    return "health: " + "; ".join(told)


def _points_remark(points: Sequence[Point]) -> str:
    """Remark on the times of findings."""
    takes = "time at stake: the GPU's time that each takes"
    return f"{takes}; → saved, by replay" if any(one.saved for one in points) else takes


def _points(findings: list[Finding]) -> list[Point]:
    """Groups findings by rule, costliest first; other devices become a clause."""
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    points = []
    for first, *others in by_rule.values():
        places = ", ".join(f"GPU {other.device} {units.time(other.at_stake_ns)}" for other in others)
        also = f" (On GPU {first.device}; also on {places}.)" if others else ""
        saved = "" if first.replayed_ns is None else units.time(first.replayed_ns)
        more = f"{first.table}, {first.definition}"
        points.append(Point(units.time(first.at_stake_ns), first, f"{first.text}{also}", first.remedy, more, saved))
    return points


def _ledger(summary: Summary, window: dict[str, int]) -> Ledger:
    rows = summary.tables["ledger"].filter(pl.col("device") == window["device"])
    reasons = summary.tables["culprits"].filter(pl.col("device") == window["device"])

    def detail(bucket: str, parts: list[_Part]) -> str:
        return told_waits(bucket, parts) or _detail(culprits_of(bucket, reasons) if bucket in _BY_CULPRIT else parts)

    start, end = (units.instant(window[side], summary.zero_ns) for side in ("start_ns", "end_ns"))
    return ledger(rows, f"GPU {window['device']}, {start} to {end}", detail, summary.interface)._replace(
        busy=summary.tables["utilisation"].filter(device=window["device"]).get_column("busy_share").to_list(),
        span=(start, end),
    )


def ledger(
    rows: pl.DataFrame, heading: str, detail: Callable[[str, list[_Part]], str], interface: str, iterations: int = 1
) -> Ledger:
    """The ledger of a device, per iteration where it is of several: `detail` tells of a bucket with its parts."""
    sums = rows.group_by("bucket").agg(pl.col("ns").sum()).sort("ns", "bucket", descending=[True, False])
    times_ns = sums.get_column("ns").to_list()
    length = sum(times_ns)
    shown_ns = round(length / iterations)
    each_ns = units.apportioned(times_ns, shown_ns)
    parts: dict[str, list[_Part]] = {}
    for bucket, part, ns in rows.select("bucket", "detail", "ns").iter_rows():
        parts.setdefault(bucket, []).append((part, ns))
    shares = [
        Share(
            bucket,
            ns,
            each,
            text,
            units.percent(ns / max(length, 1)),
            detail(bucket, parts[bucket]),
            worded(NO_DETAIL.get(bucket, ""), interface),
        )
        for (bucket, ns), each, text in zip(sums.iter_rows(), each_ns, units.adding_up(each_ns, shown_ns), strict=True)
    ]
    return Ledger(heading, length, shares, units.adding_up([shown_ns], shown_ns)[0], [])


def culprits_of(bucket: str, reasons: pl.DataFrame) -> list[_Part]:
    """Breaks a bucket down by culprit, longest first."""
    sums: dict[str | None, int] = {}
    rows = reasons.filter(pl.col("bucket") == bucket).select("culprit", "range", "ns")
    for culprit, where, ns in rows.iter_rows():
        told = culprit and located(sections.without_function(culprit), where)
        sums[told] = sums.get(told, 0) + ns
    return sorted(sums.items(), key=lambda part: (-part[1], part[0] or ""))


def told_waits(bucket: str, parts: list[_Part]) -> str:
    """Communication by whom it waited for and what it transferred, as shares; empty where the report does not tell."""
    named = [(detail, ns) for detail, ns in parts if detail is not None]
    if bucket != _COMMUNICATION or not named:
        return ""
    whole = max(sum(ns for _, ns in parts), 1)
    worth = [(detail, ns / whole) for detail, ns in named if ns >= _WORTH_NAMING * whole]
    worth = sorted(worth, key=lambda part: -part[1])[: _DETAILS + 1]
    # waiting first, where there is no room for all: the rest of it is what is transferred
    by_wait = sorted(worth, key=lambda part: part[0] == _TRANSFER)
    return ", ".join(f"{detail} {share:.0%}".replace("%", " %") for detail, share in by_wait)


def _detail(parts: list[_Part]) -> str:
    """Formats the breakdown of a bucket, longest first; empty if unknown."""
    named = [(detail, ns) for detail, ns in parts if detail is not None]
    if not named:
        return ""
    if len(parts) == 1:
        return sections.unversioned(named[0][0])
    first = ((sections.UNNAMED.get(detail, detail), ns) for detail, ns in named[:_DETAILS])
    told = [f"{sections.unversioned(detail)} {units.time(ns)}" for detail, ns in first]
    more = len(named) - len(told)
    return ", ".join(told) + (f", {more} more" if more else "")


#: Instances included in medians and shares.
_USUAL: Final = ~pl.col("warm_up") & ~pl.col("odd")


def instances_page(found: Instances, top: int) -> Page:
    """Builds the page of a range's instances: time breakdown, outliers and slowest ones."""
    sections = []
    keys = found.spread.select("process_id", "device").unique(maintain_order=True)
    many = keys.get_column("process_id").n_unique() > 1
    for process, device in keys.iter_rows():
        here = pl.col("process_id").eq_missing(process) & (pl.col("device") == device)
        rows = found.instances.filter(here)
        usual = rows.filter(_USUAL).height
        which = units.plural(usual, "instance") if usual == rows.height else f"{usual} usual instances"
        whose = f", process {process}" if many else ""
        sections += [_spread(found.spread.filter(here), f"GPU {device}{whose}, {which}")]
        sections += [_slowest(rows, top, found.zero_ns)]
    first = found.instances.item(0, "window") if found.instances.height else ""
    scope = replace(found.scope, window=Window(name=first))
    return Page(
        heading=heading(found.meta, [f"window {found.scope.window.name if found.scope.window else found.name}"]),
        answer=found.answer,
        sections=sections,
        more=outlets.command("kanalyze", "summarize", found.meta.path, *options(scope)),
    )


def _spread(rows: pl.DataFrame, remark: str) -> Section:
    columns = (
        Column("bucket", "bucket", left=True),
        Column("share", "share"),
        Column("median", "median_ns"),
        Column("least", "min_ns"),
        Column("most", "max_ns"),
        Column("deviation", "stddev_ns", wide=True),
    )
    return section("WHERE THE TIME WENT", rows, columns, remark=remark)


def _slowest(rows: pl.DataFrame, top: int, zero_ns: int) -> Section:
    """Section of instances: outliers first, then longest."""
    median = float(rows.filter(_USUAL).select(pl.col("dur_ns").median()).item())
    order = rows.sort("odd", (pl.col("dur_ns") - median).abs(), "instance", descending=[True, True, False])

    def name(row: Row) -> str:
        """The window, or the number that every window ends in."""
        numbered = f"#{row['instance']}"
        return numbered if row["window"].endswith(numbered) else row["window"] or numbered

    columns = (
        Column("instance", name),
        Column("start", "start_ns", partial(units.instant, zero_ns=zero_ns)),
        Column("time", "dur_ns"),
        Column("of median", "dur_ns", lambda ns: units.times(ns / max(median, 1))),
        Column("", lambda row: "warm-up" if row["warm_up"] else "odd" if row["odd"] else "", left=True),
        Column("most in", "cause", left=True),
    )
    return section("INSTANCES", order, columns, top, "furthest from the median first")
