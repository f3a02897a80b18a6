"""Rows of a table that compares two sides: a value of an iteration before and after, and whether that is a change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from kanalyze.analyses.comparing._pair import integers
from kanalyze.schema import Column
from kanalyze.units import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kanalyze.analyses.comparing._pair import Floats, Pair
    from kanalyze.digest import Digest

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


def compared(pair: Pair, base: Floats, new: Floats, whole: tuple[int, int] | None = None) -> list[pl.Series]:
    """The columns of :data:`TIMES` and :data:`CERTAINTY` of times [rows, runs].

    Times are means, which sum to `whole` where that is given.
    """
    sides = [side.mean(axis=1) for side in (base, new)]
    spans = map(nearest, (side.tolist() for side in sides)) if whole is None else map(integers, sides, whole)
    before, after = (pl.Series(one, dtype=pl.Int64) for one in spans)
    found = pair.changed(base, new)
    certain = {"ratio": found.ratio, "ratio_low": found.low, "ratio_high": found.high}
    return [
        before.alias("base_ns"),
        after.alias("new_ns"),
        (after - before).alias("delta_ns"),
        *(pl.Series(name, values).fill_nan(None) for name, values in certain.items()),
        pl.Series("changed", found.changed),
    ]


def by_key(
    pair: Pair,
    rows: Callable[[Digest], pl.DataFrame],
    keys: Sequence[str],
    ns: str,
    *means: str,
    whole: tuple[int, int] | None = None,
) -> pl.DataFrame:
    """The rows of a table of digests, those of one key together: the keys, :data:`TIMES` and :data:`CERTAINTY` by `ns`.

    With the means of further columns: of ``count`` :data:`COUNTS`, of others whole numbers.
    """
    names, values = pair.per_iteration(rows, keys, (ns, *means))
    base, new = values[ns]
    columns = [*names, *compared(pair, base, new, whole if names.height else None)]
    for one in means:
        columns += counts(*values[one]) if one == "count" else whole_means(one, values[one])
    return pl.DataFrame(columns)


def by_size(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """The rows by the size of their difference, the largest first."""
    falling = [True, True, *(False for _ in keys)]
    return frame.sort(pl.col("delta_ns").abs(), "new_ns", *keys, descending=falling, nulls_last=True)
