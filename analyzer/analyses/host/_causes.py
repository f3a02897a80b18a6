"""What the thread was doing that a host thread waited for: its function by samples and stacks, its state and call.

Definitions: docs/definitions.md, section 5, "Waits, and who ended them".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from kanalyze.analyses.host._range_lines import stack_names
from kanalyze.analyses.host._sampled_parts import told_parts
from kanalyze.analyses.host._thread_timeline import threads
from kanalyze.analyses.host._wakers import causes
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.threads import LINE, THREAD, ThreadKey
from kanalyze.columns import gathered, nearest_place, parts_by, sure
from kanalyze.report import Report
from kanalyze.window import Scope

#: What a culprit begins with that is such a wait.
WAIT: Final = "wait for "

#: Shorter waits do not name the time of a thread: mostly they are those for Python's lock.
_LEAST_NS: Final = 100_000


def everywhere(report: Report) -> Report:
    """The report with all of its processes, of which some launch nothing."""
    return report if report.scope.process is None else replace(report, scope=Scope())


def records_waits(report: Report) -> bool:
    """Whether system calls or the scheduler were recorded, which tell of waits."""
    return "osrt" in report.kinds or not report.table("scheduling").is_empty()


@once_per_process
def told_causes(report: Report) -> pl.DataFrame:
    """The :func:`causes` of waits in no CUDA call of threads that make some, with what was done meanwhile.

    Adds function, module, state, doing (a system call) and told_share (the part of the wait until `at` in which the
    thread waited for did that), and cause: all that in words; null where it is not known who was waited for.
    """
    whole = everywhere(report)
    every, found = causes(whole), []
    for key, own in parts_by(every, THREAD).items():
        if (thread := threads(report).get((key[0], key[1]))) is not None:
            calls = nearest_place(thread.starts[thread.rows], own.get_column("start"))
            found.append(own.filter(~sure(gathered(thread.reached, calls) > own.get_column("start"))))
    waits = pl.concat([every.clear(), *found])
    told = waits.join(_done(whole, waits), on="wait", how="left", maintain_order="left")
    state = pl.col("state").cast(pl.String)
    what = pl.coalesce("function", pl.col("doing").cast(pl.String), pl.when(state != "unknown").then(state))
    told = told.with_columns(what=what, same=pl.col("process_id") == pl.col("by_process_id"))
    processes = pl.col("by_process_id").n_unique().over("what", "same")
    several = pl.col("what").is_not_null() & (processes > 1)
    shared = (
        pl.when(several).then(pl.format("{} processes", processes)).otherwise(pl.format("process {}", "by_process_id"))
    )
    who = pl.when("same").then(pl.format("thread {}", "by_thread_id")).otherwise(shared)
    cause = pl.when(pl.col("by_thread_id").is_not_null()).then(pl.coalesce(pl.format("{} in {}", "what", who), who))
    return told.with_columns(cause=cause).drop("what", "same")


def _done(report: Report, waits: pl.DataFrame) -> pl.DataFrame:
    """What was done in most of each wait by the thread waited for: wait, function, module, state, doing, told_share."""
    by = ("by_process_id", "by_thread_id")
    asked = waits.drop_nulls("by_thread_id").filter(pl.col("at") > pl.col("start")).sort("start")
    number, nothing = pl.col("wait").cast(pl.Int64), pl.lit(None, pl.String)
    spans = asked.select(*THREAD, *by, "start", end="at", device=number, waits_for=nothing)
    pairs = parts_by(spans, (*THREAD, *by)).items()
    parts = told_parts(report, (((key[2], key[3]), own.drop(*THREAD, *by)) for key, own in pairs))
    named = parts.join(stack_names(report), on="stack_id", how="left", maintain_order="left")
    sums = named.group_by("device", "state", "function", "module", doing="call", maintain_order=True).agg(
        pl.col("ns").sum()
    )
    in_state, whole = pl.col("ns").sum().over("device", "state"), pl.col("ns").sum().over("device")
    most = sums.with_columns(in_state=in_state, told_share=in_state / whole).sort(
        "in_state", "ns", descending=True, maintain_order=True
    )
    first = most.unique("device", keep="first", maintain_order=True)
    return first.select("function", "module", "state", "doing", "told_share", wait=pl.col("device").cast(pl.UInt32))


@once_per_process
def cause_names(report: Report) -> pl.Series:
    """What each row of :func:`told_causes` waited for, as a culprit."""
    return told_causes(report).select(pl.format(f"{WAIT}{{}}", "cause").cast(pl.Categorical)).to_series()


@once_per_process
def cause_lines(report: Report) -> dict[ThreadKey, pl.DataFrame]:
    """When each thread waited so, where it is known for whom: start, end, row (of :func:`told_causes`)."""
    if not records_waits(report):
        return {}
    told = told_causes(report).with_row_index("row").drop_nulls("cause")
    long = told.filter(pl.col("end") - pl.col("start") >= _LEAST_NS)
    lines = parts_by(long.select(*THREAD, "start", "end", "row"), THREAD)
    return {(key[0], key[1]): own.select([*LINE]) for key, own in lines.items()}
