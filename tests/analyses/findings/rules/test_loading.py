"""Kernels that are loaded or compiled again and again, and modules that are loaded once."""

import pytest

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.compiling import cold_start, recompilation, recurring_loading
from kanalyze.window import Window
from support.build import call, host, kernel, nvtx, overhead, report
from support.measures import measures

STEP = 100_000
ATTENTION = "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_2_64x32x64_4x1x1_cga1x1x1_kernel0_0"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::relu, std::array<char*, 2ul> >(int)"


def step(number, *, loads=1, name=RELU, later=ATTENTION, thread=1):
    """A kernel at once; 40 µs of planning, `loads` of 1 µs each, another kernel at 60 µs, and 30 µs of other work."""
    at = STEP * number
    return [
        call("cudaLaunchKernel", at, at + 2_000, correlation=2 * number + 1),
        kernel(at + 3_000, at + 10_000, name=name, correlation=2 * number + 1),
        *(
            call("cuLibraryLoadData", at + 45_000 + 2_000 * load, at + 46_000 + 2_000 * load, thread=thread)
            for load in range(loads)
        ),
        call("cudaLaunchKernel", at + 60_000, at + 62_000, correlation=2 * number + 2),
        kernel(at + 63_000, at + 70_000, name=later, correlation=2 * number + 2),
    ]


def steps(*loads, more=(), **options):
    """Steps with so many loads each."""
    events = [event for number, many in enumerate(loads) for event in step(number, loads=many, **options)]
    return report([*more, *events]).narrow(window=Window(0, STEP * len(loads), count=len(loads), each="step"))


def test_the_time_around_what_is_loaded_in_each_step():
    """The GPU idles from 10 to 63 µs; the host has launched until 2, and launches from 60 on."""
    of = steps(*[1] * 10, more=[nvtx("attend", STEP * at, STEP * at + 99_000) for at in range(10)])
    (one,) = recurring_loading(of)
    assert (one.rule, one.device, one.at_stake_ns, one.at_most) == ("recurring-loading", 0, 10 * 50_000, False)
    assert one.text == (
        "Kernels are loaded in 10 of 10 steps, 1 time a step, as libraries do that plan anew for each shape: GPU 0 "
        "idles for 50.00 µs a step from the launch before to the one after, of which the calls that load take 1.000 µs "
        "a step. A program whose shapes recur loads nothing. More may follow: the host could run ahead."
    )
    assert one.headline == "Kernels are planned and loaded anew in 10 of 10 steps"
    assert one.action == "pad to a few lengths; sdpa_kernel(SDPBackend.FLASH_ATTENTION)"
    assert one.where == "attend"
    assert measures(one, of) == (500_000, 0, 0, 10 * 58_000)


def test_what_other_findings_leave_to_it():
    of = steps(*[1] * 10)
    (rest,) = (other for other in ranked(of) if other.rule == "host-computes")
    assert rest.at_stake_ns == 10 * 30_000
    assert "besides 49.00 µs of which other findings tell" in rest.text
    assert "module-loading" not in {one.rule for one in ranked(of)}


@pytest.mark.parametrize(
    ("of", "raised"),
    [
        (steps(*[1, 0] * 5), True),
        (steps(*[1, 0, 0] * 5), False),
        (steps(5, 5, *[0] * 8), False),  # many, but in two of ten
        (steps(1, 1, 1), False),
        (steps(1, 1, 1, 1), True),
        (steps(*[1] * 10).whole, False),
        (steps(*[1] * 10).whole.narrow(window=Window(0, 10 * STEP)), False),
        (steps(*[1] * 10, thread=2), False),  # which keeps nobody waiting
    ],
)
def test_half_of_at_least_four_steps(of, raised):
    assert bool(recurring_loading(of)) == raised


def test_without_cudnn_or_pytorch_it_is_about_shapes():
    assert recurring_loading(steps(*[1] * 10, later=RELU))[0].action == "pad to a few lengths"
    (one,) = recurring_loading(steps(*[1] * 10, name="add", later="add"))
    assert one.action == "keep to a few shapes, and run each once before"
    assert "dynamic=True" not in one.remedy


# Loading of modules: how many calls, how long; of a call that made a context first only what it took after that.

FIRST = [call("cudaLaunchKernel", -3, 0, correlation=9), kernel(0, 5, correlation=9)]
LAST = [call("cudaLaunchKernel", 1_000, 1_010, correlation=1), kernel(1_010, 1_020, correlation=1)]
LIBRARY = call("cuLibraryLoadData", 20, 70)


def made(mark):
    return [LIBRARY, call("cuModuleLoadData", 100, 700), overhead("CUDA context created", mark, mark)]


@pytest.mark.parametrize(
    ("events", "stake", "text"),
    [
        (
            [call("cuModuleLoadData", 10, 40), call("cuLibraryLoadData", 50, 60), call("cuModuleLoadData", 70, 75)],
            45,
            "3 calls, the longest 30 ns (most in cuModuleLoadData, cuLibraryLoadData).",
        ),
        (  # another process does not use the device
            [call("cuModuleLoadData", 10, 40), call("cuModuleLoadData", 10, 400, process=2)],
            30,
            "1 call, the longest 30 ns (most in cuModuleLoadData).",
        ),
        (made(110), 590 + 50, "2 calls, the longest 590 ns (most in cuModuleLoadData, cuLibraryLoadData)."),
        (made(699), 1 + 50, "2 calls, the longest 50 ns (most in cuLibraryLoadData, cuModuleLoadData)."),
        (made(700), 50, "1 call, the longest 50 ns (most in cuLibraryLoadData)."),
    ],
)
def test_calls_that_load(events, stake, text):
    (one,) = [one for one in cold_start(report([*FIRST, *events, *LAST])) if one.rule == "module-loading"]
    assert (one.at_stake_ns, one.text) == (stake, f"Loading modules and libraries: {text}")


# Code that is compiled again, and convolutions whose algorithms are tried anew.

LONG = 1_000_000


def launch(at, name="triton_poi_fused_add_0"):
    return [
        call("cudaLaunchKernel", at, at + 5000, correlation=at),
        kernel(at + 6000, at + 10_000, name=name, correlation=at),
    ]


def compiles(at):
    return [nvtx("_compile.compile_inner (dynamo_timed)", at, at + 800_000), *launch(at + 850_000)]


def tries(at):
    """A convolution of twelve kernels."""
    many = [event for place in range(12) for event in launch(at + 20_000 * place, "cudnn_conv")]
    return [host("op", "aten::cudnn_convolution", at - 50, at + 250_000), *many]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (compiles, "The program compiles 1 time a step, not only at its start: GPU 0 idles"),
        (tries, "The program runs a convolution with many algorithms 1 time a step"),
    ],
)
def test_compiled_all_along_and_not_once(part, said):
    torch = [host("op", "aten::mm", 0, 1), *launch(10, "void at::native::k()")]

    def found(every):
        parts = [(launch, part)[number % every == 0](number * LONG + 100) for number in range(8)]
        made = report([*torch, *(event for events in parts for event in events)])
        return recompilation(made.narrow(window=Window(0, 8 * LONG, count=8, each="step")))

    (one,) = found(1)
    assert (one.rule, one.text.startswith(said)) == ("recompilation", True)
    assert found(8) == []
