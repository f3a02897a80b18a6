"""Sums over the parts of idle time that :func:`kanalyze.analyses.idle._by_name.blamed` gives, for millions of gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.frames import LARGEST, numbered

if TYPE_CHECKING:
    from collections.abc import Sequence


def coded(parts: pl.DataFrame, keys: Sequence[str]) -> tuple[pl.DataFrame, int]:
    """One number for the `keys` of each part, and how many such numbers there can be.

    Columns: at (its row), code (of two parts the greater one has the greater first key) and ns.
    """
    number, size = numbered(parts, keys)
    return parts.select(number.alias("code"), "ns").with_row_index("at"), size


def of_each_gap(gaps: pl.Series, parts: pl.DataFrame, size: int) -> pl.DataFrame:
    """The sums of equal codes in equal gaps, by gap and code: columns at (of one of those rows), code and ns.

    `gaps` are those of the parts, which are what :func:`coded` gives, or the first of them.
    """
    first, last = gaps.min(), gaps.max()
    if not isinstance(first, int) or not isinstance(last, int):
        return parts
    size, rows = (1 << number.bit_length() for number in (size, parts.height))  # by which is divided faster
    if size * (last - first + 1) * rows > LARGEST:
        sums = parts.with_columns(gaps).group_by("gap", "code").agg(pl.col("at").first(), pl.col("ns").sum())
        return sums.sort("gap", "code").select(parts.columns)
    # sorting one number for gap, code and row takes a tenth of the time that grouping by four columns takes
    keys = ((gaps - first).cast(pl.Int64) * size + parts.get_column("code")) * rows + parts.get_column("at")
    keys = keys.sort()
    same, at = keys // rows, (keys & (rows - 1)).cast(pl.UInt32).alias("at")
    reached = pl.DataFrame([at, parts.get_column("ns")[at]])
    sums = last_of_runs(reached, same)
    return parts.select("at", "code")[sums.get_column("at")].with_columns(sums.get_column("ns"))


def last_of_runs(rows: pl.DataFrame, same: pl.Series) -> pl.DataFrame:
    """The last of each run of rows that are the `same`, with the sum of the run's `ns`."""
    ends = rows.with_columns(pl.col("ns").cum_sum()).filter((same != same.shift(-1)).fill_null(value=True))
    return ends.with_columns(pl.col("ns").diff().fill_null(pl.col("ns")))
