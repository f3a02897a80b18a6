"""CUDA calls by name: each row worked out by hand, whose calls count, and what a window cuts."""

import pytest

from kanalyze.analyses.host.api import api
from kanalyze.window import Window
from support.build import call, kernel, report, rows_of


def rows(*events, columns=("name", "count", "total_ns", "share"), **where):
    return api(report(events), **where).select(columns).rows()


def test_every_column_of_a_call():
    """Durations 10, 20 and 60: mean 30, deviations 20, 10 and 30, of which the sample variance is 1400 / 2."""
    events = [call("cudaMalloc_v3020", 0, 10), call("cudaMalloc_v3020", 10, 30), call("cudaMalloc_v3020", 40, 100)]
    (row,) = api(report(events)).to_dicts()
    assert (
        row
        == rows_of(
            "name count total_ns share avg_ns median_ns min_ns max_ns stddev_ns",
            ("cudaMalloc", 3, 90, 1.0, 30.0, 20.0, 10, 60, pytest.approx(700**0.5)),
        )[0]
    )


def test_calls_the_longest_in_total_first():
    assert rows(call("cudaFree", 0, 5), call("cudaMalloc", 5, 10), call("cudaDeviceSynchronize", 10, 20)) == [
        ("cudaDeviceSynchronize", 1, 10, 0.5),
        ("cudaFree", 1, 5, 0.25),
        ("cudaMalloc", 1, 5, 0.25),
    ]


def test_a_call_inside_a_call_counts_in_both():
    assert rows(call("cudaLaunchKernel", 0, 20), call("cuLaunchKernel", 5, 15)) == [
        ("cudaLaunchKernel", 1, 20, 20 / 30),
        ("cuLaunchKernel", 1, 10, 10 / 30),
    ]


def test_two_forms_of_a_call_are_two_rows_and_a_version_of_five_digits_stays():
    events = [call("cudaGetDeviceProperties_v2_v12000", 0, 30), call("cudaMemcpy_v3020", 30, 50)]
    events += [call("cudaMemcpy", 50, 60), call("cudaMemcpy_v12000", 60, 61)]
    assert rows(*events, columns=("name", "count", "total_ns")) == [
        ("cudaGetDeviceProperties_v2_v12000", 1, 30),
        ("cudaMemcpy", 1, 20),
        ("cudaMemcpy", 1, 10),
        ("cudaMemcpy_v12000", 1, 1),
    ]


def test_a_missing_name_and_no_time_at_all():
    assert rows(call(None, 5, 5)) == [(None, 1, 0, 0.0)]


def test_threads_and_processes_are_summed_unless_one_is_asked_for():
    events = [call("cudaFree", 0, 5), call("cudaFree", 0, 7, thread=2), call("cudaFree", 0, 11, process=2)]
    assert rows(*events) == [("cudaFree", 3, 23, 1.0)]
    assert rows(*events, process=2) == [("cudaFree", 1, 11, 1.0)]


def test_of_a_device_the_calls_are_those_of_processes_that_used_it():
    events = [kernel(0, 1), kernel(0, 1, device=1), kernel(0, 1, device=1, process=2)]
    events += [call("cudaFree", 0, 5), call("cudaFree", 0, 11, process=2), call("cudaFree", 0, 100, process=3)]
    assert rows(*events, columns=("count", "total_ns")) == [(3, 116)]
    assert rows(*events, columns=("count", "total_ns"), device=0) == [(1, 5)]
    assert rows(*events, columns=("count", "total_ns"), device=1) == [(2, 16)]


def test_a_call_that_overlaps_the_window_counts_whole():
    events = [call("cudaFree", 0, 20), call("cudaFree", 30, 50)]
    assert rows(*events, window=Window(10, 25)) == [("cudaFree", 1, 20, 1.0)]
    assert rows(*events, window=Window(20, 30)) == []


def test_two_forms_of_one_call_stand_in_one_order():
    events = [call("cudaMemcpy_v3020", 0, 5), call("cudaMemcpy_v3020", 5, 6), call("cudaMemcpy", 10, 16)]
    assert {tuple(rows(*events, columns=("count",))) for _ in range(30)} == {((1,), (2,))}
