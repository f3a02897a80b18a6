"""What is made, loaded and compiled: contexts, modules and libraries at the start, or kernels again and again."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import launch_calls, used_devices
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._kernels import kernel_sums, nothing_within
from kanalyze.analyses.findings.rules._operators import (
    Told,
    joined,
    on_time,
    outermost,
    spans_named,
    traced,
    within,
)
from kanalyze.analyses.findings.rules._telling import (
    AHEAD,
    PARTS,
    idle_worth_saying,
    in_pytorch,
    main_site,
    part_of,
    per_iteration,
)
from kanalyze.analyses.host._call_kinds import bucket_of, context_calls, names_that, shown, unrecorded_contexts
from kanalyze.analyses.idle._attribution import host_time, reasoned_pieces
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._launch_costs import launch_costs
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.analyses.shared.statistics import longest, median_of
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import nearest
from kanalyze.report import Report
from kanalyze.units import count, moment, plural, time

#: The rules on one-time costs: those of :func:`cold_start`, and the pinning of memory.
ONE_TIME: Final = ("context-creation", "unrecorded-context", "module-loading", "first-launch", "pinned-allocation")

#: Maximum number of contexts named in the sentence.
_NAMED: Final = 3

_FEW_SHAPES: Final = "keep to a few shapes, and run each once before"
_CONTEXT: Final = Told(
    "context-creation",
    "Making the CUDA context",
    "keep processes alive",
    "A cost of starting up: leave it out of what you compare, and keep processes alive.",
    "cold",
)
_UNRECORDED: Final = Told(
    "unrecorded-context",
    "A CUDA context was made outside of all recorded calls",
    "leave it out of what you compare",
    "A cost of starting up: leave it out of what you compare.",
    "cold",
)
_MODULES: Final = Told(
    "module-loading",
    "Loading modules and libraries takes {0}",
    "warm up before you measure, or CUDA_MODULE_LOADING=EAGER",
    "Paid at first use: warm up before you measure, or load eagerly (CUDA_MODULE_LOADING=EAGER).",
    "ledger",
)
_FIRST: Final = Told(
    "first-launch",
    "First launches of {0} take longer than later ones",
    "run every shape once before you measure or serve",
    "Lazy loading at first use: warm up every kernel before you measure.",
    "cold",
)


def cold_start(report: Report) -> list[Finding]:
    """At most one finding per device for each of context creation, loading and first launches."""
    found = []
    for device in bucket_sums(report).get_column("device").unique(maintain_order=True):
        loading = reasoned_pieces(report, device).filter(bucket="loading")
        found += _context(report, device, loading.filter(pl.col("detail") == "context"))
        found += _unrecorded_context(report, device)
        found += _loading(report, device, loading.filter(pl.col("detail") != "context"))
        found += _first_launches(report, device)
    return found


def _context(report: Report, device: int, pieces: pl.DataFrame) -> list[Finding]:
    if not intervals.length(pieces):
        return []
    made = _of_processes(report, device, context_calls(report))
    made = made.with_columns(call=shown(pl.col("name")), ns=pl.col("made_ns") - pl.col("start_ns"))
    later = report.kind("api").join(made.select("process_id", "name"), on=["process_id", "name"], how="semi")
    later = later.join(made, on="event_id", how="anti")
    names = ", ".join(made.get_column("call").fill_null("a call without a name").unique().sort())
    warm = f"; later calls of it take {time(median_of(later, 'dur_ns'))}" if later.height else ""
    ns, whole_ns = made.sort("ns", "event_id").select("ns", "dur_ns").row(-1)
    whole = f" of {time(whole_ns)}" if ns < whole_ns else ""
    text = f"Context creation, once per process and device, inside {literal(names)} ({time(ns)}{whole}{warm})."
    return [_CONTEXT.finding(device, text, pieces)]


def _unrecorded_context(report: Report, device: int) -> list[Finding]:
    """The time of context creation outside of all recorded calls, which the ledger attributes to the host."""
    making = host_time(report)[device].unrecorded
    if not (stake := intervals.length(making)):
        return []
    _, low, high = windows(report).row(by_predicate=pl.col("device") == device)
    made = _of_processes(report, device, unrecorded_contexts(report))
    made = made.filter((pl.col("start") < high) & (pl.col("end") > low)).sort("end")
    which = "; ".join(_sides(row, report.zero_ns) for row in made.head(_NAMED).iter_rows(named=True))
    more = f"; and {count(made.height - _NAMED)} more" if made.height > _NAMED else ""
    text = (
        f"{plural(made.height, 'CUDA context')} {'was' if made.height == 1 else 'were'} made outside of all recorded "
        f"calls ({which}{more}). Up to {time(stake)} of what counts as host is this."
    )
    return [_UNRECORDED.finding(device, text, making)]


def _sides(made: dict[str, Any], zero_ns: int) -> str:
    before, after = (literal(made[side] or edge) for side, edge in (("before", "the start"), ("after", "the end")))
    return f"at {moment(made['end'], zero_ns)}, between {before} and {after}"


def _loading(report: Report, device: int, pieces: pl.DataFrame) -> list[Finding]:
    if not (stake := intervals.length(pieces)):
        return []
    rows = pieces.group_by("detail").agg(ns=(pl.col("end") - pl.col("start")).sum())
    most = ", ".join(rows.sort("ns", descending=True).get_column("detail").fill_null("calls without a name").head(2))
    loading = names_that(report, lambda name: bucket_of(name) == "loading")
    loads = _of_processes(report, device, report.seen("api").filter(pl.col("name").is_in(loading)))
    # of a call that made a context what it took after that
    made = context_calls(report).select("event_id", made_ns=pl.col("made_ns") - pl.col("start_ns"))
    loads = loads.join(made, on="event_id", how="left").with_columns(pl.col("dur_ns") - pl.col("made_ns").fill_null(0))
    loads = loads.filter(pl.col("made_ns").is_null() | (pl.col("dur_ns") > 0))
    per, slowest = per_iteration(report), time(longest(loads, "dur_ns"))
    calls = per.plural(loads.height, "call")
    text = f"Loading modules and libraries: {calls}, the longest {slowest} (most in {literal(most)})."
    told = _MODULES._replace(headline=_MODULES.headline.format(per.time(stake)))
    if per.iterations:  # what runs in turn is warm: new kernels come with new shapes
        told = told._replace(action=_FEW_SHAPES, remedy=f"It goes on in the steady part: {_FEW_SHAPES}.")
    return [told.finding(device, text, pieces)]


def _first_launches(report: Report, device: int) -> list[Finding]:
    """The device's wait for the first launch of each kernel, beyond its wait for a warm launch."""
    first = launch_costs(report).first.get(device)
    if first is None or not first.stake_ns:
        return []
    cold, worst = first.cold, first.cold.row(0, named=True)
    text = (
        f"First launches: {count(cold.height)} of {plural(first.kernels, 'kernel')} took "
        f"{time(median_of(cold, 'api_ns'))} (median) to launch the first time against {time(first.usual_ns)} once "
        f"warm; the longest {time(worst['api_ns'])}, {{0}}."
    )
    told = _FIRST._replace(headline=_FIRST.headline.format(plural(cold.height, "kernel")))
    waits = reasoned_pieces(report, device).filter(pl.col("row").is_in(cold.get_column("row").implode()))
    one = told.finding(device, text, waits.filter(bucket="launch"), first.stake_ns)
    return [one._replace(names=(str(worst["name"]),))]


def _of_processes(report: Report, device: int, events: pl.DataFrame) -> pl.DataFrame:
    """The events of the processes that ran operations on the device."""
    used = used_devices(report).filter(pl.col("device") == device)
    return events.join(used.select("process_id"), on="process_id", how="semi", maintain_order="left")


# Kernels that are planned and loaded anew in most iterations.

#: Calls that load kernels, rather than look one up.
_LOADS: Final = re.compile(r"cu(?:Module|Library)Load|cudaLibraryLoad")

#: Fewest iterations, and least share of them that load something, for loading to recur: the first ones of each shape
#: load in programs with a few shapes, too.
_FEWEST: Final = 4
_OFTEN: Final = 0.5

#: Buckets of idle time that belong to the launch before.
_LAUNCHES: Final = ("launch", "queued")

_ANEW: Final = Told(
    "recurring-loading",
    "Kernels are planned and loaded anew in {0}",
    _FEW_SHAPES,
    "Keep to a few shapes, and run each once before: pad lengths, or sort them into a few buckets; allocate what "
    "grows, such as a cache of keys and values, at its full length, and mask it.",
    "api",
)
_PADDED: Final = "pad to a few lengths"
_CUDNN_PADDED: Final = "pad to a few lengths; sdpa_kernel(SDPBackend.FLASH_ATTENTION)"
_COMPILED: Final = " Code compiled by torch.compile takes changing sizes with dynamic=True."
_CUDNN: Final = (
    " cuDNN's attention plans anew for each length; FlashAttention does not: torch.nn.attention.sdpa_kernel("
    "SDPBackend.FLASH_ATTENTION)."
)


def recurring_loading(report: Report) -> list[Finding]:
    """At most one finding per device, in a window of iterations most of which load kernels.

    At stake is the idle time from the launch before each loading to the next one of its thread.
    """
    if not per_iteration(report).iterations or not _iterations_of(report, loads := _loads(report)):
        return []
    of_launches = pl.col("bucket").cast(pl.String).is_in(_LAUNCHES)
    idle = idle_worth_saying(report, _around(report, loads), ~of_launches)
    users = dict(used_devices(report).group_by("device").agg("process_id").iter_rows())
    of_device = {device: loads.filter(pl.col("process_id").is_in(users.get(device, []))) for device in idle}
    return [_anew(report, device, idle[device]) for device, own in of_device.items() if _iterations_of(report, own)]


def _iterations_of(report: Report, loads: pl.DataFrame) -> int:
    """In how many of the window's parts, as long as its iterations are on average, something was loaded; 0 for few."""
    window, iterations = report.scope.window, per_iteration(report).iterations or 0
    if window is None or window.start_ns is None or window.end_ns is None or iterations < _FEWEST or loads.is_empty():
        return 0
    part = part_of(pl.col("start"), window.start_ns, window.end_ns, iterations)
    many = int(loads.select(part.clip(0, iterations - 1).n_unique()).item())
    return many if many >= _OFTEN * iterations else 0


@once_per_report
def _loads(report: Report) -> pl.DataFrame:
    """The calls in the window that load kernels: process_id, thread_id, start, end."""
    calls = report.seen("api").filter(pl.col("name").is_in(names_that(report, _LOADS.match)))
    return calls.select(*THREAD, **intervals.OF_EVENTS).drop_nulls()


def _around(report: Report, loads: pl.DataFrame) -> pl.DataFrame:
    """From the end of the thread's launch before each of `loads` to the start of its next one: columns of `loads`."""
    calls = launch_calls(report, "thread_id", "call_start", "call_ns").with_columns(pl.col("call_ns").fill_null(0))
    launches = calls.drop_nulls().select(*THREAD, since=pl.col("call_start") + pl.col("call_ns"), until="call_start")
    line = nearest(loads, launches.drop("until"), ("start", "since"), THREAD)
    line = nearest(line, launches.drop("since"), ("end", "until"), THREAD, "after")
    return line.select(*THREAD, start=pl.coalesce("since", "start"), end=pl.coalesce("until", "end"))


def _anew(report: Report, device: int, pieces: pl.DataFrame) -> Finding:
    per, loads, torch = per_iteration(report), _loads(report), in_pytorch(report)
    many = f"{count(_iterations_of(report, loads))} of {per.all}"
    text = (
        f"Kernels are loaded in {many}, {per.plural(loads.height, 'time')}, as libraries do that plan anew for each "
        f"shape: GPU {device} idles for {per.time(intervals.length(pieces))} from the launch before to the one after, "
        f"of which the calls that load take {per.time(intervals.length(intervals.union(loads)))}. A program whose "
        f"shapes recur loads nothing. {AHEAD}"
    )
    told = _ANEW._replace(headline=_ANEW.headline.format(many))
    if torch:
        kinds = [
            one.chosen(lambda said: (said.family, said.library) == ("attention", "cudnn"))
            for one in kernel_sums(report)
        ]
        cudnn = any(one.launches for one in kinds)
        remedy = told.remedy + (_CUDNN if cudnn else "") + _COMPILED
        told = told._replace(action=_CUDNN_PADDED if cudnn else _PADDED, remedy=remedy)
    return told.finding(device, text, pieces)._replace(
        where=main_site(report, loads.select(*THREAD, at="start")),
        mending=lambda report: nothing_within(report, _around(report, loads).unique()),
    )


# Code that is compiled again while the program runs, and algorithms of convolutions that are tried anew.

#: What torch.compile, its parts and Triton call the ranges in which they compile.
_COMPILES: Final = (
    r"dynamo_timed|^_compile\.|compile_inner|compile_fx|inductor_compile|call_user_compiler|create_aot_dispatcher"
    r"|CachingAutotuner\.precompile|async_compile|triton\S*compile"
)

#: It recurs in so many of the equal parts of the window, and in its second half.
_RECURS: Final = 3

#: A convolution that tries algorithms launches so many kernels; others launch a few.
_TRIES: Final = 12

_AGAIN: Final = Told(
    "recompilation",
    "Code is compiled again while the program runs",
    "torch.compile(…, dynamic=True); pad to a few shapes; no Python numbers that change",
    "Let shapes and numbers that go into compiled code stay the same: pad lengths or sort them into buckets, mark "
    "what changes as dynamic (dynamic=True, torch._dynamo.mark_dynamic; no tl.constexpr for it), and pass numbers "
    "that change as tensors. TORCH_LOGS=recompiles says what changed.",
    "culprits",
    what="The program compiles",
)
_TRIED: Final = Told(
    "recompilation",
    "cuDNN tries its algorithms anew for new shapes",
    "torch.backends.cudnn.benchmark = False, or keep to a few shapes",
    "With torch.backends.cudnn.benchmark each new shape of a convolution has all algorithms tried: keep to a few "
    "shapes (pad, or sort into buckets), or leave it off where shapes change.",
    what="The program runs a convolution with many algorithms",
)


def recompilation(report: Report) -> list[Finding]:
    """At most one finding per device on code that is compiled again, or on cuDNN that tries algorithms again."""
    if (other := traced(report)) is None:
        return []
    compiling = spans_named(_COMPILES, *(other.kind(kind) for kind in ("range", "op", "python")))
    compiling = joined(compiling.drop_nulls(THREAD).drop("name"))
    trying = outermost(report).filter(pl.col("name").str.contains("conv") & (pl.col("launches") >= _TRIES))
    for told, spans in ((_AGAIN, compiling), (_TRIED, trying)):
        inside = within(report, spans)
        if _recurs(report, inside.host):
            return on_time(report, told, inside, partial(_sentence, report, told.what))
    return []


def _sentence(report: Report, what: str, number: int, taken: str) -> str:
    return f"{what} {per_iteration(report).plural(number, 'time')}, not only at its start: {taken}."


def _recurs(report: Report, spans: pl.DataFrame) -> bool:
    """Whether spans are in several parts of the window of a device, its second half among them."""
    for _, low, high in windows(report).iter_rows():
        part = part_of(pl.col("start"), low, high)
        parts = intervals.overlapping(spans, (low, high)).select(part.alias("part")).to_series()
        if parts.n_unique() >= _RECURS and (parts >= PARTS // 2).any():
            return True
    return False


RULES: Final = (recurring_loading, cold_start, recompilation)
