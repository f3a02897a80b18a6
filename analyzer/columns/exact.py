"""Overflow-safe products, sums and rates of 64-bit integers.

Times (ns), sizes (bytes) and the sums of their columns are at most :data:`LARGEST`: :func:`too_large` checks this when
a table is read, so that partial sums cannot overflow. Products are computed with 128 bits, rates with floats: bytes
times 10^9 overflow 64 bits from 9.22 GB on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

#: Bound of times (ns), sizes (bytes) and column sums: 146 years, or 4.6 exabytes.
LARGEST: Final = (1 << 62) - 1

_NS_PER_S: Final = 1e9


def rate(amount: pl.Expr, ns: pl.Expr) -> pl.Expr:
    """Amount per second as a float; null for a duration of 0."""
    return pl.when(ns > 0).then(amount.cast(pl.Float64) * _NS_PER_S / ns)


def rate_of(amount: float, ns: float) -> float:
    """Amount per second of two numbers; a duration of 0 counts as 1 ns."""
    return amount * _NS_PER_S / max(ns, 1)


def part(of: pl.Expr, some: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """`some` / `whole` of a number, rounded down to int64; null on overflow or if `whole` is 0."""
    return (wide(of) * wide(some) // wide(whole)).cast(pl.Int64, strict=False)


def product(*factors: pl.Expr) -> pl.Expr:
    """The int64 product of three 32-bit or two 64-bit integers; null on overflow."""
    found = wide(factors[0])
    for factor in factors[1:]:
        found = found * wide(factor)
    return found.cast(pl.Int64, strict=False)


def added(column: pl.Expr) -> pl.Expr:
    """The int64 sum of a column that :func:`too_large` did not check; null on overflow."""
    return wide(column).sum().cast(pl.Int64, strict=False)


def wide(column: pl.Expr) -> pl.Expr:
    """The column as int128, so that two values can be multiplied."""
    return column.cast(pl.Int128)


def too_large(frame: pl.DataFrame, summed: Sequence[str], single: Sequence[str]) -> str | None:
    """Checks a frame for overflow: values of `single`, sums of `summed`; a description, or None if safe."""
    for name in (*single, *summed):
        values = frame.get_column(name)
        low, high = values.min(), values.max()
        if not isinstance(low, int) or not isinstance(high, int):
            continue
        farthest = low if -low > high else high
        if abs(farthest) > LARGEST:
            return f"{name} is {farthest:,} in a row"
        # most columns are far below the bound, and need no exact check
        if name in summed and abs(farthest) * len(values) > LARGEST:
            whole = int(values.cast(pl.Int128).abs().sum())
            if whole > LARGEST:
                return f"{name} adds up to {whole:,}"
    return None


def last_end(frame: pl.DataFrame) -> int:
    """The latest start_ns + dur_ns of a frame, or an upper bound of it if that is below :data:`LARGEST`."""
    most = [frame.get_column(name).max() for name in ("start_ns", "dur_ns")]
    least = sum(time for time in most if isinstance(time, int))
    if least <= LARGEST:
        return least
    return int(frame.select((wide(pl.col("start_ns")) + pl.col("dur_ns").fill_null(0)).max()).item())
