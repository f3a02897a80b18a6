"""Ranges nested hundreds deep: one pass gives what layers give, and its work is linear."""

from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.ranges import _projection
from kanalyze.analyses.ranges.range_gpu import range_gpu
from kanalyze.analyses.shared import range_nesting
from kanalyze.analyses.shared.range_nesting import (
    Spans,
    enclosing,
    flat_layers,
    holding,
    innermost,
    layer_numbers,
    nest,
    outermost_first,
    parents,
)
from support.slow_ranges import reports

RANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), min_size=1, max_size=12)


def framed(ranges):
    frame = pl.DataFrame(ranges, schema={"start": pl.Int64, "end": pl.Int64}, orient="row").with_row_index("row")
    return outermost_first(frame)


def shallow(module=range_nesting):
    return patch.object(module, "DEEP", 10**9)


@given(RANGES)
def test_layers_are_the_same(ranges):
    line = framed(ranges)
    for made in (lambda: nest(line).layers, lambda: flat_layers(line)):
        with shallow():
            expected = [(one.start.to_list(), one.end.to_list(), one.at.to_list()) for one in made()]
        with patch.object(range_nesting, "DEEP", 0):
            assert [(one.start.to_list(), one.end.to_list(), one.at.to_list()) for one in made()] == expected


@given(RANGES, st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), max_size=8))
def test_the_innermost_is_the_same(ranges, stretches):
    line, asked = framed(ranges), pl.DataFrame(stretches, schema={"since": pl.Int64, "until": pl.Int64}, orient="row")
    with shallow():
        expected = innermost(flat_layers(line), asked).to_list()
    with patch.object(range_nesting, "DEEP", 0):
        assert innermost(flat_layers(line), asked).to_list() == expected


@given(RANGES)
def test_parents_and_levels_are_the_same(ranges):
    line = framed(ranges)
    with shallow():
        expected = parents(nest(line), line).drop("at")
    with patch.object(range_nesting, "DEEP", 0):
        assert parents(nest(line), line).drop("at").equals(expected)


@given(reports())
def test_sums_are_the_same(made):
    try:
        expected = range_gpu(made)
    except Exception:  # noqa: BLE001 - whatever it lacks
        return
    with patch.object(range_nesting, "DEEP", 0), patch.object(_projection, "DEEP", 0):
        assert range_gpu(made.narrow()).equals(expected)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=12))
def test_spans_are_a_union(parts):
    spans = Spans()
    for start, length in parts:
        spans.add(start, start + length)
    assert spans.ns == len({at for start, length in parts for at in range(start, start + length)})


def test_crossing_ranges_are_left_to_layers():
    assert enclosing([0, 2], [3, 5]) is None
    assert holding([0, 2], [3, 5], [2], [3]) is None
    assert enclosing([0, 3, 3], [3, 5, 3]) is None  # a moment that lies in both


class Counted(int):
    """A time that counts how often it is compared."""

    compared = 0

    def _count(name):  # noqa: N805 - makes methods
        def compare(self, other):
            Counted.compared += 1
            return getattr(int, name)(self, other)

        return compare

    __lt__, __le__, __gt__, __ge__, __eq__ = map(_count, ("__lt__", "__le__", "__gt__", "__ge__", "__eq__"))
    __hash__ = int.__hash__


def compared(depth):
    starts, ends = [Counted(i) for i in range(depth)], [Counted(4 * depth - i) for i in range(depth)]
    Counted.compared = 0
    assert enclosing(starts, ends)[1] == list(range(depth))
    assert holding(starts, ends, starts, starts) == list(range(depth))
    assert layer_numbers(ends, strict=True) == list(range(depth))
    return Counted.compared


@pytest.mark.parametrize("depth", [1000, 4000])
def test_twice_as_deep_is_twice_the_work(depth):
    assert compared(2 * depth) < 2.5 * compared(depth)


def test_the_largest_part_is_never_gone_through_again():
    """Of a chain of ranges each adds its own operation to those inside."""
    added = []
    with patch.object(range_nesting.Spans, "add", autospec=True, side_effect=lambda *_: added.append(1)):
        count = 500
        parents_of = [None, *range(count - 1)]
        list(range_nesting.sums_in(parents_of, range(count), [(i, i, True) for i in range(count)]))
    assert len(added) <= 2 * count
