"""Columns of millions of rows: lookups by key, groups and order, and sums that do not overflow."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, Final, Literal

import polars as pl
from polars._typing import PolarsDataType

#: An id that more rows share than this identifies none of them: a join on it would give their number squared.
_SHARING: Final = 64


def positions(keys: pl.Series, values: pl.Series) -> pl.Series:
    """Index of the first occurrence of each of `values` in `keys`; null if absent, and for null.

    Integers that were given out one after the other, as most ids are, are looked up in a table of all numbers between
    them; others are joined. Joining them all takes 1.0 s instead of 0.2 of the 4.9 CPU seconds of a page at 190 MB, and
    3.7 of 17.4 more at 1 GB.
    """
    low, high = keys.min(), keys.max()
    # a table of all numbers between ids has at most so many times as many places as there are ids
    if isinstance(low, int) and isinstance(high, int) and high - low < 8 * len(keys):
        table = pl.Series([None], dtype=pl.UInt32).new_from_index(0, high - low + 1)
        for first in reversed(range(0, len(keys), _SLICE)):  # of equal keys the first is written last
            numbered = pl.LazyFrame([keys.slice(first, _SLICE).alias("key")]).with_row_index("row", first)
            part = numbered.drop_nulls().reverse().collect(engine="in-memory")
            table = table.scatter(_offsets(part.get_column("key"), low, high), part.get_column("row"))
        parts = (values.slice(first, _SLICE) for first in range(0, max(len(values), 1), _SLICE))
        return pl.concat([table[_offsets(part, low, high)] for part in parts], rechunk=True).alias(values.name)
    rows = pl.DataFrame([keys.alias("key")]).with_row_index("row").unique("key", keep="first").drop_nulls()
    joined = values.alias("key").to_frame().join(rows, on="key", how="left", maintain_order="left")
    return joined.get_column("row").alias(values.name)


def _offsets(ids: pl.Series, low: int, high: int) -> pl.Series:
    """Distance of each of `ids` from `low`; null for those that are not between `low` and `high`."""
    ids = ids.cast(pl.Int64) if ids.dtype.is_signed_integer() else ids
    return (ids - low).set(~((ids >= low) & (ids <= high)), None).cast(pl.UInt32)


def count_up_to(keys: pl.Series, points: pl.Series, *, equal: bool) -> pl.Series:
    """Number of the sorted `keys` before each of `points` and, with `equal`, at it; both are free of nulls."""
    return keys.search_sorted(points, side="right" if equal else "left").cast(pl.UInt32)


def nearest_place(times: pl.Series, at: pl.Series, *, later: bool = False, equal: bool = True) -> pl.Series:
    """Place in the sorted `times` of the last one before each of `at`, or with `later` of the first one after it.

    With `equal`, one at the same time counts, too; null for none, and for null.
    """
    filled = at.fill_null(strategy="forward").fill_null(0) if at.has_nulls() else at
    before = count_up_to(times, filled, equal=equal != later)
    place = before if later else before.cast(pl.Int64) - 1
    return place.set(~(at.is_not_null() & (place >= 0) & (place < len(times))), None).cast(pl.UInt32)


def as_of(points: pl.DataFrame, times: pl.DataFrame, *, later: bool = False, equal: bool = True) -> pl.Series:
    """Row of `times` that is :func:`nearest_place` to each of `points` by their column at, of the same other values.

    ``join_asof`` sorts and copies all columns of both: of 6 million operations 0.6 GB instead of 0.1.
    """
    keys = [name for name in points.columns if name != "at"]
    at, begun, parts = points.get_column("at"), times.get_column("at"), rows_by(times, keys)
    nearest_rows = pl.Series([None], dtype=pl.UInt32).new_from_index(0, points.height)
    for key, targets in rows_by(points, keys).items():
        if None not in key and (rows := parts.get(key)) is not None:
            starts = begun[rows]
            if not starts.is_sorted():
                order = starts.to_frame().select(pl.arg_sort_by("at", maintain_order=True)).to_series()
                rows, starts = rows[order], starts[order]
            place = nearest_place(starts, at if len(targets) == len(at) else at[targets], later=later, equal=equal)
            nearest_rows = nearest_rows.scatter(targets, gathered(rows, place))
    return nearest_rows


def last_of(points: pl.DataFrame, times: pl.DataFrame) -> pl.Series:
    """Row of `times` that is the last one not after each of `points`, as :func:`as_of`, of many keys with few rows."""
    keys = [name for name in points.columns if name != "at"]
    left, right = (side.with_row_index(name) for side, name in ((points, "point"), (times, "found")))
    joined = left.sort("at").join_asof(right.sort("at"), on="at", by=keys, check_sortedness=False)
    return joined.sort("point").get_column("found")


def rows_at(frame: pl.DataFrame, at: pl.Series) -> pl.DataFrame:
    """The rows of `frame` at the positions `at` (UInt32), all null where that is null, also when there are no rows.

    An expression that gathers each column takes 0.15 s instead of 0.09 of the 4.9 CPU seconds of a page at 190 MB.
    """
    return frame[at] if frame.height else frame.clear(len(at))


def gathered(values: pl.Series, at: pl.Series) -> pl.Series:
    """Gathers `values` at the positions `at`; null where `at` is null, also without any values."""
    if values.is_empty():
        return values.clear(len(at))
    return values[at] if at.dtype == pl.UInt32 else values.gather(at)  # gather takes five times as long


def marked(size: int, rows: pl.Series) -> pl.Series:
    """Whether each of so many rows is one of `rows`."""
    nothing = pl.Series([False]).new_from_index(0, size)
    return nothing.scatter(rows, True) if len(rows) else nothing  # noqa: FBT003 - polars has no name for it


def scattered(size: int, rows: pl.Series, values: pl.Series) -> pl.Series:
    """The `values` at their `rows` of so many; null elsewhere."""
    nothing = values.clear(size)
    return nothing.scatter(rows, values) if len(rows) else nothing


def shared(values: pl.Series) -> pl.Series:
    """Whether each of `values` occurs more than once, null for null; hashing takes forty times as long as sorting."""
    ordered = values.drop_nulls().sort()
    return values.is_in(ordered.filter(ordered == ordered.shift(1)).unique().implode())


def sure(mask: pl.Series) -> pl.Series:
    """`mask`, and False where it is null: without an expression where nothing is, as is usual."""
    return mask.fill_null(value=False) if mask.has_nulls() else mask


def having(names: pl.Series, pattern: str) -> pl.Series:
    """Whether names have a pattern, and are not null; each different one is read once."""
    fits = pl.col("name").filter(pl.col("name").cast(pl.String).str.contains(pattern)).implode()
    return sure(names.is_in(names.unique().alias("name").to_frame().select(fits).to_series()))


def told_of(values: pl.Series, tell: Callable[[Any], str | None], dtype: PolarsDataType = pl.String) -> pl.Series:
    """The text that `tell` gives of each of `values`, of each different one once; null for null."""
    different = values.unique().drop_nulls()
    texts = pl.Series([tell(value) for value in different], dtype=pl.String).cast(dtype)
    return values.replace_strict(different, texts, default=None, return_dtype=dtype)


def beside(frame: pl.DataFrame, side: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Left join: adds `columns` of a table keyed by event_id; null where that has no such row."""
    at = positions(side.get_column("event_id"), frame.get_column("event_id"))
    return frame.with_columns(rows_at(side.select(columns), at))


def telling(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """The rows of `frame` whose `keys` no more than :data:`_SHARING` rows share; the others would tell nothing.

    A join with what is left costs what its rows do: a damaged or made-up report may have one id on all of its rows.
    """
    return frame if frame.height <= _SHARING else frame.filter(pl.len().over(keys) <= _SHARING)


def nearest(
    left: pl.DataFrame,
    right: pl.DataFrame,
    on: tuple[str, str],
    by: Sequence[str] = (),
    side: Literal["before", "strictly before", "after"] = "before",
) -> pl.DataFrame:
    """Adds to each row of `left` the last row of `right` that is not later, of the same keys `by`; sorted by time.

    `on` are the columns of time. ``after`` adds the first one that is not earlier, and ``strictly before`` takes none
    at the same time. Other columns of `right` that `left` has, too, end in ``_right``.
    """
    left, right = in_order(left, on[0]), right.drop_nulls(on[1])
    points, times = (
        pl.DataFrame([*(frame.get_column(key) for key in by), frame.get_column(time).alias("at")])
        for frame, time in zip((left, right), on, strict=True)
    )
    added = [f"{name}_right" if name in left.columns else name for name in right.columns]
    rows = as_of(points, times, later=side == "after", equal=side != "strictly before")
    matches = rows_at(pl.DataFrame(dict(zip(added, right, strict=True))), rows)
    return left.hstack([values for name, values in zip(right.columns, matches, strict=True) if name not in by])


#: Bound of times (ns), sizes (bytes) and column sums: 146 years, or 4.6 exabytes.
LARGEST: Final = (1 << 62) - 1

#: Rows of a slice.
_SLICE: Final = 1 << 19

#: Multiplier that spreads hashes over 64 bits, so that those of several columns can be added.
_SPREAD: Final = 2862933555777941757


def rows_by(frame: pl.DataFrame, keys: Sequence[str]) -> dict[tuple[Any, ...], pl.Series]:
    """The numbers of the rows (UInt32) that have each combination of the values of `keys`, in their order."""
    if frame.is_empty():
        return {}
    of_keys = frame[[*keys]] if keys else frame  # got as a series, a column of one value takes memory from then on
    differing = [key for key in keys if not constant(of_keys.get_column(key))]
    if not differing:
        rows = pl.int_range(0, frame.height, dtype=pl.UInt32, eager=True)
        return {of_keys.row(0) if keys else (): rows}
    alike = [pl.col(key).first() for key in keys if key not in differing]
    # by fewer keys: rows of several are encoded as bytes
    parts = of_keys.lazy().with_row_index("_row").group_by(differing).agg("_row", *alike).sort(differing)
    *columns, rows = parts.select(*keys, "_row").collect(engine="in-memory")
    return dict(zip(zip(*columns, strict=True), rows, strict=True))


def constant(values: pl.Series) -> bool:
    """Whether all of `values` are equal, and none null; true of none at all."""
    return not values.has_nulls() and values.min() == values.max()


def parts_by(frame: pl.DataFrame, keys: Sequence[str]) -> dict[tuple[Any, ...], pl.DataFrame]:
    """The rows of `frame` that have each combination of the values of `keys`, in their order.

    ``partition_by`` takes 0.14 s instead of 0.04 of the 4.9 CPU seconds of a page at 190 MB.
    """
    return {key: frame if len(rows) == frame.height else frame[rows] for key, rows in rows_by(frame, keys).items()}


def of_parts(
    frame: pl.DataFrame,
    keys: Sequence[str],
    dtype: PolarsDataType,
    make: Callable[[tuple[Any, ...], pl.DataFrame], pl.Series],
) -> pl.Series:
    """Results of `make` for the rows of each combination of values of `keys`, in the order of `frame`."""
    results = pl.Series([None], dtype=dtype).new_from_index(0, frame.height)
    for key, rows in rows_by(frame, keys).items():
        if len(rows) == frame.height:
            return make(key, frame).cast(dtype)
        results = results.scatter(rows, make(key, frame[rows]))
    return results


def mixed(columns: Sequence[str]) -> pl.Expr:
    """One number (UInt64) for the values of some columns; of two different rows it is the same once in 10¹⁹ pairs.

    The hash of a struct of them takes ten times as long, and makes texts of all names.
    """
    return reduce(lambda number, of_column: number * _SPREAD + of_column, (pl.col(name).hash() for name in columns))


def slices(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Parts of `frame`, at least one: for what takes more memory than what is found out."""
    return frame.iter_slices(_SLICE) if frame.height else iter((frame,))


def in_order(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """`frame` sorted by a column, equal rows in their order; `frame` itself where it is sorted, as most recordings are.

    ``sort`` sorts what is sorted once more, which takes 0.1 s of the 4.9 CPU seconds of a page at 190 MB.
    """
    return frame if frame.get_column(column).is_sorted() else frame.sort(column, maintain_order=True)


def in_order_of(frame: pl.DataFrame, columns: Sequence[str], ties: Sequence[str | pl.Expr]) -> pl.DataFrame:
    """`frame` sorted by `columns`, then by `ties`, equal rows in their order; `frame` itself where it is sorted."""
    differing = [key for key in columns if not constant(frame.get_column(key))]  # each key takes time
    order = frame.select(pl.arg_sort_by([*differing, *ties], maintain_order=True)).to_series()
    return frame if order.is_sorted() else frame[order]


# Overflow-safe products, sums and rates of 64-bit integers.
#
# Times (ns), sizes (bytes) and the sums of their columns are at most :data:`LARGEST`: :func:`too_large` checks this
# when a table is read, so that partial sums cannot overflow. Products are computed with 128 bits, rates with floats:
# bytes times 10^9 overflow 64 bits from 9.22 GB on.

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
    result = wide(factors[0])
    for factor in factors[1:]:
        result = result * wide(factor)
    return result.cast(pl.Int64, strict=False)


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
