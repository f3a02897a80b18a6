"""What is made, loaded, compiled and tuned: contexts, modules, libraries at the start, or kernels again and again."""

import re
from typing import Final

import polars as pl

from kanalyze import intervals, tools, units
from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, launch_calls, operations, used_devices
from kanalyze.analyses.device._windows import idle_spans, windows
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.rules import Finding, Findings, Rule, literal, phrases
from kanalyze.analyses.host import _call_kinds
from kanalyze.analyses.idle import _attribution, ledger
from kanalyze.analyses.iterations._launch_periods import timed_runs
from kanalyze.analyses.launches._launch_costs import launch_costs
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import in_order, nearest
from kanalyze.decoder.decode import decode
from kanalyze.report import Report

#: The rules on one-time costs: those of :func:`cold_start`, and the pinning of memory.
ONE_TIME: Final = ("context-creation", "unrecorded-context", "module-loading", "first-launch", "pinned-allocation")


@Rule
def graph_breaks(report: Report) -> Findings:
    """At most one finding per device on functions under torch.compile that go on in Python at some of their lines."""
    resumed = intervals.overlapping(on_host.resumed_lines(report), report.scope.sides)
    begun = resumed.filter(say.changes((*THREAD, "function")) | (pl.col("start") != pl.col("end").shift(1)))
    if begun.height < say.fewest_in(report):
        return
    lines = analysis.source_lines(report).with_columns(pl.col("function").cast(pl.String), **intervals.OF_EVENTS)
    broken = lines.join(resumed.select("file", function="whole").unique(), on=["file", "function"], how="semi")
    spans = pl.concat([part.select(on_host.SPAN) for part in (broken, resumed)])
    graphs = _call_kinds.calls_that(report, lambda name: "GraphLaunch" in name, *THREAD)
    change = Mending(host=spans.select("process_id", "start", "end"), graph=graphs.height > 0)
    most = begun.group_by("file", "at").len().sort("len", "file", "at").row(-1)
    place = f"{most[0]}:{most[1]}"
    for device in idle_spans(report):
        idle = say.idle_in(report, device, intervals.clip(spans, *say.sides_of(report, device)))
        figures = {"where": literal(place), "broken_at": place, "many": begun.height}
        yield say.told(report, "graph-breaks", device, idle, mending=change, **figures)


@Rule
def cold_start(report: Report) -> Findings:
    """At most one finding per device for each of context creation, loading and first launches."""
    for device in ledger.bucket_sums(report).get_column("device").unique(maintain_order=True):
        loading = _attribution.reasoned_pieces(report, device, "loading")
        yield _context(report, device, loading.filter(pl.col("detail") == "context"))
        yield _unrecorded_context(report, device)
        yield _loading(report, device, loading.filter(pl.col("detail") != "context"))
        yield _first_launches(report, device)


def _context(report: Report, device: int, pieces: pl.DataFrame) -> Finding | None:
    if not intervals.length(pieces):
        return None
    contexts = _of_processes(report, device, _call_kinds.context_calls(report))
    contexts = contexts.with_columns(call=_call_kinds.shown(pl.col("name")), ns=pl.col("made_ns") - pl.col("start_ns"))
    later = report.kind("api").join(contexts.select("process_id", "name"), on=["process_id", "name"], how="semi")
    later = later.join(contexts, on="event_id", how="anti")
    names = ", ".join(contexts.get_column("call").fill_null("a call without a name").unique().sort())
    ns, whole_ns = contexts.sort("ns", "event_id").select("ns", "dur_ns").row(-1)
    figures = {"calls": names, "ns": ns, "part": ns < whole_ns, "whole": whole_ns, "later": later.height}
    warm = statistics.median_of(later, "dur_ns") if later.height else 0
    return say.told(report, "context-creation", device, pieces, at_most=True, warm=warm, **figures)


def _unrecorded_context(report: Report, device: int) -> Finding:
    """The time of context creation outside of all recorded calls, which the ledger attributes to the host."""
    making = _attribution.host_time(report)[device].unrecorded
    low, high = say.sides_of(report, device)
    contexts = _of_processes(report, device, _call_kinds.unrecorded_contexts(report))
    contexts = contexts.filter((pl.col("start") < high) & (pl.col("end") > low)).sort("end")
    which = [
        f"at {units.moment(end, report.zero_ns)}, "
        f"between {literal(before or 'the start')} and {literal(after or 'the end')}"
        for end, before, after in contexts.head(say.NAMED).select("end", "before", "after").iter_rows()
    ]
    which += [f"and {units.count(contexts.height - say.NAMED)} more"] * (contexts.height > say.NAMED)
    figures = {"contexts": contexts.height, "were": "was" if contexts.height == 1 else "were"}
    return say.told(report, "unrecorded-context", device, making, at_most=True, which="; ".join(which), **figures)


def _loading(report: Report, device: int, pieces: pl.DataFrame) -> Finding:
    rows = pieces.group_by("detail").agg(ns=(pl.col("end") - pl.col("start")).sum())
    most = ", ".join(rows.sort("ns", descending=True).get_column("detail").fill_null("calls without a name").head(2))
    loading = _call_kinds.names_that(report, lambda name: _call_kinds.bucket_of(name) == "loading")
    loads = _of_processes(report, device, report.seen("api").filter(pl.col("name").is_in(loading)))
    # of a call that made a context what it took after that
    contexts = _call_kinds.context_calls(report).select("event_id", made_ns=pl.col("made_ns") - pl.col("start_ns"))
    loads = loads.join(contexts, on="event_id", how="left")
    loads = loads.with_columns(pl.col("dur_ns") - pl.col("made_ns").fill_null(0))
    loads = loads.filter(pl.col("made_ns").is_null() | (pl.col("dur_ns") > 0))
    # what runs in turn is warm: new kernels come with new shapes
    kind = ": steady" if say.per_iteration(report).iterations else ""
    figures = {"calls": loads.height, "longest": statistics.longest(loads, "dur_ns"), "most": most}
    return say.told(report, f"module-loading{kind}", device, pieces, at_most=True, **figures)


def _first_launches(report: Report, device: int) -> Finding | None:
    """The device's wait for the first launch of each kernel, beyond its wait for a warm launch."""
    cold = launch_costs(report).slow.filter(device=device, sure=True)
    stake = int(cold.get_column("stake_ns").sum())
    if not stake:
        return None
    worst = cold.row(0, named=True)
    waits = _attribution.reasoned_pieces(report, device, "launch")
    figures = {"cold": cold.height, "median": statistics.median_of(cold, "api_ns"), "worst": worst}
    claims, names = waits.filter(pl.col("row").is_in(cold.get_column("row").implode())), (str(worst["name"]),)
    return say.told(report, "first-launch", device, claims, stake, at_most=True, names=names, **figures)


def _of_processes(report: Report, device: int, events: pl.DataFrame) -> pl.DataFrame:
    """The events of the processes that ran operations on the device."""
    used = used_devices(report).filter(pl.col("device") == device)
    return events.join(used.select("process_id"), on="process_id", how="semi", maintain_order="left")


# Kernels that are planned and loaded anew in most iterations.

#: Calls that load kernels, rather than look one up.
_LOADS: Final = re.compile(r"cu(?:Module|Library)Load|cudaLibraryLoad")

#: Fewest iterations for loading, or tuning, to recur in many of them: the first ones of each shape load in programs
#: with a few shapes, too.
_FEWEST: Final = 4
_SOON: Final = 4  # so many kernels may run between a plan and its transform, such as conversions


@Rule
def recurring_loading(report: Report) -> Findings:
    """At most one finding per device, in a window of iterations most of which load kernels, on idle time around it."""
    calls, of_launches = report.seen("api"), pl.col("bucket").is_in(("launch", "queued"))
    loads = calls.filter(pl.col("name").is_in(_call_kinds.names_that(report, _LOADS.match)))
    loads = loads.select(*THREAD, **intervals.OF_EVENTS).drop_nulls()
    for device, pieces in _attribution.idle_within(report, _around(report, loads)).items():
        if not _iterations_of(report, _of_processes(report, device, loads)):
            continue
        name, action = "recurring-loading", {}
        # whether most come soon before kernels of Fourier transforms, the same and as many again and again
        launches = operations(report, "call_start", "thread_id", *SHAPE).filter(pl.col("kind") == "kernel")
        launches = launches.select(*THREAD, "name", *SHAPE, at="call_start").drop_nulls(["name", "at"])
        launches = launches.sort(*THREAD, "at").with_columns(place=pl.int_range(pl.len()).over(THREAD))
        after = nearest(loads, launches.select(*THREAD, "at", next="place"), ("start", "at"), THREAD, "after")
        transforms = launches.filter(on_gpu.decoded_as(launches, on_gpu.FAMILY == "fft")).rename({"at": "then"})
        after = nearest(after, transforms, ("start", "then"), THREAD, "after")
        soon = pl.col("place") - pl.col("next") <= _SOON
        again = after.filter(soon).filter(pl.len().over("name", *SHAPE) >= _FEWEST)
        if again.height >= say.OFTEN * loads.height:
            plans = phrases("plans")
            name = "recurring-loading: transforms"
            action = {"action": _call_kinds.spoken(report, plans, plans[tools.CUDA])}
        of_cudnn = (on_gpu.FAMILY == "attention") & (on_gpu.LIBRARY == "cudnn")
        yield say.told(
            report,
            name,
            device,
            pieces.filter(~of_launches),
            iterations=f"{units.count(_iterations_of(report, loads))} of {say.per_iteration(report).all}",
            times=loads.height,
            calls=intervals.length(intervals.union(loads)),
            cudnn=any(one.launches(of_cudnn) for one in on_gpu.kernel_sums(report)),
            **action,
            where=say.main_site(report, loads.select(*THREAD, at="start")),
            mending=on_gpu.nothing_within(report, _around(report, loads).unique()),
        )


def _parts(report: Report) -> tuple[int, int, int] | None:
    """Begin, end and number of the window's parts as long as its iterations are on average; None for few iterations."""
    window = report.scope.window
    if window is None or window.start_ns is None or window.end_ns is None or (window.count or 0) < _FEWEST:
        return None
    return window.start_ns, window.end_ns, window.count or 0


def _iterations_of(report: Report, events: pl.DataFrame) -> int:
    """In how many of the window's :func:`_parts` some events begin; 0 for few."""
    if (parts := _parts(report)) is None or events.is_empty():
        return 0
    many = int(events.select(say.part_of(pl.col("start"), *parts).clip(0, parts[-1] - 1).n_unique()).item())
    return many if many >= say.OFTEN * parts[-1] else 0


def _around(report: Report, loads: pl.DataFrame) -> pl.DataFrame:
    """From the end of the thread's launch before each of `loads` to the start of its next one: columns of `loads`."""
    calls = launch_calls(report, "thread_id", "call_start", "call_ns").with_columns(pl.col("call_ns").fill_null(0))
    launches = calls.drop_nulls().select(*THREAD, since=pl.col("call_start") + pl.col("call_ns"), until="call_start")
    line = nearest(loads, launches.drop("until"), ("start", "since"), THREAD)
    line = nearest(line, launches.drop("since"), ("end", "until"), THREAD, "after")
    return line.select(*THREAD, start=pl.coalesce("since", "start"), end=pl.coalesce("until", "end"))


# Code that is compiled again while the program runs, and algorithms of convolutions that are tried anew.

#: What torch.compile, its parts and Triton call the ranges in which they compile.
_COMPILES: Final = (
    r"dynamo_timed|^_compile\.|compile_inner|compile_fx|inductor_compile|call_user_compiler|create_aot_dispatcher"
    r"|CachingAutotuner\.precompile|async_compile|triton\S*compile"
)

_SELDOM: Final = 2  # launches of a graph for which recording it does not pay

#: It recurs in so many of the equal parts of the window, and in its second half.
_RECURS: Final = 3

#: A convolution that tries algorithms launches so many kernels, and waits for each to time it; one by transforms (FFT)
#: launches as many, and waits for none.
_TRIES: Final = 12
_WAITS: Final = re.compile(r"(?:cuda|cu)(?:Event|Device|Stream|Ctx)Synchronize")


@Rule
def recompilation(report: Report) -> Findings:
    """At most one finding per device on code that is compiled, algorithms that are tried, or graphs recorded again."""
    within = {}
    if (other := on_host.traced(report)) is not None:
        compiling = on_host.spans_named(_COMPILES, *(other.kind(kind) for kind in ("range", "op", "python")))
        compiling = intervals.union_by(compiling.drop_nulls(THREAD), THREAD)
        trying = on_host.outermost(report).filter(pl.col("name").str.contains("conv") & (pl.col("launches") >= _TRIES))
        waits = _call_kinds.calls_that(other, _WAITS.match, *THREAD, at="start_ns")
        trying = nearest(trying, waits, ("start", "at"), THREAD, "after").filter(pl.col("at") < pl.col("end"))
        within["recompilation"] = on_host.within(report, compiling)
        within["recompilation: convolutions"] = on_host.within(report, trying)
    within["recompilation: graphs"] = on_host.own_within(report, _recording(report))
    for name, inside in within.items():
        for _, low, high in windows(report).iter_rows():
            begun = intervals.overlapping(inside.host, (low, high))
            parts = begun.select(say.part_of(pl.col("start"), low, high)).to_series()
            if parts.n_unique() < _RECURS or not (parts >= say.PARTS // 2).any():
                continue
            yield from on_host.on_time(report, name, inside)
            return


def _recording(report: Report) -> pl.DataFrame:
    """When threads record graphs, with what instantiates each, in a window of iterations: :data:`SPAN`.

    Of those that they launch before the next one, and so seldom that recording does not pay; none where these are few.
    An engine records graphs for all sizes at its start, and launches them later and often.
    """
    made = _call_kinds.graph_steps(report).filter(step="instantiate").select(*THREAD, made="end")
    captures = _call_kinds.captures(report).select(*on_host.SPAN)
    line = nearest(captures, made, ("end", "made"), THREAD, "after").drop_nulls("made")
    line = line.sort(*THREAD, "start").unique([*THREAD, "made"], keep="last", maintain_order=True)
    launches = _call_kinds.calls_that(report, lambda name: "GraphLaunch" in name, *THREAD, at="start_ns")
    launches = nearest(launches, line.select(*THREAD, "made"), ("at", "made"), THREAD).drop_nulls("made")
    times = launches.group_by(*THREAD, "made").len()
    seldom = line.join(times.filter(pl.col("len") <= _SELDOM), on=[*THREAD, "made"], how="semi", nulls_equal=True)
    recurs = say.per_iteration(report).iterations and 2 * seldom.height > line.height
    return (seldom if recurs else seldom.clear()).select(*THREAD, "start", end="made")


# Kernels of Triton, torch.compile and array libraries that are compiled, or tuned, again.

#: Calls that load kernels of Triton and torch.compile in a program of PyTorch, whose libraries are loaded as such.
_MODULE_LOADS: Final = re.compile(r"cuModuleLoad(?:Data)?(?:Ex)?(?:_v\d+)?$")

#: Action and remedy by what the kernels are written with; and where Triton tunes them.
_HOW: Final = phrases("compilers")


@Rule
def recompiled_kernels(report: Report) -> Findings:
    """At most one finding per device on all kernels that are loaded again."""
    again = intervals.overlapping(_loaded_again(report), report.scope.sides)
    if again.height < say.FEWEST:
        return
    low, high = (windows(report).get_column(name) for name in ("start", "end"))
    along = say.all_along(pl.col("loaded"), pl.lit(low.min(), pl.Int64), pl.lit(high.max(), pl.Int64))
    often = say.per_iteration(report).iterations and again.height >= say.fewest_in(report)
    if not often and not again.select(along).item():
        return  # neither in most iterations, nor all along the time in which devices work
    most = say.most(again, "name")
    action, remedy = _HOW.get(say.written_with(report, most), _HOW[tools.CUDA])
    spans = again.select(*THREAD, "start", "end")
    place = say.main_site(report, again.select(*THREAD, at="loaded"))
    others = {"action": action, "remedy": remedy, "names": (most,), "times": again.height, "where": place}
    change = on_gpu.nothing_within(report, spans.unique())
    for device, idle in _attribution.idle_within(report, spans).items():
        yield say.told(report, "recompilation: kernels", device, idle, mending=change, **others)


@analysis.once_per_process
def _loaded_again(report: Report) -> pl.DataFrame:
    """Loads of a kernel after its first: process_id, thread_id, start, end (of the launches around), loaded, name."""
    schema = {**dict.fromkeys((*THREAD, "start", "end", "loaded"), pl.Int64), "name": pl.String}
    libraries = _call_kinds.world(report) in (_call_kinds.CUPY, _call_kinds.NUMBA, _call_kinds.PYTHON)
    loads = _call_kinds.calls_that(
        report, (_LOADS if libraries else _MODULE_LOADS).match, *THREAD, loaded="start_ns"
    ).drop_nulls()
    if loads.height < say.FEWEST:
        return pl.DataFrame(schema=schema)
    work = operations(report, "call_start", "call_end", "thread_id")
    work = work.select(*THREAD, "kind", "name", "call_start", "call_end").filter(pl.col("kind") == "kernel")
    launches = in_order(work.drop("kind").drop_nulls(["call_start", "thread_id"]), "call_start")
    launches = launches.filter(pl.col("call_start").ne_missing(pl.col("call_start").shift(1)))
    texts = launches.get_column("name").unique().drop_nulls()
    # of a compiler that the program runs, as its world and the name tell
    own = [
        say.written_with(report, str(name)) in (say.TRITON, say.COMPILED)
        or (libraries and decode(str(name)).library in (None, "cupy"))
        for name in texts
    ]
    compiled = launches.filter(pl.col("name").is_in(texts.filter(own).implode()))
    compiled = compiled.select(*THREAD, "name", begun="call_start")
    line = nearest(loads, compiled, ("loaded", "begun"), THREAD, "after").drop_nulls("begun")
    line = nearest(line, launches.select(*THREAD, end="call_start"), ("loaded", "end"), THREAD, "after")
    # what a library plans is loaded before kernels of its own
    line = line.filter(pl.col("begun") == pl.col("end")) if libraries else line
    per_launch = line.unique([*THREAD, "end"], keep="first", maintain_order=True)
    more = per_launch.filter(pl.int_range(pl.len()).over("process_id", "name") > 0)
    again = nearest(more, launches.select(*THREAD, start="call_end"), ("loaded", "start"), THREAD).drop_nulls("start")
    again = again.with_columns(pl.col("name").cast(pl.String)).select(*schema)
    return again.filter(pl.len().over("process_id", "name") >= say.FEWEST)


def _with_waits(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """The `spans` with the thread's wait before each and the one after it, with no launch between."""
    waits = _call_kinds.calls_that(report, _WAITS.match, *THREAD, at="start_ns", until=intervals.OF_EVENTS["end"])
    line = pl.concat([waits, on_host.launched(report).select(*THREAD, at="call_start")], how="diagonal")
    around = nearest(spans, line, ("start", "at"), THREAD, "strictly before")
    around = nearest(around, line, ("end", "at"), THREAD, "after")
    start = pl.when(pl.col("until").is_not_null()).then("at").otherwise("start")
    return intervals.union_by(around.select(*THREAD, start=start, end=pl.coalesce("until_right", "end")), THREAD)


@Rule
def tuned_again(report: Report) -> Findings:
    """At most one finding per device, in a window of iterations in most of which kernels are timed."""
    parts, runs = _parts(report), intervals.overlapping(timed_runs(report), report.scope.sides)
    if parts is None or not (many := _iterations_of(report, runs)):
        return
    work = exclusive_operations(report, "call_start", "call_end", "thread_id").filter(pl.col("kind") == "kernel")
    work = work.drop_nulls(["call_start", "thread_id"])
    fills = work.filter(pl.col("call_start").is_in(runs.get_column("start").implode())).get_column("name").unique()
    at = pl.col("call_start")
    own = work.with_columns(fill=pl.col("name").is_in(fills.implode()), part=say.part_of(at, *parts))
    # to what is timed after the last fill
    filled = pl.col("fill") | pl.col("fill").shift(1).over("device", "part")
    first, last = (side.over("device", "part") for side in (at.filter("fill").min(), at.filter(filled).max()))
    for device, timed in say.by_device(own.filter((at >= first) & (at <= last))):
        name = say.most(timed.filter(~pl.col("fill")), "name", "exclusive_ns")
        action, remedy = _HOW[say.COMPILED if say.written_with(report, name) == say.COMPILED else "tuned"]
        # what is timed is not launched, and the host does nothing for it
        spans = _with_waits(report, on_gpu.host_of(timed, "thread_id", "part", end="call_end"))
        claims = timed.group_by("part").agg(pl.col("start").min(), pl.col("end").max())
        yield say.told(
            report,
            "recompilation: tuned",
            device,
            (claims, _attribution.idle_within(report, spans)[device]),
            names=(name,),
            action=action,
            remedy=remedy,
            iterations=f"{many:,} of {say.per_iteration(report).all}",
            launches=timed.height,
            where=say.place_of(report, timed.get_column("row")),
            mending=on_gpu.nothing_within(report, spans),
        )
