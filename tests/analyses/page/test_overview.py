"""What comes first on the first page, and what several runs of one program say together."""

from dataclasses import replace

import polars as pl
import pytest

from kanalyze.analyses.findings.findings import ranked, weighed_ns
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules.launches import launch_bound
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.page.overview_page import overview
from kanalyze.renderers.page.overview import overview_page
from support.build import BLOCK, HOPPER, call, kernel, launched, nvtx, report
from support.steps import in_turn, ran

SLICE = 2_000_000
KERNEL = 50_000
SGEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3_ffma_aligna4_alignc4_execute_kernel"


def turns(process, first, steps=30):
    """A process that runs every other time slice of the GPU, one step in each: 20 launches, and a wait for them."""
    events = []
    for step in range(steps):
        begins, number = first + 2 * SLICE * step, 100 * process + 1_000 * step
        submitted = begins - SLICE + 10_000 if step or first else begins
        for one in range(20):
            at = submitted + 5_000 * one
            start = max(begins, at + 10_000) + KERNEL * one
            events.append(call("cudaLaunchKernel", at, at + 3_000, process=process, correlation=number + one))
            events.append(kernel(start, start + KERNEL, process=process, name=SGEMM, correlation=number + one))
        wait = submitted + 110_000
        events.append(call("cudaDeviceSynchronize", wait, begins + SLICE - 300_000, process=process))
    return events


@pytest.mark.slow
def test_processes_that_take_turns_are_said_first_of_the_steady_part():
    """Products in full float32 take more time; but all times hold the other process's work."""
    found = overview(report([*turns(1, 0), *turns(2, SLICE)], limits=HOPPER))
    assert found.steady is not None
    assert (found.steady.number, found.steady.each) == (28, "repetition")  # the first one and the last are shorter
    first, second = found.findings[:2]
    assert (first.rule, second.rule) == ("shared-gpu", "no-tf32")
    assert first.at_stake_ns < second.at_stake_ns
    assert found.answer.startswith(
        "Launches and the GPU limit the repetition. First: 2 processes take turns on GPU 0. "
    )


def loop(lengths, kernels):
    """Ranges called step, one after the other, in each of which one kernel runs from its start on."""
    return in_turn(lengths, lambda at, place, _: ran(at, 4, 4 + kernels[place]), gap=10)


@pytest.mark.slow
def test_time_and_shares_are_of_the_steps_of_the_ledger():
    """Of variants with other times the ledger is of one, and so is the first sentence."""
    assert overview(report(loop([10_000] * 8, [9_000] * 8))).answer.startswith(
        "The host limits the step, though the GPU works for most of it. A step takes 10.01 µs under test"
    )
    events = loop([90_000] * 4, [80_000] * 4)
    for later, first in ((10**6, 10), (2 * 10**6, 20)):
        for one in loop([10_000] * 3, [9_000] * 3):
            moved = replace(one, start=one.start + later, end=one.end + later)
            events.append(moved if one.kind == "range" else replace(moved, correlation=first + one.correlation))
    found = overview(report(events))
    assert "A step takes 90.01 µs under test (mean of 4 in a row; median 90.01 µs, " in found.answer


@pytest.mark.slow
def test_what_gains_less_than_a_hundredth_of_a_step_is_no_thing_to_do_first():
    assert overview(report(loop([100_000] * 10, [99_200] * 10))).findings == []


def test_shorter_kernels_count_little_while_the_gpu_waits_for_the_host():
    shorter, other = (
        Finding(rule, 0, 100, "text", "remedy", "table", shortens=rule == "tail") for rule in ("tail", "x")
    )
    assert (weighed_ns(shorter, 0.25), weighed_ns(other, 0.25)) == (25, 100)
    assert weighed_ns(shorter._replace(replayed_ns=80), 0.25) == 80


def test_a_page_without_rows_has_two_things_to_do():
    found = overview(report([call("cudaLaunchKernel", 0, 1, correlation=1), kernel(2, 5, correlation=1)]))
    one = Finding("rule", 0, 100, "text", "remedy", "hot_kernels")
    findings = [one._replace(action=f"action {number}") for number in range(7)]
    found = replace(found, findings=findings)
    assert [len(overview_page(found, top).points) for top in (0, 1, 6, 7)] == [2, 3, 3, 7]


@pytest.mark.parametrize(("others", "told"), [(2, "all"), (8, "")])
def test_kernels_that_take_long_to_launch_are_told_with_a_place_where_most_of_them_are(others, told):
    """The kernel that costs most is in a range of its own: the other ones may have more time together."""
    events, number = [], 1
    for step in range(10):
        begin = 1_000 + 1_000_000 * step
        names = ["top"] * 4 + [f"k{one}" for one in range(others)]
        places = ["all"] * 4 + ([f"r{one}" for one in range(others)] if others > 4 else ["all"] * others)
        events.append(nvtx("step", begin, begin + 1_000_000))
        for place, (name, within) in enumerate(zip(names, places, strict=True)):
            at = begin + 50_000 * place
            events += [
                nvtx(within, at, at + 40_000),
                *launched(at + 1_000, at + 30_000, kernel(at + 31_000, at + 33_000, name=name, correlation=number)),
            ]
            number += 1
    (one,) = launch_bound(report(events))
    assert one.brief.where == told


@pytest.mark.slow
def test_host_time_in_numbered_steps_is_in_the_step():
    events, steps = loop([200_000] * 8, [20_000] * 8), iter(range(101, 200))
    found = overview(
        report([replace(one, name=f"step {next(steps)}") if one.kind == "range" else one for one in events])
    )
    assert found.steady.each == "step"
    assert overview_page(found, 5).ledgers[0].shares[0].detail.startswith("in step 1")
    assert next(one for one in found.findings if one.rule == "host-computes").brief.where == "step"


def gpus(number):
    """A loop on each of some GPUs, each launched by a thread of its own; the first is busy longest."""
    events = []
    for device in range(number):
        for one in range(120):
            at, length = 1_000 + 100_000 * one + 3 * device, 40_000 + one % 5 - device
            made = kernel(at + 10_000, at + 10_000 + length, device=device, name=f"k{one % 5}")
            events += launched(at, at + 5_000, made, thread=device + 1)
    return report(events)


@pytest.mark.slow
def test_of_other_gpus_is_told_only_how_busy_they_were():
    """The page of what repeats is about one GPU: the findings and the waits of others are not looked for."""
    found, alone = overview(gpus(3)), gpus(3)
    assert found.steady is not None
    assert found.windows.get_column("device").to_list() == [0, 1, 2]
    narrow = ledger(alone.narrow(window=found.steady.window))
    busy = narrow.filter(pl.col("bucket") == "kernel").get_column("ns").to_list()
    assert found.windows.get_column("busy_ns").to_list() == busy
    for name in ("ledger", "culprits"):
        assert found.tables[name].get_column("device").unique().to_list() == [found.device]
    every = [one for one in ranked(alone.narrow(window=found.steady.window)) if one.device == found.device]
    assert {(one.rule, one.at_stake_ns) for one in found.findings} <= {(one.rule, one.at_stake_ns) for one in every}
    assert found.findings


@pytest.mark.slow
def test_where_nothing_repeats_every_gpu_is_told_of():
    found = overview(gpus(2), whole=True)
    assert "GPU 0 was busy" in found.answer
    assert "GPU 1 was busy" in found.answer
    assert found.tables["ledger"].get_column("device").unique().sort().to_list() == [0, 1]


@pytest.mark.slow
def test_what_a_grid_lets_expect_is_no_finding_where_counters_prove_a_cause():
    """Of a kernel with 33 blocks where 32 run at once."""
    shape = {"grid": (33, 1, 1), "block": (256, 1, 1), "side": BLOCK, "name": "k"}
    events = [call("cudaLaunchKernel", 10_000 * at, 10_000 * at + 5_000, correlation=at + 1) for at in range(4)]
    ran = range(20_000, 500_000, 120_000)
    events += [kernel(start, start + 120_000, correlation=at, **shape) for at, start in enumerate(ran, 1)]
    made = report(events, limits={"compute_capability": "9.0", "sm_count": 4})
    proven = Finding("float64", 0, 400_000, "{0}", "", "gains", names=("k",), headline="{0}", shortens=True)
    of_another, of_little = proven._replace(names=("other",)), proven._replace(at_stake_ns=20_000)
    rules = {
        told: {one.rule for one in overview(made, beside=lambda _, told=told: [*told]).findings} & {"tail", "float64"}
        for told in ((), (proven,), (of_another,), (of_little,))
    }
    assert [*rules.values()] == [{"tail"}, {"float64"}, {"tail", "float64"}, {"tail", "float64"}]
