"""Culprits: the ledger's idle time by name, bucket by bucket, then against a model that goes instant by instant."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.idle._idle_parts import IDLE
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.window import Window
from support.build import call, host, kernel, launched, memcpy, nvtx, overhead, report, timeline
from support.large import in_batches
from support.real_reports import real_report
from support.slow_gaps import SlowGaps, gap_reports
from support.strategies import WINDOWS

REPORTS = sorted((Path(__file__).parents[2] / "reports").glob("*.sqlite"))

LAUNCH = "cudaLaunchKernel_v7000"


def rows(of):
    """Bucket, culprit, range, time, gaps and the most in one gap."""
    return culprits(of).select("bucket", "culprit", "range", "ns", "gaps", "longest_ns").rows()


def queued(of):
    """What submitted work waited for, and how long."""
    return culprits(of).filter(pl.col("bucket") == "queued").select("culprit", "ns").rows()


# Each bucket by its name


def test_calls_and_overheads_go_by_their_names_and_ranges():
    events = [
        nvtx("load", 0, 40),
        call("cuModuleLoadData", 0, 10),
        overhead("CUPTI buffer flush", 10, 13),
        call("cudaMalloc_v3020", 20, 60),
        call("cudaStreamSynchronize_v3020", 60, 70),
        call(None, 70, 75),
        *launched(75, 80, kernel(80, 90, correlation=1), LAUNCH),
    ]
    assert rows(report(events)) == [
        ("profiler", "CUPTI buffer flush", "load", 3, 1, 3),
        ("loading", "cuModuleLoadData", "load", 10, 1, 10),
        ("allocation", "cudaMalloc", None, 20, 1, 20),
        ("allocation", "cudaMalloc", "load", 20, 1, 20),
        ("launch", "k", None, 5, 1, 5),
        ("sync", "cudaStreamSynchronize", None, 10, 1, 10),
        ("api", None, None, 5, 1, 5),
        ("host", "load", "load", 7, 1, 7),
    ]


def test_launch_goes_by_the_operation_call_and_latency_together():
    events = [
        nvtx("step", 0, 4),
        *launched(0, 10, kernel(15, 20, correlation=1, name="gemm"), LAUNCH),
        call("cudaMemcpyAsync_v3020", 30, 35, correlation=2),
        memcpy(40, 50, correlation=2),
    ]
    found = [row for row in rows(report(events)) if row[0] == "launch"]
    assert found == [("launch", "gemm", "step", 15, 1, 15), ("launch", "[CUDA memcpy Host-to-Device]", None, 10, 1, 10)]


def test_host_goes_by_the_innermost_range():
    events = [
        nvtx("epoch", 0, 100),
        nvtx("data", 20, 50),
        *launched(0, 5, kernel(5, 10, correlation=1), LAUNCH),
        *launched(60, 65, kernel(65, 70, correlation=2), LAUNCH),
    ]
    assert [row for row in rows(report(events)) if row[0] == "host"] == [
        ("host", "data", "data", 30, 1, 30),
        ("host", "epoch", "epoch", 20, 1, 20),
    ]


def test_host_without_a_range_goes_by_the_calls_around_it():
    events = timeline(
        """
        0-2 cudaGetDevice; 5-10 cudaLaunchKernel_v7000 #1; 10-20 kernel #1; 30-32 cudaMemcpyAsync_v3020
        40-45 cudaLaunchKernel_v7000 #2; 45-50 kernel #2; 5-60 kernel p2 d1
        """
    )
    assert [row for row in rows(report(events).narrow(device=0)) if row[0] == "host"] == [
        ("host", "between cudaLaunchKernel and cudaMemcpyAsync", None, 10, 1, 10),
        ("host", "between cudaMemcpyAsync and cudaLaunchKernel", None, 8, 1, 8),
        ("host", "between cudaGetDevice and cudaLaunchKernel", None, 3, 1, 3),
    ]


def test_host_at_the_edges_and_beside_calls_without_a_name():
    events = [
        kernel(0, 5, process=1),
        call(None, 20, 25),
        *launched(30, 35, kernel(35, 40, correlation=1), LAUNCH),
        kernel(90, 99, stream=8),
    ]
    assert [row for row in rows(report(events)) if row[0] == "host"] == [
        ("host", "after cudaLaunchKernel", None, 50, 1, 50),
        ("host", "before a call without a name", None, 15, 1, 15),
        ("host", "between a call without a name and cudaLaunchKernel", None, 5, 1, 5),
    ]


def test_the_outermost_call_is_at_the_side_not_one_inside_it():
    events = timeline("0-10 cudaMalloc_v3020; 2-10 cuMemAlloc_v2; 30-40 cudaLaunchKernel_v7000 #1; 40-50 kernel #1")
    assert ("host", "between cudaMalloc and cudaLaunchKernel", None, 20, 1, 20) in rows(report(events))


def test_the_sides_of_one_thread_are_its_own_whatever_others_call_later():
    events = timeline(
        """
        0-1 cuModuleLoadData #9; 5-10 cudaLaunchKernel_v7000 #1; 10-20 kernel #1; 200-201 cudaEventQuery_v3020
        210-211 cudaGetDevice; 25-30 cudaMemcpyAsync_v3020 t2; 50-55 cudaLaunchKernel_v7000 #2; 55-60 kernel #2
        90-95 cudaLaunchKernel_v7000 #3 t2; 95-99 kernel #3
        """
    )
    found = rows(report(events).narrow(window=Window(0, 99)))
    assert [row[1:] for row in found if row[0] == "host"] == [
        ("between cudaLaunchKernel and cudaLaunchKernel", None, 30, 1, 30),
        ("between cudaMemcpyAsync and cudaLaunchKernel", None, 30, 1, 30),
        ("between cuModuleLoadData and cudaLaunchKernel", None, 4, 1, 4),
    ]


# What submitted work waited for


def submitted(*more, records=()):
    """Work on stream 7 until 50, and another kernel on stream 8, submitted at 10, that starts at 60."""
    events = [
        *launched(0, 5, kernel(5, 50, correlation=1, name="first"), LAUNCH),
        *more,
        *launched(10, 15, kernel(60, 70, correlation=2, name="second", stream=8), LAUNCH),
    ]
    return report(events, event_records=records)


def test_queued_behind_another_stream():
    assert queued(submitted()) == [("after first on stream 7", 10)]


def test_queued_behind_its_own_stream():
    of = submitted(call("cudaStreamCreate", 6, 7, correlation=9), kernel(50, 55, stream=8, name="middle"))
    assert queued(of) == [("after middle on the same stream", 5)]


def waits_for_event(*, recorded=6, device=0, context=1):
    wait = {"process": 1, "context": 1, "stream": 8, "correlation": 12, "side": {"cuda_event_id": 1, "record_id": 3}}
    record = {
        "process_id": 1,
        "context_id": context,
        "stream": 7,
        "correlation_id": 11,
        "cuda_event_id": 1,
        "record_id": 3,
    }
    more = [
        call("cudaEventRecord_v3020", recorded, recorded + 1, correlation=11),
        call("cudaStreamWaitEvent_v3020", 8, 9, correlation=12),
        # nsys writes device 0 for streams of every device
        host("sync", "Stream wait sync", 8, 9, **wait, device=0),
    ]
    if device:
        more += [*launched(3, 4, kernel(5, 58, name="far", correlation=5, device=device, context=context), LAUNCH)]
    return submitted(*more, records=[record])


def test_queued_behind_an_event():
    assert queued(waits_for_event()) == [("event on stream 7 after first", 10)]


def test_queued_behind_an_event_on_another_gpu():
    of = waits_for_event(device=1, context=2)
    assert queued(of.narrow(device=0)) == [("event on GPU 1 stream 7 after far", 10)]


def test_an_event_that_was_recorded_before_the_work_held_nothing_back():
    assert queued(waits_for_event(recorded=-3)) == [("after first on stream 7", 10)]


def test_queued_behind_another_process():
    of = report([kernel(0, 50, process=2, name="other"), *launched(10, 15, kernel(60, 70, correlation=2), LAUNCH)])
    assert queued(of) == [("after other of process 2", 10)]


# Outcomes


def test_a_window_cuts_culprits():
    of = submitted().narrow(window="52ns..55ns")
    assert culprits(of).rows() == [(0, "queued", "after first on stream 7", None, 3, 1.0, 1, 3, None)]


def test_time_that_the_recording_does_not_cover_has_no_name():
    read = real_report(Path(__file__).parents[2] / "reports" / "add.sqlite")
    after = Window(70 * 10**9, 71 * 10**9)
    assert culprits(read, window=after).rows() == [(0, "unknown", None, None, 10**9, 1.0, 1, 10**9, None)]


# Everything at once


@given(gap_reports(), WINDOWS, st.sampled_from([1, 2, 3, 1_000]))
@pytest.mark.slow
def test_culprits_equal_the_model(made, window, batch):
    events, records = made
    narrowed = report(events, event_records=records).narrow(window=Window(*window))
    with pytest.MonkeyPatch.context() as patch:
        in_batches(patch, batch)
        found = culprits(narrowed)
    keys = ("device", "bucket", "culprit", "range")
    got = {row[:4]: row[4:] for row in found.select(*keys, "ns", "gaps", "longest_ns").iter_rows()}
    assert len(got) == found.height
    assert got == SlowGaps(events, window, records).culprits()


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_culprits_of_real_reports_sum_to_the_ledger(path):
    of = real_report(path)
    idle = ledger(of).filter(pl.col("bucket").cast(pl.String).is_in(IDLE))
    keys = ["device", pl.col("bucket").cast(pl.String)]
    expected = idle.group_by(keys).agg(pl.col("ns").sum()).sort("device", "bucket")
    found = culprits(of).group_by(keys).agg(pl.col("ns").sum()).sort("device", "bucket")
    assert found.equals(expected)
    names = culprits(of).filter(~pl.col("bucket").is_in(["unknown", "api"])).get_column("culprit")
    assert not names.null_count()
