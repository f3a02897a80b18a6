"""Frames of tens of millions of rows: what takes no memory, and what is cheaper than its general form."""

from __future__ import annotations

import polars as pl


def constant(values: pl.Series) -> bool:
    """Whether every value is the same, and none is missing; False for no values."""
    return not values.is_empty() and not values.null_count() and values.min() == values.max()


def _single(values: pl.Series) -> bool:
    missing = values.null_count()
    if missing or values.is_empty():
        return missing == len(values) > 0
    return values.dtype.is_integer() and values.min() == values.max()


def stacked(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """One frame of `parts`, at least one, which are emptied: a column at a time, so that little is in memory twice.

    Columns with one integer only, or nothing at all, become literals, which take no memory.
    """
    names = parts[0].columns
    columns = {name: [part.get_column(name) for part in parts] for name in names}
    parts.clear()
    frame = pl.DataFrame([pl.concat(columns.pop(names[0]), rechunk=True)])
    for name in names[1:]:
        values = pl.concat(columns.pop(name), rechunk=True)
        literal = _single(values)
        frame = frame.with_columns(pl.lit(values.item(0), dtype=values.dtype).alias(name) if literal else values)
    return frame


def owned(frame: pl.DataFrame) -> pl.DataFrame:
    """A copy of `frame` in polars' own memory, so that what its columns were made of can go."""
    return pl.concat([frame.clear(), frame], rechunk=True)
