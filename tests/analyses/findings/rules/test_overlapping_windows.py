"""Sums over windows that overlap, and over tensors that were expanded."""

import pytest

from kanalyze.analyses.findings.rules.needless_products import overlapping_windows
from support.measures import assert_told
from support.steps import operators


def steps(name, shapes, strides, other_ns=0):
    """A sum whose kernel takes 30 µs, beside another operator."""
    columns = {"input_shapes": shapes, "input_strides": strides}
    return operators((name, columns, 30_000), ("aten::mm", columns, other_ns))


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
