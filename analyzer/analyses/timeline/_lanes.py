"""Lanes: places side by side in a track, so that no two events of a lane overlap."""

from __future__ import annotations

from typing import Final

import polars as pl

#: Most lanes of a track; what is nested more deeply is left out, and counted.
MOST: Final = 128


def lanes_of_events(start: pl.Series, end: pl.Series) -> pl.Series:
    """Lane of each event of a track, as UInt16; null for what would need more than :data:`MOST`.

    The first lane has each event that begins when all before it have ended, so the outermost ones where they nest; the
    next lane the same of the rest, and so on.

    Args:
        start: Starts, sorted; of equal ones the longest event first.
        end: Ends.
    """
    found = pl.Series("lane", [None], dtype=pl.UInt16).new_from_index(0, len(start))
    rest = pl.DataFrame([start.alias("start"), end.alias("end")]).with_row_index("at")
    free = pl.col("start") >= pl.col("end").cum_max().shift(1)
    for lane in range(MOST):
        if rest.is_empty():
            break
        own = rest.select(free.fill_null(value=True)).to_series()
        found = found.scatter(rest.get_column("at").filter(own), lane)
        rest = rest.filter(~own)
    return found
