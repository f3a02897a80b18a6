"""Utilisation: chunks that tile the window and hold the ledger's busy time exactly, and what nsys prints."""

import csv
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.idle.utilisation import AS_NSYS, utilisation
from kanalyze.errors import UnknownNameError
from kanalyze.window import Window
from support.build import call, kernel, memcpy, memset, report, rows_of, timeline
from support.real_reports import real_report
from support.slow_model import BUSY, SlowModel
from support.strategies import EVENTS, FEWER, WINDOWS

HERE = Path(__file__).parents[2]
EXPECTED = sorted((HERE / "reports" / "expected").glob("*/gpu_time_util*.csv"))
THRESHOLDS = {"gpu_time_util": 0.5, "gpu_time_util-30": 1.01, "gpu_time_util-7": 1.01}


def test_a_window_in_two_chunks():
    events = [call("cudaMalloc", 0, 5), kernel(0, 10), memcpy(5, 15), memset(12, 18), kernel(16, 20)]
    assert utilisation(report(events), 2).to_dicts() == rows_of(
        "device t_ns dur_ns busy_share kernel_share communication_share memcpy_share memset_share busy_ns "
        "kernel_ns communication_ns memcpy_ns memset_ns",
        (0, 0, 10, 1.0, 1.0, 0.0, 0.0, 0.0, 10, 10, 0, 0, 0),
        (0, 10, 10, 1.0, 0.4, 0.0, 0.5, 0.1, 10, 4, 0, 5, 1),
    )


@pytest.mark.parametrize("chunks", [0, -1, 100_001])
def test_a_number_of_chunks_that_cannot_be(chunks):
    with pytest.raises(UnknownNameError, match="number of chunks"):
        utilisation(report([kernel(0, 10)]), chunks)


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
            assert row["busy_share"] == row["busy_ns"] / row["dur_ns"] <= 1


# As nsys


def test_as_nsys_adds_up_what_runs_at_once_and_merges_neighbours():
    events = [kernel(10, 20), memcpy(12, 20), kernel(45, 50), kernel(50, 50)]
    found = utilisation(report(events), 4, as_nsys=True, threshold_share=2.0)
    assert found.to_dicts() == rows_of(
        "in_use_share dur_ns start_ns process_id device context_id gpu", (23 / 40, 40, 10, 1, 0, 1, 0)
    )
    assert found.schema == AS_NSYS.schema


WORK, PROFILED = "CUPTI Buffer flush", "CUDA profiling overhead"


@pytest.mark.parametrize(
    ("events", "chunks", "columns", "rows"),
    [
        # only below half unless told otherwise, the least used first
        (
            "10-14 kernel; 20-30 kernel; 49-50 kernel",
            4,
            "start_ns dur_ns in_use_share",
            [(30, 20, 0.05), (10, 10, 0.4)],
        ),
        # the length of chunks is rounded up, and the last one cut
        ("1-2 kernel; 11-12 kernel", 10, "start_ns dur_ns", [(3, 8)]),
        # the profiler's overhead strictly inside is work, that of its own process
        (
            f"10-20 kernel; 40-50 kernel; 10-30 !{PROFILED}; 22-30 !{PROFILED}; 31-39 !{WORK}; 32-34 !{PROFILED} p2",
            *(1, "in_use_share", []),
        ),
        (f"1-10 kernel; 90-101 kernel; 20-40 !{PROFILED}", 1, "in_use_share", [(0.4,)]),
        ("1-10 kernel pNone; 90-101 kernel pNone", 1, "in_use_share", [(0.2,)]),
        (f"1-10 kernel pNone; 90-101 kernel pNone; 20-40 !{PROFILED} pNone", 1, "in_use_share", [(0.4,)]),
        # each process by itself, without graphs and what starts at 0
        (
            "0-5 kernel; 5-6 kernel; 9-10 kernel; 5-20 graph; 7-8 kernel p2; 17-18 kernel p2",
            *(1, "process_id start_ns dur_ns", [(2, 7, 11), (1, 5, 5)]),
        ),
    ],
)
def test_as_nsys(events, chunks, columns, rows):
    found = utilisation(report(timeline(events)), chunks, as_nsys=True)
    assert found.select(columns.split()).rows() == rows


def test_as_nsys_takes_the_context_of_what_ended_last():
    events = [kernel(1, 9, context=1), kernel(2, 50, context=3), kernel(3, 4, context=2)]
    found = utilisation(report(events), 1, as_nsys=True, threshold_share=2)
    assert found.get_column("context_id").to_list() == [3]


@pytest.mark.parametrize("path", EXPECTED, ids=[f"{path.parent.name}-{path.stem}" for path in EXPECTED])
def test_equals_nsys(path):
    found = HERE / "reports" / f"{path.parent.name}.sqlite"
    chunks = 7 if path.stem.endswith("-7") else 30
    ours = utilisation(real_report(found), chunks, as_nsys=True, threshold_share=THRESHOLDS[path.stem])
    with path.open(newline="") as file:
        theirs = list(csv.DictReader(file))
    assert ours.height == len(theirs)
    columns = {
        "Duration (ns)": "dur_ns",
        "Start (ns)": "start_ns",
        "PID": "process_id",
        "Device ID": "device",
        "Context ID": "context_id",
    }
    for row, expected in zip(ours.iter_rows(named=True), theirs, strict=True):
        assert {name: row[column] or 0 for name, column in columns.items()} == {
            name: int(expected[name]) for name in columns
        }
        assert abs(row["in_use_share"] * 100 - float(expected["In-Use (%)"])) <= 0.05 + 1e-9
