"""Cutting stretches of time where others begin and end, so that each part lies in one of them or in none."""

from __future__ import annotations

from typing import Final

import polars as pl

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
    edges = pl.concat([spans.get_column("start"), spans.get_column("end").alias("start")]).sort()
    # what lies between two edges has the number of the first one, from 1 on; the odd ones are spans, the even ones none
    first = edges.search_sorted(pieces.get_column("start"), side="right")
    last = edges.search_sorted(pieces.get_column("end"), side="left")
    parts = pieces.with_columns(pl.int_ranges(first, pl.max_horizontal(first, last) + 1).alias("between")).explode(
        "between"
    )
    between = parts.get_column("between").cast(pl.UInt32)
    begins = pl.Series([_BEFORE_ALL], dtype=pl.Int64).append(edges)
    ends = edges.append(pl.Series("start", [_AFTER_ALL], dtype=pl.Int64))
    inside = values.gather((between // 2).clip(upper_bound=len(values) - 1)).set(between % 2 == 0, None)
    cut = parts.with_columns(
        pl.max_horizontal("start", begins.gather(between).alias("begin")).alias("start"),
        pl.min_horizontal("end", ends.gather(between).alias("stop")).alias("end"),
        inside.alias(value),
    )
    return cut.drop("between").filter(pl.col("end") > pl.col("start"))
