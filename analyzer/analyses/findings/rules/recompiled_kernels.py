"""Kernels that are compiled at run time (Triton, torch.compile, CuPy, Numba), again and again."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import nothing_within
from kanalyze.analyses.findings.rules._telling import (
    COMPILED,
    TRITON,
    fewest_in,
    idle_worth_saying,
    main_site,
    per_iteration,
    written_with,
)
from kanalyze.analyses.host._call_kinds import calls_that
from kanalyze.analyses.host._worlds import CUDA, CUPY, NUMBA, PYTHON, world
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import nearest
from kanalyze.decoder.decode import decode

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Calls that load a kernel's code.
_LOADS: Final = re.compile(r"cu(?:Module|Library)Load|cudaLibraryLoad")

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
    if again.height < max(fewest_in(report), _FEWEST):
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


@once_per_process
def _loaded_again(report: Report) -> pl.DataFrame:
    """Loads of a kernel after its first: process_id, thread_id, start, end (of the launches around), loaded, name."""
    schema = {**dict.fromkeys((*THREAD, "start", "end", "loaded"), pl.Int64), "name": pl.String}
    loads = calls_that(report, _LOADS.match, *THREAD, loaded="start_ns").drop_nulls()
    if loads.height < _FEWEST:
        return pl.DataFrame(schema=schema)
    work = operations(report, "call_start", "call_end", "thread_id").filter(pl.col("kind") == "kernel")
    launches = work.drop_nulls(["call_start", "thread_id"]).unique("call_start").sort("call_start")
    following = launches.select(*THREAD, "name", end="call_start")
    line = nearest(loads, following, ("loaded", "end"), THREAD, "after").drop_nulls("end")
    one = line.unique([*THREAD, "end"], keep="first", maintain_order=True)
    more = one.filter(pl.int_range(pl.len()).over("process_id", "name") > 0)
    again = nearest(more, launches.select(*THREAD, start="call_end"), ("loaded", "start"), THREAD).drop_nulls("start")
    again = again.with_columns(pl.col("name").cast(pl.String)).select(*schema)
    names = again.get_column("name").unique()
    own = [name for name in names if _is_compiled_here(report, name)]
    often = pl.len().over("process_id", "name") >= _FEWEST
    return again.filter(pl.col("name").is_in(own) & often)


def _is_compiled_here(report: Report, name: str) -> bool:
    """Whether a kernel comes of a compiler that the program runs, as its world and its name tell."""
    compiled = written_with(report, name) in (TRITON, COMPILED)
    return compiled or (world(report) in (CUPY, NUMBA, PYTHON) and decode(name).library in _COMPILING)


RULES: Final = (recompiled_kernels,)
