"""What ran at the same time: each stream against all others, or streams two by two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, of_device
from kanalyze.analyses.shared.requirements import require
from kanalyze.analyses.streams._pairs import stream_pairs
from kanalyze.analyses.streams._streams import busy_spans, placed_operations, spans_by_stream, used_streams
from kanalyze.errors import UnknownNameError
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
    """The streams in scope, or pairs of them, and what overlapped.

    Args:
        report: Where to look; operations that overlap its window count, times are cut at it.
        by: ``pair`` compares streams two by two.
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
    require(report, TABLE.name, *DEVICE_KINDS)
    if by not in (None, *TABLE.groupings):
        raise UnknownNameError.of("grouping of concurrency", by, TABLE.groupings)
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
    """What overlaps on one device: the columns of :data:`_TIMES`, by the numbers of its streams.

    While a stream runs, another one runs a kernel exactly where any stream does, unless this one alone does.
    """
    spans = _together(busy)
    single = _covered(spans, intervals.alone(spans)) if len(busy) > 1 else spans
    parts = [_sums(spans, "busy_ns"), _sums(single, "alone_ns")]
    for rank, bucket in enumerate(BUSY_BUCKETS if len(busy) > 1 else ()):
        name, alike = f"overlap_{bucket}_ns", work.filter(pl.col("rank") == rank).select("number", "start", "end")
        if alike.height == work.height:  # where nothing else ran, all of it is known already
            beside, itself = spans, single
        elif alike.height:
            own = _together(spans_by_stream(alike))
            beside, itself = _covered(spans, intervals.union(alike)), _covered(own, intervals.alone(own))
        else:
            continue
        parts += [_sums(beside, name), _sums(itself, name).with_columns(-pl.col(name))]
    every = pl.DataFrame({"number": list(busy)}, schema={"number": pl.UInt32})
    sums = pl.concat([pl.DataFrame(schema=_TIMES), every, *parts], how="diagonal").group_by("number")
    return sums.agg(pl.exclude("number").sum())


def _together(spans: dict[int, pl.DataFrame]) -> pl.DataFrame:
    """The span sets of several streams as one frame: columns number, ns (their length), start, end."""
    parts = [
        part.select(pl.lit(number, dtype=pl.UInt32).alias("number"), "start", "end") for number, part in spans.items()
    ]
    return pl.concat(parts).with_columns(ns=pl.col("end") - pl.col("start"))


def _covered(spans: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """`spans` with how much of each of them a span set covers as `ns`."""
    ns = intervals.overlap(spans.get_column("start"), spans.get_column("end"), others)
    return spans.with_columns(ns.alias("ns"))


def _sums(spans: pl.DataFrame, name: str) -> pl.DataFrame:
    """The summed `ns` of each stream: columns number and `name`."""
    return spans.group_by("number").agg(pl.col("ns").sum().alias(name))
