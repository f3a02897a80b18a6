"""Overlap of each stream with all others, or of pairs of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, of_device
from kanalyze.analyses.shared.requirements import check_grouping, require
from kanalyze.analyses.streams._pairs import stream_pairs
from kanalyze.analyses.streams._streams import busy_spans, placed_operations, spans_by_stream, used_streams
from kanalyze.model import DEVICE_KINDS, STREAM_TYPES
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from typing import Unpack

    from kanalyze.report import Report, Where

_TYPE: Final = "null (the legacy default stream), blocking or non-blocking, as in `streams`."

_CONTEXT: Final = (
    Column("device", pl.Int64, "The GPU, as in `devices`."),
    Column("process_id", pl.Int64, "Process.", nullable=True),
    Column("context_id", pl.Int64, "CUDA context.", nullable=True),
)

TABLE: Final = Table(
    "concurrency",
    "One stream, and what other streams of its device ran while it was busy.",
    (
        *_CONTEXT,
        Column("stream", pl.Int64, "CUDA stream; null for operations without one (unified memory).", nullable=True),
        Column("type", pl.Enum(STREAM_TYPES), _TYPE, nullable=True),
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
        *_CONTEXT,
        Column("stream", pl.Int64, "The stream with the lower number."),
        Column("other_stream", pl.Int64, "The other one."),
        Column("type", pl.Enum(STREAM_TYPES), _TYPE, nullable=True),
        Column("other_type", pl.Enum(STREAM_TYPES), "The same of the other one.", nullable=True),
        Column("busy_ns", pl.Int64, "Time in which `stream` ran anything."),
        Column("other_busy_ns", pl.Int64, "Time in which `other_stream` did."),
        Column("overlap_ns", pl.Int64, "Time in which both did."),
        Column("turns", pl.Int64, "How often the next operation of the context to start is the other one's."),
        Column(
            "waits",
            pl.Int64,
            "Operations of either that were ready while the other ran, and began after that had ended, though nothing "
            "known asks for that order and both could have run at once.",
        ),
        Column("waited_ns", pl.Int64, "How long they were ready while the other ran."),
        Column("ordered_waits", pl.Int64, "The same where an event, a callback or a graph may have asked for it."),
        Column(
            "never_overlap",
            pl.Boolean,
            "Whether they never ran at the same time though they could: no overlap, but waits.",
        ),
    ),
    when="--by pair",
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

    Columns:
        device, process_id, context_id, stream, type, name, operations, busy_ns, alone_ns, overlap_kernel_ns,
        overlap_communication_ns, overlap_memcpy_ns, overlap_memset_ns, first_ns, last_ns.
    """
    report = report.narrow(**where)
    require(report, TABLE if by is None else BY_PAIR, *DEVICE_KINDS)
    check_grouping(TABLE, by)
    if by is not None:
        order = ["device", "waited_ns", "overlap_ns", "process_id", "context_id", "stream", "other_stream"]
        return BY_PAIR.select(stream_pairs(report)).sort(order, descending=[False, True, True, *[False] * 4])
    order = ["device", "busy_ns", "process_id", "context_id", "stream"]
    return TABLE.select(_streams(report)).sort(order, descending=[False, True, *[False] * 3])


def _streams(report: Report) -> pl.DataFrame:
    """The rows of :data:`TABLE`, with the numbers of the streams."""
    work, busy, parts = placed_operations(report), busy_spans(report), [pl.DataFrame(schema=_TIMES)]
    sums = work.group_by("number").agg(
        operations=pl.len(), first_ns=pl.col("began").min(), last_ns=(pl.col("began") + pl.col("dur_ns")).max()
    )
    streams = used_streams(report).join(sums, on="number")
    for (device,), members in streams.partition_by("device", as_dict=True).items():
        numbers = members.get_column("number")
        parts.append(_of_device(of_device(work, device), {number: busy[number] for number in numbers}))
    return streams.join(pl.concat(parts), on="number")


def _of_device(work: pl.DataFrame, busy: dict[int, pl.DataFrame]) -> pl.DataFrame:
    """Overlap on one device by stream number: the columns of :data:`_TIMES`.

    The overlap of a stream with kernels of others is its overlap with all kernels, less the time in which it is the
    only one to run kernels; the same for the other buckets.
    """
    spans = _concatenated(busy)
    single = _covered(spans, intervals.alone(spans)) if len(busy) > 1 else spans
    parts = [_sums(spans, "busy_ns"), _sums(single, "alone_ns")]
    for rank, bucket in enumerate(BUSY_BUCKETS if len(busy) > 1 else ()):
        name, alike = f"overlap_{bucket}_ns", work.filter(pl.col("rank") == rank).select("number", "start", "end")
        if alike.height == work.height:  # only this bucket occurs: reuses the sets above
            beside, itself = spans, single
        elif alike.height:
            own = _concatenated(spans_by_stream(alike))
            beside, itself = _covered(spans, intervals.union(alike)), _covered(own, intervals.alone(own))
        else:
            continue
        parts += [_sums(beside, name), _sums(itself, name).with_columns(-pl.col(name))]
    every = pl.DataFrame({"number": list(busy)}, schema={"number": pl.UInt32})
    sums = pl.concat([pl.DataFrame(schema=_TIMES), every, *parts], how="diagonal").group_by("number")
    return sums.agg(pl.exclude("number").sum())


def _concatenated(spans: dict[int, pl.DataFrame]) -> pl.DataFrame:
    """Concatenates the span sets of several streams: number, start, end, ns (length)."""
    parts = [
        part.select(pl.lit(number, dtype=pl.UInt32).alias("number"), "start", "end") for number, part in spans.items()
    ]
    return pl.concat(parts).with_columns(ns=pl.col("end") - pl.col("start"))


def _covered(spans: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Sets `ns` of each of `spans` to its overlap with a span set."""
    ns = intervals.overlap(spans.get_column("start"), spans.get_column("end"), others)
    return spans.with_columns(ns.alias("ns"))


def _sums(spans: pl.DataFrame, name: str) -> pl.DataFrame:
    """The summed `ns` of each stream: columns number and `name`."""
    return spans.group_by("number").agg(pl.col("ns").sum().alias(name))
