"""Programs compiled at run time: kernels loaded or tuned again, JAX's operations one by one, copies; and others."""

import pytest

from kanalyze import intervals
from kanalyze.analyses.findings.rules.arrays import no_donation, not_jitted, numbers_read, recompilation
from kanalyze.analyses.findings.rules.compiling import recompiled_kernels, tuned_again
from kanalyze.window import Window
from support.build import call, kernel, memcpy, nvtx, report

#: Of a layer: what JAX calls its operations.
OPERATIONS = ("jit_multiply", "jit_add", "jit_tanh", "jit__mean")


def module(at, name, *kernels, number):
    """A module that runs from `at` on for 20 µs, and launches kernels of 2 µs."""
    launches = [
        (
            call("cuLaunchKernelEx", at + 1_000 * place, at + 1_000 * place + 900, correlation=number + place),
            kernel(at + 2_000 + 2_500 * place, at + 4_000 + 2_500 * place, name=kind, correlation=number + place),
        )
        for place, kind in enumerate(kernels)
    ]
    events = [event for pair in launches for event in pair]
    return [nvtx(f"XlaModule:#hlo_module={name},program_id=7#", at, at + 20_000, domain="TSL"), *events]


def one_by_one(names, apart=100_000, kernels=("loop_add_fusion",)):
    return [
        event
        for place, name in enumerate(names)
        for event in module(apart * place, name, *kernels, number=100 * (place + 1))
    ]


def test_operations_one_by_one_are_told_with_the_idle_time_between_them():
    of = report(one_by_one(OPERATIONS * 5))
    (finding,) = not_jitted(of)
    assert finding.headline == "19 operations run one by one, without jax.jit"
    assert finding.at_stake_ns == 19 * (100_000 - 2_000) - 16_000  # the first module ends 16 µs after its kernel
    assert finding.claims.height == 19
    change = finding.change(of)
    assert change.graph
    assert len(change.gone) == 19  # elementwise kernels become one


@pytest.mark.parametrize(
    "events",
    [
        one_by_one(["jit_step"] * 20, kernels=("loop_add_fusion",) * 8),
        one_by_one(["jit__threefry_split", "jit_step"] * 10),
        one_by_one(OPERATIONS * 5, apart=5_000_000),
    ],
    ids=["a compiled step", "a few operations beside it", "far apart"],
)
def test_what_is_not_dispatched_one_by_one(events):
    assert not_jitted(report(events)) == []


def test_other_programs_are_not_asked():
    of = report([kernel(at, at + 10, name="add(int)") for at in range(0, 10_000, 1_000)])
    assert not_jitted(of) == recompilation(of) == no_donation(of) == numbers_read(of) == []


def compiled(*names):
    """Modules that are compiled for 1 ms each, and then run."""
    return [
        event
        for place, name in enumerate(names)
        for event in [
            nvtx(f"XlaCompile:#module={name}#", 2_000_000 * place, 2_000_000 * place + 1_000_000, domain="TSL"),
            *module(2_000_000 * place + 1_100_000, name, "loop_add_fusion", number=100 * (place + 1)),
        ]
    ]


def test_a_module_that_is_compiled_again_and_again():
    (finding,) = recompilation(report(compiled(*["jit_step"] * 6)))
    assert finding.headline == "XLA compiles jit_step anew 5 times"
    assert finding.at_stake_ns == 5 * (2_000_000 - 2_000 - 900)  # but for kernel and launch
    assert finding.claims.height >= 5


def test_modules_that_are_compiled_once_each_are_none():
    assert recompilation(report(compiled("jit_a", "jit_b", "jit_c", "jit_d", "jit_a"))) == []


def copied(bytes_moved, copy_ns):
    """Steps that copy an array within the GPU's memory and multiply."""
    return [
        event
        for at in range(0, 1_000_000, 100_000)
        for event in (
            memcpy(at, at + copy_ns, direction="Device-to-Device", size_bytes=bytes_moved),
            kernel(at + copy_ns, at + copy_ns + 10_000, name="loop_dynamic_update_slice_fusion"),
        )
    ]


def test_copies_of_whole_arrays_are_told():
    of = report(copied(1 << 26, 50_000))
    (finding,) = no_donation(of)
    assert finding.at_stake_ns == 10 * 50_000
    assert len(finding.change(of).gone) == 10


def test_small_copies_and_short_ones_are_none():
    assert no_donation(report(copied(1 << 10, 50_000))) == []
    assert no_donation(report(copied(1 << 20, 100))) == []


def test_numbers_that_the_host_reads_one_by_one():
    """The GPU idles from each copy's launch until the next one; the copy after the last launch ends no wait."""
    events = []
    for place in range(6):
        at = 100_000 * place
        events += module(at, "jit_step", "loop_add_fusion", number=10 * place + 1)
        events.append(call("cuMemcpyDtoHAsync", at + 30_000, at + 31_000, correlation=10 * place + 9))
        read = memcpy(at + 32_000, at + 34_000, direction="Device-to-Host", size_bytes=4, correlation=10 * place + 9)
        events.append(read)
    of = report(events)
    (finding,) = numbers_read(of)
    assert (finding.rule, finding.headline) == ("blocking-read", "5 values read by the host (float(x), .item())")
    assert finding.at_stake_ns == 5 * (70_000 - 2_000)
    assert len(finding.change(of).gone) == 5


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
    assert finding.action == "@triton.autotune(…, key=[…]) of few values: sizes in buckets"
    assert finding.at_stake_ns == 6 * (29 * 200_000 + 44_000) == intervals.length(finding.claims)


def test_an_autotuner_that_chooses_once_is_none():
    assert tuned_again(tuned(6, runs=60, again=False)) == []


def test_kernels_that_are_compiled_at_the_start_alone_are_none():
    calm = [kernel(40_000_000 + 10_000 * place, 40_005_000 + 10_000 * place, name="dropout") for place in range(9)]
    assert recompiled_kernels(steps(*["dropout"] * 8, after=calm)) == []
