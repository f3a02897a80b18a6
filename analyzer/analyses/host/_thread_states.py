"""States of each host thread over time: on a processor, in a system call, runnable, blocked.

Definitions: docs/definitions.md, section 5, "Host time by state".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.cut import overlaid
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.shared.thread_nesting import innermost_lines
from kanalyze.columns.grouping import parts_by
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report

#: States of a host thread, those that it works in first.
STATES: Final = ("running", "system call", "runnable", "blocked", "off processor", "unknown")

#: What the readers' tables are that tell of states and functions, besides CPU samples.
NEEDED: Final = ("scheduling", "python_samples", "stack_frames", "call_stacks")

#: What a system call waits for, by its name; the first that fits.
WAITS_ON: Final = {
    "sleep": r"sleep$",
    "lock": r"^pthread_(?:mutex|rwlock|spin)_\w*lock$|^flock$|^lockf",
    "condition": r"^pthread_cond_|^sem_\w*wait|^pthread_barrier_wait|^futex",
    "thread or process": r"^pthread_\w*join|^wait(?:pid|id|[34])?$|^fork$|^vfork$",
    "file, pipe or socket": r"^(?:p|f|__)?(?:read|write)|^(?:recv|send|accept|connect)|^p?poll|^p?select|^epoll_|^mq_"
    r"|^f?(?:get|put|open|close|stat|sync)|^fflush|^lstat|^fdatasync",
    "driver": r"^ioctl",
    "memory": r"^m(?:map|unmap|protect|advise|remap|lock)",
}

#: What is none of these.
OTHER: Final = "other call"

#: Those whose calls do nothing but wait.
_ONLY_WAIT: Final = ("sleep", "lock", "condition", "thread or process")

#: A thread waits for its processor if others had it for at least this part of the time.
_TAKEN: Final = 0.5

#: Longer than any recording.
_END: Final = 1 << 62

_LINE: Final = {"start": pl.Int64, "end": pl.Int64, "row": pl.UInt32}


@once_per_process
def system_calls(report: Report) -> pl.DataFrame:
    """The traced calls of the operating system's library.

    Columns: event_id, name, process_id, thread_id, start, end, and waits_on (of :data:`WAITS_ON`, or :data:`OTHER`).
    """
    wanted = ("event_id", "name", *THREAD)
    calls = report.kind("osrt").select(*wanted, **intervals.OF_EVENTS)
    known = calls.select(pl.col("name").unique())
    waits = pl.lit(OTHER)
    for what, names in reversed(WAITS_ON.items()):
        waits = pl.when(pl.col("name").cast(pl.String).str.contains(names)).then(pl.lit(what)).otherwise(waits)
    told = known.with_columns(waits_on=waits)
    return calls.join(told, on="name", how="left", nulls_equal=True, maintain_order="left")


@once_per_process
def call_lines(report: Report) -> dict[ThreadKey, pl.DataFrame]:
    """Timeline of the innermost system call of each thread: start, end, row (of :func:`system_calls`)."""
    calls = system_calls(report).with_row_index("row")
    return innermost_lines(calls.select(*THREAD, "start", "end", "row"))


@once_per_process
def processor_lines(report: Report) -> dict[ThreadKey, pl.DataFrame]:
    """When each thread was on a processor, and what it was otherwise: start, end, runs and waits; sorted, disjoint.

    `waits` is set where it was off the processor that it had left, while other threads of the report were on that for
    at least half of the time. Before the first moment that the scheduler recorded of a thread there is no row.
    """
    moments = report.table("scheduling")
    by_thread = parts_by(moments, THREAD)
    lines = {key: _between_moments(part) for key, part in by_thread.items()}
    if not lines:
        return {}
    taken = pl.concat([line.filter("runs") for line in lines.values()])
    on_each = {key[0]: intervals.union(part) for key, part in parts_by(taken, ["cpu"]).items()}
    return {key: _with_waits(line, on_each) for key, line in lines.items()}


def _between_moments(moments: pl.DataFrame) -> pl.DataFrame:
    """The time from each moment of a thread to the next one: start, end, runs, cpu."""
    after = pl.col("time_ns").shift(-1, fill_value=_END)
    line = moments.select("runs", "cpu", start="time_ns", end=after)
    return line.filter(pl.col("end") > pl.col("start"))


def _with_waits(line: pl.DataFrame, on_each: dict[object, pl.DataFrame]) -> pl.DataFrame:
    """Adds `waits` to the line of a thread."""
    taken = pl.zeros(line.height, dtype=pl.Int64, eager=True)
    for cpu, own in on_each.items():
        here = (line.get_column("cpu") == cpu) & ~line.get_column("runs")
        others = intervals.overlap(line.get_column("start"), line.get_column("end"), own)
        taken = others.zip_with(here, taken)
    length = line.get_column("end") - line.get_column("start")
    return line.select("start", "end", "runs", waits=~pl.col("runs") & (taken >= _TAKEN * length))


def states_of(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.DataFrame:
    """Splits `pieces` of a thread (start, end; sorted, disjoint) by what it was doing.

    Adds state (of :data:`STATES`) and call (row of :func:`system_calls`, null outside of them).
    """
    calls = call_lines(report).get(key, pl.DataFrame(schema=_LINE))
    cut = overlaid(pieces, calls.rename({"row": "call"}), "call")
    line = processor_lines(report).get(key)
    if line is None:
        cut = cut.with_columns(runs=pl.lit(None, dtype=pl.Boolean), waits=pl.lit(None, dtype=pl.Boolean))
    else:
        cut = overlaid(cut, line.with_row_index("moment"), "moment")
        at = cut.get_column("moment")
        cut = cut.drop("moment").with_columns(line.get_column("runs")[at], line.get_column("waits")[at])
    inside, runs = pl.col("call").is_not_null(), pl.col("runs")
    waiting = gathered(system_calls(report).get_column("waits_on"), cut.get_column("call")).is_in(_ONLY_WAIT)
    state = (
        pl.when(inside & pl.coalesce(runs, ~pl.lit(waiting)))
        .then(pl.lit("system call"))
        .when(inside)
        .then(pl.lit("blocked"))
        .when(runs)
        .then(pl.lit("running"))
        .when(runs.is_null())
        .then(pl.lit("unknown"))
        .when("waits")
        .then(pl.lit("runnable"))
        .otherwise(pl.lit("off processor"))
    )
    return cut.select(*pieces.columns, "call", state=state.cast(pl.Enum(STATES)))
