"""Gaps, exposure and utilisation: by hand, against models that go instant by instant, and what nsys prints."""

import polars as pl
import pytest
from hypothesis import given, strategies as st

import kanalyze
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.idle.ledger import AS_NSYS, exposure, gaps, utilisation
from kanalyze.errors import UnknownNameError
from kanalyze.window import Window
from support.build import kernel, memcpy, report, rows_of, timeline
from support.large import in_batches
from support.nsys_csv import assert_rows, report_of, reports_with, rows_of as listed_rows
from support.shares import cases, holds
from support.slow_gaps import SlowGaps, gap_reports
from support.slow_model import BUSY, SlowModel
from support.strategies import EVENTS, FEWER, WINDOWS, slow_given

#: Two kernels with a wait and some work of the host between them, in ranges.
LOOP = """
    0-5000 [step]; 2500-3500 [data]; 0-100 cudaLaunchKernel_v7000 #1; 200-1000 kernel:first #1
    100-1500 cudaStreamSynchronize_v3020; 3600-3700 cudaEventRecord_v3020
    4000-4300 cudaLaunchKernel_v7000 #2; 4500-5000 kernel:second #2 s8; 5010-5100 kernel:third #2 s8
"""


def test_by_culprit_gaps_count_whole_for_their_largest_culprit():
    assert gaps(report(timeline(LOOP)), by="culprit", threshold_ns=0).rows() == [
        (0, "host", "step", 1, 3_500, 3_500 / 5_100, 3_500.0, 3_500, None),
        (0, "launch", "first", 1, 200, 200 / 5_100, 200.0, 200, None),
        (0, "queued", "after second on the same stream", 1, 10, 10 / 5_100, 10.0, 10, None),
    ]


@cases(0.6)
@slow_given(gap_reports(), WINDOWS, st.sampled_from([0, 0, 3]), st.sampled_from([1, 2, 3, 1_000]))
def test_gaps_equal_the_model(made, window, threshold, batch):
    events, records = made
    of = report(events, event_records=records).narrow(window=Window(*window))
    with pytest.MonkeyPatch.context() as patch:
        in_batches(patch, batch)
        found = gaps(of, threshold_ns=threshold).drop("process_id", "thread_id", "aligned_share")
    model = SlowGaps(events, window, records)
    holds(found.height)
    assert found.rows() == [gap.row(model) for gap in model.gaps() if len(gap.instants) > threshold]


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


@pytest.mark.slow
@pytest.mark.parametrize("threshold_ms", [0, 1])
@pytest.mark.parametrize("name", sorted({*reports_with("gpu_gaps-0")} - WHOLE_GRAPHS))
def test_gaps_equal_those_of_nsys(name, threshold_ms):
    report = report_of(name)
    columns = ("Start (ns)", "Duration (ns)", "Device ID")
    rows = listed_rows(name, f"gpu_gaps-{threshold_ms}")
    used = {*report.kind("kernel").get_column("process_id"), *(int(row["PID"]) for row in rows)}
    for process in used:
        expected = sorted(tuple(int(row[column]) for column in columns) for row in rows if int(row["PID"]) == process)
        assert between_operations(report, process, threshold_ms * 1_000_000) == expected


def test_copies_behind_kernels_are_hidden():
    events = [kernel(0, 60), memcpy(40, 80), memcpy(50, 70, direction="Device-to-Host")]
    columns = ("detail", "total_ns", "union_ns", "exposed_ns", "hidden_share")
    found = exposure(report(events)).filter(category="memcpy").select(columns).rows()
    assert found == [(None, 60, 40, 20, 0.5), ("Host-to-Device", 40, 40, 20, 0.5), ("Device-to-Host", 20, 20, 0, 1.0)]


@cases(0.02)
@slow_given(EVENTS, WINDOWS)
def test_the_hidden_share_of_launches_is_that_of_a_loop_over_every_instant(events, window):
    model, parts = SlowModel(events, window), []
    found = exposure(report(events).narrow(window=Window(*window)))
    for device in model.devices:
        low, high = model.window(device)
        launches = {model.launch_of(item) for item in model.operations if item.event.device == device} - {None}
        calling = {at for item in launches for at in range(max(item.start, low), min(item.end, high))}
        waited = sum(told == ["launch", "call"] for _, *told in model.instants(device))
        shares = found.filter(device=device, category="launch").get_column("hidden_share").to_list()
        assert shares == [pytest.approx(1 - waited / len(calling))] if calling else shares in ([], [None])
        parts.append(0 < waited < len(calling))
    holds(any(parts))


#: Of each listing of nsys, how many chunks and which threshold it was asked for.
ASKED = {"gpu_time_util": (30, 0.5), "gpu_time_util-30": (30, 1.01), "gpu_time_util-7": (7, 1.01)}


@pytest.mark.parametrize("chunks", [0, -1, 100_001])
def test_a_number_of_chunks_that_cannot_be(chunks):
    with pytest.raises(UnknownNameError, match="number of chunks"):
        utilisation(report([kernel(0, 10)]), chunks)
    assert utilisation(report([kernel(0, 10)]), 100_000).height == 10


@FEWER
@given(EVENTS, WINDOWS, st.integers(1, 12))
def test_each_chunk_holds_its_instants_of_the_ledger(events, sides, chunks):
    of, slow = report(events).narrow(window=Window(*sides)), SlowModel(events, sides)
    found = utilisation(of, chunks)
    for device, low, high in windows(of).iter_rows():
        told = {instant: bucket for instant, bucket, _ in slow.instants(device)}
        own = found.filter(pl.col("device") == device)
        ends = [low, *(own["t_ns"] + own["dur_ns"])]
        assert own["t_ns"].to_list() == ends[:-1]  # they tile the window
        assert ends[-1] == high
        assert own.height == min(chunks, high - low)
        assert own.is_empty() or own["dur_ns"].max() - own["dur_ns"].min() <= 1
        for row in own.iter_rows(named=True):
            inside = [told[instant] for instant in range(row["t_ns"], row["t_ns"] + row["dur_ns"])]
            expected = {bucket: inside.count(bucket) for bucket in BUSY}
            assert {bucket: row[f"{bucket}_ns"] for bucket in BUSY} == expected
            assert row["busy_ns"] == sum(expected.values())
            assert all(row[f"{name}_share"] == row[f"{name}_ns"] / row["dur_ns"] <= 1 for name in ("busy", *BUSY))


def test_as_nsys_adds_up_what_runs_at_once_and_merges_neighbours():
    events = [kernel(10, 20), memcpy(12, 20), kernel(45, 50), kernel(50, 50)]
    found = utilisation(report(events), 4, as_nsys=True, threshold_share=2.0)
    assert found.to_dicts() == rows_of(
        "in_use_share dur_ns start_ns process_id device context_id gpu", (23 / 40, 40, 10, 1, 0, 1, 0)
    )
    assert found.schema == AS_NSYS.schema


WORK, PROFILED = "CUPTI Buffer flush", "CUDA profiling overhead"
GRAPH_AND_KERNELS = "0-5 kernel; 5-6 kernel; 9-10 kernel; 5-20 graph; 7-8 kernel p2; 17-18 kernel p2"
PROFILER_WORKS = (
    f"10-20 kernel; 40-50 kernel; 10-30 !{PROFILED}; 22-30 !{PROFILED}; 31-39 !{WORK}; 32-34 !{PROFILED} p2"
)
IN_USE = "start_ns dur_ns in_use_share"


@pytest.mark.parametrize(
    ("events", "chunks", "columns", "rows"),
    [
        # only below half unless told otherwise, the least used first
        ("10-14 kernel; 20-30 kernel; 49-50 kernel", 4, IN_USE, [(30, 20, 0.05), (10, 10, 0.4)]),
        # the length of chunks is rounded up, and the last one cut
        ("1-2 kernel; 11-12 kernel", 10, "start_ns dur_ns", [(3, 8)]),
        # the profiler's overhead strictly inside is work, that of its own process
        (PROFILER_WORKS, 1, "in_use_share", []),
        (f"1-10 kernel; 90-101 kernel; 20-40 !{PROFILED}", 1, "in_use_share", [(0.4,)]),
        ("1-10 kernel pNone; 90-101 kernel pNone", 1, "in_use_share", [(0.2,)]),
        (f"1-10 kernel pNone; 90-101 kernel pNone; 20-40 !{PROFILED} pNone", 1, "in_use_share", [(0.4,)]),
        # each process by itself, without graphs and what starts at 0
        (GRAPH_AND_KERNELS, 1, "process_id start_ns dur_ns", [(2, 7, 11), (1, 5, 5)]),
    ],
)
def test_as_nsys(events, chunks, columns, rows):
    found = utilisation(report(timeline(events)), chunks, as_nsys=True)
    assert found.select(columns.split()).rows() == rows


@pytest.mark.parametrize(("name", "listed"), [(name, listed) for listed in ASKED for name in reports_with(listed)])
def test_equals_nsys(name, listed):
    (chunks, threshold), theirs = ASKED[listed], listed_rows(name, listed)
    ours = utilisation(report_of(name), chunks, as_nsys=True, threshold_share=threshold)
    columns = {
        "Duration (ns)": "dur_ns", "Start (ns)": "start_ns", "PID": "process_id", "Device ID": "device",
        "Context ID": "context_id",
    }  # fmt: skip
    assert_rows(ours.fill_null(0), theirs, columns)
    for share, row in zip(ours.get_column("in_use_share"), theirs, strict=True):
        assert abs(share * 100 - float(row["In-Use (%)"])) <= 0.05 + 1e-9
