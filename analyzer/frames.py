"""Frames of tens of millions of rows: what takes no memory, and what is cheaper than its general form."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from polars._typing import PolarsDataType

#: Numbers up to these fit 64 bits and 32 bits with room to spare.
LARGEST: Final = 1 << 62
_LARGEST_SHORT: Final = 1 << 31

#: Multiplying by it spreads numbers over all 64 bits (Knuth's MMIX generator).
_MULTIPLIER: Final = 6364136223846793005

#: Frames of fewer rows are handled as is usual in polars, which costs less there.
_MANY_ROWS: Final = 1 << 16

#: A table of all numbers between ids has at most so many times as many places as there are ids.
_SPARSE: Final = 8

#: So many points are gone along with what they are looked for in, not searched for one by one.
_WORTH_MERGING: Final = 1 << 12

#: So many parts of a frame are told apart one by one, which is faster and takes less memory than grouping.
_FEW_PARTS: Final = 8

#: Columns that are put in order together, side by side.
_COLUMNS: Final = 2

#: An id that more rows share than this names none of them: joining on it would give their number times itself.
_SHARING: Final = 64

#: Rows that are looked at together.
_SLICE: Final = 1 << 19


def taken(frame: pl.DataFrame, column: str, at: pl.Series) -> pl.Series:
    """The values of a column at the positions `at`; null where that is null, also when there are no rows at all.

    Asked of the frame: a literal column that is taken out of it gets memory for all its rows, and keeps it.
    """
    return rows_at(frame.select(column), at).to_series()


def rows_at(frame: pl.DataFrame, at: pl.Series) -> pl.DataFrame:
    """The rows of `frame` at the positions `at` (UInt32), all null where that is null, also when there are no rows.

    Three times as fast as an expression that gathers each column.
    """
    return frame[at] if frame.height else frame.clear(len(at))


def dense(low: int, high: int, count: int) -> bool:
    """Whether a table of all numbers from `low` to `high` is little longer than the `count` ids that lie there."""
    return high - low < _SPARSE * count


def first_rows(keys: pl.Series, wanted: pl.Series) -> pl.Series:
    """The row at which each of `wanted` first stands in `keys`, two columns of integers; null where it does not.

    Ids that were given out one after the other are looked up in a table of all numbers between them; others are joined.
    That saves 3.0 of the 17.4 CPU seconds of a page at 1 GB.
    """
    low, high = keys.min(), keys.max()
    if not isinstance(low, int) or not isinstance(high, int):
        return pl.Series([None], dtype=pl.UInt32).new_from_index(0, len(wanted))
    if not dense(low, high, len(keys)):
        known = keys.alias("key").to_frame().with_row_index("row").unique("key", keep="first").drop_nulls()
        asked = wanted.alias("key").to_frame()
        return asked.join(known, on="key", how="left", maintain_order="left").get_column("row")
    table = pl.Series([None], dtype=pl.UInt32).new_from_index(0, high - low + 1)
    for begin in reversed(range(0, len(keys), _SLICE)):  # of equal keys the first is written last
        places = _offsets(keys.slice(begin, _SLICE), low, high)
        rows = numbers(begin, begin + len(places))
        if places.has_nulls():
            rows, places = rows.filter(places.is_not_null()), places.drop_nulls()
        table = table.scatter(places.reverse(), rows.reverse())
    parts = (table.gather(_offsets(wanted.slice(begin, _SLICE), low, high)) for begin in range(0, len(wanted), _SLICE))
    return pl.concat([table.clear(), *parts], rechunk=True)


def _offsets(ids: pl.Series, low: int, high: int) -> pl.Series:
    """How far each of `ids` is above `low`; null for those that are not between `low` and `high`."""
    ids = ids.cast(pl.Int64) if ids.dtype.is_signed_integer() else ids
    return (ids - low).set(~((ids >= low) & (ids <= high)), None).cast(pl.UInt32)


def count_up_to(keys: pl.Series, points: pl.Series, *, equal: bool) -> pl.Series:
    """How many of the sorted `keys` lie before each of `points` and, with `equal`, at it; both are free of nulls.

    Many points that are sorted, too, are gone along with the keys, which takes a third of the time of searching and
    saves 1.3 of the 17.4 CPU seconds of a page at 1 GB.
    """
    side: Literal["left", "right"] = "right" if equal else "left"
    if len(points) >= _WORTH_MERGING and points.is_sorted():
        ends = pl.Series([points.item(0), points.item(-1)], dtype=points.dtype)
        first, last = keys.search_sorted(ends, side=side)
        if 0 < last - first < _SPARSE * len(points):
            near = pl.DataFrame([keys.slice(first, last - first).alias("key"), numbers(first + 1, last + 1).alias("n")])
            asked = points.alias("key").to_frame()
            counts = asked.join_asof(near, on="key", allow_exact_matches=equal).get_column("n")
            return counts.fill_null(first)
    return keys.search_sorted(points, side=side).cast(pl.UInt32)


def numbers(begin: int, end: int) -> pl.Series:
    """The numbers of the rows from `begin` up to `end`, without that (UInt32)."""
    return pl.int_range(begin, end, dtype=pl.UInt32, eager=True)


def rows_by(frame: pl.DataFrame, keys: Sequence[str]) -> dict[tuple[Any, ...], pl.Series]:
    """The numbers of the rows (UInt32) that have each combination of the values of `keys`, in their order.

    ``partition_by`` takes two to three times as long, which is 6 to 9 % of the page's CPU time at 190 MB.
    """
    if frame.is_empty():
        return {}
    values = {key: _different(frame, key) for key in keys}
    possible = list(product(*values.values()))
    if len(possible) == 1:
        return {possible[0]: numbers(0, frame.height)}
    if len(possible) > _FEW_PARTS:
        parts = frame.select(keys).with_row_index("row").group_by(keys, maintain_order=True).agg("row")
        return dict(zip(parts.select(keys).iter_rows(), parts.get_column("row"), strict=True))
    several = [len(of) > 1 for of in values.values()]
    alike = (
        pl.all_horizontal(
            pl.col(key).eq_missing(value) for key, value, told in zip(keys, one, several, strict=True) if told
        )
        for one in possible
    )
    found = zip(possible, (frame.select(own).to_series().arg_true() for own in alike), strict=True)
    return {one: rows for one, rows in found if len(rows)}


def _different(frame: pl.DataFrame, column: str) -> pl.Series:
    """The different values of a column, sorted; without a table of them where there is one, as is usual."""
    one = (pl.col(column).min() == pl.col(column).max()) & (pl.col(column).null_count() == 0)
    alone = frame.select(one).item()
    return frame.select(pl.col(column).first() if alone else pl.col(column).unique().sort()).to_series()


def parts_by(frame: pl.DataFrame, keys: Sequence[str]) -> dict[tuple[Any, ...], pl.DataFrame]:
    """The rows of `frame` that have each combination of the values of `keys`, in their order."""
    return {key: _part(frame, rows) for key, rows in rows_by(frame, keys).items()}


def _part(frame: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    return frame if len(rows) == frame.height else frame[rows]


def of_parts(
    frame: pl.DataFrame,
    keys: Sequence[str],
    dtype: PolarsDataType,
    make: Callable[[tuple[Any, ...], pl.DataFrame], pl.Series],
) -> pl.Series:
    """What `make` gives for the rows of each combination of values of `keys`, in the order of `frame`."""
    found = pl.Series([None], dtype=dtype).new_from_index(0, frame.height)
    for key, rows in rows_by(frame, keys).items():
        found = found.scatter(rows, make(key, _part(frame, rows)))
    return found


def first_seen(values: pl.Series) -> pl.Series:
    """Whether each value stands where it does for the first time; sorted ones are compared, not hashed.

    ``is_first_distinct`` hashes sorted values, too, which takes 2 % of the page's CPU time at 20 MB and 10 % at 190 MB.
    """
    if values.has_nulls() or not values.is_sorted():
        return values.is_first_distinct()
    return (values != values.shift(1)).fill_null(value=True)


def repeated(values: pl.Series) -> pl.Series:
    """Whether each value stands elsewhere, too; as :func:`first_seen`.

    ``is_duplicated`` takes 4 % of the page's CPU time at 20 MB, and 8 % at 190 MB.
    """
    if values.has_nulls() or not values.is_sorted():
        return values.is_duplicated()
    return (values == values.shift(1)).fill_null(value=False) | (values == values.shift(-1)).fill_null(value=False)


def slices(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Parts of `frame`, at least one: for what takes more memory than what is found out."""
    return frame.iter_slices(_SLICE) if frame.height else iter((frame,))


def telling(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """The rows of `frame` whose `keys` no more than :data:`_SHARING` rows share; the others would tell nothing.

    A join with what is left costs what its rows do: a damaged or made-up report may have one id on all of its rows.
    """
    if frame.height <= _SHARING:
        return frame
    return frame.filter(pl.len().over(keys) <= _SHARING)


def single_valued(values: pl.Series) -> bool:
    """Whether a column holds one integer only, or nothing but nulls; False for no rows."""
    missing = values.null_count()
    if missing or values.is_empty():
        return missing == len(values) > 0
    return values.dtype.is_integer() and values.min() == values.max()


def in_order(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """`frame` sorted by a column, equal rows in their order; `frame` itself where it is sorted, as most recordings are.

    ``sort`` sorts what is sorted once more, which takes 3 to 5 % of the page's CPU time; two columns at a time take 4 %
    less memory at 190 MB than all of them, if nobody else holds `frame`.
    """
    if frame.get_column(column).is_sorted():
        return frame
    order = frame.select(pl.arg_sort_by(column, maintain_order=True)).to_series()
    columns = frame.get_columns()
    del frame
    for place in range(0, len(columns), _COLUMNS):
        some = pl.DataFrame(columns[place : place + _COLUMNS])
        columns[place : place + _COLUMNS] = some[order].get_columns()
    return pl.DataFrame(columns)


def numbered(frame: pl.DataFrame, keys: Sequence[str]) -> tuple[pl.Expr, int]:
    """One number for the values of `keys` in each row, columns of integers or names, and how many there can be.

    Of two rows the greater number has the greater first key; a null counts as less than all. Where there can be more
    than :data:`LARGEST`, it does not tell rows apart.
    """
    codes = [pl.col(key).to_physical() for key in keys]
    codes = [
        code.cast(pl.Int64) if frame.schema[key].is_signed_integer() else code
        for key, code in zip(keys, codes, strict=True)
    ]
    least, most = (frame.select(side(code) for code in codes).row(0) for side in (pl.Expr.min, pl.Expr.max))
    counts = [1 if low is None else high - low + 2 for low, high in zip(least, most, strict=True)]
    size = prod(counts)
    kind = pl.UInt32 if size < _LARGEST_SHORT else pl.Int64
    number = pl.lit(0, dtype=kind)
    for code, low, count in zip(codes, least, counts, strict=True):
        if low is not None and size < LARGEST:
            number = number * count + ((code - low).cast(kind) + 1).fill_null(0)
    return number, size


def grouped(frame: pl.DataFrame, keys: Sequence[str], sums: Sequence[pl.Expr]) -> pl.DataFrame:
    """What ``frame.group_by(keys).agg(sums)`` gives, faster for many rows and many keys: by one number for them.

    That saves 0.6 of the 17.4 CPU seconds of a page at 1 GB.
    """
    number, size = numbered(frame, keys) if frame.height >= _MANY_ROWS else (pl.lit(0), LARGEST)
    if size >= LARGEST:
        return frame.group_by(keys).agg(sums)
    told = [pl.col(key).first() for key in keys]
    return frame.group_by(number.alias("number")).agg(*told, *sums).drop("number")


def mixed(columns: Sequence[str]) -> pl.Expr:
    """One number (UInt64) for the values of some columns; of two different rows it is the same once in 10¹⁹ pairs."""
    number = pl.lit(0, dtype=pl.UInt64)
    for column in columns:
        number = number * _MULTIPLIER + pl.col(column).hash()
    return number
