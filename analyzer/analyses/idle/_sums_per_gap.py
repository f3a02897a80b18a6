"""Group-by sums over the rows of :func:`kanalyze.analyses.idle._culprit_names.blamed`, fast for millions of gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.columns.grouping import LARGEST, numbered

if TYPE_CHECKING:
    from collections.abc import Sequence


def coded(parts: pl.DataFrame, keys: Sequence[str]) -> tuple[pl.DataFrame, int]:
    """Encodes the columns `keys` of each row as one integer; gives the encoded rows and the number of codes.

    Columns: at (row in `parts`), code (ordered by the first key) and ns.
    """
    number, size = numbered(parts, keys)
    return parts.select(number.alias("code"), "ns").with_row_index("at"), size


def of_each_gap(gaps: pl.Series, parts: pl.DataFrame, size: int) -> pl.DataFrame:
    """Sums ns by gap and code, sorted by both: at (of one row of the group), code and ns.

    `parts` are rows of :func:`coded`, `gaps` the gap of each, and `size` the number of codes.
    """
    first, last = gaps.min(), gaps.max()
    if not isinstance(first, int) or not isinstance(last, int):
        return parts
    size, rows = (1 << number.bit_length() for number in (size, parts.height))  # powers of two: division is faster
    if size * (last - first + 1) * rows > LARGEST:
        sums = parts.with_columns(gaps).group_by("gap", "code").agg(pl.col("at").first(), pl.col("ns").sum())
        return sums.sort("gap", "code").select(parts.columns)
    # packing gap, code and row into one integer and sorting takes a tenth of the time of a group-by of four columns
    keys = ((gaps - first).cast(pl.Int64) * size + parts.get_column("code")) * rows + parts.get_column("at")
    keys = keys.sort()
    same, at = keys // rows, (keys & (rows - 1)).cast(pl.UInt32).alias("at")
    reached = pl.DataFrame([at, parts.get_column("ns")[at]])
    sums = last_of_runs(reached, same)
    return parts.select("at", "code")[sums.get_column("at")].with_columns(sums.get_column("ns"))


def last_of_runs(rows: pl.DataFrame, same: pl.Series) -> pl.DataFrame:
    """Sums ns over each run of equal values of `same`; keeps the last row of a run."""
    ends = rows.with_columns(pl.col("ns").cum_sum()).filter((same != same.shift(-1)).fill_null(value=True))
    return ends.with_columns(pl.col("ns").diff().fill_null(pl.col("ns")))
