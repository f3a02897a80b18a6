"""Which range a thread was in at any time: by hand, then against a model that goes instant by instant."""

import polars as pl
from hypothesis import given

from kanalyze.analyses.host._range_lines import named_ranges, range_lines, ranges_at
from support.build import nvtx, report
from support.slow_ranges import OPEN_UNTIL, SlowRanges, reports


def line(*events):
    """What the only thread was in, from when to when, by the names of ranges."""
    made = report(events)
    (found,) = range_lines(made).values()
    names = named_ranges(made)["name"]
    return [(start, end, names[row]) for start, end, row in found.select("start", "end", "row").iter_rows()]


def test_the_inner_range_then_the_outer_one_again():
    assert line(nvtx("outer", 0, 100), nvtx("inner", 20, 40), nvtx("inner", 60, 100)) == [
        (0, 20, "outer"),
        (20, 40, "inner"),
        (40, 60, "outer"),
        (60, 100, "inner"),
    ]


def test_ranges_of_two_domains_that_cross():
    crossing = [nvtx("a", 0, 10, domain="solver"), nvtx("b", 5, 15, domain="loader")]
    assert line(*crossing) == [(0, 5, "a"), (5, 15, "b")]


def test_a_range_that_goes_on_through_the_end_of_another_is_one_span():
    assert line(nvtx("a", 0, 10), nvtx("b", 5, 20), nvtx("c", 25, 30)) == [(0, 5, "a"), (5, 20, "b"), (25, 30, "c")]


def test_of_ranges_that_start_and_end_together_the_later_one_is_inside():
    assert line(nvtx("a", 0, 10), nvtx("b", 0, 10)) == [(0, 10, "b")]


def test_start_end_ranges_fill_what_is_left_the_first_started_first():
    pairs = [nvtx("x", 0, 50, style="StartEnd"), nvtx("y", 10, 60, style="StartEnd")]
    assert line(*pairs, nvtx("pushed", 20, 30)) == [(0, 20, "x"), (20, 30, "pushed"), (30, 50, "x"), (50, 60, "y")]


def test_a_range_that_was_never_closed_lasts_until_the_latest_event():
    assert line(nvtx("left open", 5, None, open_until_ns=40), nvtx("inner", 10, 20)) == [
        (5, 10, "left open"),
        (10, 20, "inner"),
        (20, 40, "left open"),
    ]


def test_a_range_without_duration_covers_nothing():
    assert line(nvtx("outer", 0, 10), nvtx("instant", 5, 5)) == [(0, 10, "outer")]


def test_points_of_threads_without_ranges_are_in_none():
    made = report([nvtx("a", 0, 10)])
    points = pl.DataFrame({"process_id": [1, 1, 1, None], "thread_id": [1, 1, 2, None], "at": [0, 10, 5, 5]})
    assert ranges_at(made, points).to_list() == [0, None, None, None]


@given(reports())
def test_every_instant_of_every_thread(events):
    made, model = report(events), SlowRanges(events)
    points = [(p, t, at) for p in (1, 2, 3) for t in (1, 2) for at in range(-1, OPEN_UNTIL + 2)]
    found = ranges_at(made, pl.DataFrame(points, schema=["process_id", "thread_id", "at"], orient="row"))
    ids = named_ranges(made)["event_id"].gather(found).to_list()
    assert ids == [model.line(*point) for point in points]
    for spans in range_lines(made).values():
        assert (spans["end"] > spans["start"]).all()
        assert (spans["start"] >= spans["end"].shift(1)).fill_null(value=True).all()
