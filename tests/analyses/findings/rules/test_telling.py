"""Times and counts in sentences of findings: per iteration in a window of iterations, else in all."""

import pytest

from kanalyze.analyses.findings.rules._telling import LOADS_NEXT, in_pytorch, per_iteration, phase
from kanalyze.window import PerIteration, Window
from support.build import host, kernel, report

STEPS = PerIteration(60, "step")
OWN = PerIteration(60, "train_step")
NONE = PerIteration(None, "")


@pytest.mark.parametrize(
    ("told", "time"),
    [
        (STEPS, "10.93 ms a step"),
        (PerIteration(60, "iteration"), "10.93 ms an iteration"),
        (PerIteration(60, "decode"), "10.93 ms a decode"),
        (OWN, "10.93 ms per train_step"),
        (NONE, "655.8 ms"),
    ],
)
def test_a_time(told, time):
    assert told.time(655_800_000) == time


@pytest.mark.parametrize(
    ("told", "number", "text"),
    [
        (STEPS, 71_040, "1,184 copies a step"),
        (STEPS, 150, "2.5 copies a step"),
        (STEPS, 60, "1 copy a step"),
        (STEPS, 62, "1 copy a step"),
        (STEPS, 3, "3 copies in 60 steps"),
        (STEPS, 1, "1 copy in 60 steps"),
        (OWN, 120, "2 copies per train_step"),
        (OWN, 3, "3 copies in 60 × train_step"),
        (PerIteration(1, "step"), 3, "3 copies a step"),
        (NONE, 71_040, "71,040 copies"),
        (NONE, 1, "1 copy"),
    ],
)
def test_a_count(told, number, text):
    assert told.plural(number, "copy") == text
    noun = next(word for word in ("copies", "copy") if word in text)
    assert told.plural(number, "copy", "of {0}") == text.replace(noun, f"{noun} of {{0}}")


@pytest.mark.parametrize(
    ("per", "number", "told"),
    [
        (STEPS, 60, "1 copy a step runs"),
        (STEPS, 62, "1 copy a step runs"),
        (STEPS, 120, "2 copies a step run"),
        (STEPS, 1, "1 copy in 60 steps runs"),
        (STEPS, 2, "2 copies in 60 steps run"),
        (NONE, 1, "1 copy runs"),
        (NONE, 60, "60 copies run"),
    ],
)
def test_verbs_agree_with_counts(per, number, told):
    assert per.clause(number, "copy", "run") == told


@pytest.mark.parametrize(
    ("window", "told"),
    [
        (None, NONE),
        (Window(0, 10), NONE),
        (Window(0, 10, count=0, each="step"), NONE),
        (Window(0, 10, count=4, each="step"), PerIteration(4, "step")),
        (Window(0, 10, count=4), PerIteration(4, "iteration")),
        (Window(0, 10, count=4, each="{0}"), PerIteration(4, "{{0}}")),
        (Window(0, 10, count=4, each="x" * 41), PerIteration(4, "x" * 20 + "…" + "x" * 19)),
    ],
)
def test_the_window_says_whether_figures_are_per_iteration(window, told):
    events = [kernel(0, 10)]
    assert per_iteration(report(events).narrow(window=window)) == told


@pytest.mark.parametrize(
    ("event", "yes"),
    [
        (kernel(0, 10, name="void at::native::vectorized_elementwise_kernel<4>(int)"), True),
        (host("op", "aten::add", 0, 10), True),
        (host("op", "xla::add", 0, 10), False),
        (kernel(0, 10, name="void native::add(int)"), False),
        (kernel(0, 10, name=None), False),
    ],
)
def test_a_program_of_pytorch_is_known_by_its_kernels_or_operators(event, yes):
    assert in_pytorch(report([event, kernel(20, 30)])) is yes


@pytest.mark.parametrize(
    ("culprit", "words"),
    [
        ("between cudaLaunchKernel and cudaLaunchKernelExC_v11060", "between launches"),
        ("between cudaLaunchKernel and cuKernelGetName", "between launches"),
        ("between cudaLaunchKernel and cudaEventRecord", "after launches"),
        ("between cudaStreamIsCapturing_v10000 and cudaMemsetAsync", "between launches"),
        ("between cudaEventRecord and cudaMemsetAsync", "before launches"),
        ("between cuLibraryLoadData and cuGetErrorString", "after loading of modules"),
        ("between cudaGetDeviceProperties_v12000 and cuLibraryLoadData", LOADS_NEXT),
        ("between cudaStreamSynchronize and cudaMemcpyAsync", "after waits for the GPU"),
        ("between cudaLaunchKernel and cudaStreamSynchronize", "before waits for the GPU"),
        ("between cudaMemcpy and cudaLaunchKernel", "after copies"),
        ("between hipLaunchKernel and hipMalloc", "before allocations"),
        ("between cudaStreamSynchronize and cuLibraryUnload", "at the end, before CUDA is taken down"),
        ("between cudaEventRecord and cudaEventQuery", "between cudaEventRecord and cudaEventQuery"),
        ("before cudaLaunchKernel", "before launches"),
        ("after cudaDeviceSynchronize", "after waits for the GPU"),
        ("before cuInit", "before cuInit"),
        ("between aten::add and aten::mul", "between aten::add and aten::mul"),
        ("between us and cudaLaunchKernel", "between us and cudaLaunchKernel"),
        ("forward", "forward"),
    ],
)
def test_host_time_between_calls_is_told_in_words(culprit, words):
    assert phase(culprit) == words
