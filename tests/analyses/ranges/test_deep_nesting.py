"""Ranges nested hundreds deep: a tree gives what layers give, whatever the depth."""

from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.ranges import _projection
from kanalyze.analyses.ranges._projection import nest, outermost_first, pairs, parents
from kanalyze.analyses.ranges.range_gpu import range_gpu
from kanalyze.analyses.ranges.range_kernels import range_kernels
from support.build import kernel, launched, nvtx, report
from support.slow_ranges import reports
from support.strategies import FEWER

RANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), min_size=1, max_size=12)


def framed(ranges):
    frame = pl.DataFrame(ranges, schema={"start": pl.Int64, "end": pl.Int64}, orient="row").with_row_index("row")
    return outermost_first(frame)


def deep():
    """Lets any ranges count as deep."""
    return patch.object(_projection, "DEEP", 0)


def around(nested, asked):
    """Each interval with each range around it."""
    found = [inside.select("row").with_columns(place.alias("at")) for inside, place in pairs(nested, asked)]
    return sorted(row for frame in found for row in frame.rows())


@given(RANGES, st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), max_size=8))
def test_the_ranges_around_an_interval_are_those_that_hold_it(ranges, stretches):
    line = framed(ranges)
    schema = {"since": pl.Int64, "until": pl.Int64}
    asked = pl.DataFrame(stretches, schema=schema, orient="row").with_row_index("row")
    expected = [
        (row, at)
        for row, (since, until) in enumerate(stretches)
        for at, (start, end) in enumerate(line.select("start", "end").iter_rows())
        if start <= since and until <= end
    ]
    assert around(nest(line), asked) == expected
    with deep():
        assert around(nest(line), asked) == expected


@given(RANGES)
def test_parents_and_levels_are_the_same(ranges):
    line = framed(ranges)
    expected = parents(nest(line), line)
    with deep():
        assert parents(nest(line), line).equals(expected)


@given(reports(), st.sampled_from([0, 64]))
def test_sums_are_the_same(made, pieces):
    if {"range", "api"} <= {event.kind for event in made}:
        expected = range_gpu(report(made), graphs=True)
        with deep(), patch.object(_projection, "_MOST_PIECES", pieces):
            assert range_gpu(report(made), graphs=True).equals(expected)


@FEWER
@given(reports())
def test_kernels_are_the_same(made):
    if {"range", "api", "kernel"} <= {event.kind for event in made}:
        expected = range_kernels(report(made))
        with deep():
            assert range_kernels(report(made)).equals(expected)


@pytest.mark.parametrize("ranges", [[(0, 3), (2, 5)], [(0, 3), (3, 5), (3, 3)], [(0, 3), (2, 1)]])
def test_crossing_ranges_are_layers(ranges):
    with deep():
        assert not nest(framed([*ranges, (0, 9)])).trees


def recursion(depth):
    """A function that calls itself, launches a kernel on each way in, and each on another stream."""
    events = []
    for number in range(depth):
        events += [
            nvtx(f"f{number % 7}", 10 * number, 10 * (3 * depth - number)),
            *launched(
                10 * number + 1,
                10 * number + 2,
                kernel(10 * number + 3, 10 * number + 15, correlation=number, stream=7 + number % 2),
            ),
        ]
    return report(events)


def test_thousands_deep():
    """Range by range this takes minutes, more than tests may: 12 million pairs, and as many layers as ranges."""
    depth = 5000
    found = range_gpu(recursion(depth), trace=True)
    assert found.get_column("operations").to_list() == [*range(depth, 0, -1)]
    assert found.get_column("level").to_list() == [*range(depth)]
    assert found.get_column("busy_ns").to_list() == [10 * (depth - number - 1) + 12 for number in range(depth)]
