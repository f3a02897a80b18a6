"""Cutting stretches of time where others begin and end, so that each part lies in one of them or in none."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.frames import count_up_to, spread

#: Earlier and later than any time of any trace.
_BEFORE_ALL: Final = -(1 << 62)
_AFTER_ALL: Final = 1 << 62


def overlaid(pieces: pl.DataFrame, spans: pl.DataFrame, value: str) -> pl.DataFrame:
    """`pieces` cut where `spans` begin and end, with the `value` of the span that a part lies in, null for none.

    Both are sorted by start and do not overlap; the parts are in the order of time and keep the pieces' columns.
    """
    values = spans.get_column(value)
    if spans.is_empty() or pieces.is_empty():
        return pieces.with_columns(pl.lit(None, dtype=values.dtype).alias(value))
    place = pl.int_range(2 * spans.height, dtype=pl.UInt32, eager=True)  # start, end, start…: sorted as they are
    edges = pl.concat([spans.get_column("start"), spans.get_column("end")]).gather(
        place % 2 * spans.height + place // 2
    )
    # what lies between two edges has the number of the first one, from 1 on; the odd ones are spans, the even ones none
    first = count_up_to(edges, pieces.get_column("start"), equal=True)
    last = count_up_to(edges, pieces.get_column("end"), equal=False)
    rows, nth = spread((last.cast(pl.Int64) - first + 1).clip(lower_bound=1))
    between = (first.gather(rows) + nth).cast(pl.UInt32)
    parts = pieces if len(rows) == pieces.height else pieces[rows]
    begins = pl.Series([_BEFORE_ALL], dtype=pl.Int64).append(edges)
    ends = edges.append(pl.Series([_AFTER_ALL], dtype=pl.Int64))
    inside = values.gather((between // 2).clip(upper_bound=len(values) - 1)).set(between % 2 == 0, None)
    cut = parts.with_columns(
        pl.max_horizontal("start", begins.gather(between).alias("begin")).alias("start"),
        pl.min_horizontal("end", ends.gather(between).alias("stop")).alias("end"),
        inside.alias(value),
    )
    return cut.filter(pl.col("end") > pl.col("start"))


def touched(pieces: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Which of `pieces` overlap any of `spans`; these are sorted by start and do not overlap, and all last."""
    if spans.is_empty() or pieces.is_empty():
        return pl.Series([False]).new_from_index(0, pieces.height)
    begun = count_up_to(spans.get_column("start"), pieces.get_column("end"), equal=False)
    return begun > count_up_to(spans.get_column("end"), pieces.get_column("start"), equal=True)
