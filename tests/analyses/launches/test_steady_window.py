"""The steady part of a window: what the headline says without one-time costs, and what a finding has to touch."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches._launch_costs import least_worth_saying, steady_parts
from kanalyze.analyses.page.time_page import summarize
from kanalyze.window import Window
from support.build import call, kernel, nvtx, overhead, report
from support.real_reports import real_report

TESTS = Path(__file__).parents[2]
MS = 1_000_000


def program(startup_ms, steps, *, busy_ms=7, length_ms=10, late_load=False):
    """A context, loading and slow first launches, and then steps that each launch one kernel."""
    start = startup_ms * MS
    events = [call("cudaMalloc", 0, 100 * MS), overhead("CUDA context created", 99 * MS, 100 * MS)]
    events += [call("cuLibraryLoadData", start - 20 * MS, start - 10 * MS)]
    events += [nvtx("step", start - 30 * MS, start)]
    for number in range(steps):
        at = start + number * length_ms * MS
        events += [call("cudaLaunchKernel", at, at + 5_000, correlation=number + 1)]
        events += [kernel(at + 5_000, at + busy_ms * MS, correlation=number + 1), nvtx("step", at, at + length_ms * MS)]
    if late_load:
        events.append(call("cuLibraryLoadData", start + (steps - 1) * length_ms * MS, start + steps * length_ms * MS))
    return events


def busy_share(of, start, end):
    rows = ledger(of, window=Window(start, end))
    return rows.filter(pl.col("bucket").is_in(BUSY_BUCKETS)).get_column("share").sum()


@pytest.mark.parametrize("startup_ms", [200, 2_000, 30_000])
@pytest.mark.parametrize("late_load", [False, True])
@pytest.mark.one_in(4)
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


@pytest.mark.slow
@pytest.mark.hypothesis
def test_the_steady_part_is_the_one_of_a_loop_over_every_instant():
    seen = []

    @settings(max_examples=2 * settings.default.max_examples, database=None)
    @given(WORK, SPANS, st.sampled_from(["none", "more", "alone", "alone"]))
    def look(work, loads, begins):
        first = [(min(start for start, _ in work), 2)]
        loads = {"none": loads, "more": [*first, *loads], "alone": first}[begins]
        events = [kernel(start, start + length) for start, length in work]
        events += [call("cuLibraryLoadData", start, start + length) for start, length in loads]
        found = steady_parts(report([*events, call("cudaGetDevice", 0, 1)]))
        expected = brute(work, loads)
        assert (tuple(found[0]) if found else None) == expected
        seen.append(expected is not None)

    look()
    assert sum(seen) > len(seen) // 10


@pytest.mark.parametrize(
    ("path", "window"), [("launch_bound_plain/nsys.sqlite", "timed"), ("mlp_train/nsys.sqlite", "naive")]
)
def test_on_real_programs_it_agrees_with_a_window_over_what_they_time(path, window):
    of = real_report(TESTS.parent / "sample_reports" / path)
    steady = steady_parts(of)[0]
    rows = ledger(of, window=window).filter(pl.col("bucket").is_in(BUSY_BUCKETS))
    assert steady.busy_ns / steady.ns == pytest.approx(rows.get_column("share").sum(), abs=0.02)
    assert busy_share(of, steady.start, steady.end) == pytest.approx(steady.busy_ns / steady.ns, abs=1e-9)
