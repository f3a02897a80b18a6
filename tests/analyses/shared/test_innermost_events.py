"""The innermost of a thread's events at any time, against one look at every instant."""

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.shared.thread_nesting import innermost_line

SPANS = st.lists(st.tuples(st.integers(0, 14), st.integers(-1, 9)), max_size=10)


def line(spans):
    rows = [(start, end, place) for place, (start, end) in enumerate(spans)]
    events = pl.DataFrame(rows, schema={"start": pl.Int64, "end": pl.Int64, "row": pl.UInt32}, orient="row")
    return innermost_line(events).rows()


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], []),
        ([(0, 10), (2, 4), (3, 4)], [(0, 2, 0), (2, 3, 1), (3, 4, 2), (4, 10, 0)]),
        ([(0, 10), (5, 15), (7, 9)], [(0, 5, 0), (5, 7, 1), (7, 9, 2), (9, 15, 1)]),  # what outlasts goes on alone
        ([(5, 9), (0, 9), (5, 9)], [(0, 5, 1), (5, 9, 2)]),  # of twins the last one
        ([(3, 3), (0, 2), (4, 6)], [(0, 2, 1), (4, 6, 2)]),  # an instant is nowhere
    ],
)
def test_by_hand(spans, expected):
    assert line(spans) == expected


@given(SPANS)
def test_every_instant_belongs_to_what_started_last(lengths):
    spans = [(start, start + length) for start, length in lengths]
    told = {at: row for start, end, row in line(spans) for at in range(start, end)}
    for at in range(30):
        here = [(start, -end, row) for row, (start, end) in enumerate(spans) if start <= at < end]
        assert told.get(at) == (max(here)[2] if here else None)


@given(SPANS)
def test_spans_are_sorted_and_apart(lengths):
    found = line([(start, start + length) for start, length in lengths])
    assert all(start < end for start, end, _ in found)
    assert all(before[1] <= after[0] for before, after in pairwise(found))
