"""Kernels that are compiled at run time (Triton, torch.compile, CuPy, Numba), again and again."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import nothing_within
from kanalyze.analyses.findings.rules._telling import (
    COMPILED,
    TRITON,
    all_along,
    fewest_in,
    idle_worth_saying,
    main_site,
    per_iteration,
    place_of,
    written_with,
)
from kanalyze.analyses.host._call_kinds import calls_that
from kanalyze.analyses.host._worlds import CUDA, CUPY, NUMBA, PYTHON, world
from kanalyze.analyses.iterations._launch_line import timed_runs
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import nearest
from kanalyze.decoder.decode import decode

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Calls that load a kernel's code.
_LOADS: Final = re.compile(r"cu(?:Module|Library)Load|cudaLibraryLoad")

#: Those of Triton and torch.compile in a program of PyTorch: its libraries are loaded as such.
_MODULES: Final = re.compile(r"cuModuleLoad(?:Data)?(?:Ex)?(?:_v\d+)?$")

#: A kernel that is loaded fewer times has a few shapes.
_FEWEST: Final = 3

#: Libraries of array operations, which compile kernels at run time, too.
_COMPILING: Final = (None, "cupy")

#: Action and remedy by what the kernels are written with.
_HOW: Final = {
    TRITON: (
        "an ordinary argument in place of tl.constexpr; do_not_specialize",
        "Give what changes as an ordinary argument; @triton.jit(do_not_specialize=[…]) for integers; few sizes.",
    ),
    COMPILED: (
        "torch.compile(…, dynamic=True), or torch._dynamo.mark_dynamic(x, 0)",
        "Let sizes be dynamic, or pad them to a few; numbers that change as tensors, not as Python's.",
    ),
    CUDA: (
        "compile once: what changes as an argument, not in the source",
        "Make the kernel once, outside the loop, and give it what changes as an argument, not in its source.",
    ),
}


def recompiled_kernels(report: Report) -> list[Finding]:
    """At most one finding per device on all kernels that are loaded again."""
    again = intervals.overlapping(_loaded_again(report), report.scope.sides)
    if again.height < max(fewest_in(report), _FEWEST) or not _goes_on(report, again):
        return []
    most = again.group_by("name").len().sort("len", "name").item(-1, "name")
    written = written_with(report, str(most))
    action, remedy = _HOW.get(written, _HOW[CUDA])
    found, per, spans = [], per_iteration(report), again.select(*THREAD, "start", "end")
    for device, idle in idle_worth_saying(report, spans).items():
        stake = intervals.length(intervals.union(idle))
        text = (
            f"{{0}} and others like it are compiled and loaded {per.plural(again.height, 'time')} more, though they "
            f"have run before: GPU {device} idles for {per.time(stake)} from the launch before to the one after. A "
            "compiler makes a kernel anew for each new value of a constant, type or kind of size."
        )
        found.append(
            Finding(
                "recompilation",
                device,
                stake,
                text,
                remedy,
                "api",
                (str(most),),
                headline=f"Compiled anew {per.plural(again.height, 'time')}: {{0}}",
                action=action,
                where=main_site(report, again.select(*THREAD, at="loaded")),
                mending=partial(nothing_within, spans=spans.unique()),
                claims=idle.select("start", "end"),
            )
        )
    return found


def _goes_on(report: Report, again: pl.DataFrame) -> bool:
    """Whether kernels are loaded again in iterations, or all along the time in which devices work."""
    if per_iteration(report).iterations:
        return True
    low, high = windows(report).select(pl.col("start").min(), pl.col("end").max()).row(0)
    return bool(again.select(all_along(pl.col("loaded"), pl.lit(low), pl.lit(high))).item())


@once_per_process
def _loaded_again(report: Report) -> pl.DataFrame:
    """Loads of a kernel after its first: process_id, thread_id, start, end (of the launches around), loaded, name."""
    schema = {**dict.fromkeys((*THREAD, "start", "end", "loaded"), pl.Int64), "name": pl.String}
    libraries = world(report) in (CUPY, NUMBA, PYTHON)
    loads = calls_that(report, (_LOADS if libraries else _MODULES).match, *THREAD, loaded="start_ns").drop_nulls()
    if loads.height < _FEWEST:
        return pl.DataFrame(schema=schema)
    work = operations(report, "call_start", "call_end", "thread_id").filter(pl.col("kind") == "kernel")
    launches = work.drop_nulls(["call_start", "thread_id"]).unique("call_start").sort("call_start")
    texts = launches.get_column("name").unique().drop_nulls()
    own = texts.filter(pl.Series([_is_compiled_here(report, str(name)) for name in texts], dtype=pl.Boolean))
    made = launches.filter(pl.col("name").is_in(own.implode())).select(*THREAD, "name", begun="call_start")
    line = nearest(loads, made, ("loaded", "begun"), THREAD, "after").drop_nulls("begun")
    line = nearest(line, launches.select(*THREAD, end="call_start"), ("loaded", "end"), THREAD, "after")
    one = line.unique([*THREAD, "end"], keep="first", maintain_order=True)
    more = one.filter(pl.int_range(pl.len()).over("process_id", "name") > 0)
    again = nearest(more, launches.select(*THREAD, start="call_end"), ("loaded", "start"), THREAD).drop_nulls("start")
    again = again.with_columns(pl.col("name").cast(pl.String)).select(*schema)
    return again.filter(pl.len().over("process_id", "name") >= _FEWEST)


def _is_compiled_here(report: Report, name: str) -> bool:
    """Whether a kernel comes of a compiler that the program runs, as its world and its name tell."""
    compiled = written_with(report, name) in (TRITON, COMPILED)
    return compiled or (world(report) in (CUPY, NUMBA, PYTHON) and decode(name).library in _COMPILING)


#: Fewest iterations, and least share of them with timed runs, for an autotuner that begins anew.
_PASSES: Final = 4
_OFTEN: Final = 0.5


def tuned_again(report: Report) -> list[Finding]:
    """At most one finding per device, in a window of iterations in most of which kernels are timed."""
    window = report.scope.window
    if window is None or not window.count or window.count < _PASSES or None in (window.start_ns, window.end_ns):
        return []
    runs = intervals.overlapping(timed_runs(report), report.scope.sides)
    length = max(int(window.end_ns or 0) - int(window.start_ns or 0), 1)
    part = (pl.col("start") - window.start_ns) * window.count // length
    many = runs.select(part.clip(0, window.count - 1).n_unique()).item() if runs.height else 0
    if many < _OFTEN * window.count:
        return []
    work = exclusive_operations(report, "call_start").drop_nulls("call_start").filter(pl.col("kind") == "kernel")
    fills = work.filter(pl.col("call_start").is_in(runs.get_column("start").implode())).get_column("name").unique()
    at, fill = pl.col("call_start"), pl.col("name").is_in(fills.implode())
    own = work.with_columns(fill=fill, part=(at - window.start_ns) * window.count // length)
    first, last = (side.over("device", "part") for side in (at.filter("fill").min(), at.filter("fill").max()))
    return [_tuned(report, one, many) for one in own.filter((at >= first) & (at <= last)).partition_by("device")]


_KEYS: Final = (
    "Give the key few values: sizes rounded up to a few, or none (key=[]); cache_results=True keeps them on disk."
)


def _tuned(report: Report, own: pl.DataFrame, many: int) -> Finding:
    device, per = int(own.item(0, "device")), per_iteration(report)
    sums = own.filter(~pl.col("fill")).group_by(name=pl.col("name").cast(pl.String)).agg(pl.col("exclusive_ns").sum())
    name = str(sums.sort("exclusive_ns", "name").item(-1, "name")) if sums.height else ""
    compiled = written_with(report, name) == COMPILED
    claims = intervals.union(own.group_by("part").agg(pl.col("start").min(), pl.col("end").max()))
    stake = intervals.length(claims)
    text = (
        f"In {many:,} of {per.all} kernels are timed, each run after a fill of the cache, as an autotuner does that "
        f"begins anew: {per.plural(own.height, 'launch')}, most of {{0}}, {per.time(stake)} of GPU {device}. "
        "What was chosen is kept for each shape, type and constant."
    )
    return Finding(
        "recompilation",
        device,
        stake,
        text,
        _HOW[COMPILED][1] if compiled else _KEYS,
        "kernels",
        (name,),
        headline=f"Autotuned again in {many:,} of {per.all}: {{0}}",
        action=_HOW[COMPILED][0] if compiled else "@triton.autotune(…, key=[…]) of few values: sizes in buckets",
        where=place_of(report, pl.col("row").is_in(own.get_column("row").implode())),
        mending=partial(_kept, own=own),
        claims=claims,
    )


def _kept(report: Report, own: pl.DataFrame) -> Mending:
    """What is timed is not launched, and the host does nothing for it."""
    del report
    sides = {"start": pl.col("call_start").min(), "end": pl.col("call_start").max()}
    spans = own.group_by("process_id", "part").agg(**sides)
    return Mending(gone=own.get_column("row").cast(pl.UInt32), host=spans)


RULES: Final = (recompiled_kernels, tuned_again)
