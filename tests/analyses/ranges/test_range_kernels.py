"""Kernels by the NVTX range that launched them: by hand, then against a model that joins everything with everything."""

import pytest
from hypothesis import given

from kanalyze.analyses.ranges.range_kernels import range_kernels
from kanalyze.window import Window
from support.build import kernel, launched, nvtx, report
from support.slow_ranges import SlowRanges, reports


def launch(at, dur, *, correlation, name="k", thread=1, **keys):
    """A call from `at` on, 2 ns long, and the kernel that it launched, 100 ns later."""
    return [
        *launched(
            at, at + 2, kernel(at + 100, at + 100 + dur, correlation=correlation, name=name, **keys), thread=thread
        )
    ]


def test_a_kernel_counts_in_every_range_around_its_launch_and_without_one_it_is_in_none():
    events = [
        nvtx("outer", 0, 50),
        nvtx("inner", 10, 30),
        *launch(1, 5, correlation=1),
        *launch(11, 7, correlation=2),
        *launch(60, 4, correlation=3, name="alone"),
        kernel(0, 9, name="no launch"),
    ]
    pushed, here = {"style": "PushPop"}, {"process_id": 1, "thread_id": 1}
    once = {"stddev_ns": 0.0, "range_count": 1, "count": 1}
    assert range_kernels(report(events)).to_dicts() == [
        {
            "range": None,
            "style": None,
            "process_id": None,
            "thread_id": None,
            "kernel": "no launch",
            **lengths(9),
            **once,
            "range_count": 0,
        },
        {"range": None, "style": None, **here, "kernel": "alone", **lengths(4), **once, "range_count": 0},
        {"range": ":inner", **pushed, **here, "kernel": "k", **lengths(7), **once},
        {
            "range": ":outer",
            **pushed,
            **here,
            "kernel": "k",
            **lengths(5, 7),
            "stddev_ns": pytest.approx(2**0.5),
            "range_count": 1,
            "count": 2,
        },
    ]


def lengths(*durations):
    return {
        "total_ns": sum(durations),
        "avg_ns": sum(durations) / len(durations),
        "median_ns": sum(durations) / len(durations),
        "min_ns": min(durations),
        "max_ns": max(durations),
        "kernel_ns": sum(durations),
    }


def shown(events, *columns, **where):
    return range_kernels(report(events), **where).select("range", *columns).rows()


def test_ranges_of_one_name_that_nest_count_a_kernel_again_but_kernel_ns_does_not():
    events = [nvtx("again", 0, 50), nvtx("again", 5, 40), *launch(10, 8, correlation=1)]
    assert shown(events, "range_count", "count", "total_ns", "kernel_ns") == [(":again", 2, 1, 16, 8)]


def test_threads_are_told_apart():
    events = [
        nvtx("work", 0, 50),
        nvtx("work", 0, 50, thread=2),
        *launch(1, 5, correlation=1),
        *launch(1, 6, correlation=2, thread=2),
    ]
    assert shown(events, "thread_id", "total_ns") == [(":work", 1, 5), (":work", 2, 6)]


def test_the_heaviest_kernel_of_a_range_first():
    events = [
        nvtx("work", 0, 50),
        *launch(1, 5, correlation=1, name="light"),
        *launch(4, 50, correlation=2, name="heavy"),
    ]
    assert shown(events, "kernel") == [(":work", "heavy"), (":work", "light")]


def test_a_range_that_another_thread_ended_launched_nothing():
    events = [nvtx("handed over", 0, 50, style="StartEnd", end_thread_id=2), *launch(1, 5, correlation=1)]
    assert shown(events) == [(None,)]


def test_kernels_that_overlap_the_window_count_whole_in_ranges_before_it():
    events = [nvtx("work", 0, 50), *launch(1, 5, correlation=1), *launch(30, 9, correlation=2, device=1)]
    assert shown(events, "total_ns", window=Window(103, 120)) == [(":work", 5)]
    assert shown(events, "total_ns", device=1) == [(":work", 9)]


@given(reports())
def test_against_the_model(events):
    keys = ("range", "style", "process_id", "thread_id", "kernel")
    found = {tuple(row.pop(key) for key in keys): row for row in range_kernels(report(events)).to_dicts()}
    expected = SlowRanges(events).kernels()
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert found[key] == pytest.approx(row)


def test_many_kernels_are_joined_name_by_name_and_those_without_a_name_as_well(monkeypatch):
    names = ["a", None, "b", None, "a", "c"]
    launches = [one for at, name in enumerate(names) for one in launch(10 * at + 1, 5 + at, correlation=at, name=name)]
    events = [nvtx("outer", 0, 90), nvtx("inner", 0, 25), *launches]
    whole = range_kernels(report(events))
    assert whole.get_column("kernel").null_count() == 2
    monkeypatch.setattr("kanalyze.analyses.ranges.range_kernels._MOST_PAIRS", 3)
    assert range_kernels(report(events)).equals(whole)
