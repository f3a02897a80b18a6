"""Kernels that are compiled and loaded again and again, and those that are loaded once."""

import pytest

from kanalyze.analyses.findings.rules.recompiled_kernels import recompiled_kernels, tuned_again
from kanalyze.window import Window
from support.build import call, kernel, nvtx, report

OF_TORCH = kernel(0, 10, name="void at::native::fill(int)")


def steps(*names, before=OF_TORCH, after=()):
    """A step of 1 ms for each kernel, which is loaded after 0.5 ms of the program's own code."""
    events = [before]
    for place, name in enumerate(names):
        at = 1_000_000 * place + 1_000
        events += [
            call("cuModuleLoadData", at + 500_000, at + 510_000),
            call("cuLaunchKernelEx", at + 600_000, at + 605_000, correlation=place + 1),
            kernel(at + 610_000, at + 700_000, name=name, correlation=place + 1),
        ]
    return report([*events, *after])


def test_a_kernel_of_triton_that_is_compiled_in_each_step():
    (finding,) = recompiled_kernels(steps(*["dropout"] * 12))
    assert finding.headline == "Compiled anew 11 times: {0}"
    assert finding.action == "an ordinary argument in place of tl.constexpr; do_not_specialize"
    assert finding.at_stake_ns == 11 * 905_000


def test_a_kernel_of_cupy_has_another_remedy():
    (finding,) = recompiled_kernels(
        steps(*["scale_rows"] * 12, before=kernel(0, 10, name="cupy_copy__float32_float32"))
    )
    assert finding.action.startswith("compile once")


@pytest.mark.parametrize(
    "other",
    [
        steps("a", "b", "c", "d", "e", "f"),
        steps(*["a", "b"] * 2),
        steps(*["void cutlass::Kernel2<int>(int)"] * 12),
        steps(*["step(float *)"] * 12, before=kernel(0, 10, name="init(float *)")),
    ],
    ids=["once each", "a few shapes", "a library", "CUDA C++"],
)
def test_what_is_loaded_once_or_by_libraries_is_none(other):
    assert recompiled_kernels(other) == []


def tuned(passes, *, runs=30, again=True):
    """Passes of 10 ms in each of which, or in the first alone, kernels are timed as an autotuner does."""
    events, number = [], 0
    for turn in range(passes):
        begin = 10_000_000 * turn
        events.append(nvtx("step", begin, begin + 10_000_000))
        timed = runs if again or not turn else 0
        for place in range(timed):
            at = begin + 200_000 * place
            for step, (name, grid) in enumerate([("void at::native::FillFunctor<int>(int)", 65_536), ("gate", 512)]):
                number += 1
                begun = at + 60_000 * step
                events += [
                    call("cudaLaunchKernel", begun, begun + 5_000, correlation=number),
                    kernel(
                        begun + 6_000,
                        begun + 50_000,
                        name=name,
                        grid=(grid, 1, 1),
                        block=(128, 1, 1),
                        correlation=number,
                    ),
                ]
                events += [call("cudaEventRecord", begun + 6_000, begun + 7_000)] * (1 + step)
        number += 1
        last = begin + 9_000_000
        events += [
            call("cudaLaunchKernel", last, last + 5_000, correlation=number),
            kernel(last + 6_000, last + 50_000, name="gate", grid=(512, 1, 1), correlation=number),
        ]
    whole = report(events)
    return whole.narrow(window=Window(0, 10_000_000 * passes, "steady", count=passes, each="step"))


def test_an_autotuner_that_begins_anew_in_each_step():
    (finding,) = tuned_again(tuned(6))
    assert finding.headline == "Autotuned again in 6 of 6 steps: {0}"
    assert finding.names == ("gate",)


def test_an_autotuner_that_chooses_once_is_none():
    assert tuned_again(tuned(6, runs=60, again=False)) == []


def test_kernels_that_are_compiled_at_the_start_alone_are_none():
    calm = [kernel(40_000_000 + 10_000 * place, 40_005_000 + 10_000 * place, name="dropout") for place in range(9)]
    assert recompiled_kernels(steps(*["dropout"] * 8, after=calm)) == []
