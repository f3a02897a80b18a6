"""Inverses whose product follows, and SVDs of long matrices."""

import pytest

from kanalyze.analyses.findings.rules.needless_work import decompositions
from support.measures import assert_told
from support.steps import operators

INVERSE = ("aten::linalg_inv", "[[4, 512, 512]]", 30_000)
SVD = ("aten::linalg_svd", "[[4096, 256], [], []]", 30_000)
PRODUCT = ("aten::matmul", "[[4, 512, 512], [4, 512, 8]]", 20_000)
SUM = ("aten::sum", "[[4, 512]]", 20_000)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("each", "stake", "words"),
    [
        ((INVERSE, PRODUCT), 5 * 30_000, "Inverses of matrices that are multiplied at once: 60.0 %"),
        ((("aten::linalg_pinv", *INVERSE[1:]), PRODUCT), 5 * 30_000, "`linalg_pinv` of matrices of 512 × 512"),
        ((INVERSE, SUM, PRODUCT), 0, None),  # it may be wanted itself
        ((INVERSE, SUM), 0, None),
        ((INVERSE, ("aten::mm", "[[64, 1000], [1000, 10]]", 20_000)), 0, None),  # of other matrices
        ((("aten::linalg_pinv", "[[4096, 512]]", 30_000), PRODUCT), 0, None),  # least squares
        ((INVERSE, PRODUCT, ("aten::linalg_inv", "[[9000, 4, 4]]", 9_000)), 5 * 30_000, "50.8 %"),
        ((("aten::linalg_inv", "[[4096, 4, 4]]", 30_000), PRODUCT), 0, None),  # cameras
        ((("aten::linalg_inv", "[]", 30_000), PRODUCT), 0, None),  # no shapes
        ((INVERSE, ("aten::mm", PRODUCT[1], 80_000), ("aten::mm", PRODUCT[1], 80_000)), 0, None),  # others take more
        ((SVD, SUM), 5 * 30_000, "SVDs of matrices far longer than wide: 60.0 %"),
        ((("aten::linalg_svd", "[[256, 4096], [], []]", 30_000), SUM), 5 * 30_000, "matrices of 4096 × 256"),
        ((("aten::linalg_svd", "[[512, 256], [], []]", 30_000), SUM), 0, None),
        ((("aten::linalg_svd", "[[4096, 6], [], []]", 30_000), SUM), 0, None),  # of the first few, by svd_lowrank
    ],
)
def test_less_than_an_inverse_or_a_long_svd_would_do(each, stake, words):
    made = operators(*((name, {"input_shapes": shapes}, took) for name, shapes, took in each))
    assert_told(decompositions(made), [stake] * bool(stake), *filter(None, [words]))
