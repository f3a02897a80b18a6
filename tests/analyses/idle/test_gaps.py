"""Gaps: each idle time of a device with its reasons, then against a model that goes instant by instant, and nsys."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.idle.gaps import gaps
from kanalyze.window import Window
from support.build import report, rows_of, timeline
from support.large import in_batches
from support.nsys_csv import report_of, reports_with
from support.nsys_csv import rows_of as listed_rows
from support.shares import cases, holds
from support.slow_gaps import SlowGaps, gap_reports
from support.strategies import WINDOWS


def loop():
    """Two kernels with a wait and some work of the host between them, in ranges."""
    return report(
        timeline(
            """
            0-5000 [step]; 2500-3500 [data]; 0-100 cudaLaunchKernel_v7000 #1; 200-1000 kernel:first #1
            100-1500 cudaStreamSynchronize_v3020; 3600-3700 cudaEventRecord_v3020
            4000-4300 cudaLaunchKernel_v7000 #2; 4500-5000 kernel:second #2 s8; 5010-5100 kernel:third #2 s8
            """
        )
    )


def test_a_gap_has_its_reasons_and_what_ended_it():
    (row,) = gaps(loop()).rows(named=True)
    assert (
        row
        == rows_of(
            "device start_ns dur_ns profiler_ns loading_ns allocation_ns launch_ns queued_ns sync_ns api_ns "
            "host_ns unknown_ns reason culprit ended_by kind stream api range process_id thread_id aligned_share",
            (
                *(0, 1_000, 3_500, 0, 0, 0, 500, 0, 500, 100, 2_400, 0, "host", "step", "second", "kernel", 8),
                *("cudaLaunchKernel", "step", 1, 1, None),
            ),
        )[0]
    )


def test_the_threshold_leaves_out_what_does_not_exceed_it():
    assert gaps(loop(), threshold_ns=0).get_column("dur_ns").to_list() == [200, 3_500, 10]
    assert gaps(loop(), threshold_ns=10).get_column("dur_ns").to_list() == [200, 3_500]
    assert gaps(loop(), threshold_ns=200).get_column("dur_ns").to_list() == [3_500]


def test_a_gap_is_cut_by_the_window_and_then_measured():
    found = gaps(loop(), threshold_ns=0, window="4100ns..4400ns")
    assert found.select("start_ns", "dur_ns", "launch_ns", "reason", "culprit").rows() == [
        (4_100, 300, 300, "launch", "second")
    ]
    assert gaps(loop(), threshold_ns=300, window="4100ns..4400ns").is_empty()


def test_by_culprit_gaps_count_whole_for_their_largest_culprit():
    assert gaps(loop(), by="culprit", threshold_ns=0).rows() == [
        (0, "host", "step", 1, 3_500, 3_500 / 5_100, 3_500.0, 3_500, None),
        (0, "launch", "first", 1, 200, 200 / 5_100, 200.0, 200, None),
        (0, "queued", "after second on the same stream", 1, 10, 10 / 5_100, 10.0, 10, None),
    ]


@pytest.mark.slow
@cases(0.6)
@given(gap_reports(), WINDOWS, st.sampled_from([0, 0, 3]), st.sampled_from([1, 2, 3, 1_000]))
def test_gaps_equal_the_model(made, window, threshold, batch):
    events, records = made
    of = report(events, event_records=records).narrow(window=Window(*window))
    with pytest.MonkeyPatch.context() as patch:
        in_batches(patch, batch)
        found = gaps(of, threshold_ns=threshold).drop("process_id", "thread_id", "aligned_share")
    model = SlowGaps(events, window, records)
    holds(found.height)
    assert found.rows() == [gap.row(model) for gap in model.gaps() if len(gap.instants) > threshold]


ONE_MS = 1_000_000

#: Reports with graphs that were traced whole.
WHOLE_GRAPHS = {"graph_graph", "two_processes"}


def between_operations(report, process, threshold_ns):
    """Our gaps of one process as nsys prints them: start, duration, CUDA ordinal."""
    found = kanalyze.gaps(report, process=process, threshold_ns=threshold_ns).drop_nulls("ended_by")
    first = pl.col("start_ns") == pl.col("start_ns").min().over("device")
    leading = kanalyze.gaps(report, process=process, threshold_ns=0).filter(first).select("device", "start_ns")
    ordinals = report.processes.filter(pl.col("process_id") == process).select("device", "cuda_ordinal")
    inner = found.join(leading, on=["device", "start_ns"], how="anti").join(ordinals, on="device")
    return sorted(inner.select("start_ns", "dur_ns", "cuda_ordinal").rows())


@pytest.mark.one_in(6)
@pytest.mark.parametrize("threshold_ms", [0, 1])
@pytest.mark.parametrize("name", sorted({*reports_with("gpu_gaps-0")} - WHOLE_GRAPHS))
def test_gaps_equal_those_of_nsys(name, threshold_ms):
    report = report_of(name)
    columns = ("Start (ns)", "Duration (ns)", "Device ID")
    rows = listed_rows(name, f"gpu_gaps-{threshold_ms}")
    used = {*report.kind("kernel").get_column("process_id"), *(int(row["PID"]) for row in rows)}
    for process in used:
        expected = sorted(tuple(int(row[column]) for column in columns) for row in rows if int(row["PID"]) == process)
        assert between_operations(report, process, threshold_ms * ONE_MS) == expected
