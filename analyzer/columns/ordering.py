"""Columns that are sorted already, as most recordings are: neighbours are compared, nothing is hashed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


def in_order(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """`frame` sorted by a column, equal rows in their order; `frame` itself where it is sorted, as most recordings are.

    ``sort`` sorts what is sorted once more, which takes 0.1 s of the 4.9 CPU seconds of a page at 190 MB.
    """
    return frame if frame.get_column(column).is_sorted() else frame.sort(column, maintain_order=True)


def first_seen(values: pl.Series) -> pl.Series:
    """Whether each value occurs for the first time.

    ``is_first_distinct`` hashes sorted values, too: 0.19 s instead of 0.01 of the 4.9 CPU seconds of a page at 190 MB.
    """
    if values.has_nulls() or not values.is_sorted():
        return values.is_first_distinct()
    return (values != values.shift(1)).fill_null(value=True)


def repeated(values: pl.Series) -> pl.Series:
    """Whether each value occurs more than once.

    ``is_duplicated`` takes 0.32 s instead of 0.01 of the 4.9 CPU seconds of a page at 190 MB.
    """
    if values.has_nulls() or not values.is_sorted():
        return values.is_duplicated()
    return (values == values.shift(1)).fill_null(value=False) | (values == values.shift(-1)).fill_null(value=False)
