"""Lookups by key in columns of millions of rows: where a key stands, and what stands there."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from kanalyze.columns.grouping import rows_by
from kanalyze.columns.ordering import in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A table of all numbers between ids has at most so many times as many places as there are ids.
_SPARSE: Final = 8

#: With so many times fewer lookups than sorted keys, binary search is used, whatever the keys.
_SEARCH_FACTOR: Final = 8

#: So few keys and points, or so few ids, are looked up as integers of Python: ``search_sorted`` takes 0.1 ms for any,
#: and a table of ids 0.5.
_FEW: Final = 1 << 8
_FEW_IDS: Final = 1 << 11

#: From so many sorted points on, they are merged with the keys, not searched for one by one.
_WORTH_MERGING: Final = 1 << 12

#: An id that more rows share than this identifies none of them: a join on it would give their number squared.
_SHARING: Final = 64

#: Rows that are looked up together.
_SLICE: Final = 1 << 19


def positions(keys: pl.Series, wanted: pl.Series) -> pl.Series:
    """Index of the first occurrence of each of `wanted` in `keys`; null if absent, and for null.

    Integers that were given out one after the other, as most ids are, are looked up in a table of all numbers between
    them; others are joined. Joining them all takes 1.0 s instead of 0.2 of the 4.9 CPU seconds of a page at 190 MB, and
    3.7 of 17.4 more at 1 GB.
    """
    if len(keys) + len(wanted) <= _FEW_IDS:
        row_of = dict(zip(reversed(keys.to_list()), range(len(keys) - 1, -1, -1), strict=True))
        row_of.pop(None, None)
        return pl.Series(wanted.name, [row_of.get(one) for one in wanted.to_list()], dtype=pl.UInt32)
    if len(wanted) <= len(keys) // _SEARCH_FACTOR and not keys.has_nulls() and keys.is_sorted():
        at = keys.search_sorted(wanted, side="left").clip(upper_bound=len(keys) - 1).cast(pl.UInt32)
        return at.set(~matches(keys[at], wanted), None).alias(wanted.name)
    low, high = keys.min(), keys.max()
    if isinstance(low, int) and isinstance(high, int) and _dense(low, high, len(keys)):
        return _in_table(keys, wanted, low, high).alias(wanted.name)
    known = keys.alias("key").to_frame().with_row_index("row").unique("key", keep="first").drop_nulls()
    asked = wanted.alias("key").to_frame()
    return asked.join(known, on="key", how="left", maintain_order="left").get_column("row").alias(wanted.name)


def _in_table(keys: pl.Series, wanted: pl.Series, low: int, high: int) -> pl.Series:
    """:func:`positions` by a table of all numbers from `low` to `high`."""
    table = pl.Series([None], dtype=pl.UInt32).new_from_index(0, high - low + 1)
    for begin in reversed(range(0, len(keys), _SLICE)):  # of equal keys the first is written last
        places = _offsets(keys.slice(begin, _SLICE), low, high)
        rows = pl.int_range(begin, begin + len(places), dtype=pl.UInt32, eager=True)
        if places.has_nulls():
            rows, places = rows.filter(places.is_not_null()), places.drop_nulls()
        table = table.scatter(places.reverse(), rows.reverse())
    parts = (table.gather(_offsets(wanted.slice(begin, _SLICE), low, high)) for begin in range(0, len(wanted), _SLICE))
    return pl.concat([table.clear(), *parts], rechunk=True)


def _dense(low: int, high: int, count: int) -> bool:
    """Whether a table of all numbers from `low` to `high` is little longer than the `count` ids that lie there."""
    return high - low < _SPARSE * count


def _offsets(ids: pl.Series, low: int, high: int) -> pl.Series:
    """Distance of each of `ids` from `low`; null for those that are not between `low` and `high`."""
    ids = ids.cast(pl.Int64) if ids.dtype.is_signed_integer() else ids
    return (ids - low).set(~((ids >= low) & (ids <= high)), None).cast(pl.UInt32)


def count_up_to(keys: pl.Series, points: pl.Series, *, equal: bool) -> pl.Series:
    """Number of the sorted `keys` before each of `points` and, with `equal`, at it; both are free of nulls.

    Many points that are sorted, too, are merged with the keys by an as-of join. ``search_sorted`` alone takes 0.44 s
    instead of 0.23 of the 4.9 CPU seconds of a page at 190 MB, and 1.3 of 17.4 more at 1 GB.
    """
    side: Literal["left", "right"] = "right" if equal else "left"
    bisect = bisect_right if equal else bisect_left
    if len(keys) + len(points) <= _FEW:
        known = keys.to_list()
        return pl.Series(points.name, [bisect(known, point) for point in points.to_list()], dtype=pl.UInt32)
    if len(points) >= _WORTH_MERGING and points.is_sorted():
        first, last = (bisect(keys, points.item(edge)) for edge in (0, -1))
        if 0 < last - first < _SPARSE * len(points):
            counted = pl.int_range(first + 1, last + 1, dtype=pl.UInt32, eager=True).alias("n")
            near = pl.DataFrame([keys.slice(first, last - first).alias("key"), counted])
            asked = points.alias("key").to_frame()
            counts = asked.join_asof(near, on="key", allow_exact_matches=equal).get_column("n")
            return counts.fill_null(first) if counts.has_nulls() else counts
    return keys.search_sorted(points, side=side).cast(pl.UInt32)


def nearest_place(times: pl.Series, at: pl.Series, *, later: bool = False, equal: bool = True) -> pl.Series:
    """Place in the sorted `times` of the last one before each of `at`, or with `later` of the first one after it.

    With `equal`, one at the same time counts, too; null for none, and for null.
    """
    known = at.fill_null(strategy="forward").fill_null(0) if at.has_nulls() else at
    before = count_up_to(times, known, equal=equal != later)
    place = before if later else before.cast(pl.Int64) - 1
    return place.set(~(at.is_not_null() & (place >= 0) & (place < len(times))), None).cast(pl.UInt32)


def as_of(points: pl.DataFrame, times: pl.DataFrame, *, later: bool = False, equal: bool = True) -> pl.Series:
    """Row of `times` that is :func:`nearest_place` to each of `points` by their column at, of the same other values.

    ``join_asof`` sorts and copies all columns of both: of 6 million operations 0.6 GB instead of 0.1.
    """
    keys = [name for name in points.columns if name != "at"]
    at, begun, parts = points.get_column("at"), times.get_column("at"), rows_by(times, keys)
    found = pl.Series([None], dtype=pl.UInt32).new_from_index(0, points.height)
    for key, asked in rows_by(points, keys).items():
        if None not in key and (rows := parts.get(key)) is not None:
            own = begun[rows]
            if not own.is_sorted():
                order = own.to_frame().select(pl.arg_sort_by("at", maintain_order=True)).to_series()
                rows, own = rows[order], own[order]
            place = nearest_place(own, at if len(asked) == len(at) else at[asked], later=later, equal=equal)
            found = found.scatter(asked, gathered(rows, place))
    return found


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
    nothing = pl.repeat(value=False, n=size, dtype=pl.Boolean, eager=True)
    return nothing.scatter(rows, True) if len(rows) else nothing  # noqa: FBT003 - polars has no name for it


def matches(left: pl.Series, right: pl.Series) -> pl.Series:
    """Element-wise equality; false where either is null."""
    return sure(left == right)


def sure(mask: pl.Series) -> pl.Series:
    """`mask`, and False where it is null: without an expression where nothing is, as is usual."""
    return mask.fill_null(value=False) if mask.has_nulls() else mask


def beside(frame: pl.DataFrame, side: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Left join: adds `columns` of a table keyed by event_id; null where that has no such row."""
    if not side.get_column("event_id").is_sorted():
        side = side.sort("event_id")
    ids, keys = frame.get_column("event_id"), side.get_column("event_id")
    if len(ids) == len(keys) and ids.equals(keys):
        return frame.with_columns(side.get_column(name) for name in columns)
    at = positions(keys, ids)
    return frame.with_columns(rows_at(side.select(columns), at))


def telling(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """The rows of `frame` whose `keys` no more than :data:`_SHARING` rows share; the others would tell nothing.

    A join with what is left costs what its rows do: a damaged or made-up report may have one id on all of its rows.
    """
    if frame.height <= _SHARING:
        return frame
    return frame.filter(pl.len().over(keys) <= _SHARING)


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
    points, times = left.select(*by, at=on[0]), right.select(*by, at=on[1])
    added = right.drop(by).rename(lambda name: f"{name}_right" if name in left.columns else name)
    rows = as_of(points, times, later=side == "after", equal=side != "strictly before")
    return left.hstack(rows_at(added, rows))
