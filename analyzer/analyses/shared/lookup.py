"""Looking things up by a sorted key: what a join does, without building a table for it."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import polars as pl

from kanalyze.frames import count_up_to, dense, first_rows, rows_at

#: So many times fewer wanted than there are keys are searched for, whatever the keys.
_FEW: Final = 8

#: So many numbers, in at most so many sorted parts, are gone along with the keys.
_LONG: Final = 1 << 12
_RUNS: Final = 8


def positions(keys: pl.Series, wanted: pl.Series) -> pl.Series:
    """Where each of `wanted` first stands in `keys`, which are sorted and without nulls; null where it does not."""
    if keys.is_empty() or wanted.is_empty():
        return pl.Series(wanted.name, [None], dtype=pl.UInt32).new_from_index(0, len(wanted))
    runs, many = _runs(wanted), len(wanted) > len(keys) // _FEW and keys.dtype.is_integer()
    if runs:
        at = pl.concat([count_up_to(keys, run, equal=False) for run in runs], rechunk=True)
    elif many and dense(int(keys.item(0)), int(keys.item(-1)), len(keys)):
        return first_rows(keys, wanted).alias(wanted.name)
    else:
        at = keys.search_sorted(wanted, side="left")
    inside = at.clip(upper_bound=len(keys) - 1)
    return inside.set(~matches(keys[inside], wanted), None).alias(wanted.name)


def _runs(wanted: pl.Series) -> list[pl.Series]:
    """The parts of `wanted` that are sorted, where they are long and few; else none."""
    if len(wanted) < _LONG or wanted.has_nulls():
        return []
    begins = [0, *((wanted.slice(1) < wanted.slice(0, len(wanted) - 1)).arg_true() + 1).head(_RUNS), len(wanted)]
    runs = [wanted.slice(begin, end - begin) for begin, end in pairwise(begins)]
    return runs if len(runs) <= _RUNS else []


def distinct(rows: pl.Series) -> pl.Series:
    """The different row numbers, sorted; faster than hashing where they come nearly sorted."""
    ordered = rows if rows.is_sorted() else rows.sort()
    return ordered.filter((ordered != ordered.shift(1)).fill_null(value=True))


def gathered(values: pl.Series, at: pl.Series) -> pl.Series:
    """`values` at the positions `at`; null where that is null, also when there are no values at all."""
    if values.is_empty():
        return values.clear(len(at))
    return values[at] if at.dtype == pl.UInt32 else values.gather(at)  # the latter takes five times as long


def of_rows(table: pl.DataFrame, column: str, rows: pl.Series) -> pl.Series:
    """The `column` of a table that is sorted by `row`, for each of `rows`; null for those that are not in it."""
    return gathered(table.get_column(column), positions(table.get_column("row"), rows))


def matches(left: pl.Series, right: pl.Series) -> pl.Series:
    """Where two columns are equal; a null equals nothing."""
    return (left == right).fill_null(value=False)


def beside(frame: pl.DataFrame, side: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """`frame` with `columns` of a table keyed by event_id; null where that has no such row."""
    if not side.get_column("event_id").is_sorted():
        side = side.sort("event_id")
    ids, keys = frame.get_column("event_id"), side.get_column("event_id")
    if len(ids) == len(keys) and ids.equals(keys):
        return frame.with_columns(side.get_column(name) for name in columns)
    at = positions(keys, ids)
    return frame.with_columns(rows_at(side.select(columns), at))
