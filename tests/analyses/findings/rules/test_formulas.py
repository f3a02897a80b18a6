"""What formulas in elementwise kernels need, by what a trace shows beside them."""

import pytest

from kanalyze.analyses.findings.on_gpu import Work, kernel_sums
from kanalyze.analyses.findings.rules.unfused import _words
from support.build import host, kernel, launched, report

MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float>, X>(int)"
OF_COMPILER = "triton_poi_fused_mul_0"


def words(*operators, name=MUL):
    """Those of a trace of operators (name, shapes of inputs or None) of which each launches a kernel."""
    events, details = [], []
    for number, (operator, shapes) in enumerate(operators):
        at = 1000 * number
        details += [{"event_id": len(events), "input_shapes": shapes}] if shapes else []
        ran = launched(at + 10, at + 80, kernel(at + 100, at + 200, name=name), "cudaLaunchKernel")
        events += [host("op", operator, at, at + 90), *ran]
    of = report(events, op_detail=details)
    return _words(Work(of, kernel_sums(of)[0], of.kind("kernel")))


def regions(*versions):
    return [(f"Torch-Compiled Region: {version}", None) for version in versions]


POW = ("aten::pow", None)


@pytest.mark.parametrize(
    ("shapes", "after", "told"),
    [
        ("[[4096, 1, 128], [1, 1024, 128], []]", POW, "fusion: distances"),
        ("[[1, 1024, 128], [4096, 1, 128], []]", POW, "fusion: distances"),
        ("[[8, 4096, 1, 128], [8, 1, 1024, 128], []]", ("aten::abs", None), "fusion: distances"),
        ("[[4096, 1, 128], [1, 1024, 128], []]", ("aten::exp", None), "fusion: formulas"),
        ("[[4096, 1024, 128], [1, 1024, 128], []]", POW, "fusion: formulas"),  # the mean of all rows
        ("[[4096, 128], [128], []]", POW, "fusion: formulas"),
        ("[[4096, 1, 128], [4096, 1, 128], []]", POW, "fusion: formulas"),
        (None, POW, "fusion: formulas"),
    ],
)
def test_differences_of_all_pairs_are_a_product(shapes, after, told):
    assert words(("aten::sub", shapes), after) == told


@pytest.mark.parametrize(
    ("versions", "name", "told"),
    [
        ([f"0/{version}" for version in range(8)], OF_COMPILER, "recompilation: limit"),
        ([f"0/{version}" for version in range(7)], OF_COMPILER, "fusion: formulas"),
        ([f"{function}/0" for function in range(9)], OF_COMPILER, "fusion: formulas"),  # functions of their own
        (["0/0"], MUL, "fusion: backend"),
    ],
)
def test_a_compiler_that_gave_up_or_fuses_nothing(versions, name, told):
    assert words(*regions(*versions), POW, name=name) == told
