"""Things that happen all along: in most equal parts of a stretch of time."""

from __future__ import annotations

from typing import Final

import polars as pl

#: Equal parts of a stretch that is not of iterations, and the share of parts that is most.
PARTS: Final = 8
_MOST: Final = 0.75


def all_along(at: pl.Expr, low: pl.Expr | int, high: pl.Expr | int, number: int = PARTS) -> pl.Expr:
    """Whether the times `at` (nulls aside) lie in most of `number` equal parts of the time from `low` to `high`."""
    part = ((at - low) * number // pl.max_horizontal(high - low, 1)).clip(0, number - 1)
    return part.drop_nulls().n_unique() >= _MOST * number
