"""Contexts, modules and libraries that are made and loaded: once at the start, or again and again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import launch_calls, used_devices
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._kernels import kernel_sums, nothing_within
from kanalyze.analyses.findings.rules._telling import idle_worth_saying, in_pytorch, main_site, per_iteration
from kanalyze.analyses.host._call_kinds import bucket_of, names_that, shown
from kanalyze.analyses.host._context_creation import context_calls, unrecorded_contexts
from kanalyze.analyses.idle._attribution import host_time, reasoned_pieces
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._launch_costs import launch_costs
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import longest, median_of
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import nearest
from kanalyze.units import count, moment, plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Calls that load kernels, rather than look one up.
_LOADS: Final = re.compile(r"cu(?:Module|Library)Load|cudaLibraryLoad")

#: Fewest iterations, and least share of them that load something, for loading to recur: the first ones of each shape
#: load in programs with a few shapes, too.
_FEWEST: Final = 4
_OFTEN: Final = 0.5

#: Buckets of idle time that belong to the launch before.
_LAUNCHES: Final = ("launch", "queued")

_REMEDY: Final = (
    "Keep to a few shapes, and run each once before: pad lengths, or sort them into a few buckets; allocate what "
    "grows, such as a cache of keys and values, at its full length, and mask it."
)
_COMPILED: Final = " Code compiled by torch.compile takes changing sizes with dynamic=True."
_CUDNN: Final = (
    " cuDNN's attention plans anew for each length; FlashAttention does not: torch.nn.attention.sdpa_kernel("
    "SDPBackend.FLASH_ATTENTION)."
)


def recurring_loading(report: Report) -> list[Finding]:
    """At most one finding per device, in a window of iterations most of which load kernels."""
    return [_finding(report, device, pieces) for device, pieces in _idle_while_planning(report).items()]


def _idle_while_planning(report: Report) -> dict[int, pl.DataFrame]:
    """The idle time from the launch before each loading to the next one of its thread, where worth a finding.

    Columns of `idle_within`, by device.
    """
    loads = _loads(report)
    if not _recurs(report, loads):
        return {}
    of_launches = pl.col("bucket").cast(pl.String).is_in(_LAUNCHES)
    every = idle_worth_saying(report, _around(report, loads), ~of_launches)
    users = dict(used_devices(report).group_by("device").agg("process_id").iter_rows())
    of_device = {device: loads.filter(pl.col("process_id").is_in(users[device])) for device in every if device in users}
    return {device: every[device] for device, own in of_device.items() if _recurs(report, own)}


def _recurs(report: Report, loads: pl.DataFrame) -> bool:
    iterations = per_iteration(report).iterations or 0
    return iterations >= _FEWEST and _iterations_of(report, loads) >= _OFTEN * iterations


def _iterations_of(report: Report, loads: pl.DataFrame) -> int:
    """In how many of the window's parts, as long as its iterations are on average, something was loaded."""
    window = report.scope.window
    if window is None or window.start_ns is None or window.end_ns is None or not window.count:
        return 0
    length = max(window.end_ns - window.start_ns, 1)
    part = (pl.col("start") - window.start_ns) * window.count // length
    return loads.select(part.clip(0, window.count - 1).n_unique()).item() if loads.height else 0


@once_per_report
def _loads(report: Report) -> pl.DataFrame:
    """The calls in the window that load kernels: process_id, thread_id, start, end."""
    names = names_that(report, _LOADS.match)
    if not names or report.scope.window is None or not report.scope.window.count:
        return pl.DataFrame(schema=dict.fromkeys((*THREAD, "start", "end"), pl.Int64))
    calls = report.seen("api").filter(pl.col("name").is_in(names))
    end = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    return calls.select(*THREAD, start="start_ns", end=end).drop_nulls()


def _around(report: Report, loads: pl.DataFrame) -> pl.DataFrame:
    """From the end of the thread's launch before each of `loads` to the start of its next one: columns of `loads`."""
    calls = launch_calls(report, "thread_id", "call_start", "call_ns").with_columns(pl.col("call_ns").fill_null(0))
    launches = calls.drop_nulls()
    before = launches.select(*THREAD, since=pl.col("call_start") + pl.col("call_ns"))
    line = nearest(loads, before, ("start", "since"), THREAD)
    line = nearest(line, launches.select(*THREAD, until="call_start"), ("end", "until"), THREAD, "after")
    return line.select(*THREAD, start=pl.coalesce("since", "start"), end=pl.coalesce("until", "end"))


def _finding(report: Report, device: int, pieces: pl.DataFrame) -> Finding:
    per, loads, stake = per_iteration(report), _loads(report), intervals.length(pieces)
    many, torch = _iterations_of(report, loads), in_pytorch(report)
    chosen = [
        one.chosen(lambda said: (said.family, said.library) == ("attention", "cudnn")) for one in kernel_sums(report)
    ]
    cudnn = torch and any(one.launches for one in chosen)
    called = intervals.length(intervals.union(loads))
    text = (
        f"Kernels are loaded in {count(many)} of {per.all}, {per.plural(loads.height, 'time')}, as libraries do that "
        f"plan anew for each shape: GPU {device} idles for {per.time(stake)} from the launch before to the one after, "
        f"of which the calls that load take {per.time(called)}. A program whose shapes recur loads nothing. "
        "More may follow: the host could run ahead."
    )
    action = "keep to a few shapes, and run each once before"
    if torch:
        action = "pad to a few lengths" + ("; sdpa_kernel(SDPBackend.FLASH_ATTENTION)" if cudnn else "")
    return Finding(
        "recurring-loading",
        device,
        stake,
        text,
        _REMEDY + (_CUDNN if cudnn else "") + (_COMPILED if torch else ""),
        "api",
        headline=f"Kernels are planned and loaded anew in {count(many)} of {per.all}",
        action=action,
        where=main_site(report, loads.select(*THREAD, at="start")),
        mending=lambda report: nothing_within(report, _around(report, loads).unique()),
        claims=pieces,
    )


#: The rules on one-time costs: those of this module, and the pinning of memory.
ONE_TIME: Final = ("context-creation", "unrecorded-context", "module-loading", "first-launch", "pinned-allocation")

#: Maximum number of contexts named in the sentence.
_NAMED: Final = 3


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
    stake = intervals.length(pieces)
    if not stake:
        return []
    calls = report.kind("api").select("event_id", "process_id", "name", "dur_ns")
    made = _of_processes(report, device, context_calls(report)).with_columns(shown(pl.col("name")).alias("call"))
    later = calls.join(made.select("process_id", "name"), on=["process_id", "name"], how="semi")
    later = later.join(made, on="event_id", how="anti")
    names = ", ".join(made.get_column("call").fill_null("a call without a name").unique().sort())
    warm = f"; later calls of it take {time(median_of(later, 'dur_ns'))}" if later.height else ""
    longest_one = (
        made.with_columns(ns=pl.col("made_ns") - pl.col("start_ns")).sort("ns", "event_id").row(-1, named=True)
    )
    whole = f" of {time(longest_one['dur_ns'])}" if longest_one["ns"] < longest_one["dur_ns"] else ""
    took = f"{time(longest_one['ns'])}{whole}{warm}"
    text = f"Context creation, once per process and device, inside {literal(names)} ({took})."
    remedy = "A cost of starting up: leave it out of what you compare, and keep processes alive."
    one = Finding("context-creation", device, stake, text, remedy, "cold")
    return [one._replace(headline="Making the CUDA context", action="keep processes alive", claims=pieces)]


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
    remedy = "A cost of starting up: leave it out of what you compare."
    one = Finding("unrecorded-context", device, stake, text, remedy, "cold")
    headline = "A CUDA context was made outside of all recorded calls"
    return [one._replace(headline=headline, action="leave it out of what you compare", claims=making)]


def _sides(made: dict[str, Any], zero_ns: int) -> str:
    before, after = (literal(made[side] or edge) for side, edge in (("before", "the start"), ("after", "the end")))
    return f"at {moment(made['end'], zero_ns)}, between {before} and {after}"


def _loading(report: Report, device: int, pieces: pl.DataFrame) -> list[Finding]:
    if not (stake := intervals.length(pieces)):
        return []
    rows = pieces.group_by("detail").agg(ns=(pl.col("end") - pl.col("start")).sum())
    loading = names_that(report, lambda name: bucket_of(name) == "loading")
    loads = report.seen("api").filter(pl.col("name").is_in(loading))
    loads = _after_contexts(report, _of_processes(report, device, loads))
    slowest = longest(loads, "dur_ns")
    most = ", ".join(rows.sort("ns", descending=True).get_column("detail").fill_null("calls without a name").head(2))
    per = per_iteration(report)
    how = f"{per.plural(loads.height, 'call')}, the longest {time(slowest)} (most in {literal(most)})"
    text = f"Loading modules and libraries: {how}."
    remedy = "Paid at first use: warm up before you measure, or load eagerly (CUDA_MODULE_LOADING=EAGER)."
    one = Finding("module-loading", device, stake, text, remedy, "ledger")
    headline = f"Loading modules and libraries takes {per.time(stake)}"
    action = "warm up before you measure, or CUDA_MODULE_LOADING=EAGER"
    if per.iterations:  # what runs in turn is warm: new kernels come with new shapes
        remedy = "It goes on in the steady part: keep to a few shapes, and run each once before."
        one, action = one._replace(remedy=remedy), "keep to a few shapes, and run each once before"
    return [one._replace(headline=headline, action=action, claims=pieces)]


def _after_contexts(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """The `calls`, each without the time of a context creation inside it; those without any other time are dropped."""
    made = context_calls(report).select("event_id", until=pl.col("made_ns") - pl.col("start_ns"))
    found = calls.join(made, on="event_id", how="left", maintain_order="left")
    found = found.with_columns(dur_ns=pl.col("dur_ns") - pl.col("until").fill_null(0))
    return found.filter(pl.col("until").is_null() | (pl.col("dur_ns") > 0))


def _first_launches(report: Report, device: int) -> list[Finding]:
    """The device's wait for the first launch of each kernel, beyond its wait for a warm launch."""
    found = launch_costs(report).first.get(device)
    if found is None or not found.stake_ns:
        return []
    cold, worst = found.cold, found.cold.row(0, named=True)
    text = (
        f"First launches: {count(cold.height)} of {plural(found.kernels, 'kernel')} took "
        f"{time(median_of(cold, 'api_ns'))} (median) to launch the first time against {time(found.usual_ns)} once "
        f"warm; the longest {time(worst['api_ns'])}, {{0}}."
    )
    remedy = "Lazy loading at first use: warm up every kernel before you measure."
    one = Finding("first-launch", device, found.stake_ns, text, remedy, "cold", (str(worst["name"]),))
    headline = f"First launches of {plural(cold.height, 'kernel')} take longer than later ones"
    waits = reasoned_pieces(report, device).filter(pl.col("row").is_in(cold.get_column("row").implode()))
    action = "run every shape once before you measure or serve"
    return [one._replace(headline=headline, action=action, claims=waits.filter(bucket="launch"))]


def _of_processes(report: Report, device: int, events: pl.DataFrame) -> pl.DataFrame:
    """The events of the processes that ran operations on the device."""
    used = used_devices(report).filter(pl.col("device") == device)
    return events.join(used.select("process_id"), on="process_id", how="semi", maintain_order="left")


RULES: Final = (recurring_loading, cold_start)
