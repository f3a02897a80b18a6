"""Interval arithmetic: union, intersection, difference, clipping, exclusive time.

An interval is ``[start, end)`` in integer nanoseconds; one that ends where it starts, or before, covers nothing. A
*span set* is a frame with the Int64 columns ``start`` and ``end`` whose rows are sorted, do not overlap and do not
touch; every instant is in it at most once. All functions are vectorised; tests/test_intervals.py holds each against
a model that walks instant by instant.
"""

from __future__ import annotations

from typing import Final

import polars as pl

#: Sentinels beyond all times of any trace, and far from overflow in differences.
BEFORE_ALL: Final = -(1 << 62)
AFTER_ALL: Final = 1 << 62

SPANS: Final = {"start": pl.Int64, "end": pl.Int64}


def union(intervals: pl.DataFrame) -> pl.DataFrame:
    """The union of `intervals` (columns start, end; unsorted), as a span set."""
    if intervals.is_empty():
        return pl.DataFrame(schema=SPANS)
    real = intervals.select("start", "end").filter(pl.col("end") > pl.col("start"))
    real = real if real.get_column("start").is_sorted() else real.sort("start")
    start, reached = real.get_column("start"), _reached(real.get_column("end"))
    first = (start > reached.shift(1)).fill_null(value=True)
    return pl.DataFrame([start.filter(first), reached.filter(first.shift(-1, fill_value=True))])


def _reached(ends: pl.Series) -> pl.Series:
    """The running maximum of `ends`."""
    return ends if ends.is_sorted() else ends.cum_max()


def length(spans: pl.DataFrame) -> int:
    """The total length of intervals, overlaps counted repeatedly."""
    return int((spans.get_column("end") - spans.get_column("start")).sum())


def clip(intervals: pl.DataFrame, start: int, end: int) -> pl.DataFrame:
    """Clips each interval to ``[start, end)``; drops those outside, other columns stay."""
    outside = (pl.col("start").min() < start) | (pl.col("end").max() > end)
    inside = not intervals.select(outside.fill_null(value=False)).item()
    sides = pl.col("start", "end")
    clipped = intervals if inside else intervals.with_columns(sides.clip(start, end))
    return clipped.filter(pl.col("end") > pl.col("start"))


def cut(intervals: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Intersects each interval with `spans`, a span set: one row per piece, other columns stay."""
    if spans.is_empty() or intervals.is_empty():
        return intervals.clear()
    begins, ends = spans.get_column("start"), spans.get_column("end")
    first = ends.search_sorted(intervals.get_column("start"), side="right")
    last = begins.search_sorted(intervals.get_column("end"), side="left")
    at = pl.select(pl.int_ranges(first, pl.max_horizontal(first, last))).to_series().alias("at")
    parts = intervals.with_columns(at).explode("at").drop_nulls("at")
    at = parts.get_column("at").cast(pl.UInt32)
    inside = parts.with_columns(
        pl.max_horizontal("start", begins.gather(at).alias("begin")).alias("start"),
        pl.min_horizontal("end", ends.gather(at).alias("stop")).alias("end"),
    )
    return inside.drop("at").filter(pl.col("end") > pl.col("start"))


def gaps(spans: pl.DataFrame, start: int, end: int) -> pl.DataFrame:
    """The complement of `spans`, a span set, within ``[start, end)``."""
    inside = clip(spans, start, end)
    edge = [pl.DataFrame({"at": [value]}, schema={"at": pl.Int64}) for value in (start, end)]
    begins = pl.concat([edge[0], inside.select(at="end")]).get_column("at").alias("start")
    stops = pl.concat([inside.select(at="start"), edge[1]]).get_column("at").alias("end")
    return pl.DataFrame({"start": begins, "end": stops}).filter(pl.col("end") > pl.col("start"))


def covered_before(points: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """The length of a span set before each of `points`, in ns."""
    if spans.is_empty() or points.is_empty():
        return pl.zeros(len(points), dtype=pl.Int64, eager=True)
    start, end = spans.get_column("start"), spans.get_column("end")
    begun = start.search_sorted(points, side="right")
    whole = pl.Series([0], dtype=pl.Int64).append((end - start).cum_sum())
    last_end = pl.Series([BEFORE_ALL], dtype=pl.Int64).append(end)
    return whole.gather(begun) - (last_end.gather(begun) - points).clip(lower_bound=0)


def overlap(start: pl.Series, end: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """The length of each ``[start, end)`` covered by a span set, in ns; 0 for empty or reversed intervals."""
    if spans.is_empty() or start.is_empty():
        return pl.zeros(len(start), dtype=pl.Int64, eager=True)
    both = covered_before(pl.concat([start, end]), spans)
    return (both.slice(len(start)) - both.slice(0, len(start))).clip(lower_bound=0)


def exclusive(intervals: pl.DataFrame) -> pl.Series:
    """The exclusive time of each of `intervals` (start, end, began, rank, event_id), in ns; adds up to the union.

    `began` is the start before any clipping. Each instant belongs to one interval: among those that cover it, the one
    with the lowest rank, then the one that started first, then the lower event_id (definitions.md, section 5).
    """
    order = None
    if not intervals.get_column("began").is_sorted():
        order = intervals.select(pl.arg_sort_by("began", maintain_order=True)).to_series()
    times = intervals.select("start", "end")
    times = times if order is None else times[order]
    if not (times.get_column("start") < _reached(times.get_column("end")).shift(1)).any():
        return intervals.select(exclusive_ns=(pl.col("end") - pl.col("start")).clip(lower_bound=0)).to_series()
    line = intervals.select("start", "end", "began", "rank", "event_id").with_row_index("row")
    own = _owned(line if order is None else line[order])
    found = pl.zeros(intervals.height, dtype=pl.Int64, eager=True)
    return found.scatter(own.get_column("row"), own.get_column("ns")).alias("exclusive_ns")


def _owned(line: pl.DataFrame) -> pl.DataFrame:
    """The exclusive time of overlapping intervals, rank by rank: columns row, ns."""
    parts, above = [], pl.DataFrame(schema=SPANS)
    for rank in sorted(line.get_column("rank").unique().to_list()):
        level = line.filter(pl.col("rank") == rank).sort("began", "event_id")
        own = first_come(level)
        hidden = overlap(own.get_column("own_start"), own.get_column("own_end"), above)
        parts.append(own.select("row", ns=pl.col("own_end") - pl.col("own_start") - hidden))
        above = union(pl.concat([above, level.select("start", "end")]))
    return pl.concat(parts)


def first_come(intervals: pl.DataFrame) -> pl.DataFrame:
    """The part of each interval not covered by earlier rows, as `own_start` and `own_end`; other columns stay.

    The rows must be sorted by start: what earlier rows cover of a row is then a piece at its beginning.
    """
    end = pl.max_horizontal("start", "end")
    taken = end.cum_max().shift(1)
    return intervals.with_columns(
        pl.min_horizontal(pl.max_horizontal("start", taken), end).alias("own_start"), end.alias("own_end")
    )


def subtract(spans: pl.DataFrame, holes: pl.DataFrame) -> pl.DataFrame:
    """The difference `spans` minus `holes`, both span sets."""
    if spans.is_empty() or holes.is_empty():
        return spans
    low = int(spans.get_column("start").item(0))
    high = int(spans.get_column("end").item(-1))
    return intersect(spans, gaps(holes, low, high))


def alone(intervals: pl.DataFrame) -> pl.DataFrame:
    """The span set covered by exactly one of `intervals`."""
    return _covered_times(intervals, 1)


def intersect(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """The intersection of two span sets."""
    return _covered_times(pl.concat([left.select("start", "end"), right.select("start", "end")]), 2)


def _covered_times(intervals: pl.DataFrame, times: int) -> pl.DataFrame:
    """The span set covered by exactly `times` of `intervals`."""
    real = intervals.filter(pl.col("end") > pl.col("start"))
    # encodes each edge as one integer, so that one column is sorted: twice the time, plus one at a start
    edges = pl.concat([real.get_column("start") * 2 + 1, real.get_column("end").alias("start") * 2]).sort()
    line = edges.alias("edge").to_frame().select(at=pl.col("edge") // 2, depth=(pl.col("edge") % 2 * 2 - 1).cum_sum())
    pieces = line.select(start="at", end=pl.col("at").shift(-1), depth="depth")
    return union(pieces.filter((pl.col("depth") == times) & (pl.col("end") > pl.col("start"))))
