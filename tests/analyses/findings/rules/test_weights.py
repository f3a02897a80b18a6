"""Weights and tables that are made anew in each pass, though nothing changes them."""

import pytest

from kanalyze.analyses.findings.rules import weights
from support.measures import assert_told
from support.steps import operators

TRAINS = ("autograd::engine::evaluate_function: X", "[]", 5)


def of_shapes(*each):
    """Five steps of operators (name, shapes of the inputs, ns of their kernel)."""
    return operators(*((name, {"input_shapes": shapes}, took) for name, shapes, took in each))


NORM = ("aten::linalg_vector_norm", "[[9000, 64], []]", 30_000)
DIVIDED = ("aten::div", "[[9000, 64], [9000, 64]]", 50_000)
NEAREST = ("aten::matmul", "[[16, 64], [64, 9000]]", 20_000)


@pytest.mark.parametrize(
    ("each", "stake"),
    [
        ((NORM, DIVIDED, NEAREST), 5 * 80_000),
        ((NORM, DIVIDED, ("aten::linear", "[[16, 64], [9000, 64], []]", 20_000)), 5 * 80_000),
        ((("aten::mm", "[[9000, 8], [8, 64]]", 9000), NORM, DIVIDED, NEAREST), 0),  # made in the pass
        ((("aten::embedding", "[[99, 64], [9]]", 9000), NORM, DIVIDED, NEAREST), 0),  # maybe of 9,000 rows
        ((NORM, DIVIDED, ("aten::matmul", "[[9000, 64], [64, 9000]]", 20_000)), 0),  # all pairs
        ((NORM, DIVIDED, NEAREST, ("aten::mm", "[[5, 5], [5, 5]]", 4_000_000)), 0),
        ((NORM, DIVIDED, NEAREST, ("autograd::engine::evaluate_function: X", "[]", 5)), 0),  # in training
    ],
)
def test_tables_that_are_normalized_in_each_pass(each, stake):
    assert_told(weights.normalized_tables(of_shapes(*each)), [stake] * bool(stake), *(["table of 9,000"] * bool(stake)))


UPDATE = ("aten::matmul", "[[1024, 16], [16, 512]]", 4_000)
SCALE = ("aten::mul", "[[1024, 512], []]", 3_000)
CHANGE = ("aten::add", "[[1024, 512], [1024, 512], []]", 5_000)
CHANGED = ("aten::linear", "[[32, 512], [1024, 512], []]", 16_000)
OTHER = ("aten::mm", "[[16, 16], [16, 16]]", 16_000)


@pytest.mark.parametrize(
    ("each", "stake"),
    [
        ((UPDATE, SCALE, CHANGE, CHANGED), 12_000),
        ((UPDATE, CHANGE, CHANGED, TRAINS), 9_000),
        ((UPDATE, ("aten::mul", "[[1024, 512], [1024, 512]]", 3_000), CHANGE, CHANGED), 0),  # by a matrix
        (((UPDATE[0], "[[1024, 256], [256, 512]]", 4_000), CHANGE, CHANGED), 0),  # not narrow
        ((UPDATE, ("aten::add_", *CHANGE[1:]), CHANGED), 0),  # the weight stays changed
        ((UPDATE, CHANGE, OTHER, CHANGED), 0),
        ((UPDATE, CHANGE, ("aten::linear", "[[1024, 512], [1024, 512], []]", 16_000)), 0),  # which one it is given
    ],
)
def test_weights_that_narrow_matrices_change(each, stake):
    told = weights.low_rank_updates(of_shapes(*each))
    assert_told(told, [5 * stake] * bool(stake), *["1,024 × 512 is made of ones with 16 columns"] * bool(stake))
    assert all((one.mending.shorter["saved_ns"] >= 3_000 // 2).all() for one in told)
    assert not weights.computed_weights(of_shapes(*each))


CAST = ("aten::to", "[[1024, 512], [], [], []]", 4_000)
SCALED = ("aten::mul", "[[1024, 512], [1024, 1]]", 5_000)
FILTER = ("aten::conv2d", "[[8, 64, 32, 32], [128, 64, 3, 3], []]", 16_000)


@pytest.mark.parametrize(
    ("each", "stake"),
    [
        ((CAST, SCALED, CHANGED), 9_000),
        ((("aten::where", "[[1024, 512], [1024, 512], []]", 5_000), CHANGED), 5_000),
        ((("aten::mul", "[[128, 64, 3, 3], [128, 64, 3, 3]]", 5_000), FILTER), 5_000),
        ((CAST, CHANGED), 0),  # casts alone are told as these
        ((CAST, SCALED, CHANGED, TRAINS), 0),
        ((CAST, SCALED, OTHER, CHANGED), 0),  # something else may take them
        ((("aten::mul", "[[32, 512], [512]]", 5_000), CHANGED), 0),  # of what the layer is given
        ((SCALED, ("aten::linear", "[[1024, 512], [1024, 512], []]", 16_000)), 0),  # which of both
    ],
)
def test_weights_that_are_computed_before_each_layer(each, stake):
    told = weights.computed_weights(of_shapes(*each))
    assert_told(told, [5 * stake] * bool(stake), *["Weights are computed anew"] * bool(stake))
    assert [len(one.mending.gone) for one in told] == [5 * (len(each) - 1)] * bool(stake)
