"""What is cheaper than its general form gives what that gives."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses._lookup import positions
from kanalyze.analyses._overlay import overlaid
from kanalyze.frames import first_rows, first_seen, repeated, spread, within

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


@given(st.lists(st.integers(1, 5), max_size=20))
def test_spread_rows_come_as_often_as_they_count(counts):
    rows, before = spread(pl.Series(counts, dtype=pl.UInt32))
    expected = [(row, nth) for row, count in enumerate(counts) for nth in range(count)]
    assert list(zip(rows.to_list(), before.to_list(), strict=True)) == expected


@st.composite
def apart(draw):
    """Stretches of time that do not overlap, sorted; some meet, some are empty."""
    edges = sorted(draw(st.lists(st.integers(0, 30), max_size=16)))
    return list(zip(edges[::2], edges[1::2], strict=False))


@given(apart(), apart())
def test_every_instant_of_a_piece_is_in_the_span_that_covers_it(pieces, spans):
    frame = pl.DataFrame(pieces, schema={"start": pl.Int64, "end": pl.Int64}, orient="row").with_row_index("piece")
    known = pl.DataFrame(spans, schema={"start": pl.Int64, "end": pl.Int64}, orient="row").with_row_index("span")
    cut = overlaid(frame, known, "span")
    told = {}
    for piece, start, end, span in cut.select("piece", "start", "end", "span").iter_rows():
        for at in range(start, end):
            assert (piece, at) not in told
            told[piece, at] = span
    owner = {at: span for span, (start, end) in enumerate(spans) for at in range(start, end)}
    expected = {(piece, at): owner.get(at) for piece, (start, end) in enumerate(pieces) for at in range(start, end)}
    assert told == expected


@given(st.lists(st.none() | st.integers(0, 9), max_size=20), st.booleans())
def test_first_and_repeated_values_are_those_of_a_list(values, ordered):
    values = sorted(one for one in values if one is not None) if ordered else values
    assert first_seen(int64(values)).to_list() == [one not in values[:at] for at, one in enumerate(values)]
    assert repeated(int64(values)).to_list() == [values.count(one) > 1 for one in values]


@given(st.lists(NUMBERS, max_size=30), st.lists(st.none() | NUMBERS, max_size=5), st.booleans())
def test_rows_within_hold_all_that_are_wanted(keys, wanted, ordered):
    keys = sorted(keys) if ordered else keys
    table = pl.DataFrame({"key": int64(keys)})
    found = within(table, "key", int64(wanted)).get_column("key").to_list()
    known = [one for one in wanted if one is not None]
    assert [key for key in found if key in known] == [key for key in keys if key in known]
    assert not ordered or not known or all(min(known) <= key <= max(known) for key in found)
