"""The first page: a typical iteration of the program, what to do first, and what came before and after."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.communication._recorded import WAITING, has_partners
from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations, exclusive_operations
from kanalyze.analyses.device._windows import busy_spans
from kanalyze.analyses.findings._claims import MOST_REPLAYED, with_replays
from kanalyze.analyses.findings._doubts import with_late
from kanalyze.analyses.findings._places import claimed
from kanalyze.analyses.findings.findings import by_gain, ordered, ranked_with_samples
from kanalyze.analyses.findings.health import health
from kanalyze.analyses.findings.rules.loading import ONE_TIME
from kanalyze.analyses.host._call_kinds import interface
from kanalyze.analyses.idle._attribution import bucket_of, idle_pieces
from kanalyze.analyses.idle.code import code, has_lines, placed_with_text
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.iterations._marks import BY_LOOPS
from kanalyze.analyses.iterations._steady import SteadyPart, inner_parts, known_steady_part, parts_of_step, spread_of
from kanalyze.analyses.iterations.phases import BEFORE, OTHERS, phases, recorded_of
from kanalyze.analyses.iterations.phases import TABLE as PHASES
from kanalyze.analyses.launches.hot_kernels import hot_kernels
from kanalyze.analyses.operators._host_names import told_briefly
from kanalyze.analyses.page._headline import Maker, made, page_answer, process_count, sampled_beside, windows_of
from kanalyze.analyses.unprofiled._correction import Bare, bare_of, bare_sentence, corrected, corrected_sentence
from kanalyze.errors import UnknownNameError
from kanalyze.report import Meta, Report
from kanalyze.tools import CUDA, worded
from kanalyze.units import instead, percent, plural, time
from kanalyze.window import WORDS, Scope, Window, with_article

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.page.time_page import Summary

#: What gains less than this part of the time that the page is of is no thing to do first; the bucket that is apart.
_WORTH_DOING: Final = 0.01
_APART: Final = "loading"

#: So many launches are a program of one kernel: what is told of the time around it is no thing to do, and what is, by
#: whether counters were recorded.
_ONE: Final = 2
_NEARLY_ALL: Final = 0.9
_AROUND: Final = ("host-computes", "host-blocks", "launch-bound", "pageable-copy-once")
_ALONE: Final = {
    False: "Of one kernel there is nothing to tune here; `kanalyze collect --with nsys,ncu` records its counters.",
    True: "Of one kernel there is nothing to tune here but what its counters say.",
}

#: The critical path of a step is told in reports of so many operations and calls; others would take much longer.
_MOST_ON_PATH: Final = 1 << 17

#: What came before the steady part is start-up if at most this part of it is steady iterations of another loop.
_OF_START: Final = 0.05


@dataclass(frozen=True, eq=False, repr=False)
class Overview:
    """Content of the first page; a renderer decides how many rows to print.

    Attributes:
        kind: Kind of page, by which renderers dispatch without importing the class.
        meta: Where the report came from.
        scope: The part of the report that was asked for.
        answer: Two to four sentences that answer.
        window: The part that ledger, findings, kernels and ranges are of; None for all. With the number of
            iterations, these are told per iteration.
        steady: The iterations that it is made of; None if nothing repeats, or a window was asked for.
        windows: The devices and their windows.
        device: The GPU that ledger, findings and kernels are of; None without one.
        process_count: Processes with device operations.
        tables: ledger, spread, culprits, code, hot_kernels, parts (of an iteration), inner (of these), critical_path,
            ops, phases and health, where known.
        findings: The findings on that part without one-time costs, those with a cause first, what gains most first.
        cannot_tell: Reason by table, for missing tables.
        interface: Programming interface, CUDA or another of :mod:`kanalyze.tools`.
        zero_ns: Origin of displayed times.
        named: What names host time beside the report itself, and how sure that is; empty for nothing.
        bare: Runs without a profiler; None without any.
        others: Reports of other tools of the same program.
        joined: The table `joined`, where there are such and the page is of the whole recording.
    """

    kind: ClassVar[Literal["overview"]] = "overview"

    meta: Meta
    scope: Scope
    answer: str
    window: Window | None
    steady: SteadyPart | None
    windows: pl.DataFrame
    device: int | None
    process_count: int
    tables: dict[str, pl.DataFrame]
    findings: list[Finding]
    cannot_tell: dict[str, str]
    interface: str = CUDA
    zero_ns: int = 0
    named: str = ""
    bare: Bare | None = None
    others: list[Meta] = field(default_factory=list)
    joined: pl.DataFrame | None = None

    @property
    def tools(self) -> list[str]:
        """The distinct tools, the one that gives the time first."""
        return list(dict.fromkeys(meta.tool for meta in (self.meta, *self.others)))

    @property
    def communicates(self) -> bool:
        """Whether the ledger has time of collectives."""
        return self._ledger_has(pl.col("bucket") == "communication")

    @property
    def waits_for_others(self) -> bool:
        """Whether the ledger tells of a GPU that it waits for another one."""
        return self._ledger_has(pl.col("detail").cast(pl.String).str.starts_with(WAITING))

    def _ledger_has(self, rows: pl.Expr) -> bool:
        return "ledger" in self.tables and self.tables["ledger"].filter(rows).height > 0

    @property
    def starts(self) -> bool:
        """Whether what came before the steady part is the program's start: no other loop of it to speak of."""
        before = self.tables.get("phases", PHASES.empty()).filter(pl.col("phase") == BEFORE)
        others = pl.col("ns").filter(pl.col("part").str.starts_with(f"{OTHERS} ")).sum()
        return bool(before.select(others <= _OF_START * pl.col("ns").sum()).item())


class PageKernels(NamedTuple):
    """Kernels of a page, for what other reports tell of them.

    Attributes:
        hot: The table `hot_kernels`.
        device: The GPU that it is of.
        whole_ns: Time of its ledger, without what is apart.
        told: Names of kernels that findings tell of already.
    """

    hot: pl.DataFrame
    device: int
    whole_ns: int
    told: set[str]


def overview(
    recorded: Report,
    *,
    whole: bool = False,
    as_recorded: bool = False,
    beside: Callable[[PageKernels], list[Finding]] | None = None,
) -> Overview:
    """Makes the first page of a report: of its steady part, or of the window asked for; with `whole`, of all of it.

    Of a steady part, where a run without the profiler tells it, times are those without it, unless `as_recorded`.
    `beside` gives further findings on its kernels.
    """
    report = recorded if whole or as_recorded else unprofiled_page(recorded)
    steady = None if whole or report.scope.window is not None else known_steady_part(report)
    view = report if steady is None else report.narrow(window=steady.window)
    spans = windows_of(view)
    main = _main_device(spans, steady)
    of_device = view if spans.height <= 1 else view.narrow(device=main)
    # the answer tells of every GPU where nothing repeats, and what GPUs of one job wait for is told of all of them
    of_answer = view if steady is None or has_partners(view) else of_device
    tables, reasons = made(of_answer, {"culprits": culprits})  # attributes with names, for all others
    more, further = made(report, {"ledger": lambda _: ledger(of_answer)} | _makers(recorded, of_device, steady))
    tables, reasons = tables | more, reasons | further
    shown = view if steady is None else of_device
    findings = _worth_doing(view, shown, main, tables, beside)
    kernels = device_operations(of_device).filter(pl.col("kind").is_in(["kernel", "graph"])).height
    alone = steady is None and 0 < kernels <= _ONE  # the host's time around it is that of starting up and checking
    findings = [one for one in findings if not (alone and one.rule in _AROUND)]
    bare = bare_of(recorded)
    if bare is not None and steady is None:
        bare = bare._replace(iteration=None)
    unprofiled = _unprofiled(report, shown, steady, bare)
    if steady is None:
        sentences = [page_answer(view, spans, tables), unprofiled]
    else:
        first = first_sentence(view, steady, tables, findings)
        sentences = [first, _length(steady), unprofiled, _slice(recorded, steady)]
    hot = tables.get("hot_kernels")
    alone |= hot is not None and bool((hot.get_column("window_share") >= _NEARLY_ALL).any())
    if alone and all(one.vague for one in findings):
        sentences.append(_ALONE[beside is not None])
    sentences.append(sampled_beside(report, view) if "ledger" in tables else "")
    return Overview(
        meta=report.meta,
        scope=report.scope,
        answer=worded(" ".join(filter(None, sentences)), interface(report)),
        window=view.scope.window,
        steady=steady,
        windows=spans,
        device=main,
        process_count=process_count(report),
        tables=with_late(tables, report),
        findings=findings,
        cannot_tell=reasons,
        interface=interface(report),
        zero_ns=report.zero_ns,
        named=told_briefly(view, tables["culprits"]) if "culprits" in tables else "",
        bare=bare,
    )


def _worth_doing(
    view: Report,
    shown: Report,
    main: int | None,
    tables: dict[str, pl.DataFrame],
    beside: Callable[[PageKernels], list[Finding]] | None,
) -> list[Finding]:
    """The findings on the device that the page is about, what gains most first.

    Without one-time costs, and what gains less than a hundredth of the time: modules and contexts are apart from it.
    """
    rows = tables.get("ledger", pl.DataFrame(schema={"device": pl.Int64, "bucket": pl.String, "ns": pl.Int64}))
    found = ranked_with_samples(shown) if rows.height else []
    found = [one for one in found if one.device == main and one.rule not in ONE_TIME]
    usual = rows.filter(pl.col("bucket") != _APART)
    times = dict(usual.group_by("device").agg(pl.col("ns").sum()).iter_rows())
    if beside is not None and main is not None and main in times and "hot_kernels" in tables:
        told = {name for one in found for name in one.names}
        found += beside(PageKernels(tables["hot_kernels"], main, times[main], told))
    replayed = with_replays(view, found, MOST_REPLAYED)
    return ordered(view, [one for one in replayed if one.gain_ns >= _WORTH_DOING * times.get(one.device, 0)])


def unprofiled_page(report: Report) -> Report:
    """The report without its profiler where the page is of that; else itself."""
    scope = report.scope
    new = None if scope.window is not None else corrected(report)
    return report if new is None else new.narrow(device=scope.device, process=scope.process)


def _unprofiled(report: Report, view: Report, steady: SteadyPart | None, bare: Bare | None) -> str:
    """Sentence on the program without its profiler, and on what it took while recorded; `view` is the steady part."""
    tool = report.meta.tool
    if bare is not None and report.meta.slower is not None:
        each_ns = steady.ns / steady.number if steady is not None else 1
        return corrected_sentence(bare, tool, report.meta.slower, each_ns)
    measured = "" if bare is None else bare_sentence(bare, tool)
    if steady is None or report.scope.window or (bare is not None and bare.iteration is not None):
        return measured
    from kanalyze.analyses.unprofiled._sides import estimated, estimated_sentence  # noqa: PLC0415 - no page of counters

    estimate = estimated(view, steady, MOST_REPLAYED)
    told = "" if estimate is None else estimated_sentence(estimate, steady.ns / steady.number, tool)
    return " ".join(filter(None, (told, measured)))


def _main_device(spans: pl.DataFrame, steady: SteadyPart | None) -> int | None:
    """The GPU that the page is about: that of the iterations, else the one that was busy longest."""
    if spans.is_empty():
        return None
    known = spans.get_column("device").to_list()
    if steady is not None and steady.device in known:
        return steady.device
    return int(spans.sort("busy_ns", "device", descending=[True, False]).item(0, "device"))


def _makers(recorded: Report, of_device: Report, steady: SteadyPart | None) -> dict[str, Maker]:
    """Functions that make the tables of the main device, and of the report; phases and doubts are of the recording."""
    makers: dict[str, Maker] = {
        "hot_kernels": lambda _: hot_kernels(of_device),
        "health": lambda _: health(recorded),
    }
    if steady is not None:
        makers["parts"] = lambda report: parts_of_step(report, steady)
        makers["inner"] = lambda report: inner_parts(report, steady)
        makers["phases"] = lambda _: phases(recorded)
        makers["spread"] = lambda report: spread_of(report, steady)
        if device_operations(of_device).height + of_device.kind("api").height <= _MOST_ON_PATH:
            from kanalyze.analyses.critical.critical_path import critical_path  # noqa: PLC0415 - imports numpy

            makers["critical_path"] = lambda report: critical_path(report, window=steady.window)
    if "op" in recorded.kinds:
        from kanalyze.analyses.operators.ops import ops  # noqa: PLC0415 - reports of nsys have none

        makers["ops"] = lambda _: ops(of_device)
    if has_lines(of_device):
        makers["code"] = lambda _: code(of_device)
    return makers


def called(each: str) -> str:
    """Name of an iteration in a sentence: ``a step``, or ``each 'train_step'``."""
    return with_article(each) if each in WORDS else f"each {each!r}"


def _length(steady: SteadyPart) -> str:
    """How long an iteration takes: the mean, which its ledger adds up to; beside it the median and the range."""
    lengths = steady.lengths.sort()
    mean, middle = (time(ns) for ns in (steady.ns / steady.number, median(lengths)))
    what = called(steady.each)
    if not steady.adjoining:
        of = f"mean of {steady.number:,}; {what} itself takes {middle} in the median"
        return f"From {what} to the next pass {mean} ({of})."
    text = f"{what[0].upper()}{what[1:]} takes {mean}"
    if steady.number == 1:
        return f"{text}."
    some = " in a row" if steady.number < steady.usual.height else ""
    return f"{text} (mean of {steady.number:,}{some}; median {middle}, {time(lengths[0])} to {time(lengths[-1])})."


def _slice(report: Report, steady: SteadyPart) -> str:
    """How much the report shows of a session that is far longer."""
    first, last = report.whole.recorded
    start, end = recorded_of(report, steady.process_id)
    if end - start == last - first:
        return ""
    return f"The report shows {time(end - start)} of the {time(last - first)} of the session."


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


# The first sentence: what limits an iteration, why and where, and what it would take without that.

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

#: What takes this part of an iteration limits it; two things together, of which each takes so much, and what takes or
#: gains less is no cause of it.
_MOST: Final = 0.5
_NOTABLE: Final = 0.1

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
    busy, ns = pl.col("bucket").cast(pl.String).is_in(BUSY_BUCKETS), pl.col("ns")
    if (
        not limit.working
        and _of_device(tables, steady).select(ns.filter(busy).sum() / ns.sum().clip(1)).item() >= _MOST
    ):
        limits = f"{limits}, though the GPU works for most of it"
    if not cause:
        return f"{limits}."
    small = max(findings[0].at_stake_ns, findings[0].replayed_ns or 0) < _NOTABLE * steady.ns
    if small or ":" in _headline(findings[0].brief) or _busy_part(view, findings[0]) is not limit.first:
        return f"{limits}. First: {cause}."
    return f"{limits}: {cause}."


def _of_device(tables: dict[str, pl.DataFrame], steady: SteadyPart) -> pl.DataFrame:
    """The ledger of the iterations' device."""
    return tables["ledger"].filter((pl.col("device") == steady.device) | pl.lit(steady.device is None))


def limit_of(steady: SteadyPart, tables: dict[str, pl.DataFrame]) -> Limit | None:
    """What takes at least half of an iteration: of its critical path where that is known, else of its ledger."""
    path = tables.get("critical_path")
    if path is not None and path.height:
        named, parts = pl.col("cause").cast(pl.String).replace_strict(_OF_CAUSE, default=None), path.get_column("share")
        sums = path.select(named.alias("what"), parts.alias("part"))
    else:
        named = pl.col("bucket").cast(pl.String).replace_strict(_OF_BUCKET, default=None)
        sums = _of_device(tables, steady).select(named.alias("what"), part=pl.col("ns") / pl.col("ns").sum())
    shares = sums.group_by("what").agg(pl.col("part").sum()).drop_nulls("what").sort("part", "what", descending=True)
    largest = shares.filter(pl.col("part") >= _NOTABLE).head(2)
    if largest.height and largest.item(0, "part") >= _MOST:
        largest = largest.head(1)
    elif largest.height <= 1 or largest.get_column("part").sum() < _MOST:
        return None
    chosen = largest.get_column("what").to_list()
    many = len(chosen) > 1 or chosen[0] not in _SINGULAR
    return Limit(" and ".join(chosen), many, working=bool(_WORK & {*chosen}), first=chosen[0] in _WORK)


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


# What shows a finding in a report: its sentence, and the lines, kernels and waits that its time is made of.

#: Lines and waits: by name, how often, and how much of their time a finding is about.
_LINES: Final = {"place": pl.String, "text": pl.String, "ns": pl.Int64}
_WAITS: Final = {"reason": pl.String, "culprit": pl.String, "count": pl.Int64, "ns": pl.Int64}


@dataclass(frozen=True, eq=False)
class Evidence:
    """A finding with what it is made of.

    Attributes:
        kind: Kind of page, by which renderers dispatch without importing the class.
        meta: Where the report came from.
        finding: The finding.
        window: The part that it is about; None for all of the report.
        lines: Its time by line of the program: place, text, ns.
        kernels: The device's work in it, or the kernels that it names: name, count, ns.
        waits: The idle time in it: reason, culprit, count, ns.
    """

    kind: ClassVar[Literal["evidence"]] = "evidence"

    meta: Meta
    finding: Finding
    window: Window | None
    lines: pl.DataFrame
    kernels: pl.DataFrame
    waits: pl.DataFrame


def evidence(recorded: Report, rule: str) -> list[Evidence]:
    """What shows the findings of a rule in a report, one of each device: on its page's part, else in all of it.

    Raises:
        CannotTellError: The report records no device operations.
        UnknownNameError: It has no such finding.
    """
    report = unprofiled_page(recorded)
    steady = None if report.scope.window is not None else known_steady_part(report)
    views = [report] if steady is None else [report.narrow(window=steady.window), report]
    known: set[str] = set()
    for view in views:
        every = by_gain(view, MOST_REPLAYED)
        if own := [one for one in every if one.rule == rule]:
            return [_of(view, one) for one in own]
        known |= {one.rule for one in every}
    raise UnknownNameError.of(f"finding of {recorded.meta.path.name} called", rule, sorted(known))


def _of(view: Report, finding: Finding) -> Evidence:
    spans = intervals.union(finding.claims.select("start", "end")) if finding.claims is not None else None
    return Evidence(
        meta=view.meta,
        finding=finding,
        window=view.scope.window,
        lines=_lines_of(view, finding),
        kernels=_kernels_of(view, finding, spans),
        waits=_waits_of(view, finding, spans),
    )


def _lines_of(view: Report, finding: Finding) -> pl.DataFrame:
    if finding.claims is None or not has_lines(view):
        return pl.DataFrame(schema=_LINES)
    sums = claimed(view, finding).group_by("place").agg(pl.col("ns").sum())
    return placed_with_text(view, sums).sort("ns", "place", descending=[True, False]).select(list(_LINES))


def _kernels_of(view: Report, finding: Finding, spans: pl.DataFrame | None) -> pl.DataFrame:
    """The device's work in the time that is claimed; without that the kernels that the finding names."""
    kind, name = pl.col("kind").is_in(["kernel", "graph"]), pl.col("name").cast(pl.String)
    work = exclusive_operations(view, "name").filter(kind, device=finding.device)
    if spans is None:
        inside = work.filter(name.is_in(finding.names)).with_columns(ns="exclusive_ns")
    else:
        covered = intervals.overlap(work.get_column("start"), work.get_column("end"), spans)
        inside = work.with_columns(covered.alias("ns")).filter(pl.col("ns") > 0)
    sums = inside.group_by(name).agg(pl.len().cast(pl.Int64).alias("count"), pl.col("ns").sum())
    return sums.sort("ns", "name", descending=[True, False])


def _waits_of(view: Report, finding: Finding, spans: pl.DataFrame | None) -> pl.DataFrame:
    """The idle time that is claimed by bucket, and by what held the device up."""
    if spans is None:
        return pl.DataFrame(schema=_WAITS)
    pieces = intervals.cut(idle_pieces(view)[finding.device], spans)
    named = pieces.select(bucket_of(view, pieces).alias("reason"), "culprit").cast(pl.String)
    lengths = named.with_columns(ns=pieces.get_column("end") - pieces.get_column("start"))
    sums = lengths.group_by("reason", "culprit").agg(pl.len().cast(pl.Int64).alias("count"), pl.col("ns").sum())
    return sums.sort("ns", "reason", "culprit", descending=[True, False, False]).select(list(_WAITS))
