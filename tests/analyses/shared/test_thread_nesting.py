"""How host events nest, against a stack."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.shared.thread_nesting import nested, next_greater
from support.slow_ops import nested as slowly_nested


@st.composite
def spans(draw):
    """Starts and ends that often meet, some without duration, sorted as a thread's events are."""
    starts = draw(st.lists(st.integers(0, 12), max_size=16))
    found = [(start, start + draw(st.integers(0, 9))) for start in starts]
    return sorted(found, key=lambda span: (span[0], -span[1]))


def tree(found: list[tuple[int, int]]) -> pl.DataFrame:
    start, end = (pl.Series([span[side] for span in found], dtype=pl.Int64) for side in (0, 1))
    return nested(start, end)


@given(spans())
def test_parents_are_those_of_torchs_stack(found):
    assert tree(found).get_column("parent").to_list() == slowly_nested(found)


@given(spans())
def test_what_is_in_an_event_stands_between_it_and_its_stop(found):
    parents, stops = tree(found).get_column("parent").to_list(), tree(found).get_column("stop").to_list()
    for place, stop in enumerate(stops):
        inside = {place}
        for later in range(place + 1, len(found)):
            if parents[later] in inside:
                inside.add(later)
        assert inside == set(range(place, stop))


@pytest.mark.parametrize(
    ("found", "parents"),
    [
        ([], []),
        ([(0, 10), (1, 3), (3, 4), (5, 12)], [None, 0, 0, None]),  # what ends later than its parent is beside it
        ([(0, 10), (5, 15), (7, 9)], [None, None, 1]),  # and takes what follows
        ([(0, 5), (5, 5)], [None, None]),  # an instant at the end is outside
        ([(5, 5), (5, 5)], [None, None]),  # an instant contains nothing
        ([(5, 9), (5, 5), (5, 5)], [None, 0, 0]),
        ([(0, 9), (0, 9), (0, 9)], [None, 0, 1]),  # of equal ones the first is around
    ],
)
def test_edges(found, parents):
    assert tree(found).get_column("parent").to_list() == parents


@given(st.lists(st.integers(0, 6), max_size=40), st.data())
def test_the_next_greater_value(values, data):
    rows = data.draw(st.lists(st.integers(0, len(values) - 1), unique=True)) if values else []
    expected = [
        next((later for later in range(row + 1, len(values)) if values[later] > values[row]), len(values))
        for row in sorted(rows)
    ]
    found = next_greater(pl.Series(values, dtype=pl.Int64), pl.Series(sorted(rows), dtype=pl.Int64))
    assert found.to_list() == expected
