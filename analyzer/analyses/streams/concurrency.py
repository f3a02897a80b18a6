"""Overlap of each stream with all others, or of pairs of streams of one context: overlap, alternation and waits."""

from __future__ import annotations

from typing import Final, Unpack

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, of_device
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.requirements import check_grouping, require
from kanalyze.analyses.streams._streams import (
    busy_spans,
    placed_operations,
    spans_by_stream,
    stream_waits,
    used_streams,
)
from kanalyze.model import DEVICE_KINDS, STREAM_TYPES
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

#: Most streams of a context that are compared, the busiest ones: each is a bit of an Int64.
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
    compared, parts = [], [pl.DataFrame(schema={**_PAIR, **_SUMS}), _turns(report), _waits(report)]
    for members in streams.drop_nulls("stream").partition_by("group", maintain_order=True):
        numbers = [number for number in members.get_column("number") if number in busy]
        kept = sorted(sorted(numbers, key=lambda number: -length[number])[:MOST_STREAMS])
        compared += kept
        parts.append(_overlaps([busy[number] for number in kept], kept))
    sums = pl.concat(parts, how="diagonal").group_by(*_PAIR).agg(pl.col(*_SUMS).sum())
    known = sums.filter(pl.col("first").is_in(compared) & pl.col("second").is_in(compared))
    known = known.filter(pl.any_horizontal(pl.col("overlap_ns", "turns", "waits", "ordered_waits") > 0))
    times = pl.DataFrame({"number": list(length), "busy_ns": list(length.values())}, schema=_LENGTHS)
    both = streams.join(times, on="number")
    other = both.select("number", other_stream="stream", other_type="type", other_busy_ns="busy_ns")
    never = (pl.col("overlap_ns") == 0) & (pl.col("waits") > 0)
    joined = known.join(both, left_on="first", right_on="number").join(other, left_on="second", right_on="number")
    return joined.with_columns(never_overlap=never)


_LENGTHS: Final = {"number": pl.UInt32, "busy_ns": pl.Int64}


def _overlaps(spans: list[pl.DataFrame], numbers: list[int]) -> pl.DataFrame:
    """Overlap of each pair of streams, given as span sets: first, second, overlap_ns.

    The set of running streams is a bit mask, so one sweep over all edges gives the time of each set.
    """
    if len(numbers) <= 1:
        return pl.DataFrame(schema=_PAIR)
    edges = [
        edge.with_columns(bit=pl.lit(bit, dtype=pl.Int64))
        for place, part in enumerate(spans)
        for edge, bit in ((part.select(at="start"), 1 << place), (part.select(at="end"), -(1 << place)))
    ]
    line = pl.concat(edges).sort("at")
    pieces = line.select(running=pl.col("bit").cum_sum(), ns=pl.col("at").shift(-1) - pl.col("at"))
    sets = pieces.group_by("running").agg(pl.col("ns").sum())
    rows = []
    for place, number in enumerate(numbers[:-1]):
        with_it, later = sets.filter(pl.col("running") // (1 << place) % 2 == 1), range(place + 1, len(numbers))
        times = {str(other): (pl.col("ns") * (pl.col("running") // (1 << other) % 2)).sum() for other in later}
        others = zip(numbers[place + 1 :], with_it.select(**times).row(0), strict=True)
        rows += [(number, other, ns) for other, ns in others if ns]
    return pl.DataFrame(rows, schema={**_PAIR, "overlap_ns": pl.Int64}, orient="row")


def _turns(report: Report) -> pl.DataFrame:
    """Number of consecutive operations of a context, by start, on the two streams of a pair."""
    work = placed_operations(report).filter(pl.col("end") > pl.col("start")).select("group", "number", "began", "row")
    streams = used_streams(report).drop_nulls("stream").get_column("number")
    line = work.filter(pl.col("number").is_in(streams.implode())).sort("group", "began", "row")
    before = pl.col("number").shift(1)
    turn = (pl.col("group") == pl.col("group").shift(1)) & (pl.col("number") != before)
    pairs = line.select(
        first=pl.min_horizontal("number", before), second=pl.max_horizontal("number", before), turn=turn
    )
    return pairs.filter("turn").group_by(*_PAIR).agg(turns=pl.len().cast(pl.Int64))


def _waits(report: Report) -> pl.DataFrame:
    """Number and length of waits between the two streams of a pair, within the window."""
    waits = in_window(report, stream_waits(report))
    free = ~pl.col("ordered")
    return waits.group_by(
        first=pl.min_horizontal("number", "behind_number"), second=pl.max_horizontal("number", "behind_number")
    ).agg(
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
    ended = pl.col("began") + pl.col("dur_ns")
    sums = work.group_by("number").agg(operations=pl.len(), first_ns=pl.col("began").min(), last_ns=ended.max())
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
    parts = (part.with_columns(number=pl.lit(number, dtype=pl.UInt32)) for number, part in spans.items())
    lengths = pl.col("end") - pl.col("start")
    return pl.concat(part.select("number", "start", "end", ns=lengths) for part in parts)


def _covered(spans: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Sets `ns` of each of `spans` to its overlap with a span set."""
    ns = intervals.overlap(spans.get_column("start"), spans.get_column("end"), others)
    return spans.with_columns(ns.alias("ns"))


def _sums(spans: pl.DataFrame, name: str) -> pl.DataFrame:
    """The summed `ns` of each stream: columns number and `name`."""
    return spans.group_by("number").agg(pl.col("ns").sum().alias(name))
