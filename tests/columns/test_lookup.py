"""Lookups find what a walk through a list finds."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.columns.lookup import as_of, count_up_to, nearest, positions

NUMBERS = st.one_of(st.integers(-9, 9), st.integers(-400, 400), st.integers(-(1 << 62), 1 << 62))


def int64(values):
    return pl.Series(values, dtype=pl.Int64)


@given(st.lists(st.none() | NUMBERS, max_size=30), st.lists(st.none() | NUMBERS, max_size=30), st.data())
def test_positions_are_those_of_a_list(keys, others, data):
    known = [key for key in keys if key is not None]
    wanted = others + (data.draw(st.lists(st.sampled_from(known))) if known else [])
    expected = [None if one is None or one not in keys else keys.index(one) for one in wanted]
    assert positions(int64(keys), int64(wanted)).to_list() == expected


@pytest.mark.parametrize("dtype", [pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt64])
def test_narrow_keys_are_looked_up_too(dtype):
    keys = pl.Series(range(0 if dtype.is_unsigned_integer() else -128, 127, 8), dtype=dtype)
    assert positions(keys, keys.reverse()).to_list() == list(reversed(range(len(keys))))


@given(st.lists(NUMBERS, max_size=30), st.lists(NUMBERS, max_size=30), st.booleans())
def test_counts_are_those_of_a_list(keys, points, equal):
    expected = [sum(key < point or (equal and key == point) for key in keys) for point in points]
    assert count_up_to(int64(sorted(keys)), int64(points), equal=equal).to_list() == expected


TIMES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6)), max_size=8)


@given(TIMES, TIMES, st.sampled_from(["before", "strictly before", "after"]))
def test_the_nearest_is_that_of_a_list(asked, others, side):
    left = pl.DataFrame(asked, schema={"key": pl.Int64, "at": pl.Int64}, orient="row").with_row_index("place")
    right = pl.DataFrame(others, schema={"key": pl.Int64, "time": pl.Int64}, orient="row")
    found = nearest(left, right, ("at", "time"), ["key"], side)
    fits = {"before": int.__le__, "strictly before": int.__lt__, "after": int.__ge__}[side]
    best = min if side == "after" else max
    expected = [
        best((time for own, time in others if own == key and fits(time, at)), default=None) for key, at in asked
    ]
    assert found.sort("place").get_column("time").to_list() == expected
    assert found.get_column("at").is_sorted()


def test_of_rows_at_one_time_the_nearest_is_next_to_it():
    left, right = pl.DataFrame({"at": [5]}), pl.DataFrame({"time": [5, 5], "row": [0, 1]})
    rows = [nearest(left, right, ("at", "time"), (), side).item(0, "row") for side in ("before", "after")]
    assert rows == [1, 0]


ROWS = st.lists(st.tuples(st.none() | st.integers(0, 2), st.none() | st.integers(-5, 5)), max_size=20)


@given(ROWS, ROWS, st.booleans(), st.booleans(), st.booleans())
def test_the_nearest_time_of_the_same_key_is_that_of_a_walk(points, times, later, equal, keyed):
    times = [(key, at) for key, at in times if at is not None]
    schema = {"key": pl.Int64, "at": pl.Int64}
    asked, known = (pl.DataFrame(rows, schema, orient="row") for rows in (points, times))
    expected = []
    for key, at in points:
        possible = [] if at is None else [
            (time, row)
            for row, (other, time) in enumerate(times)
            if (not keyed or key == other is not None)
            and ((equal and time == at) or (time > at if later else time < at))
        ]  # fmt: skip
        first = min(possible, default=(None, None)) if later else max(possible, default=(None, None))
        expected.append(first[1])
    columns = ["key", "at"] if keyed else ["at"]
    assert as_of(asked.select(columns), known.select(columns), later=later, equal=equal).to_list() == expected
