"""Code that is compiled again while the program runs, and convolutions whose algorithms are tried anew."""

import pytest

from kanalyze.analyses.findings.rules.recompilation import recompilation
from kanalyze.window import Window
from support.build import call, host, kernel, nvtx, report

LAUNCH = "cudaLaunchKernel_v7000"
STEP = 1_000_000


def launch(at, name="triton_poi_fused_add_0"):
    return [call(LAUNCH, at, at + 5000, correlation=at), kernel(at + 6000, at + 10_000, name=name, correlation=at)]


def found(step, *, steps=8, every=1):
    torch = [host("op", "aten::mm", 0, 1), *launch(10, "void at::native::k()")]
    parts = [
        event for number in range(steps) for event in (step if number % every == 0 else launch)(number * STEP + 100)
    ]
    return recompilation(report([*torch, *parts]).narrow(window=Window(0, steps * STEP, count=steps, each="step")))


def compiles(at):
    return [nvtx("_compile.compile_inner (dynamo_timed)", at, at + 800_000), *launch(at + 850_000)]


def tries(at):
    """A convolution of twelve kernels."""
    many = [event for place in range(12) for event in launch(at + 20_000 * place, "cudnn_conv")]
    return [host("op", "aten::cudnn_convolution", at - 50, at + 250_000), *many]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (compiles, "The program compiles 1 time a step, not only at its start: GPU 0 idles"),
        (tries, "The program runs a convolution with many algorithms 1 time a step"),
    ],
)
def test_compiled_all_along(step, said):
    (one,) = found(step)
    assert one.text.startswith(said)


@pytest.mark.parametrize("step", [compiles, tries])
def test_once_is_none(step):
    assert found(step, every=8) == []
