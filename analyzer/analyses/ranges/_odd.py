"""Outliers among the instances of a range, or the iterations of a program: those far from the median."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.shared.buckets import BUCKETS

if TYPE_CHECKING:
    from collections.abc import Sequence

#: An instance is odd if it differs from the median by more than this factor times the median absolute deviation (3
#: standard deviations of a normal distribution), and by at least this share of the median.
_FAR: Final = 3 * 1.4826
_NOTABLE: Final = 0.1
#: Minimum number of instances for an outlier test.
_FEWEST: Final = 4


def far_from_others(values: pl.Expr, usual: pl.Expr, notable: float) -> pl.Expr:
    """Whether `values` are far from the median of the `usual` ones: by :data:`_FAR`, and `notable` of the median."""
    middle = values.filter(usual).median()
    away = (values - middle).abs()
    return (away > _FAR * away.filter(usual).median()) & (away > notable * middle) & (usual.sum() >= _FEWEST)


def judged(rows: pl.DataFrame, *, keys: Sequence[str] = ("device",)) -> pl.DataFrame:
    """Adds `odd` and `cause` to `rows` (dur_ns, warm_up, and a column per bucket), compared within `keys`."""
    told = with_changes(with_odd(rows, keys=keys), keys=keys)
    return told.with_columns(cause=pl.when("odd").then("most"))


def with_odd(rows: pl.DataFrame, *, keys: Sequence[str]) -> pl.DataFrame:
    """Adds `odd`: whether a row (dur_ns, warm_up) takes another time than those of its `keys` that do not warm up."""
    usual = ~pl.col("warm_up")
    odd = far_from_others(pl.col("dur_ns"), usual, _NOTABLE) & usual
    return rows.with_columns(odd.over(keys).fill_null(value=False).alias("odd"))


def with_changes(rows: pl.DataFrame, *, keys: Sequence[str]) -> pl.DataFrame:
    """Adds `most`: the bucket that differs most from its median, the way that a row's length does."""
    length, usual = pl.col("dur_ns"), ~pl.col("warm_up")
    sign = pl.when(length > length.filter(usual).median()).then(1).otherwise(-1)
    buckets = [pl.col(f"{name}_ns") for name in BUCKETS]
    changes = [((bucket - bucket.filter(usual).median()) * sign).over(keys) for bucket in buckets]
    most = rows.select(pl.concat_list(changes).list.arg_max()).to_series()
    return rows.with_columns(pl.Series(BUCKETS).gather(most).alias("most"))
