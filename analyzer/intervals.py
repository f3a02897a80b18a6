"""Interval arithmetic: union, intersection, difference, clipping, exclusive time.

An interval is ``[start, end)`` in integer nanoseconds; one that ends where it starts, or before, covers nothing. A
*span set* is a frame with the Int64 columns ``start`` and ``end`` whose rows are sorted, do not overlap and do not
touch; every instant is in it at most once. All functions are vectorised; tests/test_intervals.py holds each against
a model that walks instant by instant.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from kanalyze.columns import count_up_to, in_order, of_parts, parts_by

#: Sentinels beyond all times of any trace, and far from overflow in differences.
BEFORE_ALL, AFTER_ALL = -(1 << 62), 1 << 62

SPANS: Final = {"start": pl.Int64, "end": pl.Int64}

#: Start and end of events; one that was never closed ends where it starts.
END: Final = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
OF_EVENTS: Final = {"start": pl.col("start_ns"), "end": END}


def union(intervals: pl.DataFrame) -> pl.DataFrame:
    """The union of `intervals` (columns start, end; unsorted), as a span set."""
    real = _real(pl.DataFrame([intervals.get_column("start"), intervals.get_column("end")]))
    if real.is_empty():
        return pl.DataFrame(schema=SPANS)
    real = in_order(real, "start")
    start, reached = real.get_column("start"), real.get_column("end").cum_max()
    apart = start.slice(1) > reached.slice(0, len(reached) - 1)
    if apart.all():
        return real
    first, last = pl.Series([True]).extend(apart), apart.extend(pl.Series([True]))
    return pl.DataFrame([start.filter(first), reached.filter(last)])


def union_by(intervals: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """The union of the `intervals` of each combination of values of `keys`, which are in other columns."""
    unions = [intervals.clear().select(*keys, *SPANS)]
    for key, part in parts_by(intervals, keys).items():
        named = (pl.lit(value, dtype=intervals.schema[name]).alias(name) for name, value in zip(keys, key, strict=True))
        unions.append(union(part).with_columns(named).select(unions[0].columns))
    return pl.concat(unions)


def _real(intervals: pl.DataFrame) -> pl.DataFrame:
    """`intervals` without those that cover nothing."""
    return intervals.filter(intervals.get_column("end") > intervals.get_column("start"))


def length(spans: pl.DataFrame) -> int:
    """The total length of intervals, overlaps counted repeatedly."""
    return int((spans.get_column("end") - spans.get_column("start")).sum())


def clip(intervals: pl.DataFrame, start: int, end: int) -> pl.DataFrame:
    """Clips each interval to ``[start, end)``; drops those outside, other columns stay."""
    return _real(intervals.with_columns(pl.col("start", "end").clip(start, end)))


def overlapping(
    events: pl.DataFrame, sides: tuple[int | None, int | None], start: str = "start", end: str | pl.Expr = "end"
) -> pl.DataFrame:
    """The `events` that overlap ``[low, high)``, not clipped, and those without duration inside it; None is open."""
    low, high = sides
    until = pl.col(end) if isinstance(end, str) else end
    if low is not None:
        events = events.filter((until > low) | (pl.col(start) == low))
    return events if high is None else events.filter(pl.col(start) < high)


def cut(intervals: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Intersects each interval with `spans`, a span set: one row per piece, other columns stay."""
    if spans.is_empty() or intervals.is_empty():
        return intervals.clear()
    begins, ends = spans.get_column("start"), spans.get_column("end")
    first = ends.search_sorted(intervals.get_column("start"), side="right")
    last = begins.search_sorted(intervals.get_column("end"), side="left")
    touches = last > first
    inside = (
        intervals.filter(touches)
        .lazy()
        .with_columns(pl.int_ranges(first.filter(touches), last.filter(touches), dtype=pl.UInt32).alias("at"))
        .explode("at")
        .with_columns(
            pl.max_horizontal("start", pl.lit(begins).gather("at")).alias("start"),
            pl.min_horizontal("end", pl.lit(ends).gather("at")).alias("end"),
        )
    )
    return inside.drop("at").filter(pl.col("end") > pl.col("start")).collect(engine="in-memory")


def gaps(spans: pl.DataFrame, start: int, end: int) -> pl.DataFrame:
    """The complement of `spans`, a span set, within ``[start, end)``."""
    inside = clip(spans, start, end)
    begins, stops = (pl.Series([value], dtype=pl.Int64) for value in (start, end))
    begins, stops = begins.extend(inside.get_column("end")), inside.get_column("start").clone().extend(stops)
    return _real(pl.DataFrame([begins.alias("start"), stops.alias("end")]))


def covered_before(points: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """The length of a span set before each of `points`, in ns."""
    start, end = spans.get_column("start"), spans.get_column("end")
    # of the spans that have begun all but what is behind the point; with one more for before the first start
    lengths = pl.Series([0], dtype=pl.Int64).extend((end - start).cum_sum())
    ends = pl.Series([BEFORE_ALL], dtype=pl.Int64).extend(end)
    begun = count_up_to(start, points, equal=True)
    return lengths[begun] - (ends[begun] - points).clip(0)


def overlap(start: pl.Series, end: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """The length of each ``[start, end)`` covered by a span set, in ns; 0 for empty or reversed intervals."""
    before = covered_before(pl.concat([start, end]), spans)
    return (before.slice(len(start)) - before.head(len(start))).clip(0)


def covered(rows: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """The length of each of `rows` (start, end) covered by the span set `spans`, in ns."""
    return overlap(rows.get_column("start"), rows.get_column("end"), spans)


def covered_by(rows: pl.DataFrame, key: str, spans: Mapping[Any, pl.DataFrame]) -> pl.Series:
    """The length of each of `rows` (`key`, start, end) covered by the span set of its key, in ns; 0 without one."""
    none = pl.DataFrame(schema=SPANS)
    rows = rows.select(key, "start", "end")
    return of_parts(rows, [key], pl.Int64, lambda keys, part: covered(part, spans.get(keys[0], none)))


def exclusive(intervals: pl.DataFrame) -> pl.Series:
    """The exclusive time of each of `intervals` (start, end, began, rank, event_id), in ns; adds up to the union.

    `began` is the start before any clipping. Each instant belongs to one interval: among those that cover it, the one
    with the lowest rank, then the one that started first, then the lower event_id (definitions.md, section 5).
    """
    apart = in_order(intervals.select("start", "end"), "start")
    if (apart.get_column("start") >= apart.get_column("end").cum_max().shift(1)).all():
        return (intervals.get_column("end") - intervals.get_column("start")).clip(0).alias("exclusive_ns")
    line = intervals.select("start", "end", "began", "rank", "event_id").with_row_index("row")
    parts, above = [line.select("row", exclusive_ns="end").clear()], pl.DataFrame(schema=SPANS)
    for rank in sorted(line.get_column("rank").unique().to_list()):
        level = line.filter(pl.col("rank") == rank).sort("began", "event_id")
        uncovered = first_come(level)
        hidden = overlap(uncovered.get_column("own_start"), uncovered.get_column("own_end"), above)
        parts.append(uncovered.select("row", exclusive_ns=pl.col("own_end") - pl.col("own_start") - hidden))
        above = union(pl.concat([above, level.select("start", "end")]))
    return pl.concat(parts).sort("row").get_column("exclusive_ns")


def first_come(intervals: pl.DataFrame) -> pl.DataFrame:
    """The part of each interval not covered by earlier rows, as `own_start` and `own_end`; other columns stay.

    The rows must be sorted by start: what earlier rows cover of a row is then a piece at its beginning.
    """
    end = pl.max_horizontal("start", "end")
    covered_until = end.cum_max().shift(1)
    return intervals.with_columns(
        pl.min_horizontal(pl.max_horizontal("start", covered_until), end).alias("own_start"), end.alias("own_end")
    )


def newly_covered(intervals: pl.DataFrame, key: str) -> pl.Series:
    """The time of each interval that earlier ones of its key (UInt32) do not cover; sorted by key, then by start."""
    begins = pl.max_horizontal("start", pl.col("end").cum_max().shift(1).over(key))
    return intervals.select((pl.col("end") - begins).clip(lower_bound=0)).to_series()


def subtract(spans: pl.DataFrame, holes: pl.DataFrame) -> pl.DataFrame:
    """The difference `spans` minus `holes`, both span sets."""
    if spans.is_empty() or holes.is_empty():
        return spans
    low = int(spans.get_column("start").item(0))
    high = int(spans.get_column("end").item(-1))
    return intersect(spans, gaps(holes, low, high))


def alone(intervals: pl.DataFrame) -> pl.DataFrame:
    """The span set covered by exactly one of `intervals`."""
    real = _real(intervals.select("start", "end"))
    # encodes each edge as one integer, so that one column is sorted: twice the time, plus one at a start
    edges = pl.concat([real.get_column("start") * 2 + 1, real.get_column("end") * 2]).sort()
    deep = edges.to_frame("edge").select((pl.col("edge") % 2 * 2 - 1).cum_sum() == 1).to_series()
    at, deep = edges // 2, deep.head(max(len(deep) - 1, 0))
    return union(pl.DataFrame([at.head(len(deep)).filter(deep).alias("start"), at.slice(1).filter(deep).alias("end")]))


def intersect(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """The intersection of two span sets."""
    few, many = sorted((left, right), key=len)
    return cut(few.select("start", "end"), many)
