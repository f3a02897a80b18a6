"""Splits intervals at the edges of others, so that each part lies in one of those or in none."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.columns.lookup import count_up_to
from kanalyze.intervals import AFTER_ALL, BEFORE_ALL

#: With so many times more pieces than spans, the search goes from spans to pieces.
_MANY: Final = 8


def overlaid(pieces: pl.DataFrame, spans: pl.DataFrame, value: str) -> pl.DataFrame:
    """Splits `pieces` at the edges of `spans`; adds the column `value` of the span around each part, null for none.

    Both (start, end) are sorted and disjoint; the parts are sorted by start and keep the columns of `pieces`.
    """
    values = spans.get_column(value)
    if spans.is_empty() or pieces.is_empty():
        return pieces.with_columns(pl.lit(None, dtype=values.dtype).alias(value))
    edges = spans.select(pl.concat_arr("start", "end")).to_series().explode()  # sorted, as spans are
    # elementary intervals are numbered by their first edge, from 1 on: odd ones are inside a span, even ones between
    first = count_up_to(edges, pieces.get_column("start"), equal=True)
    last = count_up_to(edges, pieces.get_column("end"), equal=False)
    last = last.zip_with(last > first, first)
    parts, between = pieces, first
    if (last > first).any():
        touched_by = pl.DataFrame([first.alias("first"), last.alias("last")]).with_row_index("row")
        every = touched_by.select("row", at=pl.int_ranges("first", pl.col("last") + 1, dtype=pl.UInt32)).explode("at")
        parts, between = pieces[every.get_column("row")], every.get_column("at")
    sides = pl.Series([BEFORE_ALL], dtype=pl.Int64).extend(edges).extend(pl.Series([AFTER_ALL], dtype=pl.Int64))
    inside = values[((between - 1) // 2).set((between & 1) == 0, None)]
    cut = parts.with_columns(
        pl.max_horizontal("start", sides[between].alias("begin")).alias("start"),
        pl.min_horizontal("end", sides[between + 1].alias("stop")).alias("end"),
        inside.alias(value),
    )
    return cut.filter(cut.get_column("end") > cut.get_column("start"))


def touched(pieces: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Whether each of `pieces` overlaps any of `spans`, which are sorted, disjoint and longer than 0."""
    none = pl.Series([False]).new_from_index(0, pieces.height)
    if spans.is_empty() or pieces.is_empty():
        return none
    start, end = pieces.get_column("start"), pieces.get_column("end")
    if spans.height * _MANY < pieces.height and start.is_sorted() and end.is_sorted():
        # overlapping pieces: from the first that ends after the span starts to the last that starts before it ends
        first = count_up_to(end, spans.get_column("start"), equal=True)
        stop = count_up_to(start, spans.get_column("end"), equal=False)
        near = pl.DataFrame([first.alias("first"), stop.alias("stop")]).filter(stop > first)
        rows = near.select(pl.int_ranges("first", "stop", dtype=pl.UInt32).explode()).to_series()
        return none.scatter(rows, True)  # noqa: FBT003 - polars has no name for it
    begun = count_up_to(spans.get_column("start"), end, equal=False)
    return begun > count_up_to(spans.get_column("end"), start, equal=True)
