"""Doubts about a report that its events show without any analysis.

Impossible times, ids, sizes and launch shapes, duplicates, launches and operations without each other: each check is a
row of the table `health` (docs/definitions.md, section 6). No event is dropped or repaired because of it. Kept apart
from that table, since every command checks for doubts before it ends.
"""

import re
from collections.abc import Callable, Sequence
from functools import update_wrapper
from itertools import pairwise
from typing import Final

import polars as pl

from kanalyze import columns, intervals, model, schema, window
from kanalyze.analyses.device._operations import SHAPE, facts_of, launching_rows, operations, recorded_until, with_facts
from kanalyze.analyses.host._call_kinds import BY_DRIVER, call_names, calls_that, names_that, unused_launches
from kanalyze.analyses.idle.syncs import blocking_calls
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.analyses.streams.concurrency import STREAM, STREAM_KEYS, recorded_work
from kanalyze.report import Report
from kanalyze.tools import NAMES

#: What a check found: how many rows, for how long (ns), of what; with what cannot be trusted if there are any.
Count = tuple[str, int, int | None]
Check = tuple[str, int, int | None, str]

_WORK: Final = (*model.DEVICE_KINDS, "api")  # what tells of operations and their launches

#: Kinds of host events with a duration. Python functions are checked by their reader, which need not link them.
_HOST_KINDS: Final = ("api", "sync", "range", "op", "overhead", "fault", "osrt", "library")

#: Upper limits of plausibility: 16 TiB, and 64 TB/s for anything that takes a microsecond or more.
_LARGEST_BYTES: Final = 1 << 44
_FASTEST_BYTES_PER_NS: Final = 64_000
_LEAST_NS: Final = 1_000

#: The limits of CUDA and HIP on a launch; a grid's x dimension is limited only by its type.
_MOST_BLOCKS: Final = 1 << 16
_MOST_THREADS: Final = 1024

#: From this compute capability on a kernel may start before the one before it in its stream has ended.
_PROGRAMMATIC_FROM: Final = 9

_CLOCKS_NS: Final = 10_000  # how far the clocks of GPU and host may be apart in a sound report
_ROUNDED_NS: Final = 1_000  # how far rounded times of one clock may be apart: old traces hold whole microseconds

#: So many ranges of a thread may start within one tick of the clock: the coarsest that nsys has takes 0.1 µs.
_TOGETHER: Final = 2

#: Calls that start one kernel, unlike launches of graphs, or of a kernel on several devices.
_ONE_KERNEL: Final = re.compile(r"(?:cuda|cu)Launch(?!.*MultiDevice)")

#: Calls that wait for a stream or event, or make a stream wait; the profiler records a synchronisation for each.
_WAITING: Final = re.compile(r"(?:cuda|cu)(?:(?:Stream|Event)Synchronize|StreamWaitEvent)")


#: The checks on the events alone, in the table's order, each with the kinds of events that it reads.
CHECKS: Final[list[tuple[tuple[str, ...], Callable[[Report], list[Check]]]]] = []


def _check(*kinds: str) -> Callable[[Callable[[Report], list[Count]]], Callable[[Report], list[Check]]]:
    """Decorator: adds a check that reads events of these `kinds` to :data:`CHECKS`, and caches its result."""

    def added(check: Callable[[Report], list[Count]]) -> Callable[[Report], list[Check]]:
        def with_effects(report: Report) -> list[Check]:
            return [(*row, _EFFECTS[row[0]]) for row in check(report)]

        CHECKS.append((kinds, analysis.once_per_process(update_wrapper(with_effects, check))))
        return CHECKS[-1][1]

    return added


_TIMES: Final = "their times cannot be right"
_CLOCKS: Final = "wrong times, or clocks that disagree"

#: What cannot be trusted or told if a check finds any.
_EFFECTS: Final = {
    "launches without an operation": "failed, captured into a graph, or their operations were not recorded",
    "launches captured into graphs": "they ran nothing by themselves; the graph's launches did",
    "operations without a launch": "the idle time before them is attributed by their process's most recent launch",
    "unified-memory copies": (
        "the driver makes them without a call; idle time before them is attributed by the most recent launch"
    ),
    "negative durations": "they count as nothing in the ledger, and as they are in sums",
    "operations of zero duration": "below the clock's resolution: their time is too low",
    "operations outside the recording": _TIMES,
    "kernels that overlap within a stream": f"{_TIMES}; sums of durations exceed the busy time",
    "kernels started before the one before ended": (
        "programmatic dependent launch, as cuBLAS does; sums of durations exceed the busy time"
    ),
    "host events that end before they start": f"{_TIMES}; sums count them as they are",
    "host events outside the recording": f"{_TIMES}; no device's window is longer for it",
    "operations that start before their launch": (
        f"{_CLOCKS}: what is told of launches, and of idle time before these, is wrong"
    ),
    "operations that end after a wait for them": f"{_CLOCKS}: when these ran, and what idle time is told of, is wrong",
    "operations without a device or stream": "those of no device count on GPU 0",
    "operations of a GPU that is not listed": (
        "of that GPU neither name nor limits are known; if its number is wrong, they ran on another one"
    ),
    "calls without a thread": "what the program did before them, and before their work, is unknown",
    "events recorded twice": "they count as often as they are there",
    "steps missing": "figures by step leave these out",
    "ranges recorded twice": "iterations and sums count them as often as they are there",
    "ranges that start at one instant": f"{_TIMES}: iterations, and what ran in a range, are wrong",
    "waits without a record": "records of synchronisations are missing: what these waited for cannot be told",
    "sizes that are missing or cannot be": "totals of bytes and rates are wrong or incomplete",
    "copies of unknown memory": "pageable copies cannot be told from pinned ones",
    "kernels of an impossible shape": "occupancy, waves and findings about them are wrong",
    "graph launches without nodes": (
        "the kernels inside are in no kernel table; record with --cuda-graph-trace=node to see them"
    ),
    "host events that cross on a thread": (
        f"{_CLOCKS}: which calls a range or operator made, and what ran in it, is wrong"
    ),
    "launches outside their operator": f"{_CLOCKS}: what an operator took, and what ran in it, is wrong",
    "kernels that share a launch of one kernel": (
        "wrong correlation ids: what launched these, and what is told of launches, is wrong"
    ),
    "operations called like calls": "names are wrong: what ran, or what was called, is unknown",
    "operations on unknown streams": "what ran beside what, and which streams wait for each other, is wrong",
    "events without a name": "the report's string table is incomplete; they are summed under an empty name",
}


def _sum(*parts: pl.DataFrame) -> tuple[int, int]:
    """The number of events in all of some tables, and their total duration in ns."""
    return sum(part.height for part in parts), sum(statistics.total(part, "dur_ns") for part in parts)


@_check(*_WORK)
def pairing(report: Report) -> list[Count]:
    alone = operations(report, "call_row").filter(pl.col("call_row").is_null())
    unified, lost = (alone.filter(moved) for moved in (BY_DRIVER, ~BY_DRIVER))
    unused, captured = unused_launches(report), pl.col("captured")
    return [
        ("launches without an operation", *_sum(unused.filter(~captured))),
        ("launches captured into graphs", *_sum(unused.filter(captured))),
        ("operations without a launch", lost.height, intervals.length(lost)),
        ("unified-memory copies", unified.height, intervals.length(unified)),
    ]


@_check(*_WORK)
def _times(report: Report) -> list[Count]:
    work = operations(report).with_columns(end=pl.col("began") + pl.col("dur_ns"))
    backwards, instant = work.filter(pl.col("dur_ns") < 0), work.filter(pl.col("dur_ns") == 0)
    over, ahead = _overlaps_in_streams(report), pl.col("programmatic")
    count, ns = _sum(backwards, report.kind("api").filter(pl.col("dur_ns") < 0))
    return [
        ("negative durations", count, -ns),
        ("operations of zero duration", instant.height, 0),
        ("operations outside the recording", *_sum(work.filter(_is_outside(report, pl.col("began"), pl.col("end"))))),
        ("kernels that overlap within a stream", *_sum(over.filter(~ahead))),
        ("kernels started before the one before ended", *_sum(over.filter(ahead))),
    ]


def _is_outside(report: Report, start: pl.Expr, end: pl.Expr) -> pl.Expr:
    """Whether events start before the recording, or end after it; null where that is not known."""
    limit = recorded_until(report) if report.meta.end_ns is None else report.meta.end_ns
    early = pl.lit(report.meta.end_ns is not None) & (start < 0)
    return early | (end > pl.lit(limit, dtype=pl.Int64))


def _overlaps_in_streams(report: Report) -> pl.DataFrame:
    """Kernels that start before the previous one in their stream ends: dur_ns (of overlap), programmatic."""
    kernels = report.kind("kernel").select(*STREAM_KEYS, "start_ns", "dur_ns")
    line = columns.in_order(kernels, "start_ns")
    end = pl.col("start_ns") + pl.col("dur_ns")
    if not line.select((pl.col("start_ns") < end.cum_max().shift(1)).any()).item():
        return pl.DataFrame(schema={"dur_ns": pl.Int64, "programmatic": pl.Boolean})
    before = end.shift(1).over(STREAM_KEYS)
    overlaps = line.drop_nulls("stream").select("device", dur_ns=before - pl.col("start_ns"), after=end >= before)
    major = pl.col("compute_capability").str.extract(r"^(\d+)\.").cast(pl.Int64)
    able = report.devices.filter(major >= _PROGRAMMATIC_FROM).get_column("device")
    programmatic = pl.col("after") & pl.col("device").is_in(able.implode())
    return overlaps.filter(pl.col("dur_ns") > 0).select("dur_ns", programmatic=programmatic.fill_null(value=False))


@_check(*_HOST_KINDS)
def host_times(report: Report) -> list[Count]:
    """Host events that end before they start, or lie outside the recording."""
    tool = report.meta.recorder
    stopped = pl.lit(None if tool.other_clock else report.meta.duration_ns, dtype=pl.Int64)
    out = _is_outside(report, *intervals.OF_EVENTS.values()) | (pl.col("start_ns") > stopped)
    times = {kind: report.kind(kind).select("start_ns", "dur_ns") for kind in _HOST_KINDS}
    outside = _sum(*(events.filter(out) for events in times.values()))
    # negative durations of calls are counted elsewhere
    mended = _HOST_KINDS if tool.mends_times else ("api",)
    own = [events for kind, events in times.items() if kind not in mended]
    count, ns = _sum(*(events.filter(pl.col("dur_ns") < 0) for events in own))
    return [("host events that end before they start", count, -ns), ("host events outside the recording", *outside)]


@_check(*_WORK)
def operation_times(report: Report) -> list[Count]:
    """Device operations that started before the call that launched them."""
    early = operations(report, "call_start").select(ns=pl.col("call_start") - pl.col("began")).filter(pl.col("ns") > 0)
    return [("operations that start before their launch", early.height, statistics.total(early, "ns"))]


@_check(*_WORK, "sync")
def waited_operations(report: Report) -> list[Count]:
    """Device operations that end after a call returned that waited for them.

    Of each operation the next call counts that begins to wait for its stream, or its context, once its launch has
    returned. Operations of graphs are left out where a stream is waited for: they may run on others. A call that copies
    to the host waits for its stream, and one that waits for a CUDA event for the work before that was recorded.
    """
    calls, work = blocking_calls(report), operations(report, "context_id", "stream", "call_end", "call_name")
    graph = pl.col("call_name").is_in(names_that(report, lambda name: "Graph" in name)).alias("graph")
    ended = work.select("row", *STREAM, "dur_ns", graph, at="call_end", ended=pl.col("began") + pl.col("dur_ns"))
    contexts = ended.filter(pl.col("at").is_not_null()).select(STREAM[:2]).unique()
    alone = contexts.filter(pl.len().over("process_id") == 1).rename({"context_id": "only"})
    waits = calls.join(alone, on="process_id", how="left").with_columns(pl.coalesce("context_id", "only"))
    to_host = facts_of(report, waits.get_column("copied"), "detail").to_series().cast(pl.String) == "Device-to-Host"
    waits = waits.with_columns(scope=pl.when(to_host).then(pl.lit("stream")).otherwise(pl.col("scope").cast(pl.String)))
    waits = waits.sort("start").select("scope", *STREAM, "record_id", "start", returned="end")
    late, waited = pl.col("ended") > pl.col("returned") + _CLOCKS_NS, []
    for scope, keys, among in (("stream", STREAM, ~pl.col("graph")), ("device", STREAM[:2], pl.lit(value=True))):
        own = waits.filter(pl.col("scope") == scope).select(*keys, "returned", at="start").drop_nulls()
        next_wait = columns.as_of(ended.select(*keys, "at"), own.drop("returned"), later=True)
        after = ended.with_columns(columns.gathered(own.get_column("returned"), next_wait))
        waited.append(after.filter(among & late).select("row", "dur_ns"))
    events = waits.filter(pl.col("scope") == "event").drop_nulls("record_id")
    if events.height:
        events = events.join(recorded_work(report), on=["process_id", "record_id"])
        behind = ended.filter(~pl.col("graph")).join(events, left_on="row", right_on="behind")
        waited.append(behind.filter(late).select("row", "dur_ns"))
    return [("operations that end after a wait for them", *_sum(pl.concat(waited).unique("row")))]


@_check(*_WORK)
def unplaced(report: Report) -> list[Count]:
    """Operations without stream (but unified-memory copies), or of no listed device, and calls without thread."""
    unified = pl.col("name").cast(pl.String).str.contains("Unified").fill_null(value=False)
    apart = pl.any_horizontal(pl.col("device", "stream").is_null())
    lost = [report.kind(kind).filter(apart & (~unified if kind == "memcpy" else True)) for kind in model.DEVICE_KINDS]
    listed = report.devices.filter(pl.any_horizontal(pl.col("name", "compute_capability").is_not_null()))
    listed = listed if listed.height else report.devices
    placed = report.of_kinds(model.DEVICE_KINDS, "device", "dur_ns").drop_nulls("device")
    return [
        ("operations without a device or stream", *_sum(*lost)),
        ("operations of a GPU that is not listed", *_sum(placed.join(listed, on="device", how="anti"))),
        ("calls without a thread", *_sum(report.kind("api").filter(pl.any_horizontal(pl.col(*THREAD).is_null())))),
    ]


@_check(*_WORK)
def repetitions(report: Report) -> list[Count]:
    """Duplicate calls and operations."""
    return [("events recorded twice", *_sum(*[_repeated(report, kind) for kind in _WORK]))]


def _repeated(report: Report, kind: str) -> pl.DataFrame:
    """The events that are the same as another one in every recorded field."""
    events = report.kind(kind)
    maybe = events.filter(columns.shared(events.get_column("start_ns")))
    again = pl.struct(pl.col(name) for name in maybe.columns if name not in {"event_id", "parent_id"})
    return maybe.filter(~again.is_first_distinct()) if maybe.height else maybe


@_check("range")
def wrong_ranges(report: Report) -> list[Count]:
    """Duplicate ranges, ranges that start with two others of their thread, and gaps in the numbers of steps.

    The first two only where the clock tells any two ranges of a thread apart: traces may have whole microseconds.
    """
    name, ranges = pl.col("name").cast(pl.String), report.kind("range")
    steps = ranges.select("process_id", "name").unique().filter(name.str.starts_with(window.STEP_PREFIX))
    number = name.str.strip_prefix(window.STEP_PREFIX).cast(pl.Int64, strict=False)
    lost = steps.group_by("process_id").agg(number.max() - number.min() + 1 - number.n_unique())
    counts: list[Count] = [("steps missing", statistics.total(lost, "name"), None)]
    if report.meta.recorder.fine_clock:
        together = ranges.filter(columns.shared(ranges.get_column("start_ns")))
        together = together.filter(pl.len().over(*THREAD, "start_ns") > _TOGETHER)
        counts.append(("ranges recorded twice", *_sum(_repeated(report, "range"))))
        counts.append(("ranges that start at one instant", *_sum(together)))
    return counts


@_check("api", "sync")
def lost_waits(report: Report) -> list[Count]:
    """Calls that waited for a stream or event without a synchronisation record, in reports that have such records."""
    if not report.meta.recorder.notes_waits:
        return []
    keys = ["process_id", "correlation_id"]
    calls = calls_that(report, _WAITING.match, *keys, "dur_ns")
    lost = calls.drop_nulls(keys).join(report.kind("sync").select(keys).unique(), on=keys, how="anti")
    return [("waits without a record", *_sum(lost))]


@_check("memcpy", "memset", "memory")
def sizes(report: Report) -> list[Count]:
    """Copies, memsets and allocations whose size is missing or impossible, and copies of memory without a name."""
    kinds, tables = ("memcpy", "memset", "memory"), ("copy_detail", "memory_detail")
    events = pl.concat(report.kind(kind).select("event_id", "dur_ns", "kind") for kind in kinds)
    sized = pl.concat(report.table(table).select("event_id", "size_bytes") for table in tables)
    size, took = pl.col("size_bytes"), pl.col("dur_ns").clip(lower_bound=_LEAST_NS)
    doubtful = sized.filter(~size.is_between(1, _FASTEST_BYTES_PER_NS * _LEAST_NS) | size.is_null())
    fast = (pl.col("kind") != "memory") & (size // _FASTEST_BYTES_PER_NS > took)
    wrong = (~size.is_between(1, _LARGEST_BYTES) | fast).fill_null(value=True)
    odd = doubtful.join(events, on="event_id").filter(wrong)
    nameless = pl.any_horizontal(pl.col("source_memory", "target_memory").is_null()) & report.meta.recorder.names_memory
    copies = report.kind("memcpy").select("event_id", "dur_ns")
    unknown = copies.join(report.copy_detail.filter(nameless), on="event_id", how="semi")
    return [("sizes that are missing or cannot be", *_sum(odd)), ("copies of unknown memory", *_sum(unknown))]


@_check("kernel")
def shapes(report: Report) -> list[Count]:
    """Kernels with an impossible launch shape; an unknown shape does not count as one."""
    sides = pl.col(*SHAPE)
    threads = pl.col("block_x").cast(pl.Int64) * pl.col("block_y") * pl.col("block_z")
    wrong = pl.any_horizontal(sides <= 0) | (threads > _MOST_THREADS)
    wrong |= (pl.col("grid_y") > _MOST_BLOCKS) | (pl.col("grid_z") > _MOST_BLOCKS)
    wrong |= ~pl.col("registers_per_thread").is_between(0, 1024).fill_null(value=True)
    shared_bytes = pl.col("static_shared_bytes", "dynamic_shared_bytes")
    wrong |= pl.any_horizontal(~shared_bytes.is_between(0, 1 << 24).fill_null(value=True))
    odd = report.kernel_config.filter(pl.any_horizontal(sides != 0) & wrong).select("event_id")
    kernels = report.kind("kernel").select("event_id", "dur_ns").join(odd, on="event_id", how="semi")
    return [("kernels of an impossible shape", *_sum(kernels))]


@_check(*model.DEVICE_KINDS)
def _graphs(report: Report) -> list[Count]:
    whole = operations(report).filter(pl.col("kind") == "graph")
    return [("graph launches without nodes", whole.height, intervals.length(whole))]


@_check("api", "range", "op")
def crossings(report: Report) -> list[Count]:
    """Calls and operators that end before an event that began in them on their thread; ranges may end on another."""
    if {"range", "op"}.isdisjoint(report.kinds):
        return []
    kinds = [report.kind(kind).select("kind", *THREAD, "start_ns", "dur_ns") for kind in ("api", "range", "op")]
    start, end, kind = pl.col("start_ns"), pl.col("start_ns") + pl.col("dur_ns"), pl.col("kind")
    crossed = (kind.shift(1) == "api") | ((kind.shift(1) == "op") & (kind != "range"))
    crossed &= pl.all_horizontal(pl.col(name) == pl.col(name).shift(1) for name in THREAD)
    order = (start.shift(1), start, end.shift(1), end)
    crossed &= pl.all_horizontal(later - earlier > _ROUNDED_NS for earlier, later in pairwise(order))
    crossing, last = [], kinds[0].clear()
    # equal parts of the time in which events start, few of which have more than so many of them
    sides = pl.concat(own.select(low=start.min(), high=start.max() + 1, number=pl.len()) for own in kinds)
    first, end_ns, number = sides.select(pl.col("low").min(), pl.col("high").max(), pl.col("number").sum()).row(0)
    turns = number // (1 << 20) + 1  # in order together, all of a report of a gigabyte take a gigabyte
    for low, high in pairwise(first + (end_ns - first) * turn // turns for turn in range(turns + 1) if number):
        events = pl.concat(part.filter(start.is_between(low, high, closed="left")) for part in kinds)
        line = columns.in_order_of(pl.concat([last, events.drop_nulls("dur_ns")]), (*THREAD, "start_ns"), ["dur_ns"])
        crossing.append(line.filter(crossed))
        last = line.unique(THREAD, keep="last", maintain_order=True)
    return [("host events that cross on a thread", *_sum(*crossing))]


@_check(*_WORK, "range", "op")
def wrong_launches(report: Report) -> list[Count]:
    """Launches outside their operator, kernels beyond the one of their launch, and names of calls for operations."""
    work, api = operations(report, "call_row"), report.kind("api")
    launching = columns.marked(api.height, launching_rows(report)) & pl.col("parent_id").is_not_null()
    calls = api.select("parent_id", "start_ns", "dur_ns").filter(launching)
    begun, end = pl.col("start_ns").alias("begun"), (pl.col("start_ns") + pl.col("dur_ns")).alias("end")
    makers = pl.concat(report.kind(kind).select("event_id", begun, end) for kind in ("op", "range"))
    inside = pl.col("start_ns").is_between(pl.col("begun") - _ROUNDED_NS, pl.col("end") + _ROUNDED_NS)
    strays = calls.join(makers, left_on="parent_id", right_on="event_id").filter(~inside)
    called = work.get_column("call_row")
    again = work.filter((columns.positions(called, called) != pl.col("row")) & (pl.col("kind") == "kernel"))
    again = with_facts(report, again, "call_name")
    again = again.filter(pl.col("call_name").is_in(names_that(report, _ONE_KERNEL.match)))
    called_alike = work.filter(pl.col("name").is_in(call_names(report).drop_nulls().implode()))
    return [
        ("launches outside their operator", *_sum(strays)),
        ("kernels that share a launch of one kernel", *_sum(again)),
        ("operations called like calls", *_sum(called_alike)),
    ]


@_check(*model.DEVICE_KINDS)
def unknown_streams(report: Report) -> list[Count]:
    """Operations on a stream that is not in the table of streams, of processes whose streams that holds."""
    streams = report.table("streams")
    processes = streams.filter(pl.col("type") != "null").get_column("process_id").unique()
    if processes.is_empty():
        return []
    lost = operations(report, *STREAM).drop_nulls(STREAM).join(streams, on=STREAM, how="anti")
    return [("operations on unknown streams", *_sum(lost.filter(pl.col("process_id").is_in(processes.implode()))))]


@_check(*_WORK)
def names(report: Report) -> list[Count]:
    unnamed = operations(report).filter(pl.col("name").is_null())
    calls = report.kind("api").filter(pl.col("name").is_null())
    ns = intervals.length(unnamed) + statistics.total(calls, "dur_ns")
    return [("events without a name", unnamed.height + calls.height, ns)]


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
    "samples of counters of GPUs",
    "nodes of CUDA graphs that are no work",
)

TABLE: Final = schema.Table(
    "health",
    "One thing that was looked at; a count of 0 means that it was found in order.",
    schema.columns("""
        check text: What was looked at.
        count int: How many rows, tables or columns are not in order.
        ns int?: The time that they stand for; null where that is not known.
        effect text: What cannot be trusted or told if there are any.
        doubt bool: Whether the page says so: there are some, and they are not just how the tool works.
    """),
    purpose="how far the report can be trusted",
    tools=NAMES,
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
    return check_table([*checks, *damaged(whole)], notes).filter("doubt")


def damaged(report: Report) -> list[Check]:
    """Tables and reports beside that could not be read so far: what needs them alone is left out of pages."""
    return [(f"{what} not read", 1, None, f"what needs it is left out: {why}") for what, why in report.damaged.items()]


def with_late(
    tables: dict[str, pl.DataFrame], report: Report, others: Sequence[Report] = ()
) -> dict[str, pl.DataFrame]:
    """The tables of a page, `health` with what came up after it was made, and doubts about `others` so far as read."""
    if TABLE.name not in tables:
        return tables
    late_tables = [check_table(damaged(report), report.source.notes_of_read())]
    for other in others:
        name = other.meta.tool if other.meta.path == report.meta.path else other.meta.path.name
        late_tables.append(doubts(other, everything=False).with_columns(pl.col("check") + f" ({name})"))
    new = pl.concat(late_tables).join(tables[TABLE.name], on="check", how="anti", maintain_order="left")
    return {**tables, TABLE.name: pl.concat([tables[TABLE.name], new])}


def check_table(checks: list[Check], notes: pl.DataFrame, usual: Sequence[str] = ()) -> pl.DataFrame:
    """The table of these checks and notes; `usual` ones and those of :data:`_USUAL` are no doubts."""
    results = pl.DataFrame(checks, schema={column.name: column.dtype for column in TABLE.columns[:-1]}, orient="row")
    rows = pl.concat([results, notes.with_columns(pl.col("count").fill_null(1))])
    return TABLE.select(rows.with_columns(doubt=(pl.col("count") > 0) & ~pl.col("check").is_in([*_USUAL, *usual])))
