"""What comes first on the first page."""

from kanalyze.analyses.page.overview_page import overview
from support.build import call, kernel, report

SLICE = 2_000_000
KERNEL = 50_000
SGEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3_ffma_aligna4_alignc4_execute_kernel"
HOPPER = {"compute_capability": "9.0", "name": "NVIDIA H200"}


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


def test_processes_that_take_turns_are_said_first_of_the_steady_part():
    """Products in full float32 take more time; but all times hold the other process's work."""
    found = overview(report([*turns(1, 0), *turns(2, SLICE)], limits=HOPPER))
    assert found.steady is not None
    assert (found.steady.number, found.steady.each) == (29, "repetition")  # the first one is shorter
    first, second = found.findings[:2]
    assert (first.rule, second.rule) == ("shared-gpu", "no-tf32")
    assert first.at_stake_ns < second.at_stake_ns
    assert " First: 2 processes take turns on GPU 0 (" in found.answer


def test_one_process_takes_turns_with_nobody():
    found = overview(report(turns(1, 0), limits=HOPPER))
    assert "shared-gpu" not in [one.rule for one in found.findings]
