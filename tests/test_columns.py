"""Lookups, groups and orders of columns are those of a walk through lists; sums up to 2^62 are whole or refused."""

import math
from fractions import Fraction

import polars as pl
import pytest
from hypothesis import example, given, strategies as st

import kanalyze
from kanalyze import columns
from kanalyze.errors import DamagedReportError
from kanalyze.tools import Turn, interleaved, pairs
from support.build import memcpy, report

NUMBERS = st.one_of(st.integers(-9, 9), st.integers(-400, 400), st.integers(-(1 << 62), 1 << 62))


def int64(values):
    return pl.Series(values, dtype=pl.Int64)


def frame_of(rows, *names):
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")


@given(st.lists(st.none() | NUMBERS, max_size=30), st.lists(st.none() | NUMBERS, max_size=30), st.data())
def test_positions_are_those_of_a_list(keys, others, data):
    known = [key for key in keys if key is not None]
    wanted = others + (data.draw(st.lists(st.sampled_from(known))) if known else [])
    expected = [None if one is None or one not in keys else keys.index(one) for one in wanted]
    assert columns.positions(int64(keys), int64(wanted)).to_list() == expected


@pytest.mark.parametrize("dtype", [pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt64])
def test_narrow_keys_are_looked_up_too(dtype):
    keys = pl.Series(range(0 if dtype.is_unsigned_integer() else -128, 127, 8), dtype=dtype)
    assert columns.positions(keys, keys.reverse()).to_list() == list(reversed(range(len(keys))))


@given(st.lists(st.none() | st.integers(-3, 3), max_size=12))
def test_shared_values_occur_more_than_once(values):
    assert columns.shared(int64(values)).to_list() == [None if one is None else values.count(one) > 1 for one in values]


@given(st.lists(NUMBERS, max_size=30), st.lists(NUMBERS, max_size=30), st.booleans())
def test_counts_are_those_of_a_list(keys, points, equal):
    expected = [sum(key < point or (equal and key == point) for key in keys) for point in points]
    assert columns.count_up_to(int64(sorted(keys)), int64(points), equal=equal).to_list() == expected


ROWS = st.lists(st.tuples(st.none() | st.integers(0, 2), st.none() | st.integers(-5, 5)), max_size=20)


@given(ROWS, ROWS, st.booleans(), st.booleans(), st.booleans())
def test_the_nearest_time_of_the_same_key_is_that_of_a_walk(points, times, later, equal, keyed):
    times = [(key, at) for key, at in times if at is not None]
    asked, known = (frame_of(rows, "key", "at") for rows in (points, times))
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
    by = ["key", "at"] if keyed else ["at"]
    assert columns.as_of(asked.select(by), known.select(by), later=later, equal=equal).to_list() == expected


@given(ROWS, ROWS, st.sampled_from([("before", False, True), ("strictly before", False, False), ("after", True, True)]))
def test_the_nearest_row_is_added_in_the_order_of_time(asked, others, case):
    side, later, equal = case
    left = frame_of([row for row in asked if row[1] is not None], "key", "at").with_row_index("place")
    right = frame_of(others, "key", "time").with_row_index("row")
    found = columns.nearest(left, right, ("at", "time"), ["key"], side)
    assert found.get_column("at").is_sorted()
    times = right.drop_nulls("time").select("key", at="time")
    rows = columns.as_of(left.select("key", "at"), times, later=later, equal=equal)
    expected = right.drop_nulls("time").get_column("row").gather(rows.to_list())
    assert found.sort("place").get_column("row").to_list() == expected.to_list()


@given(st.lists(st.tuples(st.none() | st.integers(0, 2), st.integers(0, 3)), max_size=20))
def test_parts_keep_the_order_of_the_frame(pairs):
    frame = frame_of(pairs, "a", "b").with_row_index("at")
    found = columns.of_parts(frame, ("a", "b"), pl.UInt32, lambda _, part: part.get_column("at").cum_count() - 1)
    assert found.to_list() == [pairs[:at].count(pair) for at, pair in enumerate(pairs)]
    rows = {key: part.get_column("at").to_list() for key, part in columns.parts_by(frame, ("a", "b")).items()}
    assert rows == {pair: [at for at, one in enumerate(pairs) if one == pair] for pair in pairs}


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=12))
def test_rows_in_order_are_sorted_rows(triples):
    frame = frame_of(triples, *"abc").with_row_index("row")
    for found, order in (
        (columns.in_order(frame, "b"), ["b"]),
        (columns.in_order_of(frame, ("a", "b"), ("c",)), ["a", "b", "c"]),
        (columns.in_order_of(frame, ("a",), ("c", "b")), ["a", "c", "b"]),
    ):
        assert found.equals(frame.sort(order, maintain_order=True))


#: All sizes of numbers, not only those near the largest.
SIZES = st.integers(0, 62).flatmap(lambda bits: st.integers(0, min(1 << bits, columns.LARGEST)))
FITS = 1 << 63
HUGE = [memcpy(0, 5, size_bytes=1 << 61), memcpy(5, 9, size_bytes=1 << 61)]


def one(expression, **values):
    return pl.DataFrame({name: [value] for name, value in values.items()}).select(expression).item()


@given(SIZES, SIZES, SIZES)
def test_rates_and_parts_are_those_of_exact_division(amount, ns, whole):
    found = one(columns.rate(pl.col("amount"), pl.col("ns")), amount=amount, ns=ns)
    if ns:
        assert found == pytest.approx(float(Fraction(amount * 10**9, ns)), rel=1e-15)
        assert columns.rate_of(amount, ns) == found
    else:
        assert found is None
    part = one(columns.part(*map(pl.col, "abc")), a=amount, b=ns, c=whole)
    expected = amount * ns // whole if whole else None
    assert part == (expected if expected is None or expected < FITS else None)


@given(SIZES, SIZES, st.tuples(*[st.integers(0, (1 << 31) - 1)] * 3), st.lists(SIZES, max_size=6))
def test_products_and_sums_are_those_of_whole_numbers_or_none(left, right, sides, values):
    found = one(columns.product(pl.col("left"), pl.col("right")), left=left, right=right)
    assert found == (left * right if left * right < FITS else None)
    grid = one(columns.product(*map(pl.col, "xyz")), **dict(zip("xyz", sides, strict=True)))
    assert grid == (math.prod(sides) if math.prod(sides) < FITS else None)
    added = pl.DataFrame({"at": values}, schema={"at": pl.Int64}).select(columns.added(pl.col("at"))).item()
    assert added == (sum(values) if sum(values) < FITS else None)


@given(st.lists(st.tuples(SIZES, st.sampled_from([-1, 1])), max_size=6))
@example([(columns.LARGEST, -1)])
@example([(columns.LARGEST // 2, 1), (columns.LARGEST // 2, -1)])
def test_what_could_overflow_is_told(signed):
    values = [value * sign for value, sign in signed]
    frame = pl.DataFrame({"at": values}, schema={"at": pl.Int64})
    assert (columns.too_large(frame, ("at",), ()) is None) == (sum(map(abs, values)) <= columns.LARGEST)
    assert columns.too_large(frame, (), ("at",)) is None


@pytest.mark.parametrize("value", [columns.LARGEST + 1, -columns.LARGEST - 1, -(1 << 63)])
def test_a_single_number_is_too_large_whatever_its_sign(value):
    assert f"{value:,}" in (columns.too_large(pl.DataFrame({"at": [1, value]}), (), ("at",)) or "")


@pytest.mark.parametrize(
    ("table", "copies", "said"),
    [
        (kanalyze.copies, HUGE, "size_bytes adds up to 4,611,686,018,427,387,904"),
        (kanalyze.ledger, [memcpy(0, 1 << 61), memcpy(0, 1 << 61)], "events"),
        (kanalyze.ledger, [memcpy(1 << 61, 1 << 62)], "events"),
    ],
)
def test_what_cannot_be_added_up_is_an_error_and_no_wrong_sum(table, copies, said):
    with pytest.raises(DamagedReportError, match=said):
        table(report(copies))


@pytest.mark.parametrize("size", [9_223_372_036, 9_223_372_037, 10_000_000_000, 20_000_000_000, 80 << 30])
def test_a_copy_of_more_than_nine_gigabytes_has_its_rate(size):
    made = report([memcpy(0, 10**9, size_bytes=size)])
    assert kanalyze.copies(made)["bandwidth_bytes_per_s"].to_list() == [size]


@given(st.integers(1, 12), st.data())
def test_of_any_runs_that_are_left_the_pairs_are_of_two_turns_one_after_the_other(count, data):
    sides = [("base", "new") if pair % 2 == 0 else ("new", "base") for pair in range(count)]
    every = [Turn("a", side, number) for number, side in enumerate((one for two in sides for one in two), 1)]
    left = data.draw(st.lists(st.sampled_from(every), unique=True))
    base, new = ([turn for turn in left if turn.side == side] for side in ("base", "new"))
    found = {(base[one].number, new[other].number) for one, other in pairs(base, new)}
    numbers = {turn.number for turn in left}
    both = [(first, first + 1) for first in range(1, 2 * count, 2) if {first, first + 1} <= numbers]
    assert {tuple(sorted(pair)) for pair in found} == set(both)
    assert interleaved(base, new) == (bool(left) and len(left) == 2 * len(both))
