"""Kernels by the NVTX range that launched them: by hand, then against a model that joins everything with everything."""

import pytest
from hypothesis import given

from kanalyze.analyses.ranges.range_kernels import range_kernels
from kanalyze.window import Window
from support.build import kernel, launched, nvtx, report, rows_of
from support.slow_ranges import SlowRanges, reports


def launch(at, dur, *, correlation, name="k", thread=1, **keys):
    """A call from `at` on, 2 ns long, and the kernel that it launched, 100 ns later."""
    ran = kernel(at + 100, at + 100 + dur, correlation=correlation, name=name, **keys)
    return launched(at, at + 2, ran, thread=thread)


def test_a_kernel_counts_in_every_range_around_its_launch_and_without_one_it_is_in_none():
    events = [
        nvtx("outer", 0, 50),
        nvtx("inner", 10, 30),
        *launch(1, 5, correlation=1),
        *launch(11, 7, correlation=2),
        *launch(60, 4, correlation=3, name="alone"),
        kernel(0, 9, name="no launch"),
    ]
    assert range_kernels(report(events)).to_dicts() == rows_of(
        "range style process_id thread_id kernel range_count count total_ns avg_ns median_ns min_ns max_ns stddev_ns "
        "kernel_ns",
        (None, None, None, None, "no launch", 0, 1, 9, 9.0, 9.0, 9, 9, 0.0, 9),
        (None, None, 1, 1, "alone", 0, 1, 4, 4.0, 4.0, 4, 4, 0.0, 4),
        (":inner", "PushPop", 1, 1, "k", 1, 1, 7, 7.0, 7.0, 7, 7, 0.0, 7),
        (":outer", "PushPop", 1, 1, "k", 1, 2, 12, 6.0, 6.0, 5, 7, pytest.approx(2**0.5), 12),
    )


WORK = nvtx("work", 0, 50)


@pytest.mark.parametrize(
    ("events", "columns", "where", "rows"),
    [
        # ranges of one name that nest count a kernel again, but kernel_ns does not
        (
            [WORK, nvtx("work", 5, 40), *launch(10, 8, correlation=1)],
            ("range_count", "count", "total_ns", "kernel_ns"),
            {},
            [(":work", 2, 1, 16, 8)],
        ),
        # threads are told apart
        (
            [WORK, nvtx("work", 0, 50, thread=2), *launch(1, 5, correlation=1), *launch(1, 6, correlation=2, thread=2)],
            ("thread_id", "total_ns"),
            {},
            [(":work", 1, 5), (":work", 2, 6)],
        ),
        # the heaviest kernel of a range first
        (
            [WORK, *launch(1, 5, correlation=1, name="light"), *launch(4, 50, correlation=2, name="heavy")],
            ("kernel",),
            {},
            [(":work", "heavy"), (":work", "light")],
        ),
        # a range that another thread ended launched nothing
        ([nvtx("a", 0, 50, style="StartEnd", end_thread_id=2), *launch(1, 5, correlation=1)], (), {}, [(None,)]),
        # kernels that overlap the window count whole, in ranges before it
        ([WORK, *launch(1, 5, correlation=1)], ("total_ns",), {"window": Window(103, 120)}, [(":work", 5)]),
        (
            [WORK, *launch(1, 5, correlation=1), *launch(30, 9, correlation=2, device=1)],
            ("total_ns",),
            {"device": 1},
            [(":work", 9)],
        ),
    ],
)
def test_what_counts_where(events, columns, where, rows):
    assert range_kernels(report(events), **where).select("range", *columns).rows() == rows


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
