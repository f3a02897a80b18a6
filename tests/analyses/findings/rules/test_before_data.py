"""Idle time before copies of data to a device: what its finding says, and instant by instant."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.host_computes import idle_before_data
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.page.overview_page import overview
from kanalyze.window import Window
from support.build import call, kernel, memcpy, nvtx, report
from support.shares import cases, holds
from support.slow_model import SlowModel, thread_of
from support.strategies import FEWER, WINDOWS

LAUNCH, COPY = "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020"
DATA_BYTES = 1 << 16
NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
MS = 1_000_000
STEPS = Window(count=3, each="step")


def steps(*, size=DATA_BYTES, direction="Host-to-Device", before=4, after=0, name="k"):
    """Three steps: host time of `before` ms, a copy, host time of `after` ms and a kernel of a ms."""
    events, at = [], 0
    for number in range(3):
        begin, copied = at, at + before * MS
        launched = copied + 20 + after * MS
        at = launched + 10 + MS
        events += [
            nvtx("step", begin, at),
            call(COPY, copied, copied + 10, correlation=2 * number + 1),
            memcpy(copied + 10, copied + 20, direction=direction, size_bytes=size, correlation=2 * number + 1),
            call(LAUNCH, launched, launched + 10, correlation=2 * number + 2),
            kernel(launched + 10, at, name=name, correlation=2 * number + 2),
        ]
    return events


PREFETCH = ("The GPU waits until the host copies the next data to it", "prepare the next data in another thread")
OTHER = ("The GPU waits for the program", "see what it does there: nsys profile")


def host_computes(of):
    """The findings on the host's own time, without what others tell of."""
    return [one for one in ranked(of) if one.rule == "host-computes"]


@pytest.mark.parametrize(
    ("events", "window", "told", "vague"),
    [
        (steps(), STEPS, PREFETCH, False),
        (steps(name="void at::native::add(int)"), STEPS, (PREFETCH[0], "DataLoader("), False),
        (steps(), None, OTHER, True),
        (steps(size=DATA_BYTES - 1), STEPS, OTHER, True),
        (steps(direction="Device-to-Host"), STEPS, OTHER, True),
        (steps(before=3, after=3), STEPS, OTHER, True),
    ],
)
def test_who_waits_for_data_is_told_to_prepare_them_ahead(events, window, told, vague):
    (one,) = host_computes(report(events).narrow(window=window))
    headline, action = told
    assert one.headline.startswith(headline)
    assert one.action.startswith(action)
    assert one.vague == vague


@pytest.mark.parametrize(("marked", "told"), [(True, [OTHER]), (False, [PREFETCH, OTHER])])
def test_time_of_which_another_finding_tells_is_no_reason(marked, told):
    """A loader's time is followed by a copy, and what is left is not; each is told once."""
    events = []
    for one in steps(before=6, after=3):
        begins = one.kind == "range" and marked
        events += [one, nvtx(NEXT, one.start + 1_000, one.start + 6 * MS - 1_000)] if begins else [one]
    of = report(events).narrow(window=STEPS)
    found = host_computes(of)
    assert [one.headline.startswith(headline) for one, (headline, _) in zip(found, told, strict=True)] == [True] * len(
        told
    )
    loading = [one for one in ranked(of) if one.rule == "data-loading"]
    host = bucket_sums(of).filter(bucket="host").get_column("ns").sum()
    assert sum(one.at_stake_ns for one in [*found, *loading]) == host


@pytest.mark.parametrize(("size", "first"), [(DATA_BYTES, "host-computes"), (1, "small-grid")])
def test_host_time_without_a_cause_counts_less_in_the_order(size, first):
    limits = {"compute_capability": "9.0", "sm_count": 4}
    shape = {"registers_per_thread": 32, "static_shared_bytes": 0, "dynamic_shared_bytes": 0}
    events = [replace(one, side=shape) if one.kind == "kernel" else one for one in steps(size=size, before=1)]
    found = overview(report(events, limits=limits)).findings
    assert {one.rule for one in found} >= {"host-computes", "small-grid"}
    assert found[0].rule == first


class Model(SlowModel):
    """What the code says, instant by instant."""

    def before_data(self, device):
        """Idle time that is the host's own, of a thread between the call of a copy and its launch before."""
        spans = list(self._spans(device))
        return sum(
            self._idle(wait, at) == ("host", None) and any(wait.thread == key and at in span for key, span in spans)
            for wait in self._waits(device)
            for at in range(*self.window(device))
            if wait.start <= at < wait.end
        )

    def _spans(self, device):
        launches = {self.launch_of(item) for item in self.operations} - {None}
        for item in self.operations:
            call = self.launch_of(item)
            if item.event.device != device or call is None or not self._of_data(item):
                continue
            earlier = [one for one in launches if thread_of(one) == thread_of(call) and one.start < call.start]
            if earlier:
                yield thread_of(call), range(max(earlier, key=lambda one: (one.start, one.end)).end, call.start)

    def _of_data(self, item):
        low, high = (side if side is not None else other for side, other in zip(self.asked, (-99, 999), strict=True))
        inside = item.start < high and (item.end > low or item.start == low)
        return inside and item.event.direction == "Host-to-Device" and item.event.size_bytes >= DATA_BYTES


@st.composite
def programs(draw):
    """Launches of kernels and copies by two threads, each some time after the thread's one before."""
    events, at = [], {1: 0, 2: 0}
    for number in range(draw(st.integers(2, 8))):
        thread = draw(st.sampled_from([1, 1, 2]))
        at[thread] += draw(st.integers(0, 9))
        begin, end = at[thread], at[thread] + draw(st.integers(0, 4))
        runs = draw(st.integers(begin, end + 3))
        made = partial(kernel if draw(st.booleans()) else memcpy, runs, runs + draw(st.integers(0, 5)))
        size, device = draw(st.sampled_from([1, DATA_BYTES, DATA_BYTES])), draw(st.sampled_from([0, 0, 0, 1]))
        events += [
            call(LAUNCH, begin, end, thread=thread, correlation=number),
            made(size_bytes=size, device=device, correlation=number),
        ]
        at[thread] = draw(st.sampled_from([begin, end, end]))
    return events


@cases(0.15)
@FEWER
@given(programs(), WINDOWS)
def test_it_is_the_hosts_own_time_between_the_call_of_a_copy_and_the_launch_before(events, window):
    of, model = report(events).narrow(window=Window(*window)), Model(events, window)
    for device in model.devices:
        expected = model.before_data(device)
        holds(expected)
        pieces = idle_before_data(of, device)
        assert (pieces.get_column("end") - pieces.get_column("start")).sum() == expected
