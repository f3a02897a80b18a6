"""Kernels that are timed after a fill of the cache: by a benchmark or an autotuner, and never in a training."""

from dataclasses import replace
from itertools import pairwise
from statistics import median

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.findings.rules.launches import timed_kernels
from kanalyze.analyses.iterations._launch_periods import timed_runs
from kanalyze.window import Window
from support.build import call, kernel, report

CLEAR, NS = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>(int)", 50_000


class Host:
    """Calls of one thread, one after the other, and the kernels that they launch, which wait for each other."""

    def __init__(self):
        self.now, self.free, self.events, self.number = 1_000, 0, [], 0

    def launches(self, name, ns, blocks=64):
        self.number += 1
        self.events.append(call("cudaLaunchKernel", self.now, self.now + 3_000, correlation=self.number))
        start = max(self.now + 4_000, self.free)
        self.free = start + ns
        self.events.append(kernel(start, self.free, name=name, correlation=self.number, grid=(blocks, 1, 1)))
        self.now += 4_000

    def records(self):
        self.calls("cudaEventRecord_v3020")

    def calls(self, name):
        self.events.append(call(name, self.now, self.now + 500))
        self.now += 1_000

    def clears(self, blocks=1 << 16):
        self.launches(CLEAR, NS, blocks)

    def times(self, name, ns, *, blocks=1 << 16, events=(True, True), many=1, beside=None):  # noqa: PLR0913
        self.clears(blocks)
        if events[0]:
            self.records()
        for _ in range(many):
            self.launches(name, ns)
        if beside is not None:
            self.calls(beside)
        if events[1]:
            self.records()


def timed(number, **keys):
    host = Host()
    for _ in range(number):
        host.times("mine", 20_000, **keys)
    return host


def test_a_benchmark_is_told_as_one():
    of = report(timed(60).events)
    (one,) = timed_kernels(of)
    assert one.at_stake_ns == 60 * (NS + 20_000)
    assert one.names == ("mine",)
    assert one.text.startswith("60 runs of kernels, most of {0}, are timed")
    assert "(1.200 ms)" in one.text


WAITS = ["cudaStreamWaitEvent_v3020", "cudaEventSynchronize_v3020", "cudaGraphLaunch_v10000", "cudaMemcpyAsync_v3020"]


@pytest.mark.parametrize(
    "keys",
    [
        *({"number": 49}, {"number": 60, "blocks": 2_000}, {"number": 60, "many": 17}),  # few, small fills, long runs
        *({"number": 60, "events": events} for events in ((False, True), (True, False), (False, False))),
        *({"number": 60, "beside": name} for name in WAITS),
    ],
)
def test_what_is_no_timing(keys):
    assert timed_kernels(report(timed(**keys).events)) == []


@pytest.mark.parametrize(
    "steps",
    [
        ["event", CLEAR, "forward", "backward", "event"],  # a training that clears gradients and times its steps
        ["fill_kernel(float *, int)", "event", "histogram(int *)", "event"],  # memory that a program of CUDA sets
    ],
)
def test_other_fills_and_events_are_none(steps):
    host = Host()
    for name in steps * 80:
        host.records() if name == "event" else host.launches(name, NS, 1 << 16 if "ill" in name else 64)
    assert timed_kernels(report(host.events)) == []


def test_a_pause_is_no_part_of_a_run():
    host = timed(60)
    host.now += 10_000_000
    for _ in range(60):
        host.times("mine", 20_000)
    lengths = timed_runs(report(host.events)).select(pl.col("end") - pl.col("start")).to_series()
    assert len(lengths) == 120
    assert lengths.max() < 20_000


def test_of_a_process_without_a_number_no_launch_is_known():
    of = report([replace(event, process=None) for event in timed(60).events])
    assert (timed_runs(of).height, timed_kernels(of)) == (0, [])


def test_in_a_window_without_any_there_is_nothing_to_say():
    host = timed(60)
    end = host.free
    host.now = end
    host.launches("later", 10_000)
    of = report(host.events)
    assert timed_kernels(of.narrow(window=Window(end, host.free))) == []
    half = timed_kernels(of.narrow(window=Window(0, end // 2)))
    assert 0 < half[0].at_stake_ns < 60 * (NS + 20_000)


def test_what_an_autotuner_took_is_a_part_of_the_start():
    host = timed(60)
    began, ended = host.events[0].start, host.now
    host.now += 2_000_000
    for _ in range(60):
        for name in ("forward", "backward", "Device-to-Host", "adam"):
            host.launches(name, 10_000)
        host.now += 5_000
        host.launches("gemm", 300_000)
    rows = kanalyze.phases(report(host.events)).filter(part="timing of kernels")
    assert rows.select("phase", "start_ns").rows() == [("before", began)]
    assert 0 < ended - rows.item(0, "ns") - began < 20_000  # the last run is no longer told from what follows


STEPS = st.lists(st.sampled_from(["fill", "fill", "run", "other", "event", "event", "wait"]), max_size=30)


@given(STEPS, st.integers(0, 60))
def test_runs_are_found_one_by_one(steps, more):
    host = Host()
    for _ in range(more):
        host.times("mine", 20_000)
    for step in steps:
        if step == "event":
            host.records()
        elif step == "wait":
            host.calls("cudaDeviceSynchronize_v3020")
        elif step == "fill":
            host.clears()
        else:
            host.launches(step, NS)
    found = timed_runs(report(host.events)).select("start", "end").rows() if host.events else []
    assert found == by_hand(host.events)


def by_hand(events):
    """As :func:`timed_runs`, fill by fill: a list of calls, each with what it launched."""
    names = {event.correlation: event.name for event in events if event.kind == "kernel"}
    calls = [event for event in events if event.kind == "api"]
    kinds = {"cudaEventRecord_v3020": "event", "cudaDeviceSynchronize_v3020": "wait"}
    what = [kinds.get(one.name) or names[one.correlation] for one in calls]
    fills = [at for at, name in enumerate(what) if name == CLEAR]
    runs = []
    for at, stop in pairwise([*fills, len(calls)]):
        launches = [place for place in range(at + 1, stop) if what[place] not in ("event", "wait")]
        if not 1 <= len(launches) <= 16:
            continue
        last = next((place for place in range(launches[-1] + 1, stop) if what[place] == "event"), None)
        if last is None or "event" not in what[at + 1 : launches[0]] or "wait" in what[at:last]:
            continue
        runs.append((calls[at].start, calls[stop].start if stop < len(calls) else None, calls[last].start))
    far = 3 * median([(1 << 62) if then is None else then - start for start, then, _ in runs] or [0])
    told = [(start, then if then and then - start <= far else last) for start, then, last in runs]
    return told if len(told) >= 50 else []


@pytest.mark.parametrize(("name", "words"), [("mine", "cache_results"), ("triton_mm", "torch.compile keeps")])
def test_who_chose_keeps_what_was_chosen(name, words):
    host = Host()
    for _ in range(60):
        host.times(name, 20_000)
    (one,) = timed_kernels(report(host.events))
    assert words in one.action
