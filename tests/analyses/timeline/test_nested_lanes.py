"""Lanes in which slices nest, and the order of their edges, held against stacks that go slice by slice."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.timeline._slices import _placed, edges, lanes

slices = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), max_size=14)


def sorted_slices(drawn):
    rows = sorted(((track, start, start + dur) for track, start, dur in drawn), key=lambda row: (*row[:2], -row[2]))
    schema = {"track": pl.UInt32, "start": pl.Int64, "end": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def nest_or_are_apart(one, other):
    (a, b), (c, d) = one, other
    return b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d)


@given(slices)
def test_in_a_lane_slices_nest_or_are_apart(drawn):
    line = sorted_slices(drawn)
    placed = line.with_columns(lanes(line)).rows(named=True)
    for at, one in enumerate(placed):
        for other in placed[:at]:
            if (one["track"], one["lane"]) == (other["track"], other["lane"]):
                assert nest_or_are_apart((other["start"], other["end"]), (one["start"], one["end"]))


@given(slices)
def test_lanes_are_those_of_going_slice_by_slice(drawn):
    line = sorted_slices(drawn)
    assert lanes(line).to_list() == _placed(line)  # the model of the other


@given(slices)
def test_each_end_closes_what_was_opened_last(drawn):
    line = sorted_slices(drawn)
    line = line.with_columns(lanes(line)).sort("track", "lane", maintain_order=True)
    line = line.with_columns(track=pl.struct("track", "lane").rank("dense").cast(pl.UInt32))
    opened, seen, before = {}, 0, {}
    for track, t, row, begins in edges(line).iter_rows():
        assert t >= before.get(track, t)
        before[track] = t
        stack = opened.setdefault(track, [])
        if begins:
            assert line.item(row, "start") == t
            stack.append(row)
            seen += 1
        else:
            assert stack.pop() == row
            assert line.item(row, "end") == t
    assert seen == line.height
    assert not any(opened.values())


def test_slices_that_cross_go_to_further_lanes_and_instants_stay():
    line = sorted_slices([(0, 0, 10), (0, 5, 10), (0, 7, 0), (0, 10, 2), (1, 0, 4), (1, 4, 4)])
    assert lanes(line).to_list() == [0, 1, 0, 0, 0, 0]
