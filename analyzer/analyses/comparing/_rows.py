"""Rows of a table that compares two sides: a value of an iteration before and after, and whether that is a change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from kanalyze.analyses.comparing._pair import integers
from kanalyze.schema import Column
from kanalyze.units import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kanalyze.analyses.comparing._pair import Changes, Floats, Pair

#: The columns about time that all of these tables have.
TIMES: Final = (
    Column("base_ns", pl.Int64, "Time of it in an iteration of base."),
    Column("new_ns", pl.Int64, "Time of it in an iteration of new."),
    Column("delta_ns", pl.Int64, "new_ns less base_ns."),
)

CERTAINTY: Final = (
    Column("ratio", pl.Float64, "new_ns by base_ns; null where one side has none.", nullable=True),
    Column("ratio_low", pl.Float64, "Lower end of its 95 % interval; null with one run a side.", nullable=True),
    Column("ratio_high", pl.Float64, "Upper end.", nullable=True),
    Column("changed", pl.Boolean, "Whether that is more than the least effect and more than noise."),
)

COUNTS: Final = (
    Column("base_count", pl.Float64, "How many in an iteration of base."),
    Column("new_count", pl.Float64, "How many in an iteration of new."),
)


def times(base: Floats, new: Floats, whole: tuple[int, int] | None = None) -> list[pl.Series]:
    """The columns of :data:`TIMES` of values [rows, runs]: means, which sum to `whole` where that is given."""
    means = base.mean(axis=1), new.mean(axis=1)
    if whole is None:
        before, after = (pl.Series(nearest(side.tolist()), dtype=pl.Int64) for side in means)
    else:
        before, after = (pl.Series(integers(side, ns), dtype=pl.Int64) for side, ns in zip(means, whole, strict=True))
    return [before.alias("base_ns"), after.alias("new_ns"), (after - before).alias("delta_ns")]


def summed(values: Floats, groups: Iterable[Sequence[int]]) -> Floats:
    """The sums of `values` [rows, runs] over the rows of each group: [groups, runs]."""
    return np.array([values[list(rows)].sum(axis=0) for rows in groups])


def whole_means(column: str, values: tuple[Floats, Floats] | list[Floats]) -> list[pl.Series]:
    """The columns ``base_`` and ``new_`` with this ending: means of values [rows, runs] as whole numbers."""
    return [
        pl.Series(f"{name}_{column}", nearest(side.mean(axis=1).tolist()), dtype=pl.Int64)
        for name, side in zip(("base", "new"), values, strict=True)
    ]


def counts(base: Floats, new: Floats) -> list[pl.Series]:
    """The columns of :data:`COUNTS` of numbers [rows, runs]."""
    return [pl.Series("base_count", base.mean(axis=1)), pl.Series("new_count", new.mean(axis=1))]


def certainty(found: Changes) -> list[pl.Series]:
    """The columns of :data:`CERTAINTY`."""
    columns = {"ratio": found.ratio, "ratio_low": found.low, "ratio_high": found.high}
    known = [pl.Series(name, values).fill_nan(None) for name, values in columns.items()]
    return [*known, pl.Series("changed", found.changed)]


def compared(pair: Pair, base: Floats, new: Floats, whole: tuple[int, int] | None = None) -> list[pl.Series]:
    """The columns of :data:`TIMES` and :data:`CERTAINTY` of times [rows, runs]."""
    return [*times(base, new, whole), *certainty(pair.changed(base, new))]


def by_size(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """The rows by the size of their difference, the largest first."""
    falling = [True, True, *(False for _ in keys)]
    return frame.sort(pl.col("delta_ns").abs(), "new_ns", *keys, descending=falling, nulls_last=True)
