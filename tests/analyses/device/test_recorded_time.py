"""What cannot be is counted in health, and no absurd time stretches the window of a device."""

import gzip
import json
from dataclasses import replace
from functools import cache

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.device._operations import recorded_until
from kanalyze.errors import KanalyzeError
from support.build import call, host, kernel, memcpy, nvtx, overhead, report
from support.command import REPORTS, SAMPLES
from support.exports import altered
from support.real_reports import real_report
from support.strategies import EVENTS, FEWER

GRAPH_NODE, TWO_GPUS = REPORTS / "graph_node.sqlite", REPORTS / "two_gpus.sqlite"
TRACE = SAMPLES / "mlp_train" / "torch.json.gz"
KERNEL, RUNTIME, SYNC, MEMCPY = (
    f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "RUNTIME", "SYNCHRONIZATION", "MEMCPY")
)
THOUSAND_S = 1_000_000_000_000
LAST = "(SELECT max(rowid) FROM {})"


@cache
def usual_doubts(path):
    return doubts(real_report(path))


#: What is true of most reports that are made by hand.
_MADE = ("operations without a launch", "idle time of unknown cause", "kernels of unknown occupancy")


def doubts(of):
    """The doubts of a report by name, but for those of most made by hand: how many, and how much time."""
    found = kanalyze.health(of).filter(pl.col("doubt") & ~pl.col("check").is_in(_MADE))
    rows = found.select("check", "count", "ns").rows()
    return {check: (count, ns) for check, count, ns in rows}


def new_doubts(path, source):
    """The names and counts of doubts that `source` does not have."""
    return {name: count for name, (count, _) in doubts(kanalyze.read(path)).items() if name not in usual_doubts(source)}


def window(of):
    return kanalyze.summarize(of).windows.select("device", "start_ns", "end_ns").rows()


def recorded(events, end):
    """The report of `events`, recorded until `end`."""
    made = report(events)
    return replace(made, meta=replace(made.meta, end_ns=end))


# An end that cannot be


@pytest.mark.parametrize("kind", ["call", "kernel", "both"])
def test_the_window_ends_with_the_recording(kind):
    long = THOUSAND_S + 50
    calls = [call("cudaLaunchKernel", 0, 5, correlation=1), call("cudaFree", 30, 40 if kind == "kernel" else long)]
    of = recorded([*calls, kernel(10, 20 if kind == "call" else long, correlation=1)], 50)
    assert window(of) == [(0, 0, 50)]
    assert kanalyze.ledger(of)["ns"].sum() == 50
    outside = {
        "operations outside the recording": kind != "call",
        "host events outside the recording": kind != "kernel",
    }
    assert {name for name in doubts(of) if "outside" in name} == {name for name, there in outside.items() if there}
    assert kanalyze.kernels(of)["total_ns"].item() == (10 if kind == "call" else long - 10)  # as it was recorded


@pytest.mark.parametrize("kind", ["call", "kernel"])
def test_where_nobody_says_when_it_ended_an_end_that_nothing_else_comes_near_counts_as_wrong(kind):
    calls = [call("cudaLaunchKernel", 0, 5, correlation=1), call("cudaFree", 30, THOUSAND_S if kind == "call" else 40)]
    of = report([*calls, kernel(10, 20 if kind == "call" else THOUSAND_S, correlation=1)])
    assert window(of) == [(0, 0, 20 if kind == "call" else 40)]
    (name,) = doubts(of)
    assert name == f"{'host events' if kind == 'call' else 'operations'} outside the recording"


def test_a_long_kernel_that_a_call_waits_for_is_none():
    calls = [call("cudaLaunchKernel", 0, 5, correlation=1), call("cudaDeviceSynchronize", 30, THOUSAND_S + 1)]
    of = report([*calls, kernel(10, THOUSAND_S, correlation=1)])
    assert window(of) == [(0, 0, THOUSAND_S + 1)]
    assert doubts(of) == {}


def test_a_recording_that_ended_before_most_events_is_what_is_wrong():
    of = recorded([call("cudaLaunchKernel", 100, 105, correlation=1), kernel(110, 120, correlation=1)], 10)
    assert window(of) == [(0, 100, 120)]
    assert "operations outside the recording" in doubts(of)


@pytest.mark.slow
@FEWER
@given(EVENTS, st.integers(0, 200))
def test_the_limit_is_no_earlier_than_half_of_the_starts_and_the_ledger_holds(events, end):
    of = recorded(events, end)
    limit = recorded_until(of)
    starts = [one.start for one in events if one.kind in {"kernel", "graph", "memcpy", "memset", "api"}]
    if limit is not None:
        assert limit == end
        assert 2 * sum(start < end for start in starts) >= len(starts)
    for device, low, high in window(of):
        assert kanalyze.ledger(of).filter(pl.col("device") == device)["ns"].sum() == high - low
        assert limit is None or high <= max(limit, low)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("table", "row"), [(RUNTIME, "9"), (RUNTIME, "last"), (KERNEL, "9"), (KERNEL, "last")])
def test_an_end_a_thousand_seconds_late_in_a_real_report(tmp_path, table, row):
    row = LAST.format(table) if row == "last" else row
    path = altered(tmp_path, GRAPH_NODE, f'UPDATE {table} SET "end" = "end" + {THOUSAND_S} WHERE rowid = {row}')
    whose = "host events" if table == RUNTIME else "operations"
    found = new_doubts(path, GRAPH_NODE)
    assert found[f"{whose} outside the recording"] == 1
    of = kanalyze.read(path)
    assert all(end <= of.meta.end_ns for _, _, end in window(of))
    assert kanalyze.summarize(of).answer.count("1,0") == 0


@pytest.mark.slow
def test_an_overhead_a_thousand_seconds_late_in_a_real_report(tmp_path):
    path = altered(tmp_path, GRAPH_NODE, f'UPDATE PROFILER_OVERHEAD SET "end" = "end" + {THOUSAND_S} WHERE rowid = 2')
    assert new_doubts(path, GRAPH_NODE) == {"host events outside the recording": 1}
    assert window(kanalyze.read(path)) == window(real_report(GRAPH_NODE))


@pytest.mark.parametrize("category", ["cuda_runtime", "kernel"])
@pytest.mark.one_in(4)
def test_an_end_a_thousand_seconds_late_in_a_trace(tmp_path, category):
    trace = json.loads(gzip.decompress(TRACE.read_bytes()))
    events = [event for event in trace["traceEvents"] if event.get("cat") == category]
    events[len(events) // 2]["dur"] += THOUSAND_S // 1000
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    of = kanalyze.read(path)
    (name,) = doubts(of).keys() & {"host events outside the recording", "operations outside the recording"}
    assert name.startswith("host" if category == "cuda_runtime" else "operations")
    (_, start, end), (_, _, usual) = window(of)[0], window(real_report(TRACE))[0]
    assert end <= usual
    assert end - start < 100_000_000_000


# What else cannot be


LAUNCH, FREE = call("cudaLaunchKernel", 0, 5, correlation=1), call("cudaFree", 0, 5, correlation=1)
NOWHERE = "operations without a device or stream"
SIZES, SHAPES = "sizes that are missing or cannot be", "kernels of an impossible shape"


@pytest.mark.parametrize(
    ("events", "check", "count", "ns"),
    [
        ([LAUNCH, kernel(-3, 20, correlation=1)], "operations that start before their launch", 1, 3),
        *(
            ([event], "host events that end before they start", 1, 10)
            for event in (
                nvtx("r", 20, 10),
                overhead("o", 20, 10),
                *(host(kind, "any", 20, 10) for kind in ("sync", "osrt", "library", "op")),
            )
        ),
        *(
            ([LAUNCH, kernel(10, 20, correlation=1, **{missing: None})], NOWHERE, 1, 10)
            for missing in ("device", "stream")
        ),
        ([call("cudaFree", 0, 5, thread=None)], "calls without a thread", 1, 5),
        *(
            ([FREE, replace(FREE, correlation=2), *[FREE] * again], "events recorded twice", again, 5 * again)
            for again in (1, 2)
        ),
        *(
            ([memcpy(0, 2000, size_bytes=size), memcpy(3000, 5000, size_bytes=100_000_000)], SIZES, 1, 2000)
            for size in (None, 0, -1, 1 << 45, 1_000_000_000)
        ),
        *(([host("memory", "Allocation", 0, 0, side={"size_bytes": size})], SIZES, 1, 0) for size in (0, -5, 1 << 50)),
        *(
            ([kernel(0, 10, **shape)], SHAPES, 1, 10)
            for shape in (
                *({"grid": grid} for grid in ((0, 1, 1), (-3, 1, 1), (1, 1, 1 << 20))),
                *({"block": block} for block in ((1025, 1, 1), (64, 64, 1), (32, 0, 1), ((1 << 31) - 1, 1 << 30, 1))),
                {"side": {"registers_per_thread": -1}},
                {"side": {"dynamic_shared_bytes": 1 << 40}},
            )
        ),
    ],
)
def test_what_else_cannot_be(events, check, count, ns):
    assert doubts(report(events))[check] == (count, ns)


@pytest.mark.parametrize(
    ("events", "usual"),
    [
        ([call("cudaLaunchKernel", 10, 15, correlation=1), kernel(10, 20, correlation=1)], True),
        ([nvtx("r", 20, None)], True),  # an event without an end does not end before it starts
        ([FREE, replace(FREE, correlation=2)], True),
        ([kernel(0, 10, grid=((1 << 31) - 1, 1, 1), block=(1024, 1, 1))], True),
        ([kernel(0, 10, grid=(0, 0, 0), block=(0, 0, 0))], False),  # a shape that no tool told
        ([memcpy(30, 40, direction="Unified Host-to-Device", stream=None)], False),
    ],
)
def test_what_can_be(events, usual):
    found = doubts(report(events))
    assert not {SHAPES, NOWHERE} & {*found}
    assert found == {} or not usual


# In real reports


@pytest.mark.one_in(4)
@pytest.mark.parametrize("path", [GRAPH_NODE, TWO_GPUS, REPORTS / "findings.sqlite"], ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "statement", [f"DELETE FROM {SYNC}", f"DROP TABLE {SYNC}", f"DELETE FROM {SYNC} WHERE rowid = 2"]
)
def test_synchronisations_that_are_gone(tmp_path, path, statement):
    found = new_doubts(altered(tmp_path, path, statement), path)
    calls = (
        kanalyze.read(path)
        .kind("api")
        .filter(pl.col("name").cast(pl.String).str.contains("StreamSync|EventSync|StreamWaitEvent"))
    )
    assert found["waits without a record"] == (1 if "rowid" in statement else calls.height)


SMALL = {
    "operations that start before their launch": [f"UPDATE {KERNEL} SET start = start - 50000000 WHERE rowid = 50"],
    "host events that end before they start": [f'UPDATE {SYNC} SET "end" = start - 5 WHERE rowid = 1'],
    "negative durations": [f'UPDATE {RUNTIME} SET "end" = start - 5 WHERE rowid = 3'],
    NOWHERE: [
        f"UPDATE {KERNEL} SET streamId = 0 WHERE rowid = 1",
        f"UPDATE {KERNEL} SET streamId = NULL WHERE rowid = 1",
        f"UPDATE {KERNEL} SET deviceId = NULL WHERE rowid = 1",
    ],
    "operations of a GPU that is not listed": [
        f"UPDATE {KERNEL} SET deviceId = 99 WHERE rowid = 1",
        f"UPDATE {MEMCPY} SET deviceId = -1 WHERE rowid = 1",
    ],
    SIZES: [
        f"UPDATE {MEMCPY} SET bytes = 0 WHERE rowid = 1",
        f"UPDATE {MEMCPY} SET bytes = -8 WHERE rowid = 1",
        f"UPDATE {MEMCPY} SET bytes = bytes + (1 << 50) WHERE rowid = 1",
    ],
    SHAPES: [
        f"UPDATE {KERNEL} SET gridX = 0 WHERE rowid = 1",
        f"UPDATE {KERNEL} SET blockY = -1 WHERE rowid = 1",
        f"UPDATE {KERNEL} SET blockX = 100000 WHERE rowid = 1",
    ],
    "limits of GPUs that are missing or cannot be": [
        f"UPDATE TARGET_INFO_GPU SET {column} = {value} WHERE rowid = 1"
        for column in ("smCount", "memoryBandwidth", "totalMemory", "clockRate", "maxWarpsPerSm")
        for value in ("NULL", "0", "-1", "1 << 60")
    ],
    "events recorded twice": [
        f"INSERT INTO {RUNTIME} SELECT * FROM {RUNTIME} WHERE rowid = 4",
        f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL} WHERE rowid = 4",
    ],
}


def without_constraints(table):
    return [
        f"CREATE TABLE again AS SELECT * FROM {table} ORDER BY rowid",
        f"DROP TABLE {table}",
        f"ALTER TABLE again RENAME TO {table}",
    ]


@pytest.mark.parametrize(
    ("check", "statement"),
    [
        pytest.param(check, one, marks=[pytest.mark.slow] * bool(place or nth % 2))
        for nth, (check, statements) in enumerate(SMALL.items())
        for place, one in enumerate(statements)
    ],
)
def test_one_damaged_row_of_a_real_report_is_one_doubt_and_every_command_still_answers(tmp_path, check, statement):
    table = next(name for name in (KERNEL, RUNTIME, SYNC, MEMCPY, "TARGET_INFO_GPU") if name in statement)
    path = altered(tmp_path, GRAPH_NODE, *without_constraints(table), statement)
    assert new_doubts(path, GRAPH_NODE)[check] == 1
    of = kanalyze.read(path)
    kanalyze.summarize(of)
    for limit in ("sm_count", "memory_bandwidth_bytes_per_s", "memory_bytes", "clock_hz", "max_warps_per_sm"):
        assert all(one is None or one > 0 for one in of.devices[limit])


REAL = sorted(REPORTS.glob("*.sqlite"))
REAL += [path for pattern in ("*/nsys.sqlite", "*/torch.json.gz") for path in sorted(SAMPLES.glob(pattern))]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("path", REAL, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_reports_as_they_are_have_none_of_these(path):
    named = {*SMALL, "waits without a record", "host events outside the recording", "calls without a thread"}
    assert not named & doubts(real_report(path)).keys()


def test_limits_of_a_gpu_in_a_trace_that_cannot_be(tmp_path):
    trace = json.loads(gzip.decompress(TRACE.read_bytes()))
    trace["deviceProperties"][0] |= {"numSms": -132, "warpSize": 0, "totalGlobalMem": 1 << 60}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    of = kanalyze.read(path)
    assert doubts(of)["limits of GPUs that are missing or cannot be"][0] == 3
    assert of.devices.select("sm_count", "threads_per_warp", "memory_bytes").row(0) == (None, None, None)


@pytest.mark.parametrize(
    ("table", "device", "where"),
    [(KERNEL, 99, ""), (KERNEL, -1, "WHERE rowid % 3 = 0"), pytest.param(MEMCPY, 99, "", marks=pytest.mark.slow)],
    ids=["all", "some", "copies"],
)
def test_operations_of_a_gpu_that_no_table_describes_are_a_doubt_and_have_their_page(tmp_path, table, device, where):
    of = kanalyze.read(altered(tmp_path, TWO_GPUS, f"UPDATE {table} SET deviceId = {device} {where}"))
    changed = of.kind("kernel" if table == KERNEL else "memcpy").filter(pl.col("device") == device).height
    page = kanalyze.overview(of)
    found = dict(page.tables["health"].filter("doubt").select("check", "count").iter_rows())
    assert found["operations of a GPU that is not listed"] == changed > 0
    assert set(page.windows["device"]) > {device}
    assert kanalyze.ledger(of, device=device).height
    with pytest.raises(KanalyzeError, match="no device '98'"):
        of.narrow(device=98)


def on_another_gpu(tmp_path, kinds, **changes):
    """Doubts of a page of a trace whose operations of these kinds are on GPU 99, and how many those are."""
    trace = json.loads(gzip.decompress(TRACE.read_bytes())) | changes
    moved = [event for event in trace["traceEvents"] if event.get("cat") in kinds]
    for event in moved:
        event["pid"] = event["args"]["device"] = 99
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    page = kanalyze.overview(kanalyze.read(path))
    assert 99 in page.windows["device"]
    return dict(page.tables["health"].filter("doubt").select("check", "count").iter_rows()), len(moved)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("kernel",), ("kernel", "gpu_memcpy", "gpu_memset")], ids=["some", "all"])
def test_operations_of_a_trace_on_a_gpu_that_it_does_not_describe_are_a_doubt(tmp_path, kinds):
    found, moved = on_another_gpu(tmp_path, kinds)
    assert found["operations of a GPU that is not listed"] == moved


@pytest.mark.slow
def test_a_trace_that_describes_no_gpu_lists_those_that_it_names(tmp_path):
    found, _ = on_another_gpu(tmp_path, ("kernel",), deviceProperties=[])
    assert "operations of a GPU that is not listed" not in found
