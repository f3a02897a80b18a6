"""Statistics of two sides of runs: ratios with their intervals, verdicts, numbers of repeats, cold runs.

Numbers in, numbers out. Everything is about logarithms of times, so that a change is a factor, and exchanging the sides
turns a ratio into its inverse and nothing else. A value that has no logarithm (0, or NaN for a run that lacks it) is a
missing one for many kernels at once, and leaves no ratio where it is one of the few values of a side. Distributions are
scipy's. What each figure holds, measured: docs/comparing.md.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kanalyze import machinery

with machinery.loading_late("scipy"):  # takes 0.2 s: only several runs, and steps, need it
    import scipy.special

special: Any = scipy.special  # its stubs know no plain numbers

Floats: TypeAlias = npt.NDArray[np.float64]
Basis: TypeAlias = Literal["runs", "paired runs", "steps"]
Judgement: TypeAlias = Literal["faster", "slower", "same", "cannot tell"]

#: The probability that an interval holds the true value, and that as many runs as are advised tell.
CONFIDENCE: Final = 0.95
_POWER: Final = 0.9

#: Runs of one program that were not made in turns are called faster or slower no more often than this: what the machine
#: does differs from one stretch of runs to the next.
CHANCE: Final = 0.01

#: A change that matters, unless the user says otherwise: 2 % of the time.
LEAST_EFFECT: Final = 0.02

#: Fewer runs of a side do not show how they vary.
LEAST_RUNS: Final = 2

#: More repeats than this are no advice.
_MOST_REPEATS: Final = 1000

#: Variance of a time that is rounded to whole nanoseconds; below it no spread is believed.
_ROUNDING_NS2: Final = 1 / 12

#: A run is cold by this many median deviations of the others, by this part of the median run, and beyond chance.
_COLD_DEVIATIONS: Final = 3
_COLD_PART: Final = 0.1
_COLD_CONFIDENCE: Final = 0.999
_SURELY_COLD_PART: Final = 0.25

#: Fewer steps do not show how much they vary, and fewer than the other number not how they follow one another.
_LEAST_STEPS: Final = 2
_STEPS_IN_A_ROW: Final = 5

#: Fewer kernels do not show how their variances are spread.
_LEAST_KERNELS: Final = 10

#: Logarithms of variances that spread by less than this beyond chance are of one variance.
_LEAST_EXCESS: Final = 1e-9


class Estimate(NamedTuple):
    """A ratio of times, new to base, with its 95 % interval."""

    ratio: float
    low: float
    high: float
    p_value: float  # of no change at all, two-sided
    basis: Basis


class NoiseFloor(NamedTuple):
    """How much runs of one program differ."""

    runs: int
    spread: float  # standard deviation of the logarithm between runs
    spread_high: float  # its upper bound at 95 %
    least_ratio: float  # two single runs lie within this factor in 95 of 100 pairs
    repeats: dict[float, int | None]  # of each side, that show a change of this size nine times in ten


class Estimates(NamedTuple):
    """Ratios of many rows at once, float64[rows] each; NaN where a row has no ratio or no interval."""

    ratio: Floats
    low: Floats
    high: Floats
    p_value: Floats


# Two sides of runs


def ratio_of_runs(base: Sequence[float], new: Sequence[float], *, paired: bool = False) -> Estimate | None:
    """The ratio of times of two sides, by Welch's t on logarithms, or by the paired t of interleaved runs.

    The ratio is that of geometric means. None where a side has fewer than two runs, or a run of no time.

    Raises:
        ValueError: Runs are paired, and one side has more of them.
    """
    if min(len(base), len(new)) < LEAST_RUNS or not all(0 < value < math.inf for value in (*base, *new)):
        return None
    return _only(ratios_of_runs([base], [new], paired=paired), "paired runs" if paired else "runs")


def ratios_of_runs(base: npt.ArrayLike, new: npt.ArrayLike, *, paired: bool = False) -> Estimates:
    """Ratios by :func:`ratio_of_runs` of each row of float64[rows, runs]; NaN or 0 where a run is missing."""
    return _estimates(_contrast(np.asarray(base, np.float64), np.asarray(new, np.float64), paired=paired))


def ratio_within_runs(base_steps: Sequence[float], new_steps: Sequence[float]) -> Estimate | None:
    """The ratio of mean step times of one run a side, from the steps' own spread.

    Steps follow one another, so that n of them are worth n (1 - rho) / (1 + rho), with rho the correlation of
    neighbours; fewer than five, which do not show it, as two. What differs from run to run is not in it: it is about
    these two runs, not about the programs. None with fewer than two steps a side, or a mean of 0.
    """
    if min(len(base_steps), len(new_steps)) < _LEAST_STEPS:
        return None
    (base, base_variance, base_degrees), (new, new_variance, new_degrees) = map(_mean_of_steps, (base_steps, new_steps))
    if not (0 < base < math.inf and 0 < new < math.inf):
        return None
    variance = base_variance + new_variance
    degrees = variance**2 / (base_variance**2 / base_degrees + new_variance**2 / new_degrees)
    difference, spread, freedom = map(np.atleast_1d, (math.log(new / base), variance, degrees))
    return _only(_estimates((difference, spread, freedom)), "steps")


def _mean_of_steps(steps: Sequence[float]) -> tuple[float, float, float]:
    """The mean of the steps of one run, the variance of its logarithm, and its degrees of freedom."""
    values = np.asarray(steps, np.float64)
    count, mean = len(values), float(values.mean())
    deviations = values - mean
    squares = float(deviations @ deviations)
    worth = 2.0  # independent steps
    if count >= _STEPS_IN_A_ROW:
        correlation = float(deviations[1:] @ deviations[:-1]) / squares if squares else 0.0
        # short series look less correlated than they are (Kendall 1954)
        clipped = min(max((count * correlation + 1) / (count - 4), 0.0), 1.0)
        worth = max(count * (1 - clipped) / (1 + clipped), 2.0)
    # deviations from the mean of steps that follow one another are too small: n - n / worth in place of n - 1
    variance = max(squares / (count - count / worth), _ROUNDING_NS2) / worth
    return mean, variance / mean**2 if mean else math.inf, worth - 1


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


def repeats_needed(base: Sequence[float], new: Sequence[float], *, effect: float, paired: bool = False) -> int | None:
    """Runs of each side that would show a change of `effect` nine times in ten, given how these runs vary.

    To show is to have an interval without 1, "no change". None where it takes more than a thousand, or where these runs
    do not say how much they vary.
    """
    if effect <= 0 or ratio_of_runs(base, new, paired=paired) is None:
        return None
    distance, variances = math.log1p(effect), _variances(base, new, paired=paired)
    return _fewest(lambda repeats: _power(distance, variances, repeats))


def repeats_to_judge(
    base: Sequence[float], new: Sequence[float], least_effect: float = LEAST_EFFECT, *, paired: bool = False
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
        shown = [(change - bound, CONFIDENCE)] if paired else [(change - bound, CONFIDENCE), (change, 1 - CHANCE)]
        return _fewest(lambda repeats: min(_power(away, variances, repeats, sure) for away, sure in shown))
    # both ends have to lie within; that neither fails is at least this likely
    ends = (bound - change, bound + change)
    return _fewest(lambda repeats: sum(_power(end, variances, repeats) for end in ends) - 1)


def _variances(base: Sequence[float], new: Sequence[float], *, paired: bool) -> tuple[float, ...]:
    """Variance of the logarithm of a run of each side; of a pair's difference alone where runs are paired."""
    first, second = np.array([base], np.float64), np.array([new], np.float64)
    if paired:
        return (float(_contrast(first, second, paired=True)[1][0]) * len(base),)
    return tuple(float(_moments(np.log(row), _relative_rounding(row))[2][0]) for row in (first, second))


def _power(distance: float, variances: tuple[float, ...], repeats: int, confidence: float = CONFIDENCE) -> float:
    """The probability that an interval of this `confidence` does not reach a bound at this distance."""
    degrees = (repeats - 1) * sum(variances) ** 2 / sum(variance**2 for variance in variances)
    measured = np.array([degrees])
    if len(variances) > 1:  # Welch's degrees are those of the variances as measured, which few runs scatter widely
        chances = (np.arange(32) + 0.5) / 32  # as likely each
        part = 1 / (1 + variances[1] / variances[0] * special.fdtri(repeats - 1, repeats - 1, chances))
        measured = (repeats - 1) / (part**2 + (1 - part) ** 2)
    # farther is certain, and the library loses digits
    away = min(distance / math.sqrt(sum(variances) / repeats), 100.0)
    return 1 - float(special.nctdtr(degrees, away, special.stdtrit(measured, (1 + confidence) / 2)).mean())


def _fewest(power: Callable[[int], float]) -> int | None:
    """The fewest repeats whose power, which grows with them, is the wanted one."""
    if power(_MOST_REPEATS) < _POWER:
        return None
    return bisect_left(range(_MOST_REPEATS), _POWER, lo=LEAST_RUNS, key=power)


def noise_floor(runs: Sequence[float]) -> NoiseFloor | None:
    """How much runs of one program differ, and the repeats of each side that would show a change of each size.

    None for fewer than two runs, or a run of no time.
    """
    if ratio_of_runs(runs, runs) is None:
        return None
    (variance, _), count = _variances(runs, runs, paired=False), len(runs)
    spread = math.sqrt(variance)
    return NoiseFloor(
        runs=count,
        spread=spread,
        spread_high=spread * math.sqrt((count - 1) / float(special.chdtri(count - 1, CONFIDENCE))),
        least_ratio=math.exp(float(special.stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * spread * math.sqrt(2)),
        repeats={effect: repeats_needed(runs, runs, effect=effect) for effect in (0.01, 0.02, 0.05)},
    )


# Cold runs


def cold_runs(overhead_ns: Sequence[float], whole_ns: Sequence[float]) -> list[int]:
    """Indexes of the cold runs of a side, by their time of loading and host.

    A run may be cold that is above the median of the others by three of their median absolute deviations and by a tenth
    of the median whole time. It is cold if it also is above the mean of the remaining runs by more than chance takes
    it once in a thousand runs, or by a quarter of the median whole time; without this, noise would take runs away. At
    least three runs are needed, and at least two stay: where fewer would, no run is cold, since nothing says which are
    the usual ones.
    """
    if len(overhead_ns) <= LEAST_RUNS:
        return []
    usual_ns, suspects = median(whole_ns), []
    for index, value in enumerate(overhead_ns):
        others = [*overhead_ns[:index], *overhead_ns[index + 1 :]]
        middle = median(others)
        deviation = median(abs(other - middle) for other in others)
        if value - middle > max(_COLD_DEVIATIONS * deviation, _COLD_PART * usual_ns):
            suspects.append(index)
    warm = [value for index, value in enumerate(overhead_ns) if index not in suspects]
    if len(warm) < LEAST_RUNS:
        return []
    chance = float(special.stdtrit(len(warm) - 1, _COLD_CONFIDENCE)) * stdev(warm) * math.sqrt(1 + 1 / len(warm))
    bound = fmean(warm) + min(chance, _SURELY_COLD_PART * usual_ns)
    return [index for index in suspects if overhead_ns[index] > bound]


# Many kernels at once


def moderated(base: npt.ArrayLike, new: npt.ArrayLike, *, paired: bool = False) -> Estimates:
    """Ratios of many kernels, by t on logarithms with variances that are drawn towards what they have in common.

    `base` and `new` are float64[kernels, runs], and as wide where runs are paired; NaN or 0 where a run lacks a kernel.
    Kernels of one program vary alike, which few runs of one kernel do not show: Smyth, "Linear models and empirical
    Bayes methods for assessing differential expression in microarray experiments" (2004), sections 4 and 6.2. What all
    kernels of a run vary by as one, such as its clock, is kept apart, since many kernels do not make it better known
    than few runs do. With fewer than ten kernels, Welch's t of each. Paired as of :func:`ratio_of_runs`.
    """
    first, second = (np.asarray(side, np.float64) for side in (base, new))
    if paired and first.shape != second.shape:
        raise ValueError(f"{first.shape[1]} runs cannot be paired with {second.shape[1]}")
    rounding = np.fmax(_relative_rounding(first), _relative_rounding(second))
    logs = [_logs(second) - _logs(first)] if paired else [_logs(first), _logs(second)]
    levels = [_run_levels(side) for side in logs]
    means = [_moments(side, 0.0)[1] for side in logs]
    difference = means[-1] - means[0] if len(means) > 1 else means[0]
    # of one value by itself, without what all kernels of a run have in common
    counts, _, variances = np.array(
        [_moments(side - level, 0.0) for side, level in zip(logs, levels, strict=True)]
    ).swapaxes(0, 1)
    degrees = np.maximum(counts - 1, 0).sum(axis=0)
    squares = (np.nan_to_num(variances) * np.maximum(counts - 1, 0)).sum(axis=0)
    own = np.maximum(squares / np.where(degrees > 0, degrees, np.nan), rounding)
    usable = np.isfinite(difference) & (degrees > 0)
    if usable.sum() < _LEAST_KERNELS:
        return ratios_of_runs(first, second, paired=paired)
    common_degrees = sum(len(level) - 1 for level in levels)
    common = sum(float(level.var()) * len(level) for level in levels) / max(common_degrees, 1)
    # with less caution too many of ten to thirty kernels are named (docs/comparing.md)
    variance, freedom = shrunk(own, degrees, prior_of(own[usable], degrees[usable], 1.0))
    total = variance + common
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = total**2 / (variance**2 / freedom + common**2 / common_degrees)
    return _estimates((difference, total * (1 / np.maximum(counts, 1.0)).sum(axis=0), freedom))


def _run_levels(logs: Floats) -> Floats:
    """By how much each run is slower than its side's others, in all kernels alike: the median over the kernels."""
    complete = logs[~np.isnan(logs).any(axis=1)]
    if not complete.size:
        return np.zeros(logs.shape[1])
    return np.asarray(np.median(complete - complete.mean(axis=1, keepdims=True), axis=0), np.float64)


def shrunk(variances: Floats, degrees: Floats, prior: tuple[float, float]) -> tuple[Floats, Floats]:
    """Variances drawn towards what they have in common, and their degrees of freedom (Smyth 2004, section 4)."""
    own, (common, worth) = np.nan_to_num(variances), prior
    certain = math.isinf(worth)
    variance = np.full_like(own, common) if certain else (degrees * own + worth * common) / (degrees + worth)
    # no more than all kernels have together
    return variance, np.minimum(degrees + worth, degrees.sum())


def prior_of(variances: Floats, degrees: Floats, caution: float = 0.0) -> tuple[float, float]:
    """Prior of the variances, from the moments of their logarithms (Smyth 2004, section 6.2).

    That is a variance, and the degrees of freedom that it is worth: infinite where it is certain. `caution` takes them
    as less alike than they look, by that many standard errors of their spread.
    """
    above = np.maximum(variances, 1e-5 * float(np.median(variances)))  # the logarithm of next to nothing rules the rest
    half = degrees / 2
    levels = np.log(above) - special.digamma(half) + np.log(half)
    spread, by_chance = float(levels.var(ddof=1)), float(special.zeta(2, half).mean())
    variance = float(variances.mean())
    if spread - by_chance > _LEAST_EXCESS:
        worth = trigamma_inverse(spread - by_chance)
        variance = math.exp(float(levels.mean()) + float(special.digamma(worth)) - math.log(worth))
    excess = spread * (1 + caution * math.sqrt(2 / (len(levels) - 1))) - by_chance
    return variance, 2 * trigamma_inverse(excess) if excess > _LEAST_EXCESS else math.inf


def trigamma_inverse(value: float) -> float:
    """The argument at which trigamma has this value, by Newton's steps on its inverse (Smyth 2004, appendix)."""
    at = 0.5 + 1 / value
    for _ in range(50):
        trigamma, tetragamma = float(special.zeta(2, at)), -2 * float(special.zeta(3, at))
        step = trigamma * (1 - trigamma / value) / tetragamma
        at += step
        if abs(step) < 1e-8 * at:
            break
    return at


def benjamini_hochberg(p_values: npt.ArrayLike) -> Floats:
    """The share of false ones among all that are as unlikely, for each p-value; NaN is no test, and stays NaN."""
    p = np.asarray(p_values, np.float64)
    shares = np.full(p.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    falling = tested[np.argsort(-p[tested], kind="stable")]
    ranks = np.arange(len(falling), 0, -1)
    shares[falling] = np.minimum(np.minimum.accumulate(p[falling] * len(falling) / ranks), 1.0)
    return shares


# Rows of values


def _logs(values: Floats) -> Floats:
    """Logarithms, NaN where there is none."""
    there = (values > 0) & np.isfinite(values)
    return np.log(np.where(there, values, np.nan))


def _relative_rounding(values: Floats) -> Floats:
    """The least variance of a logarithm in each row, from rounding to whole nanoseconds."""
    return np.asarray(_ROUNDING_NS2 * np.exp(-2 * _moments(_logs(values), 0.0)[1]), np.float64)


def _moments(values: Floats, least_variance: Floats | float) -> tuple[Floats, Floats, Floats]:
    """What is there in each row: how many, the mean (NaN without any), the variance (NaN with fewer than two)."""
    there = ~np.isnan(values)
    count = there.sum(axis=1).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(there, values, 0.0).sum(axis=1) / count
        deviations = np.where(there, values - mean[:, None], 0.0)
        variance = (deviations**2).sum(axis=1) / np.where(count > 1, count - 1, np.nan)
    return count, mean, np.maximum(variance, least_variance)


def _contrast(base: Floats, new: Floats, *, paired: bool) -> tuple[Floats, Floats, Floats]:
    """Differences of mean logarithms of rows of times, the variance of each, and its degrees of freedom.

    By the paired t, or Welch's with Satterthwaite's degrees.
    """
    rounding = _relative_rounding(base), _relative_rounding(new)
    if paired:
        if base.shape != new.shape:
            raise ValueError(f"{base.shape[1]} runs cannot be paired with {new.shape[1]}")
        counts, difference, variance = _moments(_logs(new) - _logs(base), sum(rounding))
        return difference, variance / counts.clip(1.0), counts - 1
    sides = [_moments(_logs(side), least) for side, least in zip((base, new), rounding, strict=True)]
    parts = [(variance / counts.clip(1.0), (counts - 1).clip(1.0)) for counts, _, variance in sides]
    total = parts[0][0] + parts[1][0]
    degrees = total**2 / sum(variance**2 / degrees for variance, degrees in parts)
    return sides[1][1] - sides[0][1], total, degrees


def _estimates(contrast: tuple[Floats, Floats, Floats]) -> Estimates:
    """The ratios whose logarithms have these variances, by the t distribution."""
    difference, variance, freedom = contrast
    error = np.sqrt(variance)
    degrees = np.where(np.isnan(difference * error), np.nan, freedom)
    half = special.stdtrit(degrees, (1 + CONFIDENCE) / 2) * error
    p_value = np.asarray(2 * special.stdtr(degrees, -np.abs(difference) / error), np.float64)
    with np.errstate(over="ignore"):  # an interval that a float does not hold reaches to infinity
        ratio, low, high = (np.exp(difference + shift) for shift in (0.0, -half, half))
    return Estimates(ratio, low, high, p_value)


def _only(rows: Estimates, basis: Basis) -> Estimate:
    """The one row."""
    ratio, low, high, p_value = (float(column[0]) for column in rows)
    return Estimate(ratio, low, high, p_value, basis)
