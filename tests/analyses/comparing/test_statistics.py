"""Statistics of two sides of runs, against scipy's tests, limma's own output and definitions followed step by step."""

import math
from collections import Counter
from itertools import pairwise
from statistics import fmean, median, variance
from types import SimpleNamespace

import numpy as np
import pytest
import scipy  # imports its parts where they are first used
from hypothesis import assume, example, given, strategies as st

from kanalyze.analyses.comparing import _statistics
from kanalyze.analyses.comparing._comparison import _judged
from kanalyze.analyses.comparing._pair import Limits
from support.strategies import slow_given

TIMES = st.floats(1e6, 1e12)
SIDES = st.lists(TIMES, min_size=2, max_size=8)


def agrees(found, expected):
    """Whether an estimate is what one of scipy's tests says of logarithms."""
    low, high = expected.confidence_interval(0.95)
    assert math.log(found.low) == pytest.approx(low, rel=1e-6, abs=1e-9)
    assert math.log(found.high) == pytest.approx(high, rel=1e-6, abs=1e-9)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)


@slow_given(SIDES, SIDES)
def test_ratio_is_welch_s_t_on_logarithms(base, new):
    assume(min(np.ptp(np.log(base)), np.ptp(np.log(new))) > 1e-3)  # what the rounding of times explains: below
    found = _statistics.ratio_of_runs(base, new)
    agrees(found, scipy.stats.ttest_ind(np.log(new), np.log(base), equal_var=False))
    assert found.ratio == pytest.approx(scipy.stats.gmean(new) / scipy.stats.gmean(base))
    assert found.basis == "runs"


@slow_given(st.lists(st.tuples(TIMES, TIMES), min_size=2, max_size=8))
def test_ratio_of_pairs_is_the_paired_t_on_logarithms(pairs):
    base, new = tuple(list(side) for side in zip(*pairs, strict=True))
    assume(np.ptp(np.log(new) - np.log(base)) > 1e-3)
    found = _statistics.ratio_of_runs(base, new, paired=True)
    agrees(found, scipy.stats.ttest_rel(np.log(new), np.log(base)))
    assert found.basis == "paired runs"


@pytest.mark.parametrize(("base", "new"), [([5], [5, 6]), ([], []), ([0, 5], [5, 6]), ([5, 6], [5, math.nan])])
def test_no_ratio_of_one_run_or_of_no_time(base, new):
    assert _statistics.ratio_of_runs(base, new) is None
    assert _statistics.repeats_needed(base, new, effect=0.02) is None
    assert _statistics.repeats_to_judge(base, new) is None


@pytest.mark.parametrize("function", [_statistics.ratio_of_runs, _statistics.moderated])
def test_pairs_have_two_runs_each(function):
    sides = ([[1, 2]], [[1, 2, 3]]) if function is _statistics.moderated else ([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="2 runs cannot be paired with 3"):
        function(*sides, paired=True)


def test_equal_runs_are_believed_to_their_rounding():
    same, changed = (_statistics.ratio_of_runs([1000, 1000], [new, new]) for new in (1000, 1100))
    # one nanosecond in a thousand, rounded evenly: a standard deviation of 0.29
    assert (same.low, same.high) == pytest.approx((1 - 4.303 * 0.289e-3, 1 + 4.303 * 0.289e-3), abs=1e-5)
    assert (same.p_value, _statistics.judged(same), _statistics.judged(changed)) == (1.0, "same", "slower")
    assert _statistics.judged(_statistics.ratio_of_runs([3, 3], [4, 4])) == "cannot tell"


@pytest.mark.parametrize(
    ("low", "high", "least", "verdict"),
    [
        (0.90, 0.98, 0.02, "faster"),
        (0.90, 0.981, 0.02, "cannot tell"),  # 1 / 1.02 = 0.9804
        (1.021, 1.10, 0.02, "slower"),
        (1.019, 1.10, 0.02, "cannot tell"),
        (0.981, 1.02, 0.02, "same"),
        (0.98, 1.01, 0.02, "cannot tell"),
        (0.99, 1.021, 0.02, "cannot tell"),
        (math.nan, math.nan, 0.02, "cannot tell"),
        (1.01, 1.02, 0.005, "slower"),
        (0.96, 1.04, 0.05, "same"),
    ],
)
def test_verdict_is_where_the_interval_lies(low, high, least, verdict):
    assert _statistics.judged(_statistics.Estimate(math.sqrt(low * high), low, high, 0.5, "runs"), least) == verdict


def slow_mean_of_steps(steps):
    """Mean, variance of the mean and degrees of freedom, as the documentation says."""
    count, mean = len(steps), fmean(steps)
    squares = sum((step - mean) ** 2 for step in steps)
    products = sum((one - mean) * (two - mean) for one, two in pairwise(steps))
    correlation = min(max((count * products / squares + 1) / (count - 4), 0), 1) if count > 4 else 1
    worth = max(count * (1 - correlation) / (1 + correlation), 2)  # two where few steps do not show how they follow
    return mean, squares / (count - count / worth) / worth, worth - 1


@given(*[st.lists(st.integers(10**6, 10**9), min_size=2, max_size=40)] * 2)
def test_steps_count_less_the_more_they_follow_one_another(base, new):
    assume(min(np.ptp(base), np.ptp(new)) > 100)
    found = _statistics.ratio_within_runs(base, new)
    parts = [(spread / mean**2, degrees) for mean, spread, degrees in map(slow_mean_of_steps, (base, new))]
    total = sum(part for part, _ in parts)
    assert found.ratio == pytest.approx(fmean(new) / fmean(base))
    freedom = total**2 / sum(part**2 / degrees for part, degrees in parts)
    half = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(total)
    assert math.log(found.high / found.ratio) == pytest.approx(half, rel=1e-6)
    assert math.log(found.ratio / found.low) == pytest.approx(half, rel=1e-6)
    assert found.basis == "steps"
    assert _statistics.ratio_within_runs([1], new) is _statistics.ratio_within_runs([0] * 5, new) is None
    assert _statistics.judged(_statistics.ratio_within_runs([1000] * 5, [1000] * 5)) == "same"


@pytest.mark.parametrize(
    ("spreads", "fewest"), [((0.01, 0.01), [23, 7, 3]), ((0.01, 0.03), [108, 29, 7]), ((0.004, 0.002), [4, 3, 2])]
)
def test_repeats_to_show_an_effect_grow_with_what_runs_vary_by(spreads, fewest):
    """What so many repeats show is drawn in test_simulated.py."""
    base, new = ([1e9 * math.exp(sign * spread / math.sqrt(2)) for sign in (-1, 1)] for spread in spreads)
    assert [_statistics.repeats_needed(base, new, effect=effect) for effect in (0.01, 0.02, 0.05)] == fewest


def test_repeats_of_pairs_are_by_the_spread_of_their_differences():
    base, new = [1e9, 2e9, 3e9, 4e9], [1e9 * 1.003, 2e9, 3e9 * 1.006, 4e9]
    number = _statistics.repeats_needed(base, new, effect=0.01, paired=True)
    reach = math.log(1.01) / math.sqrt(variance([math.log(1.003), 0, math.log(1.006), 0]))
    powers = [
        scipy.stats.nct.sf(scipy.stats.t.ppf(0.975, n - 1), n - 1, reach * math.sqrt(n)) for n in (number - 1, number)
    ]
    assert powers[0] < 0.9 <= powers[1]
    assert _statistics.repeats_needed(base, new, effect=0.01) is None  # more than a thousand
    assert _statistics.repeats_needed(base, base, effect=0) is None
    assert _statistics.repeats_to_judge([1e9, 1.01e9], [1.02e9, 1.02 * 1.01e9]) is None  # on the bound no number tells


def test_noise_floor_is_the_spread_of_runs_and_what_it_hides():
    runs = [100, 101, 99, 102]
    spread = math.sqrt(variance([math.log(run) for run in runs]))
    found = _statistics.noise_floor(runs)
    assert (found.runs, found.spread) == (4, pytest.approx(spread))
    assert found.spread_high == pytest.approx(spread * math.sqrt(3 / scipy.stats.chi2.ppf(0.05, 3)))
    assert found.least_ratio == pytest.approx(math.exp(scipy.stats.t.ppf(0.975, 3) * math.sqrt(2) * spread))
    assert found.repeats == {
        effect: _statistics.repeats_needed(runs, runs, effect=effect) for effect in (0.01, 0.02, 0.05)
    }
    assert sorted(found.repeats.values(), reverse=True) == list(found.repeats.values())
    assert _statistics.noise_floor([100]) is None
    assert _statistics.noise_floor([100, 0]) is None


@pytest.mark.parametrize(
    ("overhead", "whole", "cold"),
    [
        ([700, 101, 100, 99], [1600, 1000, 1001, 999], [0]),
        ([100, 101, 700], [1000, 1001, 1600], [2]),
        ([700, 800, 100, 101, 99], [1600, 1700, 1000, 1000, 1000], [0, 1]),
        ([220, 101, 100, 99, 100], [1120, 1000, 1000, 1000, 1000], [0]),  # quiet runs: beyond chance
        ([220, 140, 60, 99, 170], [1120, 1040, 960, 1000, 1070], []),  # as far, among noisy ones
        ([190, 101, 100, 99, 100], [1090, 1000, 1000, 1000, 1000], []),  # less than a tenth of a run
        ([100, 100, 100], [1000, 1000, 1000], []),
        ([0, 0, 0, 400], [1000, 1000, 1000, 1400], [3]),
        ([700, 800, 100], [1600, 1700, 1000], []),  # which one is the usual one?
        ([20, 101, 100, 99], [920, 1000, 1000, 1000], []),  # less loading is not cold
        ([], [], []),
    ],
)
def test_cold_runs_load_far_longer_than_the_others(overhead, whole, cold):
    assert _statistics.cold_runs(overhead, whole) == cold


# Many kernels at once: figures that limma prints (its tests/limma-Tests.Rout.save, the model with a missing value)

SIGMA = np.array([1.3425032, 0.4647155, 1.1993444, 0.9428569, 0.9421509])
RESIDUAL_DEGREES = np.array([6.0, 6, 6, 6, 4])


def test_variances_are_shrunk_as_limma_shrinks_them():
    prior = _statistics.prior_of(SIGMA**2, RESIDUAL_DEGREES)
    variances, degrees = _statistics.shrunk(SIGMA**2, RESIDUAL_DEGREES, prior)
    assert prior == pytest.approx((0.923179, 9.306153), rel=1e-6)
    cautious = _statistics.prior_of(SIGMA**2, RESIDUAL_DEGREES, caution=1.0)
    assert (cautious[1] < prior[1], cautious[0]) == (True, prior[0])
    assert variances == pytest.approx([1.2677996, 0.6459499, 1.1251558, 0.9097727, 0.9124980], rel=1e-6)
    assert degrees == pytest.approx([15.30615, 15.30615, 15.30615, 15.30615, 13.30615], rel=1e-6)
    # of its contrast alpha - beta: standard deviations without sigma, t and p
    factors = np.array([0.8164966, 0.8164966, 0.8164966, 0.8164966, 1.1547005])
    t = np.array([3.537333, 4.355578, 3.197645, 2.697734, 3.502304]) / factors / np.sqrt(variances)
    assert t == pytest.approx([3.847656, 6.637308, 3.692066, 3.464003, 3.175181], rel=1e-6)
    p_values = [1.529450e-03, 7.144893e-06, 2.109270e-03, 3.381970e-03, 7.124839e-03]
    assert 2 * scipy.special.stdtr(degrees, -t) == pytest.approx(p_values, rel=1e-5)


@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=12))
@example([0.01, 0.01, math.nan, 0.04])
def test_shares_of_false_ones_are_the_least_of_all_thresholds(p_values):
    tested = [p for p in p_values if not math.isnan(p)]

    def share(p):
        shares = (len(tested) * limit / sum(q <= limit for q in tested) for limit in tested if limit >= p)
        return min(*shares, 1.0)

    expected = [math.nan if math.isnan(p) else share(p) for p in p_values]
    assert _statistics.benjamini_hochberg(p_values) == pytest.approx(expected, nan_ok=True)


def slow_moderated(base, new):
    """Ratios, intervals, p-values by loops and scipy.stats, for kernels that every run has."""
    logs = [[[math.log(value) for value in row] for row in side] for side in (base, new)]
    common, common_degrees, own = 0.0, 0, []
    for side in logs:
        levels = [median(row[run] - fmean(row) for row in side) for run in range(len(side[0]))]
        common += sum((level - fmean(levels)) ** 2 for level in levels)
        common_degrees += len(levels) - 1
        own.append([variance([value - level for value, level in zip(row, levels, strict=True)]) for row in side])
    common /= common_degrees
    sizes = [len(side[0]) for side in logs]
    degrees = sum(sizes) - 2
    pooled = [sum((n - 1) * v for n, v in zip(sizes, both, strict=True)) / degrees for both in zip(*own, strict=True)]
    prior = _statistics.prior_of(np.array(pooled), np.full(len(pooled), float(degrees)), caution=1.0)
    rows = []
    for index, spread in enumerate(pooled):
        part = (degrees * spread + prior[1] * prior[0]) / (degrees + prior[1])
        freedom = min(degrees + prior[1], degrees * len(pooled))
        freedom = (part + common) ** 2 / (part**2 / freedom + common**2 / common_degrees)
        error = math.sqrt((part + common) * sum(1 / n for n in sizes))
        change = fmean(logs[1][index]) - fmean(logs[0][index])
        reach = scipy.stats.t.ppf(0.975, freedom) * error
        p_value = 2 * scipy.stats.t.sf(abs(change) / error, freedom)
        rows.append([math.exp(change), math.exp(change - reach), math.exp(change + reach), p_value])
    return np.array(rows).T


def drawn(kernels, *runs, seed=1, common=0.002):
    """Times of kernels in runs, of two sides that differ in nothing."""
    random = np.random.default_rng(seed)
    spreads = np.exp(random.uniform(math.log(0.001), math.log(0.005), (kernels, 1)))
    size = 10 ** random.uniform(4, 8, (kernels, 1))
    return [
        size * np.exp(spreads * random.standard_normal((kernels, n)) + common * random.standard_normal(n)) for n in runs
    ]


@pytest.mark.parametrize("runs", [(2, 2), (3, 4), (5, 2)])
def test_moderated_is_the_definition_step_by_step(runs):
    base, new = drawn(30, *runs)
    assert np.array(_statistics.moderated(base, new)) == pytest.approx(slow_moderated(base, new), rel=1e-6)


def test_moderated_pairs_take_away_what_both_runs_of_a_pair_share():
    base, new = drawn(50, 4, 4)
    wandering = np.array([1.0, 1.3, 0.8, 1.1])
    apart, together = (
        _statistics.moderated(base * wandering, new * wandering, paired=paired) for paired in (False, True)
    )
    assert together.ratio == pytest.approx(_statistics.moderated(base, new).ratio)
    assert np.median(together.high / together.low) < np.median(apart.high / apart.low) ** 0.1


def test_a_kernel_that_a_run_lacks_is_compared_by_the_others():
    base, new = drawn(40, 4, 4)
    base[0, 1], new[1, 0] = math.nan, 0
    base[2] = math.nan
    base[3, 1:], new[3, 1:] = math.nan, math.nan
    found = _statistics.moderated(base, new)
    present = [base[0, [0, 2, 3]], new[0]]
    assert found.ratio[0] == pytest.approx(scipy.stats.gmean(present[1]) / scipy.stats.gmean(present[0]))
    assert found.ratio[1] == pytest.approx(scipy.stats.gmean(new[1, 1:]) / scipy.stats.gmean(base[1]))
    assert np.isnan([column[2] for column in found]).all()
    # one run a side has no spread of its own, and is as wide as what the kernels have in common says
    assert np.log(found.high[3] / found.low[3]) > np.median(np.log(found.high / found.low)[4:])
    assert np.isfinite(found.p_value[[0, 1, 3, 4]]).all()
    assert np.isnan(_statistics.benjamini_hochberg(found.p_value)).sum() == 1


@pytest.mark.parametrize("paired", [False, True])
def test_kernels_that_are_few_missing_or_do_not_vary(paired):
    base, new = drawn(9, 3, 3)  # few have Welch's t each
    each = _statistics.ratios_of_runs(base, new, paired=paired)
    assert np.array(_statistics.moderated(base, new, paired=paired)) == pytest.approx(np.array(each))
    for shape in ((0, 3), (20, 1), (20, 0)):
        nothing = _statistics.moderated(np.ones(shape), np.ones(shape), paired=paired).p_value
        assert nothing.shape == shape[:1]
        assert np.isnan(nothing).all()
    same = _statistics.moderated(np.full((20, 3), 5000.0), np.full((20, 3), 5000.0), paired=paired)
    assert same.p_value == pytest.approx(np.ones(20))
    assert (same.high < 1.001).all()
    for caution in (0.0, 1.0):  # variances that spread as chance does are one
        prior = _statistics.prior_of(np.full(20, 3.0), np.full(20, 4.0), caution=caution)
        assert prior == (3.0, math.inf)
        assert _statistics.shrunk(np.array([1.0, 3]), np.array([4.0, 4]), prior)[0] == pytest.approx([3, 3])


@pytest.mark.parametrize("runs", [4, 6])
def test_runs_of_one_program_that_vary_are_called_different_once_in_a_hundred(runs, monkeypatch):
    """Beyond the level of the interval, which one in twenty passes by chance where runs vary by far more than 2 %."""
    monkeypatch.setattr(_statistics, "repeats_to_judge", lambda *_, **__: 100)
    side = SimpleNamespace(digests=[None] * runs)
    pair = SimpleNamespace(repeated=True, paired=False, limits=Limits(), sides=(side, side))
    draws = np.exp(np.random.default_rng(5).normal(20, 0.1, (1000, 2, runs)))
    words = Counter(_judged(pair, *draw.tolist()).word for draw in draws)
    assert words["faster"] + words["slower"] <= 15
    assert _judged(pair, draws[0, 0].tolist(), (1.5 * draws[0, 0]).tolist()).word == "slower"
