"""NVTX ranges on the GPU: by hand, then against a model that joins every range with every operation."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.ranges.range_gpu import range_gpu
from kanalyze.model import DEVICE_KINDS
from kanalyze.window import Window
from support.build import call, graph, kernel, launched, nvtx, report, rows_of
from support.slow_ranges import SlowRanges, reports, spread
from support.strategies import FEWER, WINDOWS

TRACED_KINDS = tuple(kind for kind in DEVICE_KINDS if kind != "graph")


def launch(at, start, end, *, correlation, make=kernel, **keys):
    """A call from `at` on, 2 ns long, and what it launched."""
    thread = keys.pop("thread", 1)
    return [
        call("cudaLaunchKernel", at, at + 2, correlation=correlation, thread=thread),
        make(start, end, correlation=correlation, **keys),
    ]


#: A step with two inner ranges, of which one launches; two kernels that overlap, then one after a pause.
STEP = [
    nvtx("step", 0, 20),
    nvtx("forward", 2, 12),
    nvtx("host only", 13, 15),
    *launch(3, 30, 40, correlation=1),
    *launch(6, 35, 45, correlation=2, stream=8),
    *launch(16, 60, 70, correlation=3),
]


def test_a_range_and_what_is_inside_it():
    assert range_gpu(report(STEP)).to_dicts() == rows_of(
        "range style count total_ns projected_ns avg_ns median_ns min_ns max_ns stddev_ns gpu_ops avg_gpu_ops "
        "avg_level avg_children busy_ns operations whole_graphs process_busy_ns process_operations",
        (":step", "PushPop", 1, 20, 40, 40.0, 40.0, 40, 40, 0.0, 3, 3.0, 0.0, 1.0, 25, 3, 0, 25, 3),
        (":forward", "PushPop", 1, 10, 15, 15.0, 15.0, 15, 15, 0.0, 2, 2.0, 1.0, 0.0, 15, 2, 0, 15, 2),
    )


def test_every_instance():
    assert range_gpu(report(STEP), trace=True).to_dicts() == rows_of(
        "range style projected_start_ns projected_ns start_ns dur_ns process_id thread_id gpu_ops level "
        "children event_id parent_id stack busy_ns operations whole_graphs process_busy_ns process_operations",
        (":step", "PushPop", 30, 40, 0, 20, 1, 1, 3, 0, 1, 0, None, ":0", 25, 3, 0, 25, 3),
        (":forward", "PushPop", 30, 15, 2, 10, 1, 1, 2, 1, 0, 1, 0, ":0:1", 15, 2, 0, 15, 2),
    )


def traced(events, *columns, **options):
    return range_gpu(report(events), trace=True, **options).select("range", *columns).rows()


def test_a_call_may_start_and_end_with_the_range_but_not_stick_out():
    exact = [nvtx("exact", 10, 12), *launch(10, 20, 30, correlation=1)]
    late = [nvtx("late", 11, 13), *launch(10, 20, 30, correlation=1)]
    early = [nvtx("early", 9, 11), *launch(10, 20, 30, correlation=1)]
    assert traced(exact) == [(":exact",)]
    assert traced(late) == traced(early) == []


def test_a_range_of_another_thread_or_that_another_thread_ended_launches_nothing():
    work = launch(10, 20, 30, correlation=1)
    assert traced([nvtx("elsewhere", 0, 50, thread=2), *work]) == []
    assert traced([nvtx("handed over", 0, 50, style="StartEnd", end_thread_id=2), *work]) == []


def test_a_graph_launch_is_one_of_the_gpu_ops_and_all_its_kernels_are_operations():
    events = [nvtx("replay", 0, 10), *launch(1, 20, 30, correlation=1), kernel(30, 35, correlation=1)]
    assert traced(events, "gpu_ops", "operations", "projected_ns") == [(":replay", 1, 2, 15)]


def test_whole_graphs_count_when_asked_for():
    events = [
        nvtx("replay", 0, 10),
        *launch(1, 20, 30, correlation=1, make=graph),
        nvtx("mixed", 20, 30),
        *launch(21, 40, 45, correlation=2),
        *launch(25, 50, 60, correlation=3, make=graph),
    ]
    columns = ("projected_ns", "busy_ns", "gpu_ops", "whole_graphs")
    assert traced(events, *columns) == [(":mixed", 5, 5, 1, 1)]
    assert traced(events, *columns, graphs=True) == [(":replay", 10, 10, 1, 1), (":mixed", 20, 15, 2, 1)]


def test_start_end_ranges_that_cross_have_no_parent():
    events = [
        nvtx("first", 0, 10, style="StartEnd"),
        nvtx("second", 5, 20, style="StartEnd"),
        nvtx("pushed", 6, 9),
        *launch(6, 30, 40, correlation=1),
    ]
    assert traced(events, "level", "parent_id", "children") == [
        (":first", 0, None, 1),
        (":second", 0, None, 0),
        (":pushed", 1, 0, 0),
    ]


def test_of_equal_ranges_the_first_is_around_the_others():
    events = [nvtx("a", 0, 10), nvtx("b", 0, 10), nvtx("c", 0, 10), *launch(1, 20, 30, correlation=1)]
    assert traced(events, "level", "parent_id", "stack") == [
        (":a", 0, None, ":0"),
        (":b", 1, 0, ":0:1"),
        (":c", 2, 1, ":0:1:2"),
    ]


def test_a_call_that_ends_before_it_starts_lies_in_every_range_that_starts_and_ends_around_it():
    events = [nvtx("a", 0, 5), nvtx("b", 6, 10), *launched(6, 5, kernel(20, 30, correlation=1))]
    assert traced(events) == [(":a",), (":b",)]


def test_many_requests_at_once_on_one_thread():
    """As a server's event loop makes them: none contains another, many share an instant."""
    requests = [nvtx(f"request {n}", 10 * n, 10 * n + 95, style="StartEnd") for n in range(30)]
    work = [event for n in range(60) for event in launch(5 * n, 5 * n + 400, 5 * n + 403, correlation=n)]
    # request n is open for the calls at 10 n, 10 n + 5, … 10 n + 90
    expected = [(f":request {n}", min(19, 60 - 2 * n), 0) for n in range(30)]
    assert sorted(traced([*requests, *work], "gpu_ops", "level")) == sorted(expected)


def test_ranges_that_overlap_the_window_count_with_all_their_operations():
    assert traced(STEP, "operations", window=Window(14, 18)) == [(":step", 3)]
    assert traced(STEP, "children", window=Window(14, 18)) == [(":step", 1)]
    assert traced(STEP, window=Window(25, 80)) == []


def test_a_device_narrows_the_operations():
    events = [nvtx("both", 0, 20), *launch(1, 30, 40, correlation=1), *launch(4, 50, 55, correlation=2, device=1)]
    assert traced(events, "projected_start_ns", "projected_ns") == [(":both", 30, 25)]
    assert traced(events, "projected_start_ns", "projected_ns", device=1) == [(":both", 50, 5)]


def test_a_process_is_looked_at_alone():
    events = [nvtx("a", 0, 20), nvtx("b", 0, 20, process=2), *launch(1, 30, 40, correlation=1)]
    assert traced(events, process=2) == []
    assert traced(events, process=1) == [(":a",)]


@given(reports(), st.booleans())
@pytest.mark.slow
def test_every_instance_against_the_model(events, graphs):
    kinds = DEVICE_KINDS if graphs else TRACED_KINDS
    expected = SlowRanges(events).trace(kinds)
    assert range_gpu(report(events), trace=True, graphs=graphs).to_dicts() == expected


@FEWER
@given(reports(), WINDOWS, st.sampled_from([0, 1]))
def test_every_instance_of_a_window_and_device(events, window, device):
    low, high = window
    made = report(events)
    if device not in made.devices["device"].to_list():
        return
    expected = [
        row
        for row in SlowRanges(events).trace(TRACED_KINDS, device)
        if low is None or row["start_ns"] + row["dur_ns"] > low or row["start_ns"] == low
        if high is None or row["start_ns"] < high
    ]
    assert range_gpu(made, trace=True, window=Window(low, high), device=device).to_dicts() == expected


@FEWER
@given(reports())
def test_sums_are_those_of_the_instances(events):
    groups = defaultdict(list)
    for row in SlowRanges(events).trace(TRACED_KINDS):
        groups[row["range"], row["style"]].append(row)
    found = range_gpu(report(events))
    assert found["projected_ns"].is_sorted(descending=True)
    rows = {(row["range"], row["style"]): row for row in found.to_dicts()}
    assert rows.keys() == groups.keys()
    for key, group in groups.items():
        total = {
            name: sum(row[name] for row in group)
            for name in (
                "projected_ns",
                "gpu_ops",
                "busy_ns",
                "operations",
                "whole_graphs",
                "process_busy_ns",
                "process_operations",
            )
        }
        means = {
            f"avg_{name}": sum(row[name] for row in group) / len(group) for name in ("gpu_ops", "level", "children")
        }
        expected = {
            **dict(zip(("range", "style"), key, strict=True)),
            "count": len(group),
            "total_ns": sum(row["dur_ns"] for row in group),
            **total,
            **means,
            **spread([row["projected_ns"] for row in group]),
        }
        assert rows[key] == pytest.approx(expected)
