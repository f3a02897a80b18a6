"""A small kernel for each row, launched by a loop of the host; and loops that are none."""

import pytest

from kanalyze.analyses.findings.rules.launch_loops import host_grid_loop
from support.build import call, kernel, memcpy, report

LIMITS = {"sm_count": 8}
OF_TORCH = "void at::native::reduce_kernel<512>(int)"


def loop(*names, turns=40, blocks=1, between=(), **limits):
    """Turns of 10 µs for each kernel, of which it runs 2 µs; `between` makes calls in each turn."""
    events = []
    for place in range(turns * len(names)):
        at = 10_000 * place
        events += [
            call("cudaLaunchKernel", at, at + 3_000, correlation=place + 1),
            kernel(at + 4_000, at + 6_000, name=names[place % len(names)], grid=(blocks, 1, 1), correlation=place + 1),
            *(call(name, at + 6_500, at + 7_000) for name in between),
        ]
    return report(events, limits=LIMITS | limits)


def test_one_launch_over_all_rows_is_told_with_what_it_would_take():
    of = loop("row(float *)")
    (finding,) = host_grid_loop(of)
    assert finding.headline == "39 launches of 1 block each, in a loop"
    assert finding.action.startswith("one launch over all turns")
    assert finding.at_stake_ns == 39 * 10_000 - 8_000 - 2_000  # 256 rows at a time
    change = finding.mending(of)
    assert (change.shorter.height, len(change.gone)) == (1, 38)


def test_two_kernels_by_turns_are_a_loop_too():
    (finding,) = host_grid_loop(loop("sum(float *)", "scale(float *)"))
    assert finding.text.startswith("2 kernels are launched over and over")


@pytest.mark.parametrize(
    "other",
    [
        loop("row(float *)", turns=20),
        loop("row(float *)", blocks=5),
        loop("row(float *)", between=["cudaDeviceSynchronize"]),
        loop("row(float *)", between=["cudaMalloc", "cudaFree"]),
        loop(OF_TORCH),
        loop("wrapped_tanh"),
        loop("pull", "accelerate", "move"),
        loop("row(float *)", sm_count=None),
    ],
    ids=["few", "many blocks", "waits", "allocations", "PyTorch", "JAX", "three kernels", "no limits"],
)
def test_other_loops_are_none(other):
    assert host_grid_loop(other) == []


def test_copies_between_are_another_trouble():
    events = [
        event
        for place in range(40)
        for event in (
            memcpy(10_000 * place, 10_000 * place + 1_000, correlation=2 * place),
            kernel(10_000 * place + 2_000, 10_000 * place + 3_000, correlation=2 * place + 1),
            call("cudaMemcpyAsync", 10_000 * place, 10_000 * place + 500, correlation=2 * place),
            call("cudaLaunchKernel", 10_000 * place + 600, 10_000 * place + 900, correlation=2 * place + 1),
        )
    ]
    assert host_grid_loop(report(events, limits=LIMITS)) == []


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("nvkernel_main_F1L21_2", "the loop inside the region: target"),
        ("ampere_sgemm_32x32_sliced1x4_nn", "one batched call"),
    ],
)
def test_the_remedy_is_in_the_language_of_the_program(name, action):
    (finding,) = host_grid_loop(loop(name))
    assert finding.action.startswith(action)


def test_operations_on_slices_of_arrays_are_work_that_is_repeated():
    (finding,) = host_grid_loop(loop("cupy_min", "cupy_subtract", "cupy_true_divide", "cupy_copy", blocks=7))
    assert (finding.rule, finding.headline) == ("repeated-work", "The same 4 kernels run for one slice after the other")
    assert finding.action.startswith("whole arrays in place of slices")


def test_operations_on_large_arrays_are_none():
    assert host_grid_loop(loop("cupy_min", "cupy_subtract", blocks=8)) == []
