"""Launches by which a library times kernels to choose among them, as torch.compile and Triton do."""

from __future__ import annotations

from typing import Final

import polars as pl

#: Fewest launches that are timed after fills of one size, and most launches between two fills.
_FEWEST: Final = 50
_MOST: Final = 16


def without_timed(line: pl.DataFrame) -> pl.DataFrame:
    """A line of launches without those that are timed; the line itself where there are none.

    Before each of them the cache is cleared, by a fill of always the same size. What is between two such fills is timed
    if it is short, and the same as before the first or after the second of them: each kernel is timed several times.
    """
    counts = line.filter("fill").get_column("exact").value_counts(name="number")
    for code in counts.filter(pl.col("number") >= _FEWEST).get_column("exact").sort():
        line = _without(line, code)
    return line


def _without(line: pl.DataFrame, code: int) -> pl.DataFrame:
    """The line without what is timed after fills with this code."""
    number = (line.get_column("exact") == code).cum_sum().alias("fill")
    after = line.select(number, "exact").filter(pl.col("fill") > 0)
    parts = after.group_by("fill", maintain_order=True).agg(pl.len(), pl.col("exact").sum())
    same = (pl.col("exact") == pl.col("exact").shift(1)) | (pl.col("exact") == pl.col("exact").shift(-1))
    timed = parts.filter((pl.col("len") <= _MOST + 1) & same).get_column("fill")
    return line if len(timed) < _FEWEST else line.filter(~number.is_in(timed.implode()))
