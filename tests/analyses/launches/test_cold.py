"""Cold and warm: one-time costs, first runs, and the steady part without them."""

from statistics import median

import polars as pl
import pytest
from hypothesis import settings, strategies as st

from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.compiling import cold_start
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches._launch_costs import launch_costs, least_worth_saying, steady_parts
from kanalyze.analyses.launches.cold import cold
from kanalyze.analyses.page.time_page import summarize
from kanalyze.window import Window
from support.build import LAUNCH, MS, US, call, kernel, launched, memcpy, nvtx, overhead, report, rows_of
from support.shares import cases, holds
from support.slow_model import SlowModel
from support.strategies import EVENTS, WINDOWS, few_given, slow_given

#: What shows that the process began in the recording, and is no cost by itself.
BEGUN = overhead("Lazy Function Loading", -9, -8)


def rows(*events, columns=("category", "what", "start_ns", "dur_ns", "warm_ns", "extra_ns"), **where):
    return cold(report(events), **where).select(columns).rows()


def launch(name, start, end, correlation, *, ran=1, **keys):
    """A launching call, and the kernel that starts as it returns."""
    return launched(start, end, kernel(end, end + ran, name=name, correlation=correlation, **keys), LAUNCH)


def launches(*times, name="k", gap=10):
    start, events = 0, [BEGUN]
    for number, length in enumerate(times):
        events += launch(name, start, start + length, number + 1)
        start += length + gap
    return events


FIRST_OF_THREE = "the process's first launch of this kernel; later ones: 2"


def test_the_whole_row_of_a_first_launch():
    assert cold(report(launches(40, 4, 6))).to_dicts() == rows_of(
        "process_id device category what start_ns dur_ns warm_ns extra_ns launch_ns idle_ns evidence",
        (1, 0, "first launch", "k", 0, 40, 5.0, 35.0, 40, 40, FIRST_OF_THREE),
    )


@pytest.mark.slow
def test_first_launches_are_those_of_the_rule():
    events = [*launches(40, 4, 6), *launch("once", 200, 260, 9), *launch("quick", 300, 305, 10)]
    columns = ("what", "dur_ns", "warm_ns", "extra_ns")
    assert rows(*events, columns=columns) == [("once", 60, None, None), ("k", 40, 5.0, 35.0)]
    (finding,) = [one for one in cold_start(report(events)) if one.rule == "first-launch"]
    assert (finding.table, finding.names) == ("cold", ("once",))
    one, two = [*launches(4, 4)], [*launches(4, 4), *launch("k", 100, 104, 9, device=1)]
    load = call("cuLibraryLoadData", 50, 60)  # the device of a call is known where the process used one
    assert rows(*one, load, columns=("device", "idle_ns")) == [(0, 10)]
    assert rows(*two, load, columns=("device", "idle_ns")) == [(None, None)]


def test_a_context_in_a_call_and_outside_of_all_calls():
    calls = [call("cudaMalloc_v3020", start * US, end * US) for start, end in ((0, 100), (200, 203))]
    made = [calls[0], overhead("CUDA context created", 50 * US, 50 * US), calls[1]]
    columns = ("category", "what", "dur_ns", "warm_ns", "extra_ns", "evidence")
    making = "makes a context; other calls of this name: 1"
    first = "the process's first call of this name; later ones: 1"
    assert rows(*made, columns=columns) == [
        ("context", "cudaMalloc", 50 * US, 3.0 * US, 50.0 * US, making),
        ("allocation", "cudaMalloc", 50 * US, 3.0 * US, 47.0 * US, first),
    ]
    outside = [call("cuInit", 0, 5), overhead("CUDA context created", 50, 50), call("cudaMalloc_v3020", 90, 95)]
    evidence = "the profiler saw a context made outside of all calls that it records"
    what = "between cuInit and cudaMalloc"
    assert rows(*outside, columns=columns) == [("context", what, None, None, None, evidence)]
    alone = [("context", "cudaMalloc", 50 * US, None, 50.0 * US, "makes a context")]
    assert rows(*made[:2], columns=columns) == alone


def test_a_graph_is_captured_instantiated_uploaded_and_launched_first():
    events = [
        BEGUN,
        call("cudaStreamBeginCapture_v10000", 0, 2),
        call("cudaLaunchKernel_v7000", 3, 5 * US),
        call("cudaLaunchKernel_v7000", 6 * US, 6 * US + 1),
        call("cudaStreamEndCapture_v10000", 8 * US, 9 * US),
        call("cudaGraphInstantiate_v12000", 10 * US, 30 * US),
        call("cudaGraphUpload_v10000", 40 * US, 43 * US),
    ]
    for n, length in enumerate((8, 2, 2)):
        start = (50 + 10 * n) * US
        events.append(call("cudaGraphLaunch_v10000", start, start + length, correlation=n + 1))
        events.append(kernel(start + length, start + length + 1, correlation=n + 1, side={"graph_exec_id": 2}))
    assert rows(*events, columns=("category", "what", "dur_ns", "warm_ns", "extra_ns", "launch_ns")) == [
        ("graph", "cudaGraphInstantiate_v12000", 20 * US, None, 20.0 * US, None),
        ("graph", "stream capture", 9 * US, None, 9.0 * US, None),
        ("graph", "cudaGraphUpload_v10000", 3 * US, None, 3.0 * US, None),
        ("first launch", "graph 2", 8, 2.0, 6.0, 8),
    ]


def test_a_first_call_that_took_long():
    events = [
        call("cudaMallocAsync_v11020", 0, 90 * US),
        call("cudaMallocAsync_v11020", 100 * US, 101 * US),
        call("cudaEventCreate_v3020", 200 * US, 240 * US),
        call("cudaEventCreate_v3020", 300 * US, 301 * US),
        call("cudaEventCreate_v3020", 400 * US, 405 * US),
        call("cudaStreamSynchronize_v3020", 500 * US, 900 * US),  # blocks: as long as the work takes
        call("cudaStreamSynchronize_v3020", 950 * US, 951 * US),
        call("cudaGetDevice_v3020", 960 * US, 960 * US + 900),  # not worth a row
        call("cudaGetDevice_v3020", 961 * US, 961 * US + 1),
        call("cudaFreeHost_v3020", 970 * US, 980 * US),  # no later one to compare with
    ]
    assert rows(*events) == [
        ("allocation", "cudaMallocAsync_v11020", 0, 90 * US, 1.0 * US, 89.0 * US),
        ("first call", "cudaEventCreate", 200 * US, 40 * US, 3.0 * US, 37.0 * US),
    ]


def migration(start, end, address, cause="Page fault", size_bytes=10):
    side = {"address": address, "migration_cause": cause}
    return memcpy(start, end, direction="Unified Host-to-Device", size_bytes=size_bytes, side=side)


BLOCK = 1 << 21


def test_first_touch_is_a_block_that_no_kernel_had_on_the_device_before():
    events = [
        BEGUN,
        *launch("k", 0, 5, 1, ran=95),
        *(migration(10, 20, 0), migration(30, 40, 4096), migration(50, 60, BLOCK)),
        migration(100, 105, 20 * BLOCK),  # the kernel has ended
        *launch("k", 110, 115, 2, ran=10),
        *launch("k", 130, 135, 3, ran=30),
        migration(140, 150, 8192),  # a block that was there before
        *launch("k", 170, 175, 4, ran=40),
        migration(180, 190, 7 * BLOCK),
        migration(180, 190, 9 * BLOCK, cause="User prefetch"),
    ]
    columns = ("what", "start_ns", "dur_ns", "warm_ns", "extra_ns", "evidence")
    found = [row for row in cold(report(events)).iter_rows(named=True) if row["category"] == "first touch"]
    assert [tuple(row[name] for name in columns) for row in found] == [
        ("k", 5, 95, 10.0, 85.0, "3 migrations of 30 bytes to the GPU for the first time"),
        ("k", 175, 40, 10.0, 30.0, "1 migrations of 10 bytes to the GPU for the first time"),
    ]


@pytest.mark.slow
def test_windows_devices_and_processes():
    events = [*launches(40, 4, 6), call("cuLibraryLoadData", 90, 95, process=2)]
    assert len(rows(*events)) == 2
    assert rows(*events, window=Window(20, 60), columns=("category",)) == [("first launch",)]
    assert rows(*events, window=Window(80, None), columns=("category",)) == [("library",)]
    assert rows(*events, process=2, columns=("category",)) == [("library",)]
    assert rows(*events, device=0, columns=("category",)) == [("first launch",)]


def test_the_whole_row_of_a_kernel():
    events = [*launch("k", 0, 40, 1, ran=9), *launch("k", 60, 64, 2, ran=2), *launch("k", 70, 76, 3, ran=4)]
    assert cold(report(events), by="kernel").to_dicts() == rows_of(
        "process_id device kernel count first_start_ns first_api_ns warm_api_ns extra_api_ns first_kernel_ns "
        "warm_kernel_ns extra_kernel_ns launch_ns",
        (1, 0, "k", 3, 40, 40, 5.0, 35.0, 9, 3.0, 6.0, 40),
    )


@pytest.mark.parametrize(
    ("events", "where", "row"),
    [
        # a kernel of a graph has runs and no launch of its own
        (
            [call("cudaGraphLaunch", 0, 5, correlation=1), *(kernel(n, n + 1, correlation=1) for n in (5, 6))],
            {},
            (2, None, None, 1, 1.0),
        ),
        # what is first is so in the whole process
        (launches(40, 4, 6), {"window": Window(50, None)}, (2, None, 5.0, None, 1.0)),
    ],
)
def test_first_runs_and_launches(events, where, row):
    columns = ("count", "first_api_ns", "warm_api_ns", "first_kernel_ns", "warm_kernel_ns")
    assert cold(report(events), by="kernel", **where).select(columns).rows() == [row]


@few_given(EVENTS, WINDOWS)
def test_each_kernel_is_what_a_loop_over_its_runs_says(events, window):
    low, high = window
    model, runs = SlowModel(events), {}
    for item in sorted(
        (item for item in model.operations if item.event.kind == "kernel"), key=lambda i: (i.start, i.event_id)
    ):
        runs.setdefault((item.event.process, item.event.device, item.event.name), []).append(item)
    expected = {}
    for key, own in runs.items():
        seen = [item for item in own if low is None or item.event.end > low or item.start == low]
        seen = [item for item in seen if high is None or item.start < high]
        if seen:
            first = [item.event.end - item.start for item in seen if item is own[0]]
            later = [item.event.end - item.start for item in seen if item is not own[0]]
            expected[key] = (len(seen), first[0] if first else None, median(later) if later else None)
    found = cold(report(events).narrow(window=Window(*window)), by="kernel")
    columns = ("process_id", "device", "kernel", "count", "first_kernel_ns", "warm_kernel_ns")
    assert {row[:3]: row[3:] for row in found.select(columns).iter_rows()} == expected


@few_given(EVENTS, WINDOWS)
def test_costs_have_their_call_and_the_first_launches_are_those_that_are_counted(events, window):
    of = report(events).narrow(window=Window(*window))
    found = cold(of)
    calls = {(event.start, event.end - event.start) for event in events if event.kind == "api"}
    for making, made in SlowModel(events).context_calls.items():
        calls |= {(making.start, made - making.start), (made, making.end - made)}
    whole = found.filter(pl.col("dur_ns").is_not_null() & (pl.col("evidence").str.contains("migrations").not_()))
    assert set(whole.select("start_ns", "dur_ns").iter_rows()) <= calls
    assert found.select((pl.col("idle_ns") <= pl.col("dur_ns").clip(lower_bound=0)).all()).item()
    first = found.filter((pl.col("category") == "first launch") & ~pl.col("what").str.starts_with("graph "))
    assert first.height <= launch_costs(of).slow.get_column("sure").sum()


def program(startup_ms, steps, *, busy_ms=7, length_ms=10, late_load=False):
    """A context, loading and slow first launches, and then steps that each launch one kernel."""
    start = startup_ms * MS
    events = [call("cudaMalloc", 0, 100 * MS), overhead("CUDA context created", 99 * MS, 100 * MS)]
    events += [call("cuLibraryLoadData", start - 20 * MS, start - 10 * MS)]
    events += [nvtx("step", start - 30 * MS, start)]
    for number in range(steps):
        at = start + number * length_ms * MS
        events += launched(at, at + 5_000, kernel(at + 5_000, at + busy_ms * MS))
        events.append(nvtx("step", at, at + length_ms * MS))
    if late_load:
        events.append(call("cuLibraryLoadData", start + (steps - 1) * length_ms * MS, start + steps * length_ms * MS))
    return events


def busy_share(of, start, end):
    rows = ledger(of, window=Window(start, end))
    return rows.filter(pl.col("bucket").is_in(BUSY_BUCKETS)).get_column("share").sum()


@pytest.mark.parametrize(("startup_ms", "late_load"), [(200, False), (2_000, True), (30_000, True)])
@pytest.mark.slow
def test_without_one_time_costs_it_is_as_busy_as_in_a_window_over_the_steps(startup_ms, late_load):
    of = report(program(startup_ms, 40, late_load=late_load))
    steady = steady_parts(of)[0]
    steps = busy_share(of, startup_ms * MS, (startup_ms + 400) * MS)
    assert steady.busy_ns / steady.ns == pytest.approx(steps, abs=0.02)
    assert busy_share(of, steady.start, steady.end) == pytest.approx(steady.busy_ns / steady.ns, abs=1e-9)
    assert " Without one-time costs, from " in summarize(of).answer


MID_RUN = [
    one for one in program(200, 40) if one.name not in ("cudaMalloc", "CUDA context created", "cuLibraryLoadData")
]
LOADING = [call("cuLibraryLoadData", (198 + number * 10) * MS, (199 + number * 10) * MS) for number in (1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("events", "where", "worth"),
    [
        (MID_RUN, {}, None),  # nothing is known to be paid once
        ([*program(200, 3), *LOADING], {}, None),  # something is loaded before each step
        (program(200, 40), {"window": Window(300 * MS, 400 * MS)}, 0.1 * MS),  # a window without costs
        (program(200, 2), {}, 0.017 * MS),  # two operations are no steady part
    ],
)
def test_a_program_without_a_steady_part(events, where, worth):
    of = report(events).narrow(**where)
    assert steady_parts(of) == {}
    assert "one-time" not in summarize(of).answer
    assert worth is None or least_worth_saying(of)[0] == pytest.approx(worth, rel=0.01)


@pytest.mark.slow
def test_a_window_that_is_mostly_start_up_hides_no_finding():
    """300 µs of waiting for a blocking call: much of 40 ms of work, little of half a minute of start-up."""
    events = program(30_000, 4)
    events.append(call("cudaDeviceSynchronize", 30_000 * MS + 5_000, 30_000 * MS + 7 * MS + 300_000))
    of = report(events)
    (one,) = [found for found in ranked(of) if found.rule == "host-blocks"]
    assert one.at_stake_ns == 300_000
    assert one.at_stake_ns < 0.001 * 30_040 * MS
    assert least_worth_saying(of)[0] == pytest.approx(0.001 * 37 * MS, rel=0.01)


def test_without_one_time_costs_the_window_decides():
    events = [call("cudaLaunchKernel", 0, 10, correlation=1), kernel(10, 1_000, correlation=1)]
    assert least_worth_saying(report(events)) == {0: 1.0}


SPANS = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20)), max_size=3)
WORK = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20)), min_size=2, max_size=9)


def brute(work, loads):
    """Start, end and busy time of the longest busy stretch without loading, instant by instant; None without one."""
    busy = {at for start, length in work for at in range(start, start + length)}
    once = {at for start, length in loads for at in range(start, start + length)}
    if not busy or not loads or min(start for start, _ in loads) > min(busy):
        return None
    stretches, now = [], []
    for at in range(min(busy), max(busy) + 2):
        if at in once or at > max(busy):
            stretches.append(now)
            now = []
        else:
            now.append(at)
    times = [len(busy.intersection(stretch)) for stretch in stretches]
    most = max(times)
    if most * 2 < len(busy):
        return None
    stretch = stretches[times.index(most)]
    if sum(stretch[0] <= start <= stretch[-1] for start, _ in work) < 3:
        return None
    return stretch[0], stretch[-1] + 1, most


@cases(0.1)
@settings(max_examples=2 * settings.default.max_examples, database=None)
@slow_given(WORK, SPANS, st.sampled_from(["none", "more", "alone", "alone"]))
def test_the_steady_part_is_the_one_of_a_loop_over_every_instant(work, loads, begins):
    first = [(min(start for start, _ in work), 2)]
    loads = {"none": loads, "more": [*first, *loads], "alone": first}[begins]
    events = [kernel(start, start + length) for start, length in work]
    events += [call("cuLibraryLoadData", start, start + length) for start, length in loads]
    steady = steady_parts(report([*events, call("cudaGetDevice", 0, 1)]))
    expected = brute(work, loads)
    holds(expected)
    assert (tuple(steady[0]) if steady else None) == expected
