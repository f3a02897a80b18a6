"""Kernels that are planned and loaded anew again and again, as libraries do for shapes that they have not seen."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import launch_calls, used_devices
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernel_sums import kernel_sums
from kanalyze.analyses.findings.rules._mendings import nothing_within
from kanalyze.analyses.findings.rules._sites import main_site
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.host._call_kinds import names_that
from kanalyze.analyses.idle._attribution import WITHIN, idle_within
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.units import count

if TYPE_CHECKING:
    from kanalyze.decoder.fields import KernelName
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
    return [_finding(report, device, intervals.length(pieces)) for device, pieces in _idle(report).items()]


def idle_while_planning(report: Report, device: int) -> pl.DataFrame:
    """The idle time of a device that :func:`recurring_loading` tells of: columns of `idle_within`."""
    return _idle(report).get(device, pl.DataFrame(schema=WITHIN))


@once_per_report
def _idle(report: Report) -> dict[int, pl.DataFrame]:
    """The idle time from the launch before each loading to the next one of its thread, where worth a finding."""
    loads, least = _loads(report), least_worth_saying(report)
    found: dict[int, pl.DataFrame] = {}
    if not _recurs(report, loads):
        return found
    every = idle_within(report, _around(report, loads)).items()
    planning = {device: pieces.filter(~pl.col("bucket").cast(pl.String).is_in(_LAUNCHES)) for device, pieces in every}
    for device, processes in used_devices(report).group_by("device").agg("process_id").iter_rows():
        own = loads.filter(pl.col("process_id").is_in(processes))
        if device in least and _recurs(report, own) and intervals.length(planning[device]) >= max(least[device], 1):
            found[device] = planning[device]
    return found


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
    before = launches.select(*THREAD, since=pl.col("call_start") + pl.col("call_ns")).sort("since")
    after = launches.select(*THREAD, until="call_start").sort("until")
    line = loads.sort("start").join_asof(
        before, left_on="start", right_on="since", by=list(THREAD), coalesce=False, check_sortedness=False
    )
    line = line.sort("end").join_asof(
        after,
        left_on="end",
        right_on="until",
        by=list(THREAD),
        strategy="forward",
        coalesce=False,
        check_sortedness=False,
    )
    return line.select(*THREAD, start=pl.coalesce("since", "start"), end=pl.coalesce("until", "end"))


def _is_cudnn_attention(said: KernelName) -> bool:
    return said.family == "attention" and said.library == "cudnn"


def _finding(report: Report, device: int, stake: int) -> Finding:
    per, loads = per_iteration(report), _loads(report)
    many, torch = _iterations_of(report, loads), in_pytorch(report)
    cudnn = torch and any(one.chosen(_is_cudnn_attention).launches for one in kernel_sums(report))
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
    )


RULES: Final = (recurring_loading,)
