"""Launches by kernel, call, thread and device: each statistic worked out by hand."""

import pytest

from kanalyze.analyses.host.launch_summary import launch_summary
from kanalyze.window import Window
from support.build import call, kernel, report, rows_of, timeline

LAUNCH = "cudaLaunchKernel_v7000"


def launch(number, start, returned, began, end, *, name="k", api=LAUNCH, **keys):  # noqa: PLR0913 - four times
    """A call from `start` to `returned`, and its kernel from `began` to `end`."""
    thread, process = keys.pop("thread", 1), keys.get("process", 1)
    return [
        call(api, start, returned, correlation=number, thread=thread, process=process),
        kernel(began, end, name=name, correlation=number, **keys),
    ]


def rows(*launched, columns=("kernel", "count", "total_avg_ns"), **where):
    return launch_summary(report([event for one in launched for event in one]), **where).select(columns).rows()


def test_every_column_of_three_launches():
    """Calls of 10, 20 and 30; queues of 5, 15 and none; kernels of 40, 10 and 70; in all 55, 45 and 75."""
    events = [*launch(1, 0, 10, 15, 55), *launch(2, 100, 120, 135, 145), *launch(3, 200, 230, 205, 275)]
    (row,) = launch_summary(report(events)).to_dicts()
    assert (
        row
        == rows_of(
            "process_id thread_id device count queue_count total_avg_ns total_median_ns total_min_ns total_max_ns "
            "total_stddev_ns api_avg_ns api_median_ns api_min_ns api_max_ns api_stddev_ns queue_avg_ns "
            "queue_median_ns queue_min_ns queue_max_ns queue_stddev_ns kernel_avg_ns kernel_median_ns "
            "kernel_min_ns kernel_max_ns kernel_stddev_ns api kernel charged_api_ns",
            (
                *(1, 1, 0, 3, 2, pytest.approx(175 / 3), 55.0, 45, 75, pytest.approx((700 / 3) ** 0.5), 20.0),
                *(20.0, 10, 30, pytest.approx(10), 10.0, 10.0, 5, 15, pytest.approx(50**0.5), 40.0, 40.0, 10),
                *(70, pytest.approx(30), "cudaLaunchKernel", "k", 60),
            ),
        )[0]
    )


def test_a_kernel_that_starts_before_its_call_returns_has_no_queue():
    columns = ("queue_count", "queue_avg_ns", "queue_median_ns", "queue_min_ns", "queue_max_ns", "queue_stddev_ns")
    assert rows(launch(1, 0, 10, 5, 20), columns=columns) == [(0, None, None, None, None, 0.0)]
    assert rows(launch(1, 0, 10, 10, 20), columns=columns) == [(1, 0.0, 0.0, 0, 0, 0.0)]


def test_kernel_call_thread_device_and_process_tell_rows_apart():
    columns = ("kernel", "api", "thread_id", "device", "process_id", "count")
    launched = [
        launch(1, 0, 10, 10, 70),
        launch(2, 0, 10, 10, 60, name="j"),
        launch(3, 0, 10, 10, 50, api="cuLaunchKernel"),
        launch(4, 0, 10, 10, 40, thread=2),
        launch(5, 0, 10, 10, 30, device=1),
        launch(6, 0, 10, 10, 20, process=2),
        launch(7, 0, 10, 10, 70, stream=8),
    ]
    assert rows(*launched, columns=columns) == [
        ("k", "cudaLaunchKernel", 1, 0, 1, 2),
        ("j", "cudaLaunchKernel", 1, 0, 1, 1),
        ("k", "cuLaunchKernel", 1, 0, 1, 1),
        ("k", "cudaLaunchKernel", 2, 0, 1, 1),
        ("k", "cudaLaunchKernel", 1, 1, 1, 1),
        ("k", "cudaLaunchKernel", 1, 0, 2, 1),
    ]


def test_the_longest_mean_comes_first_then_the_name():
    short, often = launch(1, 0, 10, 10, 20, name="short"), launch(2, 20, 25, 25, 30, name="often")
    launched = [short, often, launch(3, 40, 45, 45, 50, name="often"), launch(4, 60, 65, 65, 80, name="b")]
    assert rows(*launched) == [("b", 1, 20.0), ("short", 1, 20.0), ("often", 2, 10.0)]


def test_a_call_that_launched_several_is_charged_once():
    """Two kernels of one call, which took 8."""
    events = timeline("0-8 cudaGraphLaunch #1; 10-20 kernel #1; 20-30 kernel #1")
    found = launch_summary(report(events)).select("count", "api_avg_ns", "charged_api_ns").rows()
    assert found == [(2, 8.0, 8)]


def test_missing_names_are_a_row():
    launched = [launch(1, 0, 10, 10, 20, name=None), launch(2, 20, 30, 30, 40, name=None, api=None)]
    found = rows(*launched, columns=("api", "kernel", "count"))
    assert sorted(found, key=str) == [("cudaLaunchKernel", None, 1), (None, None, 1)]


def test_the_part_that_is_looked_at():
    launched = [launch(1, 0, 5, 10, 20), launch(2, 20, 25, 30, 45, device=1), launch(3, 50, 55, 60, 70, process=2)]
    columns = ("device", "process_id", "kernel_avg_ns")
    assert rows(*launched, columns=columns, window=Window(15, 35)) == [(1, 1, 15.0), (0, 1, 10.0)]
    assert rows(*launched, columns=columns, device=1) == [(1, 1, 15.0)]
    assert rows(*launched, columns=columns, process=2) == [(0, 2, 10.0)]
    assert rows(*launched, window=Window(21, 29)) == []
