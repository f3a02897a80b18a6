"""The first page: a typical iteration of the program, what to do first, and what came before and after."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple

import polars as pl

from kanalyze.analyses.communication._partners import WAITING, has_partners
from kanalyze.analyses.device._operations import device_operations
from kanalyze.analyses.findings._doubts import with_late
from kanalyze.analyses.findings._gains import MOST_REPLAYED, with_replays
from kanalyze.analyses.findings.findings import ordered, ranked_with_samples
from kanalyze.analyses.findings.health import health
from kanalyze.analyses.findings.rules.loading import ONE_TIME
from kanalyze.analyses.host._call_kinds import interface
from kanalyze.analyses.idle.code import code, has_lines
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.iterations._parts_of_step import inner_parts, parts_of_step
from kanalyze.analyses.iterations._steady import SteadyPart, known_steady_part, spread_of
from kanalyze.analyses.iterations.phases import BEFORE, OTHERS, phases, recorded_of
from kanalyze.analyses.iterations.phases import TABLE as PHASES
from kanalyze.analyses.launches.hot_kernels import hot_kernels
from kanalyze.analyses.naming._host_names import told_briefly
from kanalyze.analyses.page._first_sentence import first_sentence
from kanalyze.analyses.page._headline import made, page_answer, process_count, sampled_beside, windows_of
from kanalyze.analyses.unprofiled._bare import Bare, bare_sentence, corrected_sentence
from kanalyze.analyses.unprofiled._correction import bare_of, corrected
from kanalyze.units import percent, plural, time
from kanalyze.window import WORDS, with_article
from kanalyze.wording import CUDA, worded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.page._headline import Maker
    from kanalyze.analyses.page.time_page import Summary
    from kanalyze.report import Meta, Report
    from kanalyze.window import Scope, Window

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

#: From so many devices on the page is of one of them.
_SEVERAL: Final = 2

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
        interface: Programming interface, CUDA or another of :mod:`kanalyze.wording`.
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
        ledger = self.tables.get("ledger")
        return ledger is not None and "communication" in ledger.get_column("bucket")

    @property
    def starts(self) -> bool:
        """Whether what came before the steady part is the program's start: no other loop of it to speak of."""
        return _is_start(self.tables.get("phases", PHASES.empty()))

    @property
    def waits_for_others(self) -> bool:
        """Whether the ledger tells of a GPU that it waits for another one."""
        ledger = self.tables.get("ledger")
        return ledger is not None and bool(ledger.get_column("detail").cast(pl.String).str.starts_with(WAITING).any())


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
    of_device = view if spans.height < _SEVERAL else view.narrow(device=main)
    # the answer tells of every GPU where nothing repeats, and what GPUs of one job wait for is told of all of them
    of_answer = view if steady is None or has_partners(view) else of_device
    tables, reasons = made(of_answer, {"culprits": culprits})  # attributes with names, for all others
    more, further = made(report, {"ledger": lambda _: ledger(of_answer)} | _makers(recorded, of_device, steady))
    tables, reasons = tables | more, reasons | further
    shown = view if steady is None else of_device
    findings = _worth_doing(view, *_of_main_device(shown, main, tables, beside))
    alone = steady is None and _few_kernels(of_device)
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
    if all(one.vague for one in findings) and (alone or _is_one_kernel(tables.get("hot_kernels"))):
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


def _of_main_device(
    shown: Report,
    main: int | None,
    tables: dict[str, pl.DataFrame],
    beside: Callable[[PageKernels], list[Finding]] | None,
) -> tuple[list[Finding], dict[int, int]]:
    """The findings on the device that the page is about, but for one-time costs, and the usual times of each device."""
    found = ranked_with_samples(shown) if "ledger" in tables and tables["ledger"].height else []
    usual = [one for one in found if one.device == main and one.rule not in ONE_TIME]
    times = _usual_times(tables["ledger"]) if "ledger" in tables else {}
    if beside is not None and main in times and "hot_kernels" in tables:
        told = {name for one in usual for name in one.names}
        usual += beside(PageKernels(tables["hot_kernels"], main, times[main], told))
    return usual, times


def _few_kernels(report: Report) -> bool:
    """Whether one kernel ran, or it and another: the host's time around it is that of starting up and checking."""
    kernels = device_operations(report).filter(pl.col("kind").is_in(["kernel", "graph"])).height
    return 0 < kernels <= _ONE


def _is_one_kernel(hot: pl.DataFrame | None) -> bool:
    """Whether one kernel takes nearly all of the time."""
    return hot is not None and bool((hot.get_column("window_share") >= _NEARLY_ALL).any())


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


def _worth_doing(view: Report, found: list[Finding], times: dict[int, int]) -> list[Finding]:
    """The findings on a part, what gains most first; without those that gain less than a hundredth of its `times`."""
    told = with_replays(view, found, MOST_REPLAYED)
    worth = [one for one in told if one.gain_ns >= _WORTH_DOING * times.get(one.device, 0)]
    return ordered(view, worth)


def _usual_times(ledger: pl.DataFrame) -> dict[int, int]:
    """Time of the `ledger` by device, ns, without what modules and contexts took: that is apart on the page."""
    usual = ledger.filter(pl.col("bucket") != _APART).group_by("device").agg(pl.col("ns").sum())
    return {int(device): int(ns) for device, ns in usual.iter_rows()}


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


def _is_start(phases: pl.DataFrame) -> bool:
    before = phases.filter(pl.col("phase") == BEFORE)
    others = pl.col("ns").filter(pl.col("part").str.starts_with(f"{OTHERS} ")).sum()
    return bool(before.select(others <= _OF_START * pl.col("ns").sum()).item())


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
