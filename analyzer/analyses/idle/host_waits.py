"""Waits of host threads for which a device was idle, and the thread of any process that each of them waited for.

Definitions: docs/definitions.md, section 5, "Waits, and who ended them".
"""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.host._causes import EVIDENCE, told_causes
from kanalyze.analyses.host._range_lines import ranges_at
from kanalyze.analyses.host._thread_timeline import STATES, records_waits, system_calls
from kanalyze.analyses.idle._attribution import by_thread, host_pieces
from kanalyze.analyses.idle._idle_parts import range_names
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import gathered, parts_by
from kanalyze.errors import CannotTellError
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report
from kanalyze.schema import Column, Table, columns
from kanalyze.tools import recorders

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
            function text?: What that thread was in mostly meanwhile: by samples or stacks, innermost of the program's
                own; null where nothing tells.
            module text?: Program, library or Python file of the function.
        """),
        Column(
            "state", pl.Enum(STATES), "What that thread did for most of it, as in `culprits --by state`.", nullable=True
        ),
        *columns("""
            doing text?: The system call that it was in.
            by_range text?: Innermost range of that thread when it ended the wait.
            told_share float?: Part of the wait that it was in that state.
        """),
    ),
    purpose="waits of the host, and for whom",
    tools=recorders("osrt"),
    telling=("dur_ns", "idle_ns", "call", "by_process_id", "function", "state", "doing"),
)


@analysis
def host_waits(report: Report) -> pl.DataFrame:
    """Waits of the threads that devices in scope waited for, by device and time: :data:`TABLE`.

    Raises:
        CannotTellError: The report has no device operations, or neither system calls nor the scheduler.
    """
    require(report, TABLE, *DEVICE_KINDS)
    if not records_waits(report):
        raise CannotTellError.without(TABLE.name, report.meta.path, ["osrt", "samples"], report.meta.tool)
    rows, every = _waits_of_devices(report), report.everywhere
    calls, ranges = system_calls(every).get_column("name"), range_names(every)
    begun = rows.select(*THREAD, at="start")
    ended = rows.select(process_id="by_process_id", thread_id="by_thread_id", at=pl.col("at") - 1)
    told = rows.with_columns(
        start_ns="start",
        dur_ns=pl.col("end") - pl.col("start"),
        **{name: gathered(calls, rows.get_column(name)).cast(pl.String) for name in ("call", "by_call")},
        range=gathered(ranges, ranges_at(every, begun)).cast(pl.String),
        by_range=gathered(ranges, ranges_at(every, ended)).cast(pl.String),
    )
    return TABLE.select(told.sort("device", "start_ns", *THREAD))


def _waits_of_devices(report: Report) -> pl.DataFrame:
    """The waits that idle time of devices in scope lies in: those of :func:`told_causes`, with device and idle_ns."""
    every = told_causes(report)
    lines, found = (
        parts_by(every, THREAD),
        [every.with_columns(device=pl.lit(0, pl.Int64), idle_ns=pl.lit(0, pl.Int64)).clear()],
    )
    for device, pieces in host_pieces(report).items():
        for key, own in by_thread(report, pieces):
            if key in lines:
                idle = intervals.overlap(
                    lines[key].get_column("start"), lines[key].get_column("end"), intervals.union(own)
                )
                found.append(lines[key].with_columns(device=pl.lit(device, pl.Int64), idle_ns=idle))
    return pl.concat(found).filter(pl.col("idle_ns") > 0)
