"""Sums over windows that overlap, and over tensors that were expanded."""

import pytest

from kanalyze.analyses.findings.rules.overlapping_windows import overlapping_windows
from kanalyze.window import Window
from support.build import host, kernel, launched, report
from support.measures import assert_told

LAUNCH = "cudaLaunchKernel_v7000"
STEP = 1_000_000


def steps(name, shapes, strides, other_ns=0):
    """Five passes of a sum whose kernel takes 30 µs, beside another operator."""
    events, details = [], []
    for at in range(0, 5 * STEP, STEP):
        for begin, operator, took in ((at, name, 30_000), (at + 200_000, "aten::mm", other_ns)):
            made = kernel(begin + 10_000, begin + 10_000 + took, name=f"kernel of {operator}")
            details.append({"event_id": len(events), "input_shapes": shapes, "input_strides": strides})
            events += [
                host("op", operator, begin, begin + 9000),
                *launched(begin + 1000, begin + 8000, made, LAUNCH),
            ]
    return report(events, op_detail=details).narrow(window=Window(0, 5 * STEP, count=5, each="step"))


@pytest.mark.parametrize(
    ("name", "shapes", "strides", "stake", "words"),
    [
        ("aten::mean", "[[16, 9000, 101], [], [], []]", "[[9100, 1, 1], [], [], []]", 150_000, "100 times and more"),
        ("aten::sum", "[[64, 4096]]", "[[0, 1]]", 150_000, "each element 64 times"),
        ("aten::sum", "[[16, 9000, 101]]", "[[909000, 101, 1]]", 0, None),
        ("aten::sum", "[[4096, 9000]]", "[[1, 4096]]", 0, None),  # transposed
        ("aten::sum", "[[16, 9000, 9]]", "[[9100, 1, 1]]", 0, None),  # short windows
        ("aten::max", "[[16, 9000, 101]]", "[[9100, 1, 1]]", 0, None),  # no running sum gives it
        ("aten::sum", "[[16, 0, 101]]", "[[9100, 1, 1]]", 0, None),
        ("aten::sum", "[[]]", "[[]]", 0, None),
        ("aten::sum", "[[16, 9000, 101]]", None, 0, None),
    ],
)
def test_sums_read_elements_again(name, shapes, strides, stake, words):
    assert_told(overlapping_windows(steps(name, shapes, strides)), [stake] * bool(stake), *filter(None, [words]))


def test_what_takes_little_beside_others_is_left_out():
    made = steps("aten::mean", "[[16, 9000, 101]]", "[[9100, 1, 1]]", other_ns=400_000)
    assert_told(overlapping_windows(made), [])
