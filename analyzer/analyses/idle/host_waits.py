"""Waits of host threads for which a device was idle, and the thread of any process that each of them waited for.

Definitions: docs/definitions.md, section 5, "Waits, and who ended them".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.host._range_lines import named_ranges, ranges_at, stack_names
from kanalyze.analyses.host._sampled_parts import told_parts
from kanalyze.analyses.host._thread_timeline import STATES, system_calls
from kanalyze.analyses.host._wakers import EVIDENCE, causes
from kanalyze.analyses.idle._attribution import by_thread, host_pieces
from kanalyze.analyses.shared.analysis import analysis, once_per_report, require
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import gathered, parts_by
from kanalyze.errors import CannotTellError
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report, Scope
from kanalyze.schema import Column, Table, columns

TABLE: Final = Table(
    "host_waits",
    "One wait of a host thread that a device waited for, and the thread that it waited for.",
    (
        *columns("""
            device int: The GPU, as in `devices`.
            start_ns int: Start of the wait, in the trace's own origin.
            dur_ns int: Its duration.
            idle_ns int: Time of the device's bucket `host` in it.
            process_id int?: Process that waited.
            thread_id int?: Host thread that waited.
            call text?: The system call in which it waited; null for none that is traced.
            range text?: Innermost range of the thread when the wait began.
        """),
        Column(
            "evidence",
            pl.Enum(EVIDENCE),
            "How it is known who ended it: a call that wakes, who alone was on a processor, or, of a sleep, its "
            "timer; null where that is not known, or several fit.",
            nullable=True,
        ),
        *columns("""
            by_process_id int?: Process that it waited for; null where that is not known.
            by_thread_id int?: Thread that it waited for.
            by_call text?: The call by which that one ended the wait, or woke who handed it on.
            hops int: How many threads handed it on.
            function text?: What that thread was in for most of the wait: by samples or stacks, innermost of the
                program's own; null where nothing tells.
            module text?: Program, library or Python file of the function.
        """),
        Column("state", pl.Enum(STATES), "What that thread did in it, as in `culprits --by state`.", nullable=True),
        *columns("""
            doing text?: The system call that it was in.
            by_range text?: Innermost range of that thread when it ended the wait.
            told_share float?: Part of the wait that it was in that function, state and call.
        """),
    ),
    purpose="waits of the host for other threads and processes",
    telling=("dur_ns", "idle_ns", "call", "by_process_id", "function", "state", "doing"),
)


@analysis
def host_waits(report: Report) -> pl.DataFrame:
    """Waits of the threads that devices in scope waited for, by device and time: :data:`TABLE`.

    Raises:
        CannotTellError: The report has no device operations, or neither system calls nor the scheduler.
    """
    require(report, TABLE, *DEVICE_KINDS)
    if "osrt" not in report.kinds and report.table("scheduling").is_empty():
        raise CannotTellError.without(TABLE.name, report.meta.path, ["osrt", "samples"], report.meta.tool)
    rows = _waits_of_devices(report)
    calls, ranges = system_calls(_everywhere(report)).get_column("name"), named_ranges(_everywhere(report))
    at = [
        rows.select(*THREAD, at="start"),
        rows.select(*(pl.col(f"by_{name}").alias(name) for name in THREAD), at=pl.col("at") - 1),
    ]
    within = (
        gathered(ranges.get_column("range"), ranges_at(_everywhere(report), points)).cast(pl.String) for points in at
    )
    told = rows.with_columns(
        start_ns="start",
        dur_ns=pl.col("end") - pl.col("start"),
        **{name: gathered(calls, rows.get_column(name)).cast(pl.String) for name in ("call", "by_call")},
        **dict(zip(("range", "by_range"), within, strict=True)),
    )
    done = told.join(_done(report), on="wait", how="left", maintain_order="left")
    return TABLE.select(done.sort("device", "start_ns", *THREAD))


def _everywhere(report: Report) -> Report:
    """The report with all its processes."""
    return report.whole if report.scope.process is None else replace(report.whole, scope=Scope())


@once_per_report
def _waits_of_devices(report: Report) -> pl.DataFrame:
    """The waits that idle time of devices in scope lies in: those of :func:`causes`, with device and idle_ns."""
    every, found = causes(_everywhere(report)), []
    lines = parts_by(every.select(*THREAD, "start", "end", "wait"), THREAD)
    for device, pieces in host_pieces(report).items():
        for key, own in by_thread(report, pieces):
            if key in lines:
                idle = intervals.overlap(*lines[key].select("start", "end"), intervals.union(own))
                found.append(lines[key].select("wait", device=pl.lit(device, pl.Int64), idle_ns=idle))
    empty = every.select("wait", device=pl.lit(0, pl.Int64), idle_ns=pl.lit(0, pl.Int64)).clear()
    return pl.concat([empty, *found]).filter(pl.col("idle_ns") > 0).join(every, on="wait", maintain_order="left")


def _done(report: Report) -> pl.DataFrame:
    """What was done in most of each wait by the thread waited for: wait, function, module, state, doing, told_share."""
    everywhere = _everywhere(report)
    asked = _waits_of_devices(report).unique("wait").drop_nulls("by_thread_id").filter(pl.col("at") > pl.col("start"))
    spans = asked.sort("start").select(
        *THREAD, "by_process_id", "by_thread_id", "start", end="at", device=pl.col("wait").cast(pl.Int64)
    )
    pairs = parts_by(spans, (*THREAD, "by_process_id", "by_thread_id"))
    parts = told_parts(
        everywhere, (((key[2], key[3]), own.select("start", "end", "device")) for key, own in pairs.items())
    )
    named = parts.join(stack_names(everywhere), on="stack_id", how="left", maintain_order="left")
    sums = named.group_by("device", "function", "module", "state", doing="call", maintain_order=True).agg(
        pl.col("ns").sum()
    )
    most = sums.sort("ns", descending=True, maintain_order=True).unique("device", keep="first", maintain_order=True)
    whole = sums.group_by("device").agg(whole=pl.col("ns").sum())
    return most.join(whole, on="device").select(
        *("function", "module", "state", "doing"),
        pl.col("device").cast(pl.UInt32).alias("wait"),
        told_share=pl.col("ns") / pl.col("whole"),
    )
