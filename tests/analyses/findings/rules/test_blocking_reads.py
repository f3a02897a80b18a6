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


def test_per_step_in_a_window_of_steps():
    (one,) = blocking_read(report(steps()).narrow(window=Window(0, 300, count=3, each="step")))
    assert "cudaStreamSynchronize (1 time a step), 4 B each" in one.text
    assert "blocked for 55 ns a step" in one.text


def test_no_more_is_lost_than_the_wait_took():
    """The same waits, but their calls begin 10 before they end, when the GPU has been idle for 5."""
    events = [call(SYNC, one.end - 10, one.end) if one.name == SYNC else one for one in steps()]
    (one,) = blocking_read(report(events))
    assert one.at_stake_ns == 3 * 10


@pytest.mark.parametrize(
    "events",
    [
        steps(3),  # two reads, and a last one that nothing follows: no habit
        [one for one in steps() if one.kind != "memcpy"],
        [one if one.name != COPY else call(COPY, one.start, one.end, correlation=999) for one in steps()],
    ],
)
def test_what_does_not_raise_it(events):
    assert blocking_read(report(events)) == []


def test_a_read_now_and_then_is_none_of_the_loop():
    of = report(steps()).narrow(window=Window(0, 400, count=7, each="step"))
    assert reads(of).height == 3
    assert blocking_read(of) == []


def test_a_copy_that_is_waited_for_after_the_next_launch_does_not():
    """The remedy: the next kernel is launched first, and the GPU goes on."""
    events = []
    for number in range(4):
        start = 100 * number
        events += [
            call(LAUNCH, start, start + 10, correlation=number),
            kernel(start + 10, start + 70, correlation=number),
            copied(number, start + 75, start + 78),
            call(COPY, start + 12, start + 20, correlation=100 + number),
            call(LAUNCH, start + 20, start + 25, correlation=200 + number),
            kernel(start + 78, start + 108, correlation=200 + number),
            call(SYNC, start + 30, start + 80),
        ]
    assert blocking_read(report(events)) == []


def test_a_copy_into_pageable_memory_blocks_in_its_own_call():
    events = [
        replace(one, end=one.start + 68) if one.name == COPY else one
        for one in steps(memory="Pageable")
        if one.name != SYNC
    ]
    (one,) = blocking_read(report(events))
    assert one.at_stake_ns == 3 * 35
    assert "cudaMemcpyAsync (3 times)" in one.text


def torch(name="aten::item", size=4):
    """The steps of a PyTorch program, its read inside of an operator."""
    ops = [
        host("op", operator, 100 * number + first, 100 * number + 90)
        for number in range(4)
        for operator, first in ((name, 11), ("aten::_local_scalar_dense", 12))
    ]
    return [*ops, *steps(size=size, name="void at::native::vectorized_elementwise_kernel<4>()")]


@pytest.mark.parametrize(
    ("name", "size", "where", "headline"),
    [
        ("aten::item", 4, "aten::item (.item())", "A number read by the host (.item(), print) stalls the GPU"),
        (
            "aten::nonzero",
            4,
            "aten::nonzero (nonzero or a boolean mask)",
            "A shape that depends on data (x[mask], nonzero) stalls",
        ),
        (
            "aten::is_nonzero",
            4,
            "aten::is_nonzero (a tensor as a condition)",
            "A tensor as a condition (if x > 0) stalls the GPU",
        ),
        ("aten::unique_dim", 4, "aten::unique_dim", "A value read by the host (.item(), x[mask], if) stalls"),
        (
            "aten::to",
            4_000,
            "aten::to (.to(), .cpu() or .tolist())",
            "Results read by the host (.cpu() and others) stall the GPU",
        ),
        (
            "autograd::engine::evaluate_function: IndexBackward0",
            4,
            "aten::_local_scalar_dense (.item())",
            "A number read by the host (.item(), print) stalls the GPU",
        ),
    ],
)
def test_what_is_read_is_told_by_the_operator_with_what_users_write(name, size, where, headline):
    (one,) = blocking_read(report(torch(name, size=size)))
    assert (one.where, one.headline) == (where, headline)
    assert f"GPU 0: {where} (3 times), {'4 B' if size == 4 else '4.000 kB'} each" in one.text


def test_without_operators_it_may_be_any_value():
    (one,) = blocking_read(report([event for event in torch() if event.kind != "op"]))
    assert one.headline == "A value read by the host (.item(), x[mask], if) stalls"


def test_so_is_the_line_of_the_program():
    around = [("train.py(31): step", 0, 95), ("train.py(9): main", -5, 99), ("torch/_tensor.py(9): __format__", 5, 92)]
    functions = [
        host("python", name, 100 * number + first, 100 * number + last)
        for number in range(4)
        for name, first, last in around
    ]
    (one,) = blocking_read(report([*torch(), *functions]))
    assert one.where == "aten::item (.item()) in train.py(31): step"
    prints = [host("python", "torch/_tensor_str.py(300): _str", 100 * n + 6, 100 * n + 92) for n in range(4)]
    (one,) = blocking_read(report([*torch(), *functions, *prints]))
    assert one.where == "aten::item (.item()) in print of a tensor in train.py(31): step"


def test_so_is_the_range_but_no_step_of_the_profiler():
    ranges = [nvtx("loss", 100 * number + 11, 100 * number + 90) for number in range(4)]
    (one,) = blocking_read(report([*steps(), *ranges]))
    assert one.where == "loss"
    numbered = [nvtx(f"ProfilerStep#{number}", 100 * number, 100 * number + 90) for number in range(4)]
    (one,) = blocking_read(report([*steps(), *numbered]))
    assert one.where == "cudaStreamSynchronize"


def test_places_come_by_what_they_cost():
    ranges = [nvtx("a" if number else "b", 100 * number + 11, 100 * number + 90) for number in range(4)]
    (one,) = blocking_read(report([*steps(), *ranges]))
    assert "GPU 0: a (2 times), b (1 time)" in one.text


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


def test_a_real_program_that_does_all_well_does_not_raise_it():
    assert blocking_read(real_report(REPORTS / "findings_clean.sqlite")) == []


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
