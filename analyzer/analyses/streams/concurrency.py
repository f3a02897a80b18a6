"""Streams with operations: what each overlapped with, and what one of them waited for another."""

import re
from itertools import combinations
from typing import Final, Unpack

import polars as pl

from kanalyze import intervals, model
from kanalyze.analyses.device._operations import (
    BUSY_BUCKETS,
    RESOURCES,
    SHAPE,
    device_operations,
    exclusive_operations,
    facts_of,
    of_device,
    operations,
    with_facts,
)
from kanalyze.analyses.host._call_kinds import calls_that, names_that
from kanalyze.analyses.shared.analysis import once_per_process, once_per_report, part_of
from kanalyze.columns import as_of, count_up_to, gathered, in_order, nearest, parts_by, positions
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

#: Key columns of a stream. The device is left out: a context has one device, and profilers may record a wrong one for a
#: synchronisation (nsys 2025 has 0 for streams of every GPU).
STREAM: Final = ("process_id", "context_id", "stream")

#: What identifies a call.
_CALL: Final = ("process_id", "correlation_id")

#: The call that makes a stream wait for a CUDA event.
_STREAM_WAITS: Final = re.compile(r"(?:cuda|cu)StreamWaitEvent")


def waited_for(report: Report, device: int, rows: pl.Series) -> pl.Series:
    """Names the operation that each of `rows` of a device waited for, such as ``after gemm on stream 7``.

    `rows` ended an idle interval, and were submitted before it began. Each waited for the operation that ended last
    before it on the device, or for the work in front of an event that its stream waited for, if that ended no earlier.
    """
    behind, event = _behind(report, device, rows)
    own, before = facts_of(report, rows, *STREAM), facts_of(report, behind, "name", "device", *STREAM)
    facts = before.select("name", "stream", there="device", process="process_id").with_columns(
        event.alias("event"),
        own=before.get_column("process_id").eq_missing(own.get_column("process_id")),
        same=before.get_column("context_id").eq_missing(own.get_column("context_id"))
        & (before.get_column("stream") == own.get_column("stream")).fill_null(value=False),
    )
    texts = facts.unique().with_columns(_text(device).cast(pl.Categorical).alias("culprit"))
    named = facts.join(texts, on=facts.columns, how="left", nulls_equal=True, maintain_order="left")
    return named.get_column("culprit")


def _behind(report: Report, device: int, rows: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Row of the operation that each of `rows` waited for, and whether by an event."""
    work, ended, held = operations(report), ended_last(report)[device], event_waits(report)
    starts, ends = work.get_column("start").gather(rows), work.get_column("end")
    # the device was busy until the interval began, so there is an operation that ended before
    last = ended.get_column("row").gather(count_up_to(ended.get_column("end"), starts, equal=True) - 1)
    behind = gathered(held.get_column("behind"), positions(held.get_column("row"), rows))
    in_time = ((ends.gather(behind) >= ends.gather(last)) & (ends.gather(behind) <= starts)).fill_null(value=False)
    return behind.zip_with(in_time, last), in_time


def _text(device: int) -> pl.Expr:
    """The text of :func:`waited_for` for an operation on `device`, from the columns built there."""
    after = pl.format("after {}", pl.col("name").cast(pl.String).fill_null("an operation without a name"))
    stream = pl.format("stream {}", pl.col("stream").cast(pl.String).fill_null("?"))
    gpu = pl.when(pl.col("there") == device).then(pl.lit("")).otherwise(pl.format("GPU {} ", "there"))
    return (
        pl.when("event")
        .then(pl.format("event on {}{} {}", gpu, stream, after))
        .when(~pl.col("own"))
        .then(pl.format("{} of process {}", after, pl.col("process").cast(pl.String).fill_null("?")))
        .when("same")
        .then(pl.format("{} on the same stream", after))
        .otherwise(pl.format("{} on {}", after, stream))
    )


@once_per_process
def ended_last(report: Report) -> dict[int, pl.DataFrame]:
    """The operations of each device, sorted by end: end and row; those without duration are left out."""
    work = operations(report).select("device", "start", "end", "row").filter(pl.col("end") > pl.col("start"))
    return {device: in_order(own.select("end", "row"), "end") for (device,), own in parts_by(work, ["device"]).items()}


@once_per_process
def event_waits(report: Report) -> pl.DataFrame:
    """Operations submitted after a wait for a CUDA event, with the work in front of that event.

    Columns: row (of the first operation submitted to the stream after the wait) and behind (row of the last operation
    submitted before the event was recorded, see :func:`recorded_work`; of several waits the one whose work ended last);
    sorted by row.
    """
    nothing = pl.DataFrame(schema={"row": pl.UInt32, "behind": pl.UInt32})
    if report.table("event_records").is_empty() or not names_that(report, _STREAM_WAITS.match):
        return nothing
    synced = report.kind("sync").select("event_id", *STREAM, "correlation_id")
    recorded = synced.join(report.table("sync_detail").select("event_id", "record_id").drop_nulls(), on="event_id")
    asking = _first_of_each(calls_that(report, _STREAM_WAITS.match, *_CALL, at="start_ns"))
    waiting = recorded.join(asking, on=list(_CALL)).join(recorded_work(report), on=["process_id", "record_id"])
    ends = operations(report).get_column("end").gather(waiting.get_column("behind"))
    submitted = _submitted(report, waiting).sort("at", "start", "row").select(*STREAM, "row", given="at")
    held = nearest(waiting.with_columns(ends.alias("ended")), submitted, ("at", "given"), STREAM, "after")
    last = held.drop_nulls("row").sort("row", "ended", "behind").unique("row", keep="last", maintain_order=True)
    return pl.concat([nothing, last.select("row", "behind")])


@once_per_process
def recorded_work(report: Report) -> pl.DataFrame:
    """The work in front of each record of a CUDA event: process_id, record_id and behind.

    `behind` is the row of the last operation submitted to the stream before the event; of those submitted by one call
    the one that ended last. Events without earlier work on their stream are left out.
    """
    nothing = pl.DataFrame(schema={"process_id": pl.Int64, "record_id": pl.Int64, "behind": pl.UInt32})
    records = report.table("event_records").drop_nulls(["record_id", *_CALL, *STREAM])
    if records.is_empty():
        return nothing
    calls = report.kind("api").select(*_CALL, at="start_ns")
    marks = _first_of_each(calls.join(records.select(_CALL).unique(), on=list(_CALL), how="semi"))
    marked = records.join(marks, on=list(_CALL))
    recorded = marked.unique(["process_id", "record_id"], keep="first", maintain_order=True)
    submitted = _submitted(report, recorded).sort("at", "end", "row").select(*STREAM, given="at", behind="row")
    behind = nearest(recorded, submitted, ("at", "given"), STREAM, "strictly before")
    return behind.select("process_id", "record_id", "behind").drop_nulls()


def _submitted(report: Report, used: pl.DataFrame) -> pl.DataFrame:
    """Operations submitted to the streams in `used`: the stream, row, start, end, and at (start of the launch call)."""
    work = operations(report, *STREAM).select(*STREAM, "row", "start", "end")
    on_streams = work.join(used.select(STREAM).unique(), on=list(STREAM), how="semi", maintain_order="left")
    return with_facts(report, on_streams, "call_start").rename({"call_start": "at"}).drop_nulls("at")


def _first_of_each(calls: pl.DataFrame) -> pl.DataFrame:
    """The first of the `calls` (:data:`_CALL`, at) with each id."""
    return calls.drop_nulls().sort("at", maintain_order=True).unique(_CALL, keep="first", maintain_order=True)


#: Key columns of a context; only streams of one context can order each other.
_CONTEXT: Final = ("device", "process_id", "context_id")
STREAM_KEYS: Final = (*_CONTEXT, "stream")

_NUMBERS: Final = ("number", "group")


@once_per_report
def used_streams(report: Report) -> pl.DataFrame:
    """Streams with operations on the devices in scope, at any time, sorted by :data:`STREAM_KEYS`.

    Columns: those keys, number (row index), group (one per device, process and context), type, priority and name (null
    where not recorded). Operations without a stream, such as unified-memory copies, count as a stream that is null.
    """
    streams = device_operations(report, "context_id", "stream").select(STREAM_KEYS).unique()
    recorded = report.table(model.STREAMS.name)
    group = pl.struct(_CONTEXT).rank("dense").cast(pl.UInt32).alias("group")
    numbered = streams.sort(STREAM_KEYS).with_row_index("number").with_columns(group)
    return numbered.join(recorded, on=STREAM_KEYS[1:], how="left", maintain_order="left")


def streamed_operations(report: Report, *facts: str) -> pl.DataFrame:
    """:func:`device_operations` with number and group of their streams, as in `used_streams`."""
    return pl.concat([device_operations(report, *facts), _stream_numbers(report)], how="horizontal")


@once_per_report
def _stream_numbers(report: Report) -> pl.DataFrame:
    """Number and group of the stream of each of :func:`device_operations`."""
    work, streams = device_operations(report, "context_id", "stream"), used_streams(report)
    keys = [key for key in STREAM_KEYS if streams.get_column(key).n_unique() > 1] or ["stream"]
    joined = work.select(keys).join(streams, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return joined.select(_NUMBERS)


@once_per_report
def placed_operations(report: Report) -> pl.DataFrame:
    """Operations in the window, clipped to it: `exclusive_operations` with number and group of their streams."""
    numbers = streamed_operations(report).select("row", *_NUMBERS)
    return exclusive_operations(report).join(numbers, on="row", how="left", maintain_order="left")


@once_per_report
def busy_spans(report: Report) -> dict[int, pl.DataFrame]:
    """Span set of busy time within the window, by stream number."""
    return spans_by_stream(placed_operations(report).select("number", "start", "end"))


def spans_by_stream(work: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """Union of the intervals of `work` (number, start, end), by stream number."""
    return {number: intervals.union(part) for (number,), part in parts_by(work, ["number"]).items()}


# Serialised streams: operations that were ready while another stream of their context ran, and began only after it.
#
# An operation is ready once its launch call has returned, plus a launch latency, and the previous operation of its
# stream has ended. It is taken to have waited for the operation that ended last before it began. Copies that wait for
# copies are left out, and so are kernels that wait for kernels which fill the GPU: those share an engine, whatever
# their streams.

#: Calls that order a stream by a dependency that no operation shows; graphs have dependencies of their own.
_ORDERING: Final = re.compile(
    r"StreamWaitEvent|LaunchHostFunc|StreamAddCallback|StreamWaitValue|StreamBatchMemOp|WaitExternalSemaphores"
    r"|GraphLaunch"
)

#: Upper bound of the launch latency: an idle GPU starts an operation some microseconds after its call returned.
LATENCY_NS: Final = 10_000

_WAITS: Final = {
    **dict.fromkeys(("row", "number", "behind_row", "behind_number"), pl.UInt32),
    **dict.fromkeys(("ready", "start", "end"), pl.Int64),
    "ordered": pl.Boolean,
}

#: Operations of this rank or a lower one run on the SMs.
_KERNELS: Final = BUSY_BUCKETS.index("communication")


@once_per_report
def stream_waits(report: Report) -> pl.DataFrame:
    """Operations that were ready, and waited for an operation of another stream, at any time.

    Columns, sorted by row: row and number (of its stream, as in `used_streams`), behind_row and behind_number (the same
    of the operation of its context that ended last before it began; of equals the lowest event_id), ready (since when
    it was), start and end (time in which it was ready and the other one ran), and ordered (whether an event, a callback
    or a graph may have asked for that order).
    """
    ready = ready_operations(report)
    if ready.is_empty():
        return pl.DataFrame(schema=_WAITS)
    parts = []
    for work in ready.partition_by("group"):
        ended = work.select("end", behind_row="row", behind_number="number", behind_start="start", behind="rank")
        ended = ended.sort("end", "behind_row", descending=[False, True])
        waiting = work.filter(pl.col("ready") < pl.col("start")).drop("end")
        parts.append(nearest(waiting, ended, ("start", "end")).drop_nulls("behind_row"))
    # an operation released by that end begins soon after it; others waited for something else
    waits = pl.concat(parts).filter(pl.col("start") - pl.col("end") < pl.col("end") - pl.col("ready"))
    # both could have run concurrently on the hardware
    kernel, behind_kernel = pl.col("rank") <= _KERNELS, pl.col("behind") <= _KERNELS
    both = waits.filter(kernel & behind_kernel)
    roomy = both.filter(leaves_room(report, both.get_column("behind_row")))
    waits = pl.concat([waits.filter(kernel != behind_kernel), roomy])
    held = waits.with_columns(pl.max_horizontal("ready", "behind_start").alias("start"), ordered(report, waits))
    return held.select(pl.col(name).cast(dtype) for name, dtype in _WAITS.items()).sort("row")


def ready_operations(report: Report) -> pl.DataFrame:
    """Operations of contexts with several streams, sorted by stream and start.

    Columns: row, number, group, rank, start, end, ready (null if not known), call_start, and earlier (start of the
    launch call of the previous operation of the stream).
    """
    streams = used_streams(report).drop_nulls("stream")
    several = streams.filter(pl.col("group").is_duplicated()).get_column("number")
    if several.is_empty():
        return pl.DataFrame()
    work = streamed_operations(report, "call_row", "call_start", "call_end")
    # several operations of one call are nodes of a graph, which has dependencies of its own
    alone = pl.col("call_row").is_not_null() & ~pl.col("call_row").is_duplicated()
    given = pl.when(alone).then(pl.col("call_end") + LATENCY_NS).alias("given")
    work = work.select("row", "rank", "start", "end", "number", "group", "call_start", given)
    line = work.filter(pl.col("number").is_in(several.implode()) & (pl.col("end") > pl.col("start")))
    before = pl.col("end").cum_max().shift(1).over("number")
    return line.sort("number", "start", "row").with_columns(
        pl.when(pl.col("given").is_not_null()).then(pl.max_horizontal("given", before)).alias("ready"),
        pl.col("call_start").shift(1).over("number").alias("earlier"),
    )


def leaves_room(report: Report, rows: pl.Series) -> pl.Series:
    """Whether each operation in `rows` (of `operations`) is a kernel whose grid does not fill the GPU.

    A grid fills it if it needs all of its warps, block slots, registers or shared memory. False where the report lacks
    the launch shape or the limits of the GPU.
    """
    kernels = facts_of(report, rows, "device", *SHAPE, *RESOURCES)
    known = kernels.join(report.devices, on="device", how="left", maintain_order="left")
    grid, block = (
        pl.col(f"{what}_x").cast(pl.Float64) * pl.col(f"{what}_y") * pl.col(f"{what}_z") for what in ("grid", "block")
    )
    warps = (block / pl.col("threads_per_warp")).ceil()
    needed = {
        "max_warps_per_sm": warps,
        "max_blocks_per_sm": pl.lit(1),
        "registers_per_sm": warps * pl.col("threads_per_warp") * pl.col("registers_per_thread"),
        "shared_per_sm_bytes": pl.col("static_shared_bytes") + pl.col("dynamic_shared_bytes"),
    }
    fits = {limit: grid * each < pl.col("sm_count") * pl.col(limit) for limit, each in needed.items()}
    unknown = (fit.fill_null(value=limit != "max_warps_per_sm") for limit, fit in fits.items())
    return known.select(pl.all_horizontal(unknown)).to_series()


def ordering_calls(report: Report) -> pl.DataFrame:
    """Calls that make a stream wait, or launch a graph: process_id, correlation_id, at (start)."""
    return calls_that(report, _ORDERING.search, *_CALL, at="start_ns")


def ordered(report: Report, work: pl.DataFrame) -> pl.Series:
    """Whether one of the :func:`ordering_calls` concerns the stream of each row between `earlier` and `call_start`.

    Where `earlier` is null, at any time before `call_start`.
    """
    calls, line = _with_streams(report, ordering_calls(report)), _on_streams(report, work)
    # a call without a recorded stream may concern any stream of its process
    by_stream = {True: ("process_id", "stream"), False: ("process_id",)}
    last = pl.max_horizontal(
        gathered(own.get_column("at"), as_of(line.select(*by, "at"), own.select(*by, "at")))
        for known, by in by_stream.items()
        for own in [calls.filter(pl.col("stream").is_not_null() == known)]
    )
    asked_for = (last >= pl.col("earlier")) | (last.is_not_null() & pl.col("earlier").is_null())
    return line.select(ordered=asked_for.fill_null(value=False)).to_series()


def waits_for_events(report: Report, work: pl.DataFrame) -> pl.Series:
    """Whether the stream of each row is known to wait for an event, asked for between `earlier` and `call_start`."""
    calls = calls_that(report, _STREAM_WAITS.match, *_CALL, at="start_ns").drop_nulls()
    waits = _with_streams(report, calls).drop_nulls().select("process_id", "stream", "at", asked="at")
    last = nearest(_on_streams(report, work), waits, ("at", "at"), ["process_id", "stream"])
    return last.select(waits=(pl.col("asked") > pl.col("earlier")).fill_null(value=False)).to_series()


def _with_streams(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Calls (process_id, correlation_id, at) by time, with the stream that each makes wait; null if not recorded."""
    waits = report.kind("sync").select(*_CALL, "stream").drop_nulls().unique(_CALL)
    return calls.join(waits, on=_CALL, how="left").sort("at")


def _on_streams(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """The calls of operations: earlier, at (its start), process_id and stream (of the stream's `number`)."""
    streams = used_streams(report).select(pl.col("process_id", "stream").gather(work.get_column("number")))
    return pl.concat([work.select("earlier", at="call_start"), streams], how="horizontal")


# Overlap of each stream with all others, or of pairs of streams of one context: overlap, alternation and waits.

#: Most streams of a context that are compared, the busiest ones.
MOST_STREAMS: Final = 62

_PAIR: Final = {"first": pl.UInt32, "second": pl.UInt32}
_SUMS: Final = dict.fromkeys(("overlap_ns", "turns", "waits", "waited_ns", "ordered_waits"), pl.Int64)


@once_per_report
def stream_pairs(report: Report) -> pl.DataFrame:
    """Pairs of streams that overlapped, alternated, or waited for each other.

    Columns: those of the table `concurrency` by pair.
    """
    streams, busy = used_streams(report), busy_spans(report)
    length = {number: intervals.length(spans) for number, spans in busy.items()}
    compared, pairs = [], []
    for members in streams.drop_nulls("stream").partition_by("group", maintain_order=True):
        numbers = [number for number in members.get_column("number") if number in busy]
        kept = sorted(sorted(numbers, key=lambda number: -length[number])[:MOST_STREAMS])
        compared += kept
        pairs += [(one, other, intervals.covered(busy[one], busy[other]).sum()) for one, other in combinations(kept, 2)]
    overlaps = pl.DataFrame(pairs, schema={**_PAIR, "overlap_ns": pl.Int64}, orient="row")
    parts = [pl.DataFrame(schema={**_PAIR, **_SUMS}), _turns(report), _waits(report), overlaps]
    sums = pl.concat(parts, how="diagonal").group_by(*_PAIR).agg(pl.col(*_SUMS).sum())
    related = sums.filter(pl.col("first").is_in(compared) & pl.col("second").is_in(compared))
    related = related.filter(pl.any_horizontal(pl.col("overlap_ns", "turns", "waits", "ordered_waits") > 0))
    times = pl.DataFrame([*length.items()], schema={"number": pl.UInt32, "busy_ns": pl.Int64}, orient="row")
    both = streams.join(times, on="number")
    other = both.select("number", other_stream="stream", other_type="type", other_busy_ns="busy_ns")
    never = (pl.col("overlap_ns") == 0) & (pl.col("waits") > 0)
    joined = related.join(both, left_on="first", right_on="number").join(other, left_on="second", right_on="number")
    return joined.with_columns(never_overlap=never)


def _turns(report: Report) -> pl.DataFrame:
    """Number of consecutive operations of a context, by start, on the two streams of a pair."""
    work = placed_operations(report).filter(pl.col("end") > pl.col("start")).select("group", "number", "began", "row")
    streams = used_streams(report).drop_nulls("stream").get_column("number")
    line = work.filter(pl.col("number").is_in(streams.implode())).sort("group", "began", "row")
    before = pl.col("number").shift(1)
    turn = (pl.col("group") == pl.col("group").shift(1)) & (pl.col("number") != before)
    rows = line.select(first=pl.min_horizontal("number", before), second=pl.max_horizontal("number", before), turn=turn)
    return rows.filter("turn").group_by(*_PAIR).agg(turns=pl.len().cast(pl.Int64))


def _waits(report: Report) -> pl.DataFrame:
    """Number and length of waits between the two streams of a pair, within the window."""
    waits = in_window(report, stream_waits(report))
    free, sides = ~pl.col("ordered"), ("number", "behind_number")
    return waits.group_by(first=pl.min_horizontal(sides), second=pl.max_horizontal(sides)).agg(
        waits=free.sum().cast(pl.Int64),
        waited_ns=(pl.col("end") - pl.col("start")).filter(free).sum(),
        ordered_waits=(~free).sum().cast(pl.Int64),
    )


def in_window(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """Clips intervals (start, end) to the window; those outside are left out."""
    if report.scope.window is None:
        return spans
    return spans.with_columns(pl.col("start", "end").clip(*report.scope.sides)).filter(pl.col("end") > pl.col("start"))


_TYPE: Final = "null (the legacy default stream), blocking or non-blocking, as in `streams`."

_KEYS: Final = (
    Column("device", pl.Int64, "The GPU, as in `devices`."),
    Column("process_id", pl.Int64, "Process.", nullable=True),
    Column("context_id", pl.Int64, "CUDA context.", nullable=True),
)

TABLE: Final = Table(
    "concurrency",
    "One stream, and what other streams of its device ran while it was busy.",
    (
        *_KEYS,
        Column("stream", pl.Int64, "CUDA stream; null for operations without one (unified memory).", nullable=True),
        Column("type", pl.Enum(model.STREAM_TYPES), _TYPE, nullable=True),
        Column("name", pl.String, "The name that the program gave it through NVTX.", nullable=True),
        Column("operations", pl.Int64, "Its kernels, graphs, copies and memsets."),
        Column("busy_ns", pl.Int64, "Time in which it ran anything."),
        Column("alone_ns", pl.Int64, "The part of that in which no other stream ran anything."),
        Column("overlap_kernel_ns", pl.Int64, "The part in which another stream ran a kernel, or a whole graph."),
        Column("overlap_communication_ns", pl.Int64, "The part in which another stream ran a communication kernel."),
        Column("overlap_memcpy_ns", pl.Int64, "The part in which another stream ran a copy."),
        Column("overlap_memset_ns", pl.Int64, "The part in which another stream ran a memset."),
        Column("first_ns", pl.Int64, "Start of its first operation."),
        Column("last_ns", pl.Int64, "End of the operation that ended last."),
    ),
    purpose="what each stream ran, and beside what",
    telling=("stream", "type", "operations", "busy_ns", "alone_ns", "overlap_kernel_ns", "overlap_memcpy_ns"),
    groupings=("pair",),
)

#: The table that ``by="pair"`` gives.
BY_PAIR: Final = Table(
    "concurrency",
    "Two streams of one context that ran something at the same time, or one right after the other.",
    (
        *_KEYS,
        Column("stream", pl.Int64, "The stream with the lower number."),
        Column("other_stream", pl.Int64, "The other one."),
        Column("type", pl.Enum(model.STREAM_TYPES), _TYPE, nullable=True),
        Column("other_type", pl.Enum(model.STREAM_TYPES), "The same of the other one.", nullable=True),
        *columns("""
            busy_ns int: Time in which `stream` ran anything.
            other_busy_ns int: Time in which `other_stream` did.
            overlap_ns int: Time in which both did.
            turns int: How often the next operation of the context to start is the other one's.
            waits int: Operations of either that were ready while the other ran, and began after that had ended, though
                nothing known asks for that order and both could have run at once.
            waited_ns int: How long they were ready while the other ran.
            ordered_waits int: The same where an event, a callback or a graph may have asked for it.
            never_overlap bool: Whether they never ran at the same time though they could: no overlap, but waits.
        """),
    ),
    when="--by pair",
    telling=("stream", "other_stream", "waited_ns", "overlap_ns", "waits", "turns", "busy_ns"),
)


_OVERLAPS: Final = tuple(f"overlap_{bucket}_ns" for bucket in BUSY_BUCKETS)
_TIMES: Final = {"number": pl.UInt32, **dict.fromkeys(("busy_ns", "alone_ns", *_OVERLAPS), pl.Int64)}


def concurrency(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """Streams in scope, or pairs of them, with their overlap.

    Args:
        report: The report; operations that overlap its window count, times are clipped to it.
        by: ``pair`` compares pairs of streams.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, the busiest stream of a device first; or :data:`BY_PAIR`, the pair that waited longest first.

    Raises:
        CannotTellError: The report records no device operations.
        UnknownNameError: There is no such grouping.
    """
    report = part_of(report, where, TABLE, by, *model.DEVICE_KINDS)
    if by is not None:
        order = ["device", "waited_ns", "overlap_ns", "process_id", "context_id", "stream", "other_stream"]
        return BY_PAIR.select(stream_pairs(report)).sort(order, descending=[False, True, True, *[False] * 4])
    order = ["device", "busy_ns", "process_id", "context_id", "stream"]
    work, busy = placed_operations(report), busy_spans(report)
    ended = pl.col("began") + pl.col("dur_ns")
    sums = work.group_by("number").agg(operations=pl.len(), first_ns=pl.col("began").min(), last_ns=ended.max())
    streams = used_streams(report).join(sums, on="number")
    parts = (
        _of_device(of_device(work, device), {number: busy[number] for number in members.get_column("number")})
        for (device,), members in streams.partition_by("device", as_dict=True).items()
    )
    times = pl.concat([pl.DataFrame(schema=_TIMES), *parts])
    return TABLE.select(streams.join(times, on="number")).sort(order, descending=[False, True, *[False] * 3])


def _of_device(work: pl.DataFrame, busy: dict[int, pl.DataFrame]) -> pl.DataFrame:
    """Overlap on one device by stream number: the columns of :data:`_TIMES`.

    The overlap of a stream with kernels of others is its overlap with all kernels, less the time in which it is the
    only one to run kernels; the same for the other buckets.
    """
    spans = _concatenated(busy)
    length, alone_ns = pl.col("end") - pl.col("start"), intervals.covered(spans, intervals.alone(spans))
    parts = [spans.select("number", busy_ns=length, alone_ns=alone_ns)]
    for rank, name in enumerate(_OVERLAPS):
        alike = work.filter(pl.col("rank") == rank).select("number", "start", "end")
        if alike.height:
            own = _concatenated(spans_by_stream(alike))
            parts.append(spans.select("number", intervals.covered(spans, intervals.union(alike)).alias(name)))
            parts.append(own.select("number", -intervals.covered(own, intervals.alone(own)).alias(name)))
    every = pl.DataFrame({"number": list(busy)}, schema={"number": pl.UInt32})
    sums = pl.concat([pl.DataFrame(schema=_TIMES), every, *parts], how="diagonal").group_by("number")
    return sums.agg(pl.exclude("number").sum())


def _concatenated(spans: dict[int, pl.DataFrame]) -> pl.DataFrame:
    """Concatenates the span sets of several streams: start, end, number."""
    return pl.concat(part.with_columns(number=pl.lit(number, dtype=pl.UInt32)) for number, part in spans.items())
