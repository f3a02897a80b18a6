"""What is cheaper than its general form gives what that gives."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze import frames
from kanalyze.analyses.shared import cut
from kanalyze.analyses.shared.cut import overlaid, touched
from kanalyze.analyses.shared.lookup import positions
from kanalyze.frames import (
    count_up_to,
    first_rows,
    first_seen,
    grouped,
    in_order,
    numbered,
    of_parts,
    parts_by,
    repeated,
)
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


PAIRS = st.lists(st.tuples(st.none() | st.integers(0, 2), st.integers(0, 3)), max_size=20)


@given(PAIRS, st.sampled_from([0, 1_000]))
def test_what_is_made_part_by_part_is_in_the_frame_s_order(pairs, few):
    frame = pl.DataFrame(pairs, schema={"a": pl.Int64, "b": pl.Int64}, orient="row").with_row_index("at")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_FEW_PARTS", few)
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


@given(PAIRS)
def test_rows_in_order_are_sorted_rows(pairs):
    frame = pl.DataFrame(pairs, schema={"a": pl.Int64, "b": pl.Int64}, orient="row").with_row_index("at")
    assert in_order(frame, "b").equals(frame.sort("b", maintain_order=True))


@given(apart(), apart(), st.sampled_from([0, 8]))
def test_touched_pieces_overlap_a_span(pieces, spans, many):
    spans = [span for span in spans if span[0] < span[1]]
    frame, known = (
        pl.DataFrame(rows, schema=["start", "end"], orient="row").cast(pl.Int64) for rows in (pieces, spans)
    )
    expected = [any(start < stop and begin < end for begin, stop in spans) for start, end in pieces]
    lasting = [start < end for start, end in pieces]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut, "_MANY", many)
        found = touched(frame, known).to_list()
    assert [one for one, lasts in zip(found, lasting, strict=True) if lasts] == [
        one for one, lasts in zip(expected, lasting, strict=True) if lasts
    ]


KEYS = st.tuples(st.none() | st.integers(-3, 3), st.sampled_from([None, "a", "b"]))


@given(st.lists(st.tuples(KEYS, st.integers(0, 1), st.integers(0, 9))), st.sampled_from([0, 5, 1 << 62]))
def test_rows_are_grouped_by_one_number_as_by_their_keys(rows, far):
    schema = {"number": pl.Int64, "name": pl.Categorical, "small": pl.Int8, "ns": pl.Int64}
    frame = pl.DataFrame([(*keys, *rest) for keys, *rest in rows], schema=schema, orient="row")
    frame = frame.with_columns(pl.col("number") + pl.col("small") * far)
    keys, sums = ["number", "name", "small"], [pl.col("ns").sum(), pl.len().alias("count")]
    with pytest.MonkeyPatch.context() as patch:
        as_if_large(patch)
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
