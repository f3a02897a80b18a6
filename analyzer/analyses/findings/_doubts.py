"""Doubts about a report that its events show without any analysis.

Impossible times, ids, sizes and launch shapes, duplicates, launches and operations without each other: each check is a
row of the table `health` (docs/definitions.md, section 6). No event is dropped or repaired because of it. Kept apart
from that table, since every command checks for doubts before it ends.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import operations, recorded_until
from kanalyze.analyses.host._call_kinds import captures, is_launch_name, names_that
from kanalyze.analyses.host._launching_call import launch_rows, launching_rows
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import gathered, rows_at
from kanalyze.columns.ordering import repeated
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kanalyze.report import Report

    Check = tuple[str, int, int | None, str]

#: Kinds of host events with a duration. Python functions are checked by their reader, which need not link them.
HOST_KINDS: Final = ("api", "sync", "range", "op", "overhead", "fault", "osrt", "library")

#: Tools whose reader already notes host events that end before they start.
_NOTED: Final = ("torch.profiler",)

#: The kinds of events whose size is in a side table, by that table.
_SIZED: Final = {"copy_detail": ("memcpy", "memset"), "memory_detail": ("memory",)}

#: Upper limits of plausibility: 16 TiB, and 64 TB/s for anything that takes a microsecond or more.
_LARGEST_BYTES: Final = 1 << 44
_FASTEST_BYTES_PER_NS: Final = 64_000
_LEAST_NS: Final = 1_000

#: The limits of CUDA and HIP on a launch; a grid's x dimension is limited only by its type.
_MOST_BLOCKS: Final = 1 << 16
_MOST_THREADS: Final = 1024
_MOST_REGISTERS: Final = 1024
_MOST_SHARED_BYTES: Final = 1 << 24

_SHAPE: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")

#: From this compute capability on a kernel may start before the one before it in its stream has ended.
_PROGRAMMATIC_FROM: Final = 9

#: Calls that wait for a stream or event, or make a stream wait; the profiler records a synchronisation for each.
_WAITING: Final = re.compile(r"(?:cuda|cu)(?:(?:Stream|Event)Synchronize|StreamWaitEvent)")


@once_per_process
def host_times(report: Report) -> list[Check]:
    """Host events that end before they start, or lie outside the recording."""
    end = report.meta.end_ns
    limit, first = (recorded_until(report), None) if end is None else (end, 0)
    backwards, outside = [], []
    for kind in HOST_KINDS:
        if kind not in report.kinds:
            continue
        events = report.kind(kind).select("start_ns", "dur_ns")
        if kind != "api" and report.meta.tool not in _NOTED:  # negative durations of calls are counted elsewhere
            backwards.append(_sum(events.filter(pl.col("dur_ns") < 0)))
        early = pl.lit(value=False) if first is None else pl.col("start_ns") < first
        late = pl.lit(value=False) if limit is None else pl.col("start_ns") + pl.col("dur_ns").fill_null(0) > limit
        outside.append(_sum(events.filter(early | late)))
    count, ns = _added(backwards)
    wrong = "their times cannot be right"
    return [
        ("host events that end before they start", count, -ns, f"{wrong}; sums count them as they are"),
        ("host events outside the recording", *_added(outside), f"{wrong}; no device's window is longer for it"),
    ]


@once_per_process
def operation_times(report: Report) -> list[Check]:
    """Device operations that started before the call that launched them."""
    calls = gathered(report.kind("api").get_column("start_ns"), launch_rows(report))
    early = operations(report).select(ns=calls - pl.col("began")).filter(pl.col("ns") > 0)
    effect = "wrong times, or clocks that disagree: what is told of launches, and of idle time before these, is wrong"
    return [("operations that start before their launch", early.height, total(early, "ns"), effect)]


@once_per_process
def unplaced(report: Report) -> list[Check]:
    """Operations without device or stream, other than unified-memory copies, and calls without thread."""
    found = []
    for kind in DEVICE_KINDS:
        events = report.kind(kind).filter(pl.col("device").is_null() | pl.col("stream").is_null())
        if kind == "memcpy" and events.height:
            events = events.filter(~pl.col("name").cast(pl.String).str.contains("Unified").fill_null(value=False))
        found.append(_sum(events))
    calls = report.kind("api").filter(pl.any_horizontal(pl.col(*THREAD).is_null()))
    return [
        ("operations without a device or stream", *_added(found), "those of no device count on GPU 0"),
        ("calls without a thread", *_sum(calls), "what the program did before them, and before their work, is unknown"),
    ]


@once_per_process
def repetitions(report: Report) -> list[Check]:
    """Duplicate calls and operations: the same in every recorded field."""
    found = []
    for kind in (*DEVICE_KINDS, "api"):
        events = report.kind(kind)
        maybe = events.filter(repeated(events.get_column("start_ns")))
        again = pl.struct(pl.col(name) for name in maybe.columns if name not in {"event_id", "parent_id"})
        found.append(_sum(maybe.filter(~again.is_first_distinct()) if maybe.height else maybe))
    return [("events recorded twice", *_added(found), "they count as often as they are there")]


@once_per_process
def lost_waits(report: Report) -> list[Check]:
    """Calls that waited for a stream or event without a synchronisation record, in reports that have such records."""
    if report.meta.tool != "nsys":
        return []
    waiting = names_that(report, _WAITING.match)
    keys = ["process_id", "correlation_id"]
    calls = report.kind("api").filter(pl.col("name").is_in(waiting)).select(*keys, "dur_ns")
    lost = calls.drop_nulls(keys).join(report.kind("sync").select(keys).unique(), on=keys, how="anti")
    effect = "records of synchronisations are missing: what these waited for cannot be told"
    return [("waits without a record", *_sum(lost), effect)]


@once_per_process
def sizes(report: Report) -> list[Check]:
    """Copies, memsets and allocations whose size is missing or impossible."""
    found = []
    for table, kinds in _SIZED.items():
        present = [kind for kind in kinds if kind in report.kinds]
        if not present:
            continue
        sized = report.table(table).select("event_id", "size_bytes")
        events = pl.concat([report.kind(kind).select("event_id", "dur_ns") for kind in present])
        size, took = pl.col("size_bytes"), pl.col("dur_ns").clip(lower_bound=_LEAST_NS)
        wrong = ~size.is_between(1, _LARGEST_BYTES)
        if table == "copy_detail":
            wrong |= size // _FASTEST_BYTES_PER_NS > took
        doubtful = sized.filter(~size.is_between(1, _FASTEST_BYTES_PER_NS * _LEAST_NS) | size.is_null())
        found.append(_sum(doubtful.join(events, on="event_id").filter(wrong.fill_null(value=True))))
    return [
        ("sizes that are missing or cannot be", *_added(found), "totals of bytes and rates are wrong or incomplete")
    ]


@once_per_process
def shapes(report: Report) -> list[Check]:
    """Kernels with an impossible launch shape; an unknown shape does not count as one."""
    launches = report.kernel_config
    sides = pl.col(*_SHAPE)
    known = pl.any_horizontal(sides != 0)
    threads = pl.col("block_x").cast(pl.Int64) * pl.col("block_y") * pl.col("block_z")
    wrong = pl.any_horizontal(sides <= 0) | (threads > _MOST_THREADS)
    wrong |= (pl.col("grid_y") > _MOST_BLOCKS) | (pl.col("grid_z") > _MOST_BLOCKS)
    wrong |= ~pl.col("registers_per_thread").is_between(0, _MOST_REGISTERS).fill_null(value=True)
    for name in ("static_shared_bytes", "dynamic_shared_bytes"):
        wrong |= ~pl.col(name).is_between(0, _MOST_SHARED_BYTES).fill_null(value=True)
    odd = launches.filter(known & wrong).select("event_id")
    kernels = report.kind("kernel").select("event_id", "dur_ns").join(odd, on="event_id", how="semi")
    return [("kernels of an impossible shape", *_sum(kernels), "occupancy, waves and findings about them are wrong")]


def _sum(events: pl.DataFrame) -> tuple[int, int]:
    """The number of events, and their total duration in ns."""
    return events.height, total(events, "dur_ns")


def _added(found: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(count for count, _ in found), sum(ns for _, ns in found)


# The table of all checks, and what of it is a doubt.

#: Checks whose result is no fault of the report.
_USUAL: Final = (
    "unified-memory copies",
    "launches captured into graphs",
    "kernels started before the one before ended",
    "events in the trace",
    "arrows between events",
    "ranges drawn on devices",
    "recordings of CUDA events",
    "names and marks",
)

TABLE: Final = Table(
    "health",
    "One thing that was looked at; a count of 0 means that it was found in order.",
    (
        Column("check", pl.String, "What was looked at."),
        Column("count", pl.Int64, "How many rows, tables or columns are not in order."),
        Column("ns", pl.Int64, "The time that they stand for; null where that is not known.", nullable=True),
        Column("effect", pl.String, "What cannot be trusted or told if there are any."),
        Column(
            "doubt",
            pl.Boolean,
            "Whether the page says so: there are some, and they are not just how the tool works.",
        ),
    ),
    purpose="how far the report can be trusted",
    tools=("nsys", "torch", "ncu"),
    reads=(
        *DEVICE_KINDS,
        "api",
        "sync",
        "range",
        "op",
        "overhead",
        "fault",
        "memory",
        "osrt",
        "kernel_config",
        "copy_detail",
        "collective_detail",
        "devices",
        "notes",
    ),
    may_read=("python", "library", "memory_detail"),
)


def doubts(report: Report, *, everything: bool) -> pl.DataFrame:
    """The doubtful rows of :func:`health`, without those on what its analyses could not tell, which say so themselves.

    With `everything`, checks the whole report; else only the event tables that are already loaded, and the reader's
    notes on them, which takes no noticeable time.
    """
    whole = report.whole
    notes = whole.table("notes") if everything else whole.notes_of_read()
    checks: list[Check] = []
    for kinds, check in CHECKS[-1:] if report.meta.timeless else CHECKS:
        if everything or all(whole.was_read(kind) for kind in kinds if kind in whole.kinds):
            checks += check(whole)
    return check_table(checks, notes).filter("doubt")


def check_table(checks: list[Check], notes: pl.DataFrame, usual: Sequence[str] = ()) -> pl.DataFrame:
    """The table of these checks and notes; `usual` ones and those of :data:`_USUAL` are no doubts."""
    schema = {column.name: column.dtype for column in TABLE.columns[:-1]}
    found = pl.DataFrame(checks, schema=schema, orient="row")
    every = pl.concat([found, notes.with_columns(pl.col("count").fill_null(1))])
    return TABLE.select(every.with_columns(doubt=(pl.col("count") > 0) & ~pl.col("check").is_in([*_USUAL, *usual])))


@once_per_process
def pairing(report: Report) -> list[Check]:
    alone = operations(report).filter(launch_rows(report).is_null())
    moved_by_driver = pl.col("detail").cast(pl.String).str.starts_with("Unified").fill_null(value=False)
    unified, lost = alone.filter(moved_by_driver), alone.filter(~moved_by_driver)
    unused = unused_launches(report)
    inside = unused.filter("captured")
    outside = unused.filter(~pl.col("captured"))
    return [
        (
            "launches without an operation",
            outside.height,
            total(outside, "dur_ns"),
            "failed, captured into a graph, or their operations were not recorded",
        ),
        (
            "launches captured into graphs",
            inside.height,
            total(inside, "dur_ns"),
            "they ran nothing by themselves; the graph's launches did",
        ),
        (
            "operations without a launch",
            lost.height,
            _length(lost),
            "the idle time before them is attributed by their process's most recent launch",
        ),
        (
            "unified-memory copies",
            unified.height,
            _length(unified),
            "the driver makes them without a call; idle time before them is attributed by the most recent launch",
        ),
    ]


#: Calls that set memory. One is of 0 bytes if it returned in less than this part of the time of any other of its
#: process that set some, and in less time than it takes to start an operation.
_SETTING: Final = re.compile(r"(?:cuda|cu)Memset")
_NOTHING: Final = 0.75
_NOTHING_NS: Final = 2500


def unused_launches(report: Report) -> pl.DataFrame:
    """Launching calls that no operation refers to: columns dur_ns and captured (inside a capture on their thread).

    Of calls with one correlation id, such as those of two interfaces inside each other, one is referred to for all.
    Calls that set 0 bytes, as libraries make them, launch nothing, and are not among them.
    """
    key = ["process_id", "correlation_id"]
    calls = report.kind("api").select("name", *key, "thread_id", "start_ns", "dur_ns")
    launching = names_that(report, is_launch_name)
    lost = calls.select(pl.col("name").is_in(launching).fill_null(value=False)).to_series()
    used = launching_rows(report)
    found = calls.filter(lost.scatter(used, False))  # noqa: FBT003 - polars has no name for it
    if found.height:
        found = found.join(calls.select(pl.col(key).gather(used)), on=key, how="anti").sort("start_ns")
        setting = pl.col("name").is_in(names_that(report, _SETTING.match))
        shortest = rows_at(calls, used).filter(setting).group_by("process_id", "name").agg(least=pl.col("dur_ns").min())
        found = found.join(shortest, on=["process_id", "name"], how="left", nulls_equal=True, maintain_order="left")
        nothing = pl.col("dur_ns") < pl.min_horizontal(_NOTHING * pl.col("least"), _NOTHING_NS)
        found = found.filter(~(nothing & pl.col("least").is_not_null()))
    spans = captures(report).select("process_id", "thread_id", "end", start_ns="start").sort("start_ns")
    last = found.join_asof(spans, on="start_ns", by=["process_id", "thread_id"], check_sortedness=False)
    return last.select("dur_ns", captured=(pl.col("start_ns") < pl.col("end")).fill_null(value=False))


@once_per_process
def _times(report: Report) -> list[Check]:
    work = operations(report).with_columns(start="began", end=pl.col("began") + pl.col("dur_ns"))
    backwards, instant = work.filter(pl.col("dur_ns") < 0), work.filter(pl.col("dur_ns") == 0)
    calls = report.kind("api").filter(pl.col("dur_ns") < 0)
    end = recorded_until(report) if report.meta.end_ns is None else report.meta.end_ns
    early = pl.lit(value=False) if report.meta.end_ns is None else pl.col("start") < 0
    outside = work.clear() if end is None else work.filter(early | (pl.col("end") > end))
    over = _overlaps_in_streams(report)
    wrong, ahead = over.filter(~pl.col("programmatic")), over.filter("programmatic")
    return [
        (
            "negative durations",
            backwards.height + calls.height,
            -_length(backwards) - int(calls.get_column("dur_ns").sum()),
            "they count as nothing in the ledger, and as they are in sums",
        ),
        (
            "operations of zero duration",
            instant.height,
            0,
            "below the clock's resolution: their time is too low",
        ),
        ("operations outside the recording", outside.height, _length(outside), "their times cannot be right"),
        (
            "kernels that overlap within a stream",
            wrong.height,
            total(wrong, "ns"),
            "their times cannot be right; sums of durations exceed the busy time",
        ),
        (
            "kernels started before the one before ended",
            ahead.height,
            total(ahead, "ns"),
            "programmatic dependent launch, as cuBLAS does; sums of durations exceed the busy time",
        ),
    ]


def _overlaps_in_streams(report: Report) -> pl.DataFrame:
    """Kernels that start before the previous one in their stream ends: ns (of overlap) and programmatic.

    `programmatic` says that they may: on a GPU of compute capability 9.0 and later, where the kernel before ends first.
    """
    kernels = report.kind("kernel").select("process_id", "device", "context_id", "stream", "start_ns", "dur_ns")
    line = kernels if kernels.get_column("start_ns").is_sorted() else kernels.sort("start_ns", maintain_order=True)
    end = pl.col("start_ns") + pl.col("dur_ns")
    if not line.select((pl.col("start_ns") < end.cum_max().shift(1)).any()).item():
        return pl.DataFrame(schema={"ns": pl.Int64, "programmatic": pl.Boolean})
    before = end.shift(1).over("process_id", "device", "context_id", "stream")
    told = line.drop_nulls("stream").select("device", ns=before - pl.col("start_ns"), after=end >= before)
    major = pl.col("compute_capability").str.extract(r"^(\d+)\.").cast(pl.Int64)
    able = report.devices.filter(major >= _PROGRAMMATIC_FROM).get_column("device")
    programmatic = pl.col("after") & pl.col("device").is_in(able.implode())
    return told.filter(pl.col("ns") > 0).select("ns", programmatic=programmatic.fill_null(value=False))


@once_per_process
def _graphs(report: Report) -> list[Check]:
    whole = operations(report).filter(pl.col("kind") == "graph")
    effect = "the kernels inside are in no kernel table; record with --cuda-graph-trace=node to see them"
    return [("graph launches without nodes", whole.height, _length(whole), effect)]


@once_per_process
def names(report: Report) -> list[Check]:
    unnamed = operations(report).filter(pl.col("name").is_null())
    calls = report.kind("api").filter(pl.col("name").is_null())
    return [
        (
            "events without a name",
            unnamed.height + calls.height,
            _length(unnamed) + int(calls.get_column("dur_ns").sum()),
            "the report's string table is incomplete; they are summed under an empty name",
        ),
    ]


#: The checks on the events alone, in the table's order, each with the kinds of events that it reads.
CHECKS: Final[tuple[tuple[tuple[str, ...], Callable[[Report], list[Check]]], ...]] = (
    ((*DEVICE_KINDS, "api"), pairing),
    ((*DEVICE_KINDS, "api"), _times),
    (HOST_KINDS, host_times),
    ((*DEVICE_KINDS, "api"), operation_times),
    ((*DEVICE_KINDS, "api"), unplaced),
    ((*DEVICE_KINDS, "api"), repetitions),
    (("api", "sync"), lost_waits),
    (("memcpy", "memset", "memory"), sizes),
    (("kernel",), shapes),
    (DEVICE_KINDS, _graphs),
    ((*DEVICE_KINDS, "api"), names),
)


def _length(work: pl.DataFrame) -> int:
    return int((work.get_column("end") - work.get_column("start")).sum())
