"""Kernels that are compiled and loaded again and again, and those that are loaded once."""

import pytest

from kanalyze.analyses.findings.rules.recompiled_kernels import recompiled_kernels
from support.build import call, kernel, report

OF_TORCH = kernel(0, 10, name="void at::native::fill(int)")


def steps(*names, before=OF_TORCH):
    """A step of 1 ms for each kernel, which is loaded after 0.5 ms of the program's own code."""
    events = [before]
    for place, name in enumerate(names):
        at = 1_000_000 * place + 1_000
        events += [
            call("cuModuleLoadData", at + 500_000, at + 510_000),
            call("cuLaunchKernelEx", at + 600_000, at + 605_000, correlation=place + 1),
            kernel(at + 610_000, at + 700_000, name=name, correlation=place + 1),
        ]
    return report(events)


def test_a_kernel_of_triton_that_is_compiled_in_each_step():
    (finding,) = recompiled_kernels(steps(*["dropout"] * 6))
    assert finding.headline == "Compiled anew 5 times: {0}"
    assert finding.action == "an ordinary argument in place of tl.constexpr; do_not_specialize"
    assert finding.at_stake_ns == 5 * 905_000


def test_a_kernel_of_cupy_has_another_remedy():
    (finding,) = recompiled_kernels(steps(*["scale_rows"] * 6, before=kernel(0, 10, name="cupy_copy__float32_float32")))
    assert finding.action.startswith("compile once")


@pytest.mark.parametrize(
    "other",
    [
        steps("a", "b", "c", "d", "e", "f"),
        steps(*["a", "b"] * 3),
        steps(*["void cutlass::Kernel2<int>(int)"] * 6),
        steps(*["step(float *)"] * 6, before=kernel(0, 10, name="init(float *)")),
    ],
    ids=["once each", "a few shapes", "a library", "CUDA C++"],
)
def test_what_is_loaded_once_or_by_libraries_is_none(other):
    assert recompiled_kernels(other) == []
