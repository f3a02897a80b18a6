"""Each function of kanalyze.intervals against sets of integers: an interval is the instants it covers."""

from collections import Counter

import polars as pl
from hypothesis import given, strategies as st

from kanalyze import intervals
from support.slow_model import runs

TIMES = st.integers(-8, 30)
ANY_INTERVALS = st.lists(st.tuples(TIMES, TIMES), max_size=8)
EDGES = st.tuples(TIMES, TIMES).map(sorted)
INSTANTS = st.sets(TIMES, max_size=25)


def frame(pairs):
    return pl.DataFrame(pairs, schema=intervals.SPANS, orient="row")


def instants(spans):
    """The instants that a frame or a list of pairs covers."""
    pairs = spans.select("start", "end").iter_rows() if isinstance(spans, pl.DataFrame) else spans
    return {instant for start, end in pairs for instant in range(start, end)}


def span_set(covered):
    """The one span set of a set of instants: sorted, apart, and as long as can be."""
    return frame(runs(covered))


@given(ANY_INTERVALS)
def test_union(pairs):
    found = intervals.union(frame(pairs))
    assert found.equals(span_set(instants(pairs)))
    assert found.schema == frame([]).schema


@given(ANY_INTERVALS)
def test_length(pairs):
    assert intervals.length(frame(pairs)) == sum(end - start for start, end in pairs)


@given(ANY_INTERVALS, EDGES)
def test_clip(pairs, edges):
    found = intervals.clip(frame(pairs).with_row_index("row"), *edges)
    inside = {row: instants([pair]) & set(range(*edges)) for row, pair in enumerate(pairs)}
    assert {row["row"]: set(range(row["start"], row["end"])) for row in found.iter_rows(named=True)} == {
        row: covered for row, covered in inside.items() if covered
    }


@given(ANY_INTERVALS, INSTANTS)
def test_cut(pairs, covered):
    named = frame(pairs).with_row_index("row")
    found = intervals.cut(named, span_set(covered))
    assert found.schema == named.schema
    assert found.get_column("row").is_sorted()
    for row, pair in enumerate(pairs):
        parts = found.filter(pl.col("row") == row).select("start", "end")
        assert parts.equals(span_set(instants([pair]) & covered))


@given(INSTANTS, EDGES)
def test_gaps(covered, edges):
    assert intervals.gaps(span_set(covered), *edges).equals(span_set(set(range(*edges)) - covered))


@given(INSTANTS, st.lists(TIMES, max_size=6))
def test_covered_before(covered, points):
    found = intervals.covered_before(pl.Series(points, dtype=pl.Int64), span_set(covered))
    assert found.to_list() == [sum(instant < point for instant in covered) for point in points]


@given(INSTANTS, ANY_INTERVALS)
def test_overlap(covered, pairs):
    asked = frame(pairs)
    found = intervals.overlap(asked.get_column("start"), asked.get_column("end"), span_set(covered))
    assert found.to_list() == [len(instants([pair]) & covered) for pair in pairs]


@given(INSTANTS, INSTANTS)
def test_intersect(left, right):
    assert intervals.intersect(span_set(left), span_set(right)).equals(span_set(left & right))


@given(INSTANTS, INSTANTS)
def test_subtract(covered, holes):
    assert intervals.subtract(span_set(covered), span_set(holes)).equals(span_set(covered - holes))


@given(ANY_INTERVALS)
def test_first_come(pairs):
    pairs = sorted(pairs)
    found = intervals.first_come(frame(pairs).with_row_index("row"))
    assert found.get_column("row").to_list() == list(range(len(pairs)))
    taken = set()
    for pair, own in zip(pairs, found.select("own_start", "own_end").rows(), strict=True):
        assert instants([own]) == instants([pair]) - taken
        assert own[1] >= own[0]
        taken |= instants([pair])


@given(st.lists(st.tuples(st.integers(0, 2), TIMES, TIMES), max_size=8))
def test_newly_covered(rows):
    line = sorted(rows, key=lambda row: row[:2])
    columns = {"key": pl.UInt32, **intervals.SPANS}
    found = intervals.newly_covered(pl.DataFrame(line, schema=columns, orient="row"), "key").to_list()
    for key in {row[0] for row in line}:
        own = [(row[1:], ns) for row, ns in zip(line, found, strict=True) if row[0] == key]
        assert sum(ns for _, ns in own) == len(instants(pair for pair, _ in own))
    assert all(ns >= 0 for ns in found)


@given(ANY_INTERVALS)
def test_alone(pairs):
    depth = Counter(instant for pair in pairs for instant in instants([pair]))
    expected = {instant for instant, times in depth.items() if times == 1}
    assert intervals.alone(frame(pairs)).equals(span_set(expected))


@given(st.lists(st.tuples(TIMES, TIMES, st.integers(0, 3), st.integers(0, 99)), unique_by=lambda row: row[3]), EDGES)
def test_exclusive(rows, edges):
    schema = {"began": pl.Int64, "end": pl.Int64, "rank": pl.Int8, "event_id": pl.Int64}
    whole = pl.DataFrame(rows, schema=schema, orient="row").with_columns(start="began")
    asked = whole.with_columns(pl.col("start").clip(*edges), pl.col("end").clip(*edges))
    found = intervals.exclusive(asked)

    expected = dict.fromkeys((event_id for *_, event_id in rows), 0)
    for instant in range(*edges):
        here = [(rank, began, event_id) for began, end, rank, event_id in rows if began <= instant < end]
        if here:
            expected[min(here)[2]] += 1
    assert dict(zip(asked["event_id"], found, strict=True)) == expected
    assert found.name == "exclusive_ns"
    assert found.dtype == pl.Int64
