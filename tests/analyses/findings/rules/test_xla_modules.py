"""Programs of JAX: operations one by one, modules compiled again, arrays copied; and what is none of these."""

from kanalyze.analyses.findings.rules.xla_modules import no_donation, not_jitted, recompilation
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
    change = finding.mending(of)
    assert change.graph
    assert len(change.gone) == 19  # elementwise kernels become one


def test_a_compiled_step_is_none():
    assert not_jitted(report(one_by_one(["jit_step"] * 20, kernels=("loop_add_fusion",) * 8))) == []


def test_a_few_operations_beside_a_compiled_step_are_too_few_kinds():
    assert not_jitted(report(one_by_one(["jit__threefry_split", "jit_step"] * 10))) == []


def test_operations_far_apart_are_not_dispatched_one_after_the_other():
    assert not_jitted(report(one_by_one(OPERATIONS * 5, apart=5_000_000))) == []


def test_other_programs_are_not_asked():
    of = report([kernel(at, at + 10, name="add(int)") for at in range(0, 10_000, 1_000)])
    assert not_jitted(of) == recompilation(of) == no_donation(of) == []


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
    assert len(finding.mending(of).gone) == 10


def test_small_copies_and_short_ones_are_none():
    assert no_donation(report(copied(1 << 10, 50_000))) == []
    assert no_donation(report(copied(1 << 20, 100))) == []
