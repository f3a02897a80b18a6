"""The first page: a typical iteration of the program, what to do first, and what came before and after."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import polars as pl

from kanalyze import errors, intervals, machinery, model, schema
from kanalyze.analyses.communication._recorded import WAITING, has_partners
from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations, exclusive_operations
from kanalyze.analyses.device._windows import process_count, windows
from kanalyze.analyses.findings import _doubts, say
from kanalyze.analyses.findings.findings import (
    EXPECTED,
    in_words,
    of_all_iterations,
    ordered,
    ranked_with_samples,
    with_replays,
)
from kanalyze.analyses.findings.health import health
from kanalyze.analyses.findings.rules import Finding, compiling
from kanalyze.analyses.host._call_kinds import interface, unused_launches
from kanalyze.analyses.host._captures import has_captures
from kanalyze.analyses.host._range_lines import has_shapes
from kanalyze.analyses.host.engine_marks import engine_marks
from kanalyze.analyses.idle import _attribution, culprits
from kanalyze.analyses.idle.code import code, has_lines
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.idle.syncs import blocking_calls
from kanalyze.analyses.iterations import _marks, phases
from kanalyze.analyses.iterations.phases import SteadyPart, steady_part
from kanalyze.analyses.iterations.sample import sample_of
from kanalyze.analyses.launches._launch_costs import steady_parts
from kanalyze.analyses.launches.hot_kernels import hot_kernels
from kanalyze.analyses.operators._host_names import told_briefly
from kanalyze.analyses.replay import _unprofiled
from kanalyze.analyses.replay._unprofiled import Bare
from kanalyze.analyses.shared.statistics import MEANINGS
from kanalyze.columns import as_of
from kanalyze.report import Meta, Report
from kanalyze.tools import CUDA, again, worded
from kanalyze.units import instant, percent, plural, shortened, time
from kanalyze.window import Scope, Window

with machinery.late():  # of reports with iterations, operators, captured graphs or steps of an engine
    from kanalyze.analyses.operators import ops
    from kanalyze.analyses.page import _limits
    from kanalyze.analyses.ranges import captured
    from kanalyze.analyses.replay import critical_path
    from kanalyze.analyses.serving import served
    from kanalyze.analyses.work import roofs

Maker: TypeAlias = Callable[[], pl.DataFrame]

WINDOWS: Final = schema.Table(
    "windows",
    "One GPU that did something, and the time that its ledger accounts for.",
    schema.columns("""
        device int: The GPU, as in `devices`.
        start_ns int: Start of the window, in the trace's own origin.
        end_ns int: End of the window.
        window_ns int: Its length.
        busy_ns int: Time in it in which the device ran anything.
        name text?: Marketing name of the GPU.
        compute_capability text?: Major and minor, such as 9.0; of AMD's GPUs gfx942 or the like.
        sm_count int?: Streaming multiprocessors.
    """),
)

#: What gains less than this part of the time that the page is of is no thing to do first.
_WORTH_DOING: Final = 0.01

#: What is left of a finding's time where counters prove another cause of nearly all of it, at most.
_LEFT: Final = 0.1

#: So many launches are a program of one kernel: what is told of it instead, by whether counters were recorded.
_ONE: Final = 2
_NEARLY_ALL: Final = 0.9
_AROUND: Final = ("host-computes", "host-blocks", "launch-bound", "pageable-copy-once")
_ALONE: Final = {
    False: "Of one kernel there is nothing to tune here; `kanalyze collect --with nsys,ncu` records its counters.",
    True: "Of one kernel there is nothing to tune here but what its counters say (--full).",
}


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """What a page is made of, with complete tables; a renderer decides how many rows to print.

    Attributes:
        kind: ``overview``: the first page of a recording; ``time``: all tables of one; ``joint``: with what other
            tools tell; ``counters``: of ncu's report; ``evidence``: what shows a finding.
        meta: Where the report came from; of several reports the one that gives the time.
        scope: The part of the report that was asked for.
        answer: One to four sentences that answer.
        tables: The tables of the page by name, where known. An overview has ledger, spread, culprits, code,
            hot_kernels, parts (of an iteration), inner (of these), critical_path, ops, captured, phases, health.
        findings: The findings, what gains most first; of an overview on its part, without one-time costs.
        cannot_tell: Reason by table, for missing tables that every CUDA trace gives.
        not_recorded: Reason by table, for missing tables of optional traces.
        remarks: One-sentence summary by table, for some tables.
        windows: The devices and their windows, :data:`WINDOWS`.
        processes: The table of processes, as read.
        process_count: Processes with device operations; where there are none, processes with CUDA calls.
        interface: Programming interface, CUDA or another of :mod:`kanalyze.tools`.
        zero_ns: Origin of displayed times.
        window: The part that an overview, or a finding, is about; None for all. Of iterations times are means.
        steady: The iterations that an overview is made of; None if nothing repeats, or a window was asked for.
        device: The GPU that ledger, findings and kernels of an overview are of; None without one.
        named: What names host time beside the report itself, and how sure that is; empty for nothing.
        bare: Runs without a profiler; None without any.
        others: Reports of other tools of the same program.
        joined: The table `joined`, where there are such and the page is of the whole recording.
        gains: The table `gains`; None where no report has counters.
        outside: Number of kernel groups by other tool that have no time because they ran outside the window.
    """

    kind: Literal["overview", "time", "joint", "counters", "evidence"]
    meta: Meta
    scope: Scope
    answer: str
    tables: dict[str, pl.DataFrame]
    findings: list[Finding] = field(default_factory=list)
    cannot_tell: dict[str, str] = field(default_factory=dict)
    not_recorded: dict[str, str] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)
    windows: pl.DataFrame = field(default_factory=WINDOWS.empty)
    processes: pl.DataFrame = field(default_factory=pl.DataFrame)
    process_count: int = 0
    interface: str = CUDA
    zero_ns: int = 0
    window: Window | None = None
    steady: SteadyPart | None = None
    device: int | None = None
    named: str = ""
    bare: Bare | None = None
    others: list[Meta] = field(default_factory=list)
    joined: pl.DataFrame | None = None
    gains: pl.DataFrame | None = None
    outside: dict[str, int] = field(default_factory=dict)

    @property
    def tools(self) -> list[str]:
        """The distinct tools, the one that gives the time first."""
        return list(dict.fromkeys(meta.tool for meta in (self.meta, *self.others)))

    @property
    def communicates(self) -> bool:
        """Whether the ledger has time of collectives."""
        return "ledger" in self.tables and "communication" in self.tables["ledger"].get_column("bucket")

    @property
    def waits_for_others(self) -> bool:
        """Whether the ledger tells of a GPU that it waits for another one."""
        waiting = pl.col("detail").cast(pl.String).str.starts_with(WAITING)
        return "ledger" in self.tables and not self.tables["ledger"].filter(waiting).is_empty()

    @property
    def starts(self) -> bool:
        """Whether what came before the steady part is the program's start: no other loop of it to speak of."""
        before = self.tables.get("phases", phases.TABLE.empty()).filter(pl.col("phase") == phases.BEFORE)
        others = pl.col("ns").filter(pl.col("part").str.starts_with(f"{phases.OTHERS} ")).sum()
        served = self.steady is not None and self.steady.found_by == _marks.BY_ENGINE  # other kinds are no start-up
        # at most this part of start-up is steady iterations of another loop
        return bool(before.select(others <= (0 if served else 0.05) * pl.col("ns").sum()).item())


class PageKernels(NamedTuple):
    """Kernels of a page, for what other reports tell of them."""

    hot: pl.DataFrame  # the table `hot_kernels`
    device: int  # the GPU that it is of
    whole_ns: int  # time of its ledger, without what is apart
    told: set[str]  # names of kernels that findings tell of already
    #: A row for each launch of a kernel on that GPU: its exclusive operation, with its place in its stream, and what is
    #: alike for those between which their process does not wait (waits).
    runs: pl.DataFrame


#: The public name of what a first page is made of.
Overview = Summary


def overview(
    recorded: Report,
    *,
    whole: bool = False,
    as_recorded: bool = False,
    beside: Callable[[PageKernels], list[Finding]] | None = None,
) -> Summary:
    """Makes the first page of a report: of its steady part, or of the window asked for; with `whole`, of all of it.

    Of a steady part, where a run without the profiler tells it, times are those without it, unless `as_recorded`.
    `beside` gives further findings on its kernels.
    """
    part = _part_of(recorded if whole or as_recorded else unprofiled_page(recorded), whole=whole)
    report, steady, of_device = part.report, part.steady, part.of_device
    # the answer tells of every GPU where nothing repeats, and what GPUs of one job wait for is told of all of them
    of_answer = part.view if steady is None or has_partners(part.view) else of_device
    tables, reasons = made(_makers(recorded, part, of_answer))
    engine = served.served(report, part.device) if engine_marks(report).height else None
    tables |= engine.tables if engine else {}
    findings = _worth_doing(part, tables, beside)
    kernels = device_operations(of_device).filter(pl.col("kind").is_in(["kernel", "graph"])).height
    alone = steady is None and 0 < kernels <= _ONE  # the host's time around it is that of starting up and checking
    findings = [one for one in findings if not (alone and one.rule in _AROUND)]
    if (bare := _unprofiled.bare_of(recorded)) is not None and steady is None:
        bare = bare._replace(iteration=None)
    sentences = [engine.sentence if engine else "", *_sentences(recorded, part, tables, findings, bare)]
    if (hot := tables.get("hot_kernels")) is not None:
        alone |= bool((hot.get_column("window_share") >= _NEARLY_ALL).any())
    if alone and all(one.vague for one in findings):
        sentences.append(_ALONE[beside is not None])
    sentences.append(sampled_beside(report, part.view) if "ledger" in tables else "")
    return Summary(
        kind="overview",
        meta=report.meta,
        scope=report.scope,
        answer=worded(" ".join(filter(None, sentences)), interface(report)),
        window=part.view.scope.window,
        steady=steady,
        windows=part.spans,
        device=part.device,
        process_count=process_count(report),
        tables=_doubts.with_late(tables, report),
        findings=findings,
        cannot_tell=reasons,
        interface=interface(report),
        zero_ns=report.zero_ns,
        named=told_briefly(part.view, tables["culprits"]) if "culprits" in tables else "",
        bare=bare,
        remarks={**(engine.remarks if engine else {}), "findings": sample_of(part.view).which},
    )


class _Part(NamedTuple):
    """The part of a report that a page is of."""

    report: Report
    steady: SteadyPart | None  # what repeats in it; None for a page of the whole report, or of a window
    view: Report  # that part
    spans: pl.DataFrame  # of its devices, :data:`WINDOWS`
    device: int | None  # the GPU that the page is about
    of_device: Report  # the part of that GPU


def _part_of(report: Report, *, whole: bool) -> _Part:
    """What repeats in the report, else the window asked for, or all; on the GPU of that, else on the busiest."""
    steady = None if whole or report.scope.window is not None else steady_part(report)
    view = report if steady is None else report.narrow(window=steady.window)
    spans = windows_of(view)
    busiest = spans.sort("busy_ns", "device", descending=[True, False]).get_column("device").to_list()
    main = steady.device if steady is not None and steady.device in busiest else next(iter(busiest), None)
    return _Part(report, steady, view, spans, main, view if spans.height <= 1 else view.narrow(device=main))


def _sentences(
    recorded: Report, part: _Part, tables: dict[str, pl.DataFrame], findings: list[Finding], bare: Bare | None
) -> list[str]:
    """The sentences on a page's part: what limits it, what it takes, without the profiler too, of what peaks."""
    unprofiled = _without_profiler(part, bare)
    if part.steady is None:
        sentences = [page_answer(part.view, part.spans, tables), unprofiled]
    else:
        first = _limits.first_sentence(part.view, part.steady, tables, findings)
        length = _limits.length_of(part.steady, part.view.meta.profiled, _limits.unrecorded_ns(part.steady, tables))
        paused = _limits.pauses(part.steady, tables["phases"]) if part.steady.adjoining and "phases" in tables else ""
        sentences = [first, length, unprofiled, paused, phases.part_of_session(recorded, part.steady)]
    if part.spans.height and not {"op", "range"}.isdisjoint(part.report.kinds) and has_shapes(part.of_device):
        sentences.append(roofs.against_roofs(part.of_device, farthest=not findings))
    return sentences


def _worth_doing(
    part: _Part, tables: dict[str, pl.DataFrame], beside: Callable[[PageKernels], list[Finding]] | None
) -> list[Finding]:
    """The findings on the device that the page is about without one-time costs, what gains most first.

    What gains less than a hundredth of the time is left out: modules and contexts are apart from it.
    """
    (sample, _, which), main, whole = sample_of(part.view), part.device, device_times(tables)
    view = sample if part.steady is None else sample.narrow(device=main)  # every GPU where nothing repeats
    findings = ranked_with_samples(view) if tables.get("ledger", pl.DataFrame()).height else []
    findings = [one for one in findings if one.device == main and one.rule not in compiling.ONE_TIME]
    if beside is not None and which:  # counters tell of kernels by their time in the sample
        tables, _ = made({"ledger": partial(ledger, view), "hot_kernels": partial(hot_kernels, view)})
    times = device_times(tables)
    if beside is not None and main is not None and main in times and "hot_kernels" in tables:
        findings += proven(view, findings, tables["hot_kernels"], (main, times[main]), beside)
    replayed = of_all_iterations(part.view, with_replays(sample, findings), once=False)
    worth = [one for one in replayed if one.gain_ns >= _WORTH_DOING * whole.get(one.device, 0)]
    return ordered(part.view, without_expected([one for one in worth if one.device == main]))


def device_times(tables: dict[str, pl.DataFrame]) -> dict[int, int]:
    """The recorded time (ns) of each device in the ledger, without what is apart; empty where there is no ledger."""
    if "ledger" not in tables:
        return {}
    rows = tables["ledger"].filter(~pl.col("bucket").is_in(["loading", "unknown"]))
    return dict(rows.group_by("device").agg(pl.col("ns").sum()).iter_rows())


def proven(
    report: Report,
    findings: list[Finding],
    hot: pl.DataFrame,
    time_of_device: tuple[int, int],
    beside: Callable[[PageKernels], list[Finding]],
) -> list[Finding]:
    """What other reports tell of the kernels of a device (its number, ns), of which `findings` tell no cause."""
    device, whole_ns = time_of_device
    named = {name for one in findings if one.rule not in EXPECTED for name in one.names}
    runs = exclusive_operations(report, "stream", "call_start").filter(pl.col("device") == device).sort("start", "row")
    called = runs.select("process_id", at=pl.coalesce("call_start", "start"))
    waits = as_of(called, blocking_calls(report).select("process_id", at="start"))
    runs = runs.with_columns(waits.alias("waits"), place=pl.int_range(pl.len()).over("process_id", "stream"))
    runs = runs.filter(pl.col("kind") == "kernel").with_columns(pl.col("name").cast(pl.String))
    causes = beside(PageKernels(hot, device, whole_ns, named, runs))
    return in_words(report, [_placed(report, one, runs) for one in causes])


def without_expected(findings: list[Finding]) -> list[Finding]:
    """The findings but those that tell by grids alone what counters prove to have another cause."""
    return [one for one in findings if not (one.rule in EXPECTED and _is_proven_otherwise(one, findings))]


def _is_proven_otherwise(one: Finding, others: list[Finding]) -> bool:
    """Whether counters prove another cause, which gains as much, of nearly all that a finding claims by grids alone."""
    if one.claims is None or one.table == "gains":
        return False
    claims = intervals.union(one.claims)
    proven = (other.claims for other in others if other.table == "gains" and other.gain_ns >= one.gain_ns)
    left = (intervals.subtract(claims, intervals.union(each)) for each in proven if each is not None)
    return any(intervals.length(each) < _LEFT * intervals.length(claims) for each in left)


def _placed(report: Report, one: Finding, runs: pl.DataFrame) -> Finding:
    """A finding on a kernel with the time of its `runs`, and their place where counters tell no line."""
    rows = runs.filter(pl.col("name").is_in(one.names))
    where = one.where or say.place_of(report, rows.get_column("row"))
    return one._replace(where=where, claims=rows.select("start", "end"))


def unprofiled_page(report: Report) -> Report:
    """The report without its profiler where the page is of that; else itself."""
    scope = report.scope
    new = None if scope.window is not None else _unprofiled.corrected(report)
    return report if new is None else new.narrow(device=scope.device, process=scope.process)


def _without_profiler(part: _Part, bare: Bare | None) -> str:
    """Sentence on the program without its profiler, and on what it took while recorded."""
    report, steady, tool = part.report, part.steady, part.report.meta.tool
    if bare is not None and report.meta.slower is not None:
        each_ns = steady.ns / steady.number if steady is not None else 1
        return _unprofiled.corrected_sentence(bare, tool, report.meta.slower, each_ns)
    measured = "" if bare is None else _unprofiled.bare_sentence(bare, tool)
    if steady is None or report.scope.window or (bare is not None and bare.iteration is not None):
        return measured
    estimate = _unprofiled.estimated(part.of_device, steady)
    by_estimate = "" if estimate is None else _unprofiled.estimated_sentence(estimate, steady.ns / steady.number, tool)
    return " ".join(filter(None, (by_estimate, measured)))


def _makers(recorded: Report, part: _Part, of_answer: Report) -> dict[str, Maker]:
    """Functions that make the tables of the main device, and of the report; phases and doubts are of the recording."""
    report, steady, of_device = part.report, part.steady, part.of_device
    makers: dict[str, Maker] = {
        "culprits": partial(culprits.culprits, of_answer),  # first, as it attributes with names for all others
        "ledger": partial(ledger, of_answer),
        "hot_kernels": partial(hot_kernels, of_device),
        "health": partial(health, recorded),
    }
    if steady is not None:
        makers |= {
            "parts": partial(phases.parts_of_step, report, steady),
            "inner": partial(phases.inner_parts, report, steady),
            "phases": partial(phases.phases, recorded),
            "spread": partial(phases.spread_of, report, steady),
        }
        # in larger reports it would take much longer
        if device_operations(of_device).height + of_device.kind("api").height <= 1 << 17:
            makers["critical_path"] = partial(critical_path.critical_path, report, window=steady.window)
    if "op" in recorded.kinds:
        makers["ops"] = lambda: served.by_kind(of_device, ops.ops(of_device))
    if has_captures(of_device):
        makers["captured"] = partial(captured.captured, of_device, by="place")
    if has_lines(of_device):
        makers["code"] = partial(code, of_device)
    return makers


def made(makers: Mapping[str, Maker]) -> tuple[dict[str, pl.DataFrame], dict[str, str]]:
    """The tables that `makers` make, by name, and the reason why for each that the report cannot give."""
    tables, reasons = dict[str, pl.DataFrame](), dict[str, str]()
    for name, make in makers.items():
        try:
            tables[name] = make()
        except errors.CannotTellError as reason:
            reasons[name] = str(reason)
    return tables, reasons


def windows_of(report: Report) -> pl.DataFrame:
    """The devices and their windows, :data:`WINDOWS`."""
    busy = exclusive_operations(report).group_by("device").agg(busy_ns=pl.col("exclusive_ns").sum())
    spans = windows(report).rename({"start": "start_ns", "end": "end_ns"})
    joined = spans.join(busy, on="device", how="left").join(report.devices, on="device", how="left")
    lengths = joined.with_columns(pl.col("busy_ns").fill_null(0), window_ns=pl.col("end_ns") - pl.col("start_ns"))
    return WINDOWS.select(lengths.sort("device"))


# The sentences: how busy each device was.

#: Wording for busy time without a compute kernel, by bucket.
_ONLY: Final = {"memcpy": "copying", "communication": "communicating", "memset": "setting memory"}

#: What takes or gains a smaller part of the time is not mentioned.
_NOTABLE: Final = 0.1

#: What to do where launches were recorded, and nothing that they launched.
_IN_WSL: Final = "In WSL2, nsys records the GPU's work only if driver and nsys support that: update both, or use Linux."
_TRACED: Final = "The CUDA trace was on: see whether the program's calls failed, and whether nsys supports the driver."

#: A function is told from that share of host time on, if so many samples tell it.
_SAMPLES: Final = 20
_OF: Final = "of the time in which the GPU waits for the program's own code"


def page_answer(report: Report, spans: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> str:
    """One or two sentences that answer first: how busy each device was, and what most of the rest went to."""
    calls = report.kind("api").height
    if "ledger" in tables and not spans.is_empty():
        sums = tables["ledger"].group_by("device", "bucket").agg(pl.col("ns").sum())
        rows = [(row, sums.filter(device=row["device"]).drop("device")) for row in spans.iter_rows(named=True)]
        return " ".join(_device_answer(report, row, dict(own.iter_rows()), spans.height) for row, own in rows)
    meta = report.meta
    if lost := unused_launches(report).filter(~pl.col("captured")).height:
        counted = f"{plural(lost, 'launch')} {'was' if lost == 1 else 'were'} made"
        missing = "what the GPU did is missing here, or every launch failed, so there is no GPU time to account for"
        # a recorder of one trace records calls and the GPU's work together
        together = _IN_WSL if meta.wsl else _TRACED
        remedy = together if meta.recorder.one_trace else again(model.DEVICE_KINDS, meta.tool)
        return f"{counted}, but no device activity was recorded: {missing}. {remedy}"
    if "ledger" in tables:
        return f"No GPU did anything in this report: it holds no kernel, copy or memset ({calls:,} CUDA calls)."
    what = f"nothing that ran on a GPU ({plural(calls, 'CUDA call')})" if calls else "no CUDA activity"
    remedy = "" if meta.recorder.one_trace else f" {again(model.DEVICE_KINDS, meta.tool)}"
    remedy = remedy.replace("with them on", "with the GPU's side")
    return f"The report records {what}, so there is no GPU time to account for.{remedy}"


def _device_answer(report: Report, row: dict[str, Any], ledger_ns: dict[str, int], devices: int) -> str:
    """Sentences of a device: its busy share, with what, the largest part of idle time, contexts, the steady part."""
    window, busy, device = max(row["window_ns"], 1), row["busy_ns"], row["device"]
    text = f"{f'GPU {device}' if devices > 1 else 'The GPU'} was busy {percent(busy / window)} of {time(window)} "
    text += report.meta.profiled
    parts = {doing: ledger_ns.get(bucket, 0) for bucket, doing in _ONLY.items()}
    only = [f"{percent(ns / window)} only {doing}" for doing, ns in parts.items() if ns > _NOTABLE * window]
    text += f" ({', '.join(only)})" if only else ""
    if report.scope.process is not None:
        text += f" with work of process {report.scope.process} (that of others counts as idle here)"
    idle = {bucket: ns for bucket, ns in ledger_ns.items() if bucket not in BUSY_BUCKETS}
    reason = max(idle, key=lambda bucket: (idle[bucket], bucket), default=None)
    if reason is not None:
        text += f"; the largest part of the rest went to {MEANINGS[reason]} ({percent(idle[reason] / window)})"
    text += "."
    if reason == "host" and (times := _attribution.host_time(report).get(device)) is not None:
        making = intervals.length(times.unrecorded)
        if making and 2 * making >= idle[reason]:  # most of the program's own time
            text += f" At most {percent(making / window)} went to making contexts outside recorded calls."
    steady = steady_parts(report).get(device)
    if steady is None or steady.ns >= (1 - _NOTABLE) * row["window_ns"]:
        return text
    start, end = (instant(at, report.zero_ns) for at in (steady.start, steady.end))
    return f"{text} Without one-time costs, from {start} to {end}, it was busy {percent(steady.busy_ns / steady.ns)}."


def sampled_beside(report: Report, view: Report) -> str:
    """Function that the GPU waited for by samples, and what they cost; empty without samples.

    They are those of another run that a capture has for them, which are told of the whole report alone; else the
    report's own, of `view`, the part that the page is of.
    """
    other = report.sampled() if report.whole is report else None
    try:
        if other is None:
            return _most_waited_for(view, "By samples").strip() if culprits.own_samples(report) else ""
        steady = steady_part(other)
        part = other if steady is None else other.narrow(window=steady.window)
        return f"{_most_waited_for(part, 'In a run with samples')}{phases.sampling_cost(report, other)}"
    except errors.KanalyzeError:  # which is noted
        return ""


def _most_waited_for(report: Report, by: str) -> str:
    """The function with most of the host time, on the GPU with most of it, and how much the thread was not let run.

    Empty without samples, where neither is a good part, or where the GPU hardly waits.
    """
    try:
        rows = culprits.culprits(report, by="function")
    except errors.KanalyzeError:
        return ""
    waited = rows.group_by("device").agg(pl.col("ns", "share").sum()).sort("ns", "device", descending=[True, False])
    if waited.is_empty() or waited.item(0, "share") < _NOTABLE:
        return ""
    of_device = rows.join(waited.head(1), on="device", how="semi")
    share = pl.col("host_share")
    by_stack = share.filter(pl.col("evidence") == "call stack").sum()
    sums = (
        of_device.drop_nulls("function").group_by("function").agg(share.sum(), pl.col("samples").sum(), stack=by_stack)
    )
    # a stack of each call tells all of it, without samples
    enough = (pl.col("samples") >= _SAMPLES) | (pl.col("stack") >= share / 2)
    best = sums.filter((share >= _NOTABLE) & enough).sort("host_share", "function", descending=[True, False])
    ready = float(of_device.filter(state="runnable").get_column("host_share").sum())
    clauses = []
    for name, part in best.select("function", "host_share").head(1).iter_rows():
        own = of_device.filter(function=name)
        waits = own.drop_nulls("waits_on").group_by("waits_on").agg(share.sum())
        longest = waits.filter(2 * share > own.get_column("host_share").sum()).get_column("waits_on")
        blocked = f" (most of it waiting: {longest.item()})" if len(longest) else ""
        clauses.append(f"{shortened(name, 48)} is {percent(part)} {_OF}{blocked}")
    if ready >= _NOTABLE:
        where = "of it" if clauses else _OF
        clauses.append(f"its thread is ready but on no processor for {percent(ready)} {where}")
    return f"{by}, {', and '.join(clauses)}. " if clauses else ""
