"""Sorted columns are handled as any others."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.columns.lookup import first_seen, in_order, in_order_of, repeated

PAIRS = st.lists(st.tuples(st.none() | st.integers(0, 2), st.integers(0, 3)), max_size=20)


def int64(values):
    return pl.Series(values, dtype=pl.Int64)


@given(st.lists(st.none() | st.integers(0, 9), max_size=20), st.booleans())
def test_first_and_repeated_values_are_those_of_a_list(values, ordered):
    values = sorted(one for one in values if one is not None) if ordered else values
    assert first_seen(int64(values)).to_list() == [one not in values[:at] for at, one in enumerate(values)]
    assert repeated(int64(values)).to_list() == [values.count(one) > 1 for one in values]


@given(PAIRS)
def test_rows_in_order_are_sorted_rows(pairs):
    frame = pl.DataFrame(pairs, schema={"a": pl.Int64, "b": pl.Int64}, orient="row").with_row_index("at")
    assert in_order(frame, "b").equals(frame.sort("b", maintain_order=True))


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=12))
def test_rows_in_order_of_several_columns_are_sorted_rows(triples):
    frame = pl.DataFrame(triples, schema=dict.fromkeys("abc", pl.Int64), orient="row").with_row_index("row")
    expected = [(*triple, row) for row, triple in enumerate(triples)]
    found = in_order_of(frame, ("a", "b"), ("c",)).select("a", "b", "c", "row").rows()
    assert found == sorted(expected)
    assert in_order_of(frame, ("a",), ("c", "b")).get_column("row").to_list() == [
        row for *_, row in sorted((a, c, b, row) for a, b, c, row in expected)
    ]
