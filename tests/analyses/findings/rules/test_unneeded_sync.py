"""Unnecessary synchronisation: what raises it, what does not, and how much it claims."""

from itertools import chain
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.waits import avoidable, unneeded_sync
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.window import Window
from support.build import call, graph, host, kernel, memcpy, nvtx, overhead, report
from support.real_reports import real_report
from support.shares import cases, holds
from support.slow_syncs import sync_reports
from support.strategies import FEWER, WINDOWS

REPORTS = Path(__file__).parents[3] / "reports"

LAUNCH, SYNC = "cudaLaunchKernel_v7000", "cudaDeviceSynchronize_v3020"


#: What shows that a process was not at work before the recording.
BEGUN = overhead("Lazy Function Loading", -9, -8)


def step(number, *, sync=SYNC, copy=None, at=100):
    """A launch of 10 and its kernel of 30, a wait until 10 after its end, and 5 of the program's own code.

    What the device then idles is 10 in the wait, 5 in the program, and 10 until the next launch has returned, with
    which the next kernel starts.
    """
    start = at * number
    events = [
        call(LAUNCH, start, start + 10, correlation=number),
        kernel(start + 10, start + 85, correlation=number),
        call(sync, start + 20, start + 95),
    ]
    return [*events, *(copy(start + 11, number) if copy else [])]


def steps(**how):
    """Five steps of a process that begins in the recording; nothing follows the last one."""
    return [BEGUN, *chain.from_iterable(step(number, **how) for number in range(1, 6))]


def found(events, **tables):
    return unneeded_sync(report(events, **tables))


def test_a_wait_after_every_kernel_raises_it():
    (one,) = found([nvtx("loop", 0, 1_000), *steps()])
    assert (one.rule, one.device, one.at_stake_ns, one.table) == ("unneeded-sync", 0, 4 * (10 + 10), "syncs --by api")
    assert one.text == (
        "4 blocking calls (cudaDeviceSynchronize in loop), 300 ns of host time, after which the host launched more "
        "work, with no copy to the host pending: GPU 0 idled 80 ns until they had returned and the next launch was "
        "through. That is unneeded unless the host or another process reads what kernels wrote without a copy. "
        "More may follow: the host could run ahead."
    )


@pytest.mark.parametrize("name", ["ncclCommInitRankConfig", "ncclGroupEnd"])
def test_waits_that_nccl_makes_itself_are_not_the_programs(name):
    assert found([nvtx(name, 0, 1_000, domain="NCCL"), *steps()]) == []
    assert found([nvtx(name, 0, 1_000, domain="NCCL", thread=2), *steps()])[0].at_stake_ns == 80
    (one,) = found([nvtx(name, 110, 200, domain="NCCL"), *steps()])
    assert one.text.startswith("3 blocking calls")


def test_in_mid_run_the_first_wait_may_be_for_a_copy_from_before_and_a_few_waits_are_no_habit():
    (one,) = found(steps()[1:])
    assert (one.at_stake_ns, one.text[:16]) == (3 * (10 + 10), "3 blocking calls")
    assert found(steps()[: 1 + 3 * 3]) == []
    launched = [
        event
        for at in (0, 20, 40)
        for event in (call(LAUNCH, at, at + 10, correlation=at), kernel(at + 10, at + 20, correlation=at))
    ]
    assert found([*launched, call(SYNC, 50, 80)]) == []


def copies(call_name="cudaMemcpyAsync_v3020", took=2, **memory):
    """For each step, a copy between such kinds of memory (source_memory, target_memory) on a stream of its own."""

    def copy(start, number):
        return [
            call(call_name, start, start + took, correlation=100 + number),
            memcpy(start + 2, start + 9, correlation=100 + number, stream=9, side=memory),
        ]

    return copy


def graphs(start, number):
    return [
        call("cudaGraphLaunch", start, start + 2, correlation=100 + number),
        graph(start + 2, start + 9, correlation=100 + number),
    ]


@pytest.mark.parametrize(
    ("copy", "stakes"),
    [
        # the host has to know that it is done
        (copies(source_memory="Device", target_memory="Pinned"), []),
        (copies(source_memory="Device", target_memory="Pageable"), []),
        (copies(source_memory="Pinned", target_memory="Device"), []),
        (graphs, []),  # which may hold copies
        # it leaves nothing to wait for, or is done when the wait begins
        (copies(source_memory="Pageable", target_memory="Device"), [80]),
        (copies(source_memory="Device", target_memory="Device"), [80]),
        (copies("cudaMemcpy_v3020", 9, source_memory="Device", target_memory="Pageable"), [80]),
    ],
)
def test_a_wait_for_a_copy_that_the_host_has_to_know_of_is_needed(copy, stakes):
    assert [one.at_stake_ns for one in found(steps(copy=copy))] == stakes


def test_memory_that_the_host_reads_without_copies_does_not():
    assert found([call("cudaMallocManaged_v6000", 0, 50), *steps()]) == []
    assert found([memcpy(0, 5, direction="Unified Device-to-Host"), *steps()]) == []


def test_a_wait_for_one_stream_says_nothing_of_another():
    events = list(steps(sync="cudaStreamSynchronize"))
    waits = [event for event in events if event.name == "cudaStreamSynchronize"]
    others = [event for event in events if event not in waits]
    copy = [
        call("cudaMemcpyAsync", 111, 113, correlation=77),
        memcpy(113, 120, correlation=77, stream=9, side={"source_memory": "Device", "target_memory": "Pinned"}),
    ]

    def on(streams):
        calls, syncs = [], []
        for number, (wait, stream) in enumerate(zip(waits, streams, strict=True), 900):
            calls.append(call(wait.name, wait.start, wait.end, correlation=number))
            syncs.append(host("sync", "s", wait.start, wait.end, correlation=number, context=1, stream=stream))
        return report([*others, *copy, *calls, *syncs])

    assert avoidable(on([7, 7, 7, 7, 7])).height == 3  # all but the first and the last
    assert avoidable(on([7, 8, 9, 7, 7])).height == 1  # the copy may be what the first wait on each stream is for


def test_of_streams_that_are_not_known_each_may_be_another():
    """Two copies to the host, then a wait for each, on streams that the report does not name."""
    events = []
    for number in range(1, 6):
        start, first, second = 1_000 * number, 100 * number, 100 * number + 1
        for at, correlation, stream in ((start, first, 13), (start + 10, second, 14)):
            side = {"source_memory": "Device", "target_memory": "Pinned"}
            events += [
                call("cudaMemcpyAsync", at, at + 5, correlation=correlation),
                memcpy(at + 6, 20 * at + 90 - 19 * start, correlation=correlation, stream=stream, side=side),
            ]
        for at, after in ((start + 20, start + 300), (start + 400, start + 600)):
            events += [
                call("cudaStreamSynchronize", at, after),
                call(LAUNCH, after + 5, after + 10, correlation=after),
                kernel(after + 10, after + 20, correlation=after),
            ]
    assert avoidable(report(events)).is_empty()


def test_it_claims_no_more_than_the_call_took():
    (one,) = found([*steps(), call("cudaMalloc_v3020", 0, 5)])
    short = [call(SYNC, event.start + 72, event.end) if event.name == SYNC else event for event in steps()]
    assert one.at_stake_ns == 80
    assert found(short)[0].at_stake_ns == 4 * 3


def test_it_claims_no_more_than_the_ledger_holds():
    events = [*steps(), *(overhead("flush", 100 * number + 85, 100 * number + 95) for number in range(1, 5))]
    assert found(events)[0].at_stake_ns == 60  # five launches and the last wait: all that both buckets hold


def test_the_window_cuts_what_it_claims():
    of = report(steps()).narrow(window="0ns..290ns")
    assert unneeded_sync(of) == []  # two calls are no habit
    of = report(steps()).narrow(window="190ns..450ns")
    assert unneeded_sync(of)[0].at_stake_ns == 5 + 10 + 10 + 10 + 10 + 10


def blocks(events):
    """The finding on the waits of which no other one tells."""
    (one,) = (one for one in ranked(report(events)) if one.rule == "host-blocks")
    return one


def test_what_looks_unneeded_is_not_said_again():
    rest = blocks(steps())
    assert rest.at_stake_ns == 10  # the last one
    assert "(cudaDeviceSynchronize 10 ns), besides 40 ns of which other findings tell. " in rest.text
    assert blocks(steps()[: 1 + 3 * 3]).at_stake_ns == 30


def test_a_call_that_nothing_is_told_of_keeps_its_time():
    needed = [call(LAUNCH, 600, 610, correlation=9), kernel(610, 640, correlation=9)]
    rest = blocks([*steps(), *needed, call("cudaStreamSynchronize", 612, 660)])
    assert rest.at_stake_ns == 20
    assert "(cudaStreamSynchronize 20 ns), besides" in rest.text


@st.composite
def waiting_programs(draw):
    """A thread that launches a kernel, waits, and does so again; now and then it copies a result to the host, too."""
    events, now, copying = [], 0, draw(st.integers(0, 5)) == 0
    for number in range(1, draw(st.integers(4, 9))):
        launch, busy, until, rest = (draw(st.integers(1, 12)) for _ in range(4))
        begun = now + launch
        events += [call(LAUNCH, now, begun, correlation=number), kernel(begun, begun + busy, correlation=number)]
        if copying and draw(st.booleans()):
            side = {"source_memory": "Device", "target_memory": "Pinned"}
            copied = memcpy(begun + 2, begun + 9, correlation=100 + number, stream=9, side=side)
            events += [call("cudaMemcpyAsync", begun, begun + 1, correlation=100 + number), copied]
        waits = begun + draw(st.integers(1, 3))
        now = max(waits, begun + busy + until - 3)
        events.append(call(draw(st.sampled_from([SYNC, SYNC, "cudaStreamSynchronize"])), waits, now))
        now += rest
    return [*events, *draw(st.sampled_from([[], [BEGUN], [BEGUN], [BEGUN]]))], []


@cases(0.15)
@FEWER
@given(st.one_of(sync_reports(), waiting_programs(), waiting_programs()), st.one_of(WINDOWS, st.just((None, None))))
def test_never_more_than_the_buckets_hold(made, window):
    events, records = made
    of = report(events, event_records=records).narrow(window=Window(*window))
    for one in avoidable(of).iter_rows(named=True):
        assert 0 < one["gain_ns"] <= one["end"] - one["start"]
    rows = ledger(of).filter(pl.col("bucket").is_in(["sync", "launch"]))
    found = unneeded_sync(of)
    holds(found)
    for one in found:
        assert 0 < one.at_stake_ns <= rows.filter(pl.col("device") == one.device).get_column("ns").sum()


def test_the_real_program_that_waits_after_every_kernel_raises_it():
    (one,) = unneeded_sync(real_report(REPORTS / "findings.sqlite"))
    assert "of them cudaDeviceSynchronize in b sync after every kernel" in one.text
    calls = avoidable(real_report(REPORTS / "findings.sqlite"))
    assert calls.height == 331
    assert one.at_stake_ns == calls.get_column("gain_ns").sum()


def test_the_real_program_that_does_all_well_does_not():
    assert unneeded_sync(real_report(REPORTS / "findings_clean.sqlite")) == []
