"""Statistics of two sides of runs, against scipy's tests, limma's own output and definitions followed step by step."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from kanalyze.analyses.comparing._statistics import prior_of, ratio_of_runs, shrunk

TIMES = st.floats(1e6, 1e12)
SIDES = st.lists(TIMES, min_size=2, max_size=8)
PAIRS = st.lists(st.tuples(TIMES, TIMES), min_size=2, max_size=8)


def columns(pairs):
    return tuple(list(side) for side in zip(*pairs, strict=True))


# Two sides of runs


@given(SIDES, SIDES)
def test_ratio_is_welch_s_t_on_logarithms(base, new):
    assume(min(np.ptp(np.log(base)), np.ptp(np.log(new))) > 1e-3)  # what the rounding of times explains: below
    found = ratio_of_runs(base, new)
    expected = stats.ttest_ind(np.log(new), np.log(base), equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert found.degrees == pytest.approx(expected.df)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((low, high), rel=1e-6, abs=1e-9)
    assert found.basis == "runs"


@given(PAIRS)
def test_ratio_of_pairs_is_the_paired_t_on_logarithms(pairs):
    base, new = columns(pairs)
    assume(np.ptp(np.log(new) - np.log(base)) > 1e-3)
    found = ratio_of_runs(base, new, paired=True)
    expected = stats.ttest_rel(np.log(new), np.log(base))
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert (found.degrees, found.basis) == (len(base) - 1, "paired runs")


# Many kernels at once: figures that limma prints (its tests/limma-Tests.Rout.save, the model with a missing value)

SIGMA = np.array([1.3425032, 0.4647155, 1.1993444, 0.9428569, 0.9421509])
RESIDUAL_DEGREES = np.array([6.0, 6, 6, 6, 4])


def test_variances_are_shrunk_as_limma_shrinks_them():
    prior = prior_of(SIGMA**2, RESIDUAL_DEGREES)
    variance, degrees = shrunk(SIGMA**2, RESIDUAL_DEGREES, prior)
    assert prior == pytest.approx((9.306153, 0.923179), rel=1e-6)
    assert variance == pytest.approx([1.2677996, 0.6459499, 1.1251558, 0.9097727, 0.9124980], rel=1e-6)
    assert degrees == pytest.approx([15.30615, 15.30615, 15.30615, 15.30615, 13.30615], rel=1e-6)
