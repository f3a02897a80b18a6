"""Threads one after the other on one line, each clipped to the window that is looked at."""

import polars as pl
import pytest

from kanalyze.analyses.shared.thread_lanes import Lanes

TWO = Lanes(((1, 1), (1, 2)), 10, 20)


@pytest.mark.parametrize(("time", "moved"), [(-5, 10), (10, 10), (15, 15), (20, 20), (99, 20)])
@pytest.mark.parametrize("lane", [0, 1])
def test_a_time_is_moved_into_its_lane(time, moved, lane):
    """A lane is as wide as the window, and apart from the next."""
    (column,) = TWO.placed(lane, "at")
    assert pl.DataFrame({"at": [time]}).select(column).item() == moved + 12 * lane


def test_lines_of_threads_are_one_line_with_what_lies_in_the_window():
    schema = {"start": pl.Int64, "end": pl.Int64, "row": pl.UInt32}
    first = pl.DataFrame([(0, 10, 0), (10, 12, 1), (12, 18, 2), (20, 25, 3)], schema=schema, orient="row")
    second = pl.DataFrame([(2, 4, 4), (25, 30, 5)], schema=schema, orient="row")
    assert TWO.line({(1, 1): first, (1, 2): second}).rows() == [(10, 12, 1), (12, 18, 2)]
    after = pl.DataFrame([(5, 50, 6)], schema=schema, orient="row")
    assert TWO.line({(1, 2): after}).rows() == [(22, 32, 6)]
