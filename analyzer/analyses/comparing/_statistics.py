"""Statistics of two sides of runs: ratios with their intervals, verdicts, numbers of repeats, cold runs.

Numbers in, numbers out. Everything is about logarithms of times, so that a change is a factor, and exchanging the sides
turns a ratio into its inverse and nothing else. A value that has no logarithm (0, or NaN for a run that lacks it) is a
missing one for many kernels at once, and leaves no ratio where it is one of the few values of a side. Distributions are
scipy's. What each figure holds, measured: docs/comparing.md.

numpy and scipy are imported inside functions: every command finds this room, and few compare.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    Floats: TypeAlias = npt.NDArray[np.float64]

Basis: TypeAlias = Literal["runs", "paired runs", "steps"]
Judgement: TypeAlias = Literal["faster", "slower", "same", "cannot tell"]

#: The probability that an interval holds the true value.
CONFIDENCE: Final = 0.95

#: A change that matters, unless the user says otherwise: 2 % of the time.
LEAST_EFFECT: Final = 0.02

#: The changes that a noise floor is told for.
NOISE_EFFECTS: Final = (0.01, 0.02, 0.05)

#: Fewer runs of a side do not show how they vary.
LEAST_RUNS: Final = 2

#: More repeats than this are no advice.
_MOST_REPEATS: Final = 1000

#: Variance of a time that is rounded to whole nanoseconds; below it no spread is believed.
_ROUNDING_NS2: Final = 1 / 12

#: A run is cold by this many median deviations of the others, and by this part of the median run.
_COLD_DEVIATIONS: Final = 3
_COLD_PART: Final = 0.1

#: Fewer steps do not show how they follow one another.
_LEAST_STEPS: Final = 5

#: Fewer kernels do not show how their variances are spread.
_LEAST_KERNELS: Final = 10

#: Trigamma of a small argument is the inverse of its square, of a large one its inverse, to seven digits.
_LARGE_TRIGAMMA: Final = 1e7

#: The logarithm of what a float just holds.
_LARGEST_LOGARITHM: Final = 700.0


class Estimate(NamedTuple):
    """A ratio of times, new to base, with its 95 % interval."""

    ratio: float
    low: float
    high: float
    p_value: float  # of no change at all, two-sided
    degrees: float  # of freedom of the t distribution
    basis: Basis


class Difference(NamedTuple):
    """A difference of times, new less base, with its 95 % interval."""

    delta_ns: float
    low_ns: float
    high_ns: float
    p_value: float
    degrees: float


class NoiseFloor(NamedTuple):
    """How much runs of one program differ."""

    runs: int
    spread: float  # standard deviation of the logarithm between runs
    spread_high: float  # its upper bound at 95 %
    least_ratio: float  # two single runs lie within this factor in 95 of 100 pairs
    repeats: dict[float, int | None]  # of each side, that show a change of this size nine times in ten


class KernelEstimates(NamedTuple):
    """Ratios of many kernels at once, float64[kernels] each; NaN where a kernel has no ratio or no interval."""

    ratio: Floats
    low: Floats
    high: Floats
    p_value: Floats
    degrees: Floats
    prior_degrees: float  # worth of what the kernels' variances have in common, in degrees of freedom; 0 for Welch
    prior_variance: float  # of a logarithm between runs, that all are drawn towards; NaN for Welch


class _Contrast(NamedTuple):
    """Differences of mean logarithms, float64[rows] each."""

    difference: Floats
    variance: Floats  # of that difference
    degrees: Floats


# Two sides of runs


def ratio_of_runs(base: Sequence[float], new: Sequence[float], *, paired: bool = False) -> Estimate | None:
    """The ratio of times of two sides, by Welch's t on logarithms, or by the paired t of interleaved runs.

    The ratio is that of geometric means. None where a side has fewer than two runs, or a run of no time.

    Raises:
        ValueError: Runs are paired, and one side has more of them.
    """
    if min(len(base), len(new)) < LEAST_RUNS or not all(0 < value < math.inf for value in (*base, *new)):
        return None
    contrast = _contrast(_one_row(base), _one_row(new), paired=paired)
    difference, variance, degrees = (float(column[0]) for column in contrast)
    return _estimate(difference, variance, degrees, "paired runs" if paired else "runs")


def difference_of_runs(base_ns: Sequence[float], new_ns: Sequence[float], *, paired: bool = False) -> Difference | None:
    """The difference of mean times of two sides, by Welch's t or the paired t; zeros are times as others are.

    None where a side has fewer than two runs.

    Raises:
        ValueError: Runs are paired, and one side has more of them.
    """
    if min(len(base_ns), len(new_ns)) < LEAST_RUNS:
        return None
    base, new = _one_row(base_ns), _one_row(new_ns)
    contrast = _paired(base, new, _ROUNDING_NS2) if paired else _welch(base, new, _ROUNDING_NS2, _ROUNDING_NS2)
    delta, variance, degrees = (float(column[0]) for column in contrast)
    half = _quantile(degrees) * math.sqrt(variance)
    return Difference(delta, delta - half, delta + half, _p_value(delta, variance, degrees), degrees)


def ratio_within_runs(base_steps: Sequence[float], new_steps: Sequence[float]) -> Estimate | None:
    """The ratio of mean step times of one run a side, from the steps' own spread.

    Steps follow one another, so that n of them are worth n (1 - rho) / (1 + rho), with rho the correlation of
    neighbours. What differs from run to run is not in it: it is about these two runs, not about the programs.
    None with fewer than five steps a side, or a mean of 0.
    """
    if min(len(base_steps), len(new_steps)) < _LEAST_STEPS:
        return None
    sides = [_mean_of_steps(steps) for steps in (base_steps, new_steps)]
    if not all(0 < side.mean < math.inf for side in sides):
        return None
    base, new = sides
    variance = base.relative_variance + new.relative_variance
    degrees = variance**2 / sum(side.relative_variance**2 / side.degrees for side in sides)
    return _estimate(math.log(new.mean / base.mean), variance, degrees, "steps")


class _StepMean(NamedTuple):
    """The mean of the steps of one run."""

    mean: float
    relative_variance: float  # of that mean, that is the variance of its logarithm
    degrees: float


def _mean_of_steps(steps: Sequence[float]) -> _StepMean:
    import numpy as np

    values = np.asarray(steps, np.float64)
    count, mean = len(values), float(values.mean())
    deviations = values - mean
    squares = float(deviations @ deviations)
    worth = _independent_steps(deviations, squares)
    # deviations from the mean of steps that follow one another are too small: n - n / worth in place of n - 1
    variance = max(squares / (count - count / worth), _ROUNDING_NS2) / worth
    return _StepMean(mean, variance / mean**2 if mean else math.inf, worth - 1)


def _independent_steps(deviations: Floats, squares: float) -> float:
    """The number of independent steps that as many correlated ones are worth, two at least."""
    count = len(deviations)
    correlation = float(deviations[1:] @ deviations[:-1]) / squares if squares else 0.0
    unbiased = correlation + (1 + 4 * correlation) / count  # the correlation of short series is estimated too low
    clipped = min(max(unbiased, 0.0), 1.0)
    return max(count * (1 - clipped) / (1 + clipped), 2.0)


def judged(estimate: Estimate, least_effect: float = LEAST_EFFECT) -> Judgement:
    """Faster or slower where the whole interval lies beyond the least effect, same where it lies within.

    The least effect is a factor, 1.02 for 2 %, and its inverse, so that exchanging the sides exchanges the verdict.
    """
    most = 1 + least_effect
    if estimate.high < 1 / most:
        return "faster"
    if estimate.low > most:
        return "slower"
    return "same" if 1 / most <= estimate.low and estimate.high <= most else "cannot tell"


# Numbers of repeats


def repeats_needed(
    base: Sequence[float], new: Sequence[float], *, effect: float, power: float = 0.9, paired: bool = False
) -> int | None:
    """Runs of each side that would show a change of `effect` with this probability, given how these runs vary.

    To show is to have an interval without 1, "no change". None where it takes more than a thousand, or where these runs
    do not say how much they vary.
    """
    estimate = ratio_of_runs(base, new, paired=paired)
    if estimate is None or effect <= 0:
        return None
    return _fewest(_power(math.log1p(effect), _variances(base, new, paired=paired)), power)


def repeats_to_judge(
    base: Sequence[float],
    new: Sequence[float],
    least_effect: float = LEAST_EFFECT,
    *,
    power: float = 0.9,
    paired: bool = False,
) -> int | None:
    """Runs of each side with which the verdict would not be "cannot tell", were the measured ratio the true one.

    None where it takes more than a thousand, or where these runs do not say how much they vary.
    """
    estimate = ratio_of_runs(base, new, paired=paired)
    if estimate is None:
        return None
    change, bound = abs(math.log(estimate.ratio)), math.log1p(least_effect)
    variances = _variances(base, new, paired=paired)
    if change > bound:
        return _fewest(_power(change - bound, variances), power)
    # both ends have to lie within; that neither fails is at least this likely
    return _fewest(_power(bound - change, variances) + _power(bound + change, variances) - 1, power)


def _variances(base: Sequence[float], new: Sequence[float], *, paired: bool) -> tuple[float, ...]:
    """Variance of the logarithm of a run of each side; of a pair's difference alone where runs are paired."""
    first, second = _one_row(base), _one_row(new)
    if paired:
        contrast = _contrast(first, second, paired=True)
        return (float(contrast.variance[0]) * len(base),)
    import numpy as np

    return tuple(float(_moments(np.log(row), _relative_rounding(row)).variance[0]) for row in (first, second))


def _power(distance: float, variances: tuple[float, ...]) -> Floats:
    """The probability that an interval does not reach a bound at this distance, by repeats from two on."""
    import numpy as np
    from scipy import special

    repeats = np.arange(LEAST_RUNS, _MOST_REPEATS + 1)
    error = np.sqrt(sum(variances) / repeats)
    degrees = (repeats - 1) * (sum(variances) ** 2 / sum(variance**2 for variance in variances))
    away = np.minimum(distance / error, 100.0)  # farther is certain, and the library loses its digits
    return 1 - np.asarray(special.nctdtr(degrees, away, special.stdtrit(degrees, (1 + CONFIDENCE) / 2)), np.float64)


def _fewest(power: Floats, wanted: float) -> int | None:
    """The fewest repeats whose power is the wanted one."""
    enough = (power >= wanted).nonzero()[0]
    return int(enough[0]) + LEAST_RUNS if len(enough) else None


def noise_floor(runs: Sequence[float], effects: Sequence[float] = NOISE_EFFECTS) -> NoiseFloor | None:
    """How much runs of one program differ, and the repeats of each side that would show a change of each size.

    None for fewer than two runs, or a run of no time.
    """
    from scipy import special

    if ratio_of_runs(runs, runs) is None:
        return None
    (variance, _), count = _variances(runs, runs, paired=False), len(runs)
    spread = math.sqrt(variance)
    return NoiseFloor(
        runs=count,
        spread=spread,
        spread_high=spread * math.sqrt((count - 1) / float(special.chdtri(count - 1, CONFIDENCE))),
        least_ratio=_factor(_quantile(count - 1) * spread * math.sqrt(2)),
        repeats={effect: repeats_needed(runs, runs, effect=effect) for effect in effects},
    )


# Cold runs


def cold_runs(overhead_ns: Sequence[float], whole_ns: Sequence[float]) -> list[int]:
    """Which runs of a side are cold, by their time of loading and host, as indexes.

    A run is cold that is above the median of the others by three of their median absolute deviations and by a tenth of
    the median whole time as well. At least three runs are needed, and at least two stay: where fewer would, no run is
    cold, since nothing says which ones are the usual ones.
    """
    from statistics import median

    if len(overhead_ns) <= LEAST_RUNS:
        return []
    floor = _COLD_PART * median(whole_ns)
    cold = []
    for index, value in enumerate(overhead_ns):
        others = [*overhead_ns[:index], *overhead_ns[index + 1 :]]
        middle = median(others)
        deviation = median(abs(other - middle) for other in others)
        if value - middle > max(_COLD_DEVIATIONS * deviation, floor):
            cold.append(index)
    return cold if len(overhead_ns) - len(cold) >= LEAST_RUNS else []


# Many kernels at once


def moderated(base: npt.ArrayLike, new: npt.ArrayLike, *, paired: bool = False) -> KernelEstimates:
    """Ratios of many kernels, by t on logarithms with variances that are drawn towards what they have in common.

    `base` and `new` are float64[kernels, runs], and as wide where runs are paired; NaN or 0 where a run lacks a kernel.
    Kernels of one program vary alike, which few runs of one kernel do not show: Smyth, "Linear models and empirical
    Bayes methods for assessing differential expression in microarray experiments" (2004), sections 4 and 6.2. With few
    kernels, Welch's t of each.

    Raises:
        ValueError: Runs are paired, and one side has more of them.
    """
    import numpy as np

    first, second = (np.asarray(side, np.float64) for side in (base, new))
    own = _pairs(first, second) if paired else _pooled(first, second)
    usable = np.isfinite(own.difference) & (own.degrees > 0)
    if usable.sum() < _LEAST_KERNELS:
        return _kernel_estimates(_contrast(first, second, paired=paired), 0.0, math.nan)
    prior = prior_of(own.variance[usable], own.degrees[usable])
    variance, degrees = shrunk(own.variance, own.degrees, prior)
    return _kernel_estimates(_Contrast(own.difference, variance * own.factor, degrees), prior.degrees, prior.variance)


class _OneVariance(NamedTuple):
    """Differences of mean logarithms with the one variance of their values, float64[rows] each."""

    difference: Floats  # NaN where a side is missing
    variance: Floats  # of one value; NaN without degrees of freedom
    degrees: Floats
    factor: Floats  # the variance of the difference is this times the variance of a value


def _pooled(base: Floats, new: Floats) -> _OneVariance:
    """Two sides whose runs vary alike."""
    import numpy as np

    sides = [_moments(_logs(side), 0.0) for side in (base, new)]
    counts = np.array([side.counts for side in sides])
    degrees = np.maximum(counts - 1, 0)
    squares = np.nan_to_num(np.array([side.variance for side in sides])) * degrees
    rounding = np.fmax(_relative_rounding(base), _relative_rounding(new))
    total = np.where(degrees.sum(axis=0) > 0, degrees.sum(axis=0), np.nan)
    variance = np.maximum(squares.sum(axis=0) / total, rounding)
    factor = (1 / _at_least_one(counts)).sum(axis=0)
    return _OneVariance(sides[1].mean - sides[0].mean, variance, degrees.sum(axis=0), factor)


def _pairs(base: Floats, new: Floats) -> _OneVariance:
    """Runs in pairs, whose differences are the values."""
    import numpy as np

    contrast = _contrast(base, new, paired=True)
    pairs = _at_least_one(contrast.degrees + 1)
    return _OneVariance(contrast.difference, contrast.variance * pairs, np.maximum(contrast.degrees, 0), 1 / pairs)


class Prior(NamedTuple):
    """What the variances of all kernels have in common."""

    degrees: float  # of freedom that it is worth; infinite where all vary alike
    variance: float


def shrunk(variances: Floats, degrees: Floats, prior: Prior) -> tuple[Floats, Floats]:
    """Variances drawn towards what they have in common, and their degrees of freedom (Smyth 2004, section 4)."""
    import numpy as np

    own = np.nan_to_num(variances)
    if math.isinf(prior.degrees):
        variance = np.full_like(own, prior.variance)
    else:
        variance = (degrees * own + prior.degrees * prior.variance) / (degrees + prior.degrees)
    # no more than all kernels have together
    return variance, np.minimum(degrees + prior.degrees, degrees.sum())


def prior_of(variances: Floats, degrees: Floats) -> Prior:
    """What variances have in common, from the moments of their logarithms (Smyth 2004, section 6.2)."""
    import numpy as np
    from scipy import special

    above = np.maximum(variances, 1e-5 * float(np.median(variances)))  # the logarithm of next to nothing rules the rest
    half = degrees / 2
    levels = np.log(above) - special.digamma(half) + np.log(half)
    excess = float(levels.var(ddof=1) - special.polygamma(1, half).mean())
    if excess <= 0:
        return Prior(math.inf, float(variances.mean()))
    half_prior = trigamma_inverse(excess)
    level = float(levels.mean()) + float(special.digamma(half_prior)) - math.log(half_prior)
    return Prior(2 * half_prior, math.exp(level))


def trigamma_inverse(value: float) -> float:
    """The argument at which trigamma has this value, by Newton's steps on its inverse (Smyth 2004, appendix)."""
    from scipy import special

    if value > _LARGE_TRIGAMMA:
        return 1 / math.sqrt(value)
    if value < 1 / _LARGE_TRIGAMMA:
        return 1 / value
    at = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, at))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, at))
        at += step
        if abs(step) < 1e-8 * at:
            break
    return at


def benjamini_hochberg(p_values: npt.ArrayLike) -> Floats:
    """The share of false ones among all that are as unlikely, for each p-value; NaN is no test, and stays NaN."""
    import numpy as np

    p = np.asarray(p_values, np.float64)
    shares = np.full(p.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    falling = tested[np.argsort(-p[tested], kind="stable")]
    ranks = np.arange(len(falling), 0, -1)
    shares[falling] = np.minimum(np.minimum.accumulate(p[falling] * len(falling) / ranks), 1.0)
    return shares


# Rows of values


class _Moments(NamedTuple):
    """Of each row what is there, float64[rows] each."""

    counts: Floats
    mean: Floats  # NaN without a value
    variance: Floats  # NaN with fewer than two


def _one_row(values: Sequence[float]) -> Floats:
    import numpy as np

    return np.asarray(values, np.float64).reshape(1, -1)


def _logs(values: Floats) -> Floats:
    """Logarithms, NaN where there is none."""
    import numpy as np

    there = (values > 0) & np.isfinite(values)
    return np.log(np.where(there, values, np.nan))


def _relative_rounding(values: Floats) -> Floats:
    """The least variance of a logarithm in each row, from rounding to whole nanoseconds."""
    import numpy as np

    return np.asarray(_ROUNDING_NS2 * np.exp(-2 * _moments(_logs(values), 0.0).mean), np.float64)


def _moments(values: Floats, least_variance: Floats | float) -> _Moments:
    import numpy as np

    there = ~np.isnan(values)
    count = there.sum(axis=1).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(there, values, 0.0).sum(axis=1) / count
        deviations = np.where(there, values - mean[:, None], 0.0)
        variance = (deviations**2).sum(axis=1) / np.where(count > 1, count - 1, np.nan)
    return _Moments(count, mean, np.maximum(variance, least_variance))


def _contrast(base: Floats, new: Floats, *, paired: bool) -> _Contrast:
    """Differences of mean logarithms of rows of times."""
    first, second = _logs(base), _logs(new)
    roundings = _relative_rounding(base), _relative_rounding(new)
    return _paired(first, second, sum(roundings)) if paired else _welch(first, second, *roundings)


def _paired(base: Floats, new: Floats, least_variance: Floats | float) -> _Contrast:
    """The paired t of each row."""
    if base.shape != new.shape:
        raise ValueError(f"{base.shape[1]} runs cannot be paired with {new.shape[1]}")
    pairs = _moments(new - base, least_variance)
    return _Contrast(pairs.mean, pairs.variance / _at_least_one(pairs.counts), pairs.counts - 1)


def _welch(base: Floats, new: Floats, *least_variances: Floats | float) -> _Contrast:
    """Welch's t of each row, with Satterthwaite's degrees of freedom."""
    sides = [_moments(side, least) for side, least in zip((base, new), least_variances, strict=True)]
    first, second = (side.variance / _at_least_one(side.counts) for side in sides)
    parts = first**2 / _at_least_one(sides[0].counts - 1) + second**2 / _at_least_one(sides[1].counts - 1)
    variance = first + second
    return _Contrast(sides[1].mean - sides[0].mean, variance, variance**2 / parts)


def _at_least_one(counts: Floats) -> Floats:
    import numpy as np

    return np.maximum(counts, 1.0)


# The t distribution


def _quantile(degrees: float) -> float:
    from scipy import special

    return float(special.stdtrit(degrees, (1 + CONFIDENCE) / 2))


def _p_value(difference: float, variance: float, degrees: float) -> float:
    from scipy import special

    return 2 * float(special.stdtr(degrees, -abs(difference) / math.sqrt(variance)))


def _estimate(difference: float, variance: float, degrees: float, basis: Basis) -> Estimate:
    """The ratio whose logarithm has this variance."""
    half = _quantile(degrees) * math.sqrt(variance)
    factors = (_factor(difference), _factor(difference - half), _factor(difference + half))
    return Estimate(*factors, _p_value(difference, variance, degrees), degrees, basis)


def _factor(logarithm: float) -> float:
    """The factor with this logarithm; infinite above what a float holds."""
    return math.exp(logarithm) if logarithm < _LARGEST_LOGARITHM else math.inf


def _kernel_estimates(contrast: _Contrast, prior_degrees: float, prior_variance: float) -> KernelEstimates:
    import numpy as np
    from scipy import special

    error = np.sqrt(contrast.variance)
    degrees = np.where(np.isnan(contrast.difference * error), np.nan, contrast.degrees)
    half = special.stdtrit(degrees, (1 + CONFIDENCE) / 2) * error
    with np.errstate(over="ignore"):
        ratio, low, high = (np.exp(contrast.difference + shift) for shift in (0.0, -half, half))
    p_value = 2 * special.stdtr(degrees, -np.abs(contrast.difference) / error)
    return KernelEstimates(ratio, low, high, p_value, degrees, prior_degrees, prior_variance)
