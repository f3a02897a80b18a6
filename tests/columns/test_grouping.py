"""Groups by one number, and parts one by one, are those of polars' own lookup."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.columns import lookup
from kanalyze.columns.lookup import grouped, numbered, of_parts, parts_by

PAIRS = st.lists(st.tuples(st.none() | st.integers(0, 2), st.integers(0, 3)), max_size=20)


@given(PAIRS)
def test_what_is_made_part_by_part_is_in_the_frame_s_order(pairs):
    frame = pl.DataFrame(pairs, schema={"a": pl.Int64, "b": pl.Int64}, orient="row").with_row_index("at")
    found = of_parts(frame, ("a", "b"), pl.UInt32, lambda _, part: part.get_column("at").cum_count() - 1)
    parts = parts_by(frame, ("a", "b"))
    assert found.to_list() == [pairs[:at].count(pair) for at, pair in enumerate(pairs)]
    rows = {key: part.get_column("at").to_list() for key, part in parts.items()}
    assert rows == {pair: [at for at, one in enumerate(pairs) if one == pair] for pair in pairs}


@given(PAIRS)
def test_distinct_rows_are_those_of_a_set(pairs):
    frame = pl.DataFrame(pairs, schema={"a": pl.Int64, "b": pl.Int64}, orient="row")
    found = grouped(frame, ["a", "b"], []).rows()
    assert len(found) == len(set(found))
    assert set(found) == set(pairs)


KEYS = st.tuples(st.none() | st.integers(-3, 3), st.sampled_from([None, "a", "b"]))


@given(st.lists(st.tuples(KEYS, st.integers(0, 1), st.integers(0, 9)), min_size=1), st.sampled_from([0, 5, 1 << 62]))
def test_rows_are_grouped_by_one_number_as_by_their_keys(rows, far):
    schema = {"number": pl.Int64, "name": pl.Categorical, "small": pl.Int8, "ns": pl.Int64}
    frame = pl.DataFrame([(*keys, *rest) for keys, *rest in rows], schema=schema, orient="row")
    frame = frame.with_columns(pl.col("number") + pl.col("small") * far)
    keys, sums = ["number", "name", "small"], [pl.col("ns").sum(), pl.len().alias("count")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "_MANY_ROWS", 0)
        found = grouped(frame, keys, sums)
    expected = frame.group_by(keys).agg(sums)
    assert sorted(found.rows(), key=str) == sorted(expected.rows(), key=str)
    assert found.schema == expected.schema


@given(st.lists(KEYS, min_size=1))
def test_numbers_of_rows_tell_them_apart_and_rise_with_the_first_key(rows):
    frame = pl.DataFrame(rows, schema={"a": pl.Int16, "b": pl.Categorical}, orient="row")
    number, size = numbered(frame, ["a", "b"])
    found = frame.with_columns(number.alias("number")).get_column("number").to_list()
    assert all(0 <= one < size for one in found)
    assert len(set(zip(found, rows, strict=True))) == len(set(found)) == len(set(rows))
    firsts = [row[0] for _, row in sorted(zip(found, rows, strict=True), key=lambda pair: pair[0])]
    assert firsts == sorted(firsts, key=lambda first: -9 if first is None else first)
