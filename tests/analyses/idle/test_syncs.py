"""Waits of host threads: every call that blocks one, what it waited for, and whom others waited for."""

import json

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.idle.syncs import HOST_WAITS, host_waits, scope_of, syncs
from kanalyze.errors import CannotTellError
from kanalyze.window import Window
from support.build import LAUNCH, call, host, kernel, launched, nvtx, report
from support.command import REPORTS
from support.nsys_csv import report_of, reports_with, rows_of
from support.real_reports import real_report
from support.slow_syncs import SlowSyncs, sync_reports
from support.strategies import WINDOWS, slow_given

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
    work = [*launched(0, 5, kernel(10, 50)), *launched(5, 9, kernel(40, 80, stream=8))]
    of = report([*work, nvtx("step", 85, 200), *calls])
    found = syncs(of, by="api").select("api", "waits_for", "range", "count", "total_ns", "idle_ns", "busy_ns")
    waits = [("device", "step", 2, 10, 10, 0), ("device", None, 1, 5, 0, 5)]
    assert found.rows() == [("cudaDeviceSynchronize", *wait) for wait in waits]


@slow_given(sync_reports())
def test_syncs_equal_the_model(made):
    events, records = made
    found = syncs(report(events, event_records=records)).drop("process_id", "thread_id")
    assert found.rows() == SlowSyncs(events, records=records).rows()


@slow_given(sync_reports(), WINDOWS)
def test_a_window_leaves_out_what_does_not_touch_it(made, window):
    events, records = made
    whole = report(events, event_records=records)
    low, high = (-99 if window[0] is None else window[0]), (999 if window[1] is None else window[1])
    end = pl.col("start_ns") + pl.col("dur_ns")
    inside = (pl.col("start_ns") < high) & ((end > low) | (pl.col("start_ns") == low))
    assert syncs(whole.narrow(window=Window(*window))).equals(syncs(whole).filter(inside))


@pytest.mark.parametrize("name", reports_with("cuda_api_sync"))
def test_what_nsys_lists_is_among_ours(name):
    rows = {tuple(map(int, [*row.values()][:4])) for row in rows_of(name, "cuda_api_sync")}
    assert rows
    assert rows <= set(syncs(report_of(name)).select("dur_ns", "start_ns", "process_id", "thread_id").rows())


#: The device is idle from 20 on, and thread 1 in no CUDA call until 120,000.
WAITING = (*launched(0, 10, kernel(10, 20), LAUNCH), *launched(120_000, 120_010, kernel(120_010, 120_020), LAUNCH))

#: What is seen of each function of the programs: they compute or sleep.
SEEN = {"fetch_remote": "blocked", "fetch_block": "blocked"}

#: After work is done it takes so long until the waiting thread goes on (ns): it is pickled, and handed to a thread.
HANDOVER = 1_500_000


def truth(name):
    rows = (REPORTS / "waits" / f"{name}.jsonl").read_text().splitlines()
    return sorted((json.loads(row) for row in rows), key=lambda row: row["end"])


def done_by(work, wait):
    """The pieces of work that can have ended a wait: the last to end in it, and others shortly before its end."""
    end = wait["start_ns"] + wait["dur_ns"]
    before = [row for row in work if row["end"] <= end + 5_000]
    return before[-1:] + [row for row in before if row["end"] >= end - HANDOVER]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("name", "known"), [("native", 0.99), ("pipe_noise", 0.98), ("queue", 0.95), ("poll", 0.9), ("loader_spawn", 0.95)]
)
def test_waits_are_for_the_process_and_what_it_did_as_the_program_says(name, known):
    """Waits of 0.2 ms and more: how much of that time is told, and how much of what is told is right."""
    found, work = host_waits(real_report(REPORTS / "waits" / f"{name}.sqlite")), truth(name)
    first = min(row["begin"] for row in work)
    asked = found.filter(
        pl.col("dur_ns") >= 200_000, pl.col("start_ns") >= first, pl.col("evidence").ne_missing("timer")
    )
    told = process = doing = 0
    for wait in asked.drop_nulls("by_process_id").iter_rows(named=True):
        right = [row for row in done_by(work, wait) if row["process"] == wait["by_process_id"]]
        told += wait["dur_ns"]
        process += wait["dur_ns"] * bool(right)
        mostly = [row for row in right if 2 * (row["end"] - max(row["begin"], wait["start_ns"])) > wait["dur_ns"]]
        doing += wait["dur_ns"] * all(wait["state"] == SEEN.get(row["function"], "running") for row in mostly)
    assert told >= known * asked.get_column("dur_ns").sum() > 0
    assert process >= 0.95 * told
    assert doing >= 0.9 * told


def test_functions_are_those_that_the_program_says():
    found, work = host_waits(real_report(REPORTS / "waits" / "native.sqlite")), truth("native")
    waited = found.filter(pl.col("call") == "pthread_cond_wait")
    right = [done_by(work, wait)[0]["function"] == wait["function"] for wait in waited.iter_rows(named=True)]
    assert len(right) >= 39
    assert all(right)
    assert waited.get_column("by_call").unique().to_list() == ["pthread_cond_signal"]
    assert waited.get_column("thread_id").n_unique() == 1
    assert waited.get_column("range").str.starts_with("wait ").all()


def test_culprits_name_what_was_waited_for():
    made = real_report(REPORTS / "waits" / "native.sqlite")
    thread = truth("native")[0]["thread"]
    names = {f"wait for {function} in thread {thread}" for function in ("parse_records", "fetch_block")}
    named = culprits(made).filter(pl.col("bucket").cast(pl.String) == "host")
    assert named.filter(pl.col("culprit").is_in(names)).get_column("ns").sum() >= 0.8 * named.get_column("ns").sum()
    states = culprits(made, by="state").drop_nulls("waits_for")
    assert {name.removeprefix("wait for ") for name in names} <= {*states.get_column("waits_for")}
    assert {*states.get_column("waits_on")} == {"condition"}


def test_a_wait_is_in_the_table_as_far_as_a_device_was_idle():
    events = (*WAITING, host("osrt", "read", 10, 110_000), host("osrt", "write", 100_000, 100_005, process=2, thread=7))
    far = host("osrt", "poll", 4_000_000, 5_000_000, process=2, thread=7)
    events = (*events, host("osrt", "poll", 130_000, 170_000))  # the recording's last operation has ended
    found = host_waits(report((*events, far)))
    assert dict(found.schema) == HOST_WAITS.schema
    row = found.row(0, named=True)
    assert found.height == 1
    assert (row["start_ns"], row["dur_ns"], row["idle_ns"], row["call"]) == (10, 109_990, 109_980, "read")
    assert (row["evidence"], row["by_process_id"], row["by_thread_id"], row["by_call"]) == ("call", 2, 7, "write")
    assert host_waits(report((*events, far)), process=1).rows() == found.rows()
    assert culprits(report((*events, far))).row(0, named=True)["culprit"] == "wait for process 2"


def test_it_needs_system_calls_or_the_scheduler():
    with pytest.raises(CannotTellError) as raised:
        kanalyze.host_waits(report(WAITING))
    assert "--cpuctxsw=process-tree" in str(raised.value.remedy)
