"""Serialised streams: operations that were ready while another stream of their context ran, and began only after it.

An operation is ready once its launch call has returned, plus a launch latency, and the previous operation of its stream
has ended. It is taken to have waited for the operation that ended last before it began. Copies that wait for copies are
left out, and so are kernels that wait for kernels which fill the GPU: those share an engine, whatever their streams.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import BUSY_BUCKETS, RESOURCES, SHAPE, facts_of
from kanalyze.analyses.host._call_kinds import calls_that
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.streams._streams import streamed_operations, used_streams
from kanalyze.columns.lookup import as_of, gathered, nearest

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Calls that order a stream by a dependency that no operation shows; graphs have dependencies of their own.
_ORDERING: Final = re.compile(
    r"StreamWaitEvent|LaunchHostFunc|StreamAddCallback|StreamWaitValue|StreamBatchMemOp|WaitExternalSemaphores"
    r"|GraphLaunch"
)

#: Upper bound of the launch latency: an idle GPU starts an operation some microseconds after its call returned.
LATENCY_NS: Final = 10_000

_WAITS: Final = {
    "row": pl.UInt32,
    "number": pl.UInt32,
    "behind_row": pl.UInt32,
    "behind_number": pl.UInt32,
    "start": pl.Int64,
    "end": pl.Int64,
    "ordered": pl.Boolean,
}

#: Operations of this rank or a lower one run on the SMs.
_KERNELS: Final = BUSY_BUCKETS.index("communication")


@once_per_report
def stream_waits(report: Report) -> pl.DataFrame:
    """Operations that were ready, and waited for an operation of another stream, at any time.

    Returns:
        One row per waiting operation, sorted by row: row and number (of its stream, as in `used_streams`), behind_row
        and behind_number (the same of the operation of its context that ended last before it began; of equals the
        lowest event_id), start and end (time in which it was ready and the other one ran), and ordered (whether an
        event, a callback or a graph may have asked for that order).
    """
    ready = _ready_operations(report)
    if ready.is_empty():
        return pl.DataFrame(schema=_WAITS)
    found = pl.concat(_behind_last(part) for part in ready.partition_by("group"))
    # an operation released by that end begins soon after it; others waited for something else
    released = pl.col("start") - pl.col("end") < pl.col("end") - pl.col("ready")
    found = _on_other_engines(report, found.filter(released))
    held = found.with_columns(pl.max_horizontal("ready", "behind_start").alias("start"), ordered(report, found))
    return held.select(pl.col(name).cast(dtype) for name, dtype in _WAITS.items()).sort("row")


def _ready_operations(report: Report) -> pl.DataFrame:
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
    told = pl.col("call_row").is_not_null() & ~pl.col("call_row").is_duplicated()
    given = pl.when(told).then(pl.col("call_end") + LATENCY_NS).alias("given")
    work = work.select("row", "rank", "start", "end", "number", "group", "call_start", given)
    line = work.filter(pl.col("number").is_in(several.implode()) & (pl.col("end") > pl.col("start")))
    before = pl.col("end").cum_max().shift(1).over("number")
    return line.sort("number", "start", "row").with_columns(
        pl.when(pl.col("given").is_not_null()).then(pl.max_horizontal("given", before)).alias("ready"),
        pl.col("call_start").shift(1).over("number").alias("earlier"),
    )


def _behind_last(work: pl.DataFrame) -> pl.DataFrame:
    """As-of join: operations that were ready before they began, with the one of their context that ended last by then.

    Columns: those of `work` but its end; of that one behind_row, behind_number, behind_start, behind (rank) and end.
    """
    ended = work.select("end", behind_row="row", behind_number="number", behind_start="start", behind="rank")
    ended = ended.sort("end", "behind_row", descending=[False, True])
    waiting = work.filter(pl.col("ready") < pl.col("start")).drop("end")
    return nearest(waiting, ended, ("start", "end")).drop_nulls("behind_row")


def _on_other_engines(report: Report, found: pl.DataFrame) -> pl.DataFrame:
    """Keeps the waits in which both operations could have run concurrently on the hardware."""
    kernel, behind_kernel = pl.col("rank") <= _KERNELS, pl.col("behind") <= _KERNELS
    both = found.filter(kernel & behind_kernel)
    roomy = both.filter(leaves_room(report, both.get_column("behind_row")))
    return pl.concat([found.filter(kernel != behind_kernel), roomy])


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
    shared = pl.col("static_shared_bytes") + pl.col("dynamic_shared_bytes")
    fits = [
        (grid * warps < pl.col("sm_count") * pl.col("max_warps_per_sm")).fill_null(value=False),
        (grid < pl.col("sm_count") * pl.col("max_blocks_per_sm")).fill_null(value=True),
        (
            grid * warps * pl.col("threads_per_warp") * pl.col("registers_per_thread")
            < pl.col("sm_count") * pl.col("registers_per_sm")
        ).fill_null(value=True),
        (grid * shared < pl.col("sm_count") * pl.col("shared_per_sm_bytes")).fill_null(value=True),
    ]
    return known.select(pl.all_horizontal(fits)).to_series()


def ordering_calls(report: Report) -> pl.DataFrame:
    """Calls that make a stream wait, or launch a graph: process_id, correlation_id, at (start)."""
    return calls_that(report, _ORDERING.search, "process_id", "correlation_id", at="start_ns")


def ordered(report: Report, found: pl.DataFrame) -> pl.Series:
    """Whether one of the :func:`ordering_calls` concerns the stream of each row between `earlier` and `call_start`.

    Where `earlier` is null, at any time before `call_start`.
    """
    keys = ["process_id", "correlation_id"]
    asked = ordering_calls(report)
    waits = report.kind("sync").select(*keys, "stream").drop_nulls().unique(keys)
    asked = asked.join(waits, on=keys, how="left").sort("at")
    streams = used_streams(report).select(pl.col("process_id", "stream").gather(found.get_column("number")))
    line = pl.concat([found.select("earlier", at="call_start"), streams], how="horizontal")
    # a call without a recorded stream may concern any stream of its process
    own = _latest(line, asked.drop_nulls("stream"), ["process_id", "stream"])
    any_stream = _latest(line, asked.filter(pl.col("stream").is_null()), ["process_id"])
    last = pl.max_horizontal(own, any_stream)
    asked_for = (last >= pl.col("earlier")) | (last.is_not_null() & pl.col("earlier").is_null())
    return line.select(ordered=asked_for.fill_null(value=False)).to_series()


def _latest(line: pl.DataFrame, asked: pl.DataFrame, by: list[str]) -> pl.Series:
    """The time of the last of `asked` of the same values of `by` before each row of `line`, or at it; null for none."""
    return gathered(asked.get_column("at"), as_of(line.select(*by, "at"), asked.select(*by, "at")))
