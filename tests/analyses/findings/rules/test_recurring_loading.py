"""Kernels that are planned and loaded anew in each step: with the time around, and not where shapes recur."""

import pytest

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.loading import recurring_loading
from kanalyze.window import Window
from support.build import call, kernel, nvtx, report

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


def steps(*loads, **options):
    """Steps with so many loads each."""
    events = [event for number, many in enumerate(loads) for event in step(number, loads=many, **options)]
    return report(events).narrow(window=Window(0, STEP * len(loads), count=len(loads), each="step"))


def test_the_time_around_what_is_loaded_in_each_step():
    """The GPU idles from 10 to 63 µs; the host has launched until 2, and launches from 60 on."""
    of = steps(*[1] * 10)
    (one,) = recurring_loading(of)
    assert (one.rule, one.device, one.at_stake_ns, one.at_most) == ("recurring-loading", 0, 10 * 50_000, False)
    assert one.text == (
        "Kernels are loaded in 10 of 10 steps, 1 time a step, as libraries do that plan anew for each shape: GPU 0 "
        "idles for 50.00 µs a step from the launch before to the one after, of which the calls that load take 1.000 µs "
        "a step. A program whose shapes recur loads nothing. More may follow: the host could run ahead."
    )
    assert one.headline == "Kernels are planned and loaded anew in 10 of 10 steps"
    assert one.action == "pad to a few lengths; sdpa_kernel(SDPBackend.FLASH_ATTENTION)"


def test_what_other_findings_leave_to_it():
    of = steps(*[1] * 10)
    (rest,) = (other for other in ranked(of) if other.rule == "host-computes")
    assert rest.at_stake_ns == 10 * 30_000
    assert "besides 49.00 µs of which other findings tell" in rest.text
    assert "module-loading" not in {one.rule for one in ranked(of)}


@pytest.mark.parametrize(
    ("loads", "raised"),
    [
        ([1, 0] * 5, True),
        ([1, 0, 0] * 5, False),
        ([5, 5, 0, 0, 0, 0, 0, 0, 0, 0], False),  # many, but in two of ten
        ([1, 1, 1], False),
        ([1, 1, 1, 1], True),
    ],
)
def test_half_of_at_least_four_steps(loads, raised):
    assert bool(recurring_loading(steps(*loads))) == raised


def test_no_finding_outside_of_iterations():
    of = steps(*[1] * 10)
    assert recurring_loading(of.whole) == []
    assert recurring_loading(of.whole.narrow(window=Window(0, 10 * STEP))) == []


def test_what_another_thread_loads_keeps_nobody_waiting():
    assert recurring_loading(steps(*[1] * 10, thread=2)) == []


def test_without_cudnn_or_pytorch_it_is_about_shapes():
    assert recurring_loading(steps(*[1] * 10, later=RELU))[0].action == "pad to a few lengths"
    (one,) = recurring_loading(steps(*[1] * 10, name="add", later="add"))
    assert one.action == "keep to a few shapes, and run each once before"
    assert "dynamic=True" not in one.remedy


def test_it_says_where():
    events = [nvtx("attend", STEP * number, STEP * number + 99_000) for number in range(10)]
    every = [*events, *(event for number in range(10) for event in step(number))]
    of = report(every).narrow(window=Window(0, 10 * STEP, count=10, each="step"))
    assert recurring_loading(of)[0].where == "attend"
