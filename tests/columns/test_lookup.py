"""Lookups find what a walk through a list finds."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.columns.lookup import count_up_to, first_rows, positions
from support.large import as_if_large

NUMBERS = st.one_of(st.integers(-9, 9), st.integers(-400, 400), st.integers(-(1 << 62), 1 << 62))


def int64(values):
    return pl.Series(values, dtype=pl.Int64)


@given(st.lists(st.none() | NUMBERS, max_size=30), st.lists(st.none() | NUMBERS, max_size=30), st.data())
def test_first_rows_are_those_of_a_list(keys, others, data):
    known = [key for key in keys if key is not None]
    wanted = others + (data.draw(st.lists(st.sampled_from(known))) if known else [])
    expected = [None if one is None or one not in keys else keys.index(one) for one in wanted]
    assert first_rows(int64(keys), int64(wanted)).to_list() == expected


@pytest.mark.parametrize("dtype", [pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt64])
def test_narrow_keys_are_looked_up_too(dtype):
    keys = pl.Series(range(0 if dtype.is_unsigned_integer() else -128, 127, 8), dtype=dtype)
    assert first_rows(keys, keys.reverse()).to_list() == list(reversed(range(len(keys))))


@given(st.lists(NUMBERS, max_size=30), st.lists(st.none() | NUMBERS, max_size=30))
def test_positions_are_those_of_a_list(keys, others):
    keys = sorted(keys)
    wanted = others + keys[::2]
    expected = [None if one is None or one not in keys else keys.index(one) for one in wanted]
    assert positions(int64(keys), int64(wanted)).to_list() == expected


@given(st.lists(NUMBERS, max_size=30), st.lists(NUMBERS, max_size=30), st.booleans(), st.booleans())
def test_counts_are_those_of_a_list(keys, points, equal, ordered):
    keys, points = sorted(keys), sorted(points) if ordered else points
    expected = [sum(key < point or (equal and key == point) for key in keys) for point in points]
    with pytest.MonkeyPatch.context() as patch:
        as_if_large(patch)
        assert count_up_to(int64(keys), int64(points), equal=equal).to_list() == expected


@given(st.lists(NUMBERS, max_size=30), st.lists(st.none() | NUMBERS, max_size=30), st.booleans())
def test_positions_are_found_along_the_keys_too(keys, others, ordered):
    keys = sorted(keys)
    wanted = sorted(keys[::2] + [one for one in others if one is not None]) + keys[::3] if ordered else others + keys
    expected = [None if one is None or one not in keys else keys.index(one) for one in wanted]
    with pytest.MonkeyPatch.context() as patch:
        as_if_large(patch)
        assert positions(int64(keys), int64(wanted)).to_list() == expected
        assert first_rows(int64(keys), int64(wanted)).to_list() == expected
