"""Syncs: every call that blocks the host, what it waited for, and what the device did meanwhile."""

import csv

import polars as pl
import pytest
from hypothesis import given

from kanalyze.analyses.idle.syncs import scope_of, syncs
from kanalyze.window import Window
from support.build import call, kernel, launched, nvtx, report
from support.command import REPORTS
from support.real_reports import real_report
from support.slow_syncs import SlowSyncs, sync_reports
from support.strategies import WINDOWS

LAUNCH = "cudaLaunchKernel_v7000"


def two_streams(*more):
    """A kernel on stream 7 until 50 and one on stream 8 until 80."""
    events = [
        *launched(0, 5, kernel(10, 50, correlation=1, name="first"), LAUNCH),
        *launched(5, 9, kernel(40, 80, correlation=2, name="second", stream=8), LAUNCH),
    ]
    return report([*events, *more])


def test_a_device_call_waits_for_all_its_work():
    of = two_streams(nvtx("end", 8, 100), call("cudaDeviceSynchronize_v3020", 20, 90))
    assert syncs(of).rows() == [(20, 70, "cudaDeviceSynchronize", "device", "end", 1, 1, 0, 10, 60, "second", 8, 10)]


SCOPES = {
    "device": "cuCtxSynchronize cudaThreadSynchronize",
    "stream": "cuStreamSynchronize_ptsz",
    "event": "cuEventSynchronize",
    "copy": "cudaMemcpyToSymbol cuMemcpyDtoH_v2",
    "free": "cuMemFree_v2 cuMemFreeHost cudaFreeArray cuArrayDestroy",
    None: "cudaMemcpyAsync cuMemcpyBatchAsync cuMemFreeAsync cudaGraphAddMemcpyNode cudaStreamWaitEvent cudaMemset",
}


@pytest.mark.parametrize(("scope", "names"), SCOPES.items())
def test_calls_are_told_by_their_names(scope, names):
    assert {name: scope_of(name) for name in names.split()} == dict.fromkeys(names.split(), scope)
    assert scope_of(None) is None


def test_by_api_sums_calls_of_one_range():
    calls = [call("cudaDeviceSynchronize", start, start + 5) for start in (20, 90, 100)]
    of = two_streams(nvtx("step", 85, 200), *calls)
    found = syncs(of, by="api").select("api", "waits_for", "range", "count", "total_ns", "idle_ns", "busy_ns")
    assert found.rows() == [
        ("cudaDeviceSynchronize", "device", "step", 2, 10, 10, 0),
        ("cudaDeviceSynchronize", "device", None, 1, 5, 0, 5),
    ]


@pytest.mark.slow
@given(sync_reports())
def test_syncs_equal_the_model(made):
    events, records = made
    found = syncs(report(events, event_records=records)).drop("process_id", "thread_id")
    assert found.rows() == SlowSyncs(events, records=records).rows()


@given(sync_reports(), WINDOWS)
@pytest.mark.slow
def test_a_window_leaves_out_what_does_not_touch_it(made, window):
    events, records = made
    whole = report(events, event_records=records)
    low, high = (-99 if window[0] is None else window[0]), (999 if window[1] is None else window[1])
    end = pl.col("start_ns") + pl.col("dur_ns")
    inside = (pl.col("start_ns") < high) & ((end > low) | (pl.col("start_ns") == low))
    assert syncs(whole.narrow(window=Window(*window))).equals(syncs(whole).filter(inside))


LISTED = sorted(REPORTS.glob("expected/*/cuda_api_sync.csv"))


@pytest.mark.parametrize("listed", LISTED, ids=lambda path: path.parent.name)
def test_what_nsys_lists_is_among_ours(listed):
    of = real_report(REPORTS / f"{listed.parent.name}.sqlite")
    with listed.open(encoding="utf-8") as lines:
        rows = [tuple(map(int, row[:4])) for row in csv.reader(lines) if row[0].isdigit()]
    assert rows
    assert set(rows) <= set(syncs(of).select("dur_ns", "start_ns", "process_id", "thread_id").rows())
