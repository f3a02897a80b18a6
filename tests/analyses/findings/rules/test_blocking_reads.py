"""Reads for which the host waits: what raises them, what they cost, where they are, and that nothing else says so."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.device._windows import idle_spans
from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.waits import blocking_read, idle_after_reads, reads
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.window import Window
from support.build import call, host, kernel, memcpy, nvtx, report
from support.real_reports import real_report
from support.shares import cases, holds
from support.slow_syncs import sync_reports
from support.strategies import FEWER, WINDOWS

REPORTS = Path(__file__).parents[3] / "reports"
LAUNCH, COPY, SYNC = "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020"


def copied(number, start, end, *, memory="Pinned", size=4):
    return memcpy(
        start,
        end,
        direction="Device-to-Host",
        correlation=100 + number,
        size_bytes=size,
        side={"source_memory": "Device", "target_memory": memory},
    )


def step(number, *, size=4, name="k", memory="Pinned"):
    """A kernel of 60, a copy of 5 behind it, a wait until 5 after that, 20 of the program's code, and a launch."""
    start = 100 * number
    return [
        call(LAUNCH, start, start + 10, correlation=number),
        kernel(start + 10, start + 70, correlation=number, name=name),
        call(COPY, start + 12, start + 20, correlation=100 + number),
        copied(number, start + 70, start + 75, size=size, memory=memory),
        call(SYNC, start + 25, start + 80),
    ]


def steps(count=4, **how):
    return list(chain.from_iterable(step(number, **how) for number in range(count)))


def test_a_wait_behind_a_copy_to_the_host_and_what_follows():
    """Of the 35 that the GPU idles after each of three reads: 5 in the call, 20 of own code, 10 of the launch."""
    (one,) = blocking_read(report(steps()))
    assert (one.rule, one.device, one.at_stake_ns, one.table, one.at_most) == (
        "blocking-read",
        0,
        3 * 35,
        "syncs --by api",
        False,
    )
    assert one.text == (
        "The host waits for results of GPU 0: cudaStreamSynchronize (3 times), 4 B each in the median. It is blocked "
        "for 165 ns, in which the GPU may be at work; of the GPU's idle time from then until the host has launched "
        "more, 105 ns come of the wait."
    )
    assert (one.headline, one.where) == ("Results that the host waits for stall the GPU", "cudaStreamSynchronize")


#: Calls of which one begins 10 before it ends, when the GPU has been idle for 5; and copies that wait in their calls.
LATE = [call(SYNC, one.end - 10, one.end) if one.name == SYNC else one for one in steps()]
BLOCKING = [
    replace(one, end=one.start + 68) if one.name == COPY else one
    for one in steps(memory="Pageable")
    if one.name != SYNC
]


@pytest.mark.parametrize(
    ("events", "window", "stake", "words"),
    [
        (steps(), Window(0, 300, count=3, each="step"), 3 * 35 - 10, "Synchronize (1 time a step), 4 B each in"),
        (steps(), Window(0, 300, count=3, each="step"), 3 * 35 - 10, "blocked for 55 ns a step"),
        (LATE, None, 3 * 10, "cudaStreamSynchronize (3 times)"),  # no more is lost than the wait took
        (BLOCKING, None, 3 * 35, "cudaMemcpyAsync (3 times)"),
    ],
)
def test_what_the_gpu_waits_for_is_at_stake(events, window, stake, words):
    (one,) = blocking_read(report(events).narrow(window=window))
    assert (one.at_stake_ns, words in one.text) == (stake, True)


def launched_first(number):
    """The remedy: the next kernel is launched before the copy is waited for, and the GPU goes on."""
    start, after = 100 * number, 200 + number
    first, *others = step(number)
    later = [call(LAUNCH, start + 20, start + 25, correlation=after), kernel(start + 78, start + 98, correlation=after)]
    return [first, *others[:-1], *later, call(SYNC, start + 30, start + 80)]


@pytest.mark.parametrize(
    "of",
    [
        report(steps(3)),  # two reads, and a last one that nothing follows: no habit
        report([one for one in steps() if one.kind != "memcpy"]),
        report([replace(one, correlation=999) if one.name == COPY else one for one in steps()]),
        report(steps()).narrow(window=Window(0, 400, count=7, each="step")),  # now and then
        report(list(chain.from_iterable(map(launched_first, range(4))))),
        real_report(REPORTS / "findings_clean.sqlite"),
    ],
)
def test_what_does_not_raise_it(of):
    assert blocking_read(of) == []


def torch(name="aten::item", size=4):
    """The steps of a PyTorch program, its read inside of an operator."""
    ops = [
        host("op", operator, 100 * number + first, 100 * number + 90)
        for number in range(4)
        for operator, first in ((name, 11), ("aten::_local_scalar_dense", 12))
    ]
    return [*ops, *steps(size=size, name="void at::native::vectorized_elementwise_kernel<4>()")]


NODE = "autograd::engine::evaluate_function: IndexBackward0"
NUMBER, VALUE = (
    "A number read by the host (.item(), print) stalls the GPU",
    "A value read by the host (.item(), x[mask],",
)
SHAPE, CONDITION = "A shape that depends on data (x[mask], nonzero) stalls", "A tensor as a condition (if x > 0) stalls"
RESULTS = "Results read by the host (.cpu() and others) stall the GPU"


@pytest.mark.parametrize(
    ("name", "size", "where", "headline"),
    [
        ("aten::item", 4, "aten::item (.item())", NUMBER),
        ("aten::nonzero", 4, "aten::nonzero (nonzero or a boolean mask)", SHAPE),
        ("aten::is_nonzero", 4, "aten::is_nonzero (a tensor as a condition)", CONDITION),
        ("aten::unique_dim", 4, "aten::unique_dim", VALUE),
        ("aten::to", 4_000, "aten::to (.to(), .cpu() or .tolist())", RESULTS),
        (NODE, 4, "aten::_local_scalar_dense (.item())", NUMBER),
    ],
)
def test_what_is_read_is_told_by_the_operator_with_what_users_write(name, size, where, headline):
    (one,) = blocking_read(report(torch(name, size=size)))
    assert (one.where, one.headline.startswith(headline)) == (where, True)
    assert f"GPU 0: {where} (3 times), {'4 B' if size == 4 else '4.000 kB'} each" in one.text


@pytest.mark.parametrize(("events", "gone"), [(torch(), 3), (torch(size=4_000), 0), (steps(), 0)])
def test_numbers_that_pytorch_reads_are_not_copied_any_more(events, gone):
    of = report(events)
    (one,) = blocking_read(of)
    change = one.change(of)
    assert (len(change.gone), len(change.calls)) == (gone, 3)


def each(make, *ranges):
    """Events (name, start, end) of each of the four steps."""
    return [make(name, 100 * n + start, 100 * n + end) for n in range(4) for name, start, end in ranges]


def function(name, start, end):
    return host("python", name, start, end)


FUNCTIONS = each(
    function, ("train.py(31): step", 0, 95), ("train.py(9): main", -5, 99), ("torch/_tensor.py(9): __format__", 5, 92)
)
PRINTS = each(function, ("torch/_tensor_str.py(300): _str", 6, 92))


@pytest.mark.parametrize(
    ("events", "where"),
    [
        ([*torch(), *FUNCTIONS], "aten::item (.item()) in train.py(31): step"),
        ([*torch(), *FUNCTIONS, *PRINTS], "aten::item (.item()) in print of a tensor in train.py(31): step"),
        ([*steps(), *each(nvtx, ("loss", 11, 90))], "loss"),
        ([*steps(), *each(nvtx, ("ProfilerStep#1", 0, 90))], "cudaStreamSynchronize"),
    ],
)
def test_it_lies_in_the_line_or_the_range_but_in_no_step_of_the_profiler(events, where):
    (one,) = blocking_read(report(events))
    assert one.where == where


def test_places_come_by_what_they_cost_and_without_operators_it_may_be_any_value():
    ranges = [nvtx("a" if number else "b", 100 * number + 11, 100 * number + 90) for number in range(4)]
    (one,) = blocking_read(report([*steps(), *ranges]))
    assert "GPU 0: a (2 times), b (1 time)" in one.text
    (one,) = blocking_read(report([event for event in torch() if event.kind != "op"]))
    assert one.headline == "A value read by the host (.item(), x[mask], if) stalls"


def test_nothing_is_said_twice():
    of = report(steps())
    pieces = idle_after_reads(of)[0]
    sums = dict(pieces.group_by("bucket").agg((pl.col("end") - pl.col("start")).sum()).iter_rows())
    assert sums == {"sync": 15, "host": 60, "launch": 30}
    by_rule = {one.rule: one for one in ranked(of)}
    held = ledger(of).filter(bucket="sync").get_column("ns").sum()
    assert by_rule["host-blocks"].at_stake_ns == held - 15 == 5  # after the last one
    assert "(cudaStreamSynchronize 5 ns), besides 15 ns of which other findings" in by_rule["host-blocks"].text
    assert "host-computes" not in by_rule


@st.composite
def reading_programs(draw):
    """A thread that launches a kernel, and as a rule copies a result to the host and waits for it."""
    events, now = [], 0
    for number in range(1, draw(st.integers(4, 9))):
        launch, busy, until, rest = (draw(st.integers(1, 12)) for _ in range(4))
        begun = now + launch
        events += [call(LAUNCH, now, begun, correlation=number), kernel(begun, begun + busy, correlation=number)]
        now = begun
        if draw(st.integers(0, 3)):
            name, done = draw(st.sampled_from([COPY, COPY, "cudaMemcpy"])), begun + busy + 2
            events += [call(name, begun, begun + until, correlation=100 + number), copied(number, done - 2, done)]
            now = max(begun + until, done) + draw(st.integers(-3, 9))
            events.append(call(SYNC, begun + until, now))
        now = max(now, begun) + rest
    return events, []


@cases(0.3)
@FEWER
@given(st.one_of(sync_reports(), reading_programs(), reading_programs()), st.one_of(WINDOWS, st.just((None, None))))
def test_what_a_read_costs_is_idle_time_and_no_longer_than_the_read(made, window):
    events, records = made
    of = report(events, event_records=records).narrow(window=Window(*window))
    found = reads(of)
    holds(found.height)
    for one in found.iter_rows(named=True):
        assert one["start"] <= one["since"] < one["until"] <= one["since"] + one["end"] - one["start"]
    for one in blocking_read(of):
        idle = idle_spans(of)[one.device]
        assert 0 < one.at_stake_ns <= (idle["end"] - idle["start"]).sum()


@pytest.mark.parametrize(("every", "raised"), [(1, True), (2, True), (3, False)])
def test_of_the_rounds_of_a_loop_half_or_more_read(every, raised):
    """Twelve rounds, of which each, each second, or each third has the copy for which it waits."""
    events = []
    for number in range(12):
        own = step(number)
        events += [nvtx("round", 100 * number, 100 * number + 90), *(own if number % every == 0 else own[:2])]
    events += step(12)[:2]
    assert reads(report(events)).height == 12 // every
    assert bool(blocking_read(report(events))) == raised
