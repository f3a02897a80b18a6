"""Pairs of streams of one context: overlap, alternation and waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.streams._serialised import stream_waits
from kanalyze.analyses.streams._streams import busy_spans, placed_operations, used_streams

if TYPE_CHECKING:
    from kanalyze.report import Report

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
        with_it = sets.filter(pl.col("running") // (1 << place) % 2 == 1)
        others = with_it.select(
            (pl.col("ns") * (pl.col("running") // (1 << other) % 2)).sum().alias(str(numbers[other]))
            for other in range(place + 1, len(numbers))
        )
        rows += [(number, int(other), ns) for other, ns in others.row(0, named=True).items() if ns]
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
