"""Shows what the statistics of `kanalyze compare` hold, by simulation: `python benchmarks/simulate_comparing.py`.

Runs are drawn with a known truth, given to the statistics, and what they say is counted. docs/comparing.md has the
tables that this prints; tests/analyses/comparing/test_simulated.py holds them within bounds, with fewer draws.
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

import numpy as np

from kanalyze.analyses.comparing import _statistics as statistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

#: A time in ns around which runs vary.
TIME_NS = 1e9

#: How runs vary: by a normal distribution, or to one side, as what disturbs does (skewness 0.7).
NOISES = ("normal", "skewed")


def noise(random: np.random.Generator, kind: str, *shape: int) -> Floats:
    """Numbers of mean 0 and standard deviation 1."""
    if kind == "normal":
        return random.standard_normal(shape)
    gamma = 8.0
    return (random.gamma(gamma, size=shape) - gamma) / math.sqrt(gamma)


def times(logarithms: Floats) -> Floats:
    """Times of runs that differ from the usual by these logarithms."""
    return TIME_NS * np.exp(logarithms)


def covers(estimates: statistics.Estimates, truth: float = 1.0) -> float:
    """The share of intervals that hold the truth."""
    return float(((estimates.low <= truth) & (truth <= estimates.high)).mean())


# Two sides of runs


def coverage(kind: str, spreads: tuple[float, float], runs: tuple[int, int], draws: int = 100_000) -> float:
    """The share of intervals of two sides of runs that hold the true ratio."""
    random = np.random.default_rng(1)
    base, new = (times(spread * noise(random, kind, draws, count)) for spread, count in zip(spreads, runs, strict=True))
    return covers(statistics.ratios_of_runs(base, new))


def coverage_of_pairs(kind: str, pairs: int, draws: int = 100_000) -> float:
    """The same of interleaved runs, whose machine wanders by twice of what a run varies."""
    random = np.random.default_rng(2)
    wandering = 0.02 * noise(random, kind, draws, pairs)
    base, new = (times(wandering + 0.01 * noise(random, kind, draws, pairs)) for _ in range(2))
    return covers(statistics.ratios_of_runs(base, new, paired=True))


def verdicts(spread: float, runs: int, ratio: float = 1.0, draws: int = 100_000) -> dict[str, float]:
    """The share of each verdict where the new program takes this ratio of the time."""
    random = np.random.default_rng(3)
    base, new = (spread * noise(random, "normal", draws, runs) for _ in range(2))
    found = statistics.ratios_of_runs(times(base), times(new + math.log(ratio)))
    most = 1 + statistics.LEAST_EFFECT
    faster, slower = found.high < 1 / most, found.low > most
    same = (found.low >= 1 / most) & (found.high <= most)
    shares = {"faster": faster, "slower": slower, "same": same, "cannot tell": ~(faster | slower | same)}
    return {verdict: float(share.mean()) for verdict, share in shares.items()}


# Numbers of repeats


def shown(spread: float, effect: float, runs: int, draws: int = 100_000) -> float:
    """The share of comparisons with this many runs a side that show an effect."""
    random = np.random.default_rng(4)
    base, new = (spread * noise(random, "normal", draws, runs) for _ in range(2))
    return float((statistics.ratios_of_runs(times(base), times(new + math.log1p(effect))).low > 1).mean())


def advised(spread: float, effect: float) -> int:
    """The number of repeats that is told where the spread is known: two runs have it by construction."""
    runs = list(times(np.array([-1, 1]) * spread / math.sqrt(2)))
    return statistics.repeats_needed(runs, runs, effect=effect) or 0


def shown_as_advised(spread: float, effect: float, pilot: int, draws: int = 100) -> float:
    """The share of comparisons that show an effect, with as many runs as `pilot` earlier runs a side advise."""
    random = np.random.default_rng(5)
    powers: dict[int, float] = {}
    total = 0.0
    for _ in range(draws):
        base, new = (times(spread * noise(random, "normal", pilot)) for _ in range(2))
        runs = statistics.repeats_needed(list(base), list(new), effect=effect) or 1000
        if runs not in powers:
            powers[runs] = shown(spread, effect, runs, draws=2000)
        total += powers[runs]
    return total / draws


def decided(spread: float, ratio: float, draws: int = 100_000) -> tuple[int, float]:
    """The repeats that a verdict takes where this ratio is the true one, and how often there is one with them."""
    runs = list(times(np.array([-1, 1]) * spread / math.sqrt(2)))
    repeats = statistics.repeats_to_judge(runs, [ratio * run for run in runs]) or 0
    return repeats, 1 - verdicts(spread, repeats, ratio, draws)["cannot tell"]


# One run a side


def steps(random: np.random.Generator, count: int, correlation: float) -> Floats:
    """Steps that each take after the one before (AR(1)), around 1, with a standard deviation of 5 %."""
    values = random.standard_normal(count)
    own = math.sqrt(1 - correlation**2)
    for index in range(1, count):
        values[index] = correlation * values[index - 1] + own * values[index]
    return 1 + 0.05 * values


def coverage_of_steps(count: int, correlation: float, between_runs: float = 0.0, draws: int = 4000) -> float:
    """The share of intervals from the steps of one run a side that hold the true ratio."""
    random = np.random.default_rng(6)
    held = 0
    for _ in range(draws):
        base, new = (
            TIME_NS * math.exp(between_runs * random.standard_normal()) * steps(random, count, correlation)
            for _ in range(2)
        )
        estimate = statistics.ratio_within_runs(list(base), list(new))
        held += estimate is not None and estimate.low <= 1 <= estimate.high
    return held / draws


# Many kernels at once


class KernelRates:
    """Rates over many comparisons of many kernels, one in ten of them changed by 2 %."""

    def __init__(self, method: str, runs: int, common: float, kernels: int = 200, draws: int = 1000) -> None:
        """Draw and count.

        Args:
            method: `moderated` or `welch`.
            runs: Of each side.
            common: By how much a run is slower or faster in all of its kernels, as a standard deviation.
            kernels: Of the program. Each varies by itself, by 0.1 to 0.5 % (evenly in logarithms).
            draws: Comparisons.
        """
        random = np.random.default_rng(7)
        changed = np.arange(kernels) < max(kernels // 10, 1)
        false, found, held, alarms = [], [], [], []
        for _ in range(draws):
            spreads = np.exp(random.uniform(math.log(0.001), math.log(0.005), kernels))
            base, new = (
                spreads[:, None] * random.standard_normal((kernels, runs)) + common * random.standard_normal(runs)
                for _ in range(2)
            )
            effect = np.where(changed, math.log(1.02), 0.0)
            named, estimates = _named(method, base, new + effect[:, None])
            false.append((named & ~changed).sum() / max(named.sum(), 1))
            found.append(named[changed].mean())
            held.append(((np.log(estimates.low) <= effect) & (effect <= np.log(estimates.high))).mean())
            named, estimates = _named(method, base, new)
            beyond = np.abs(np.log(estimates.ratio)) > math.log1p(statistics.LEAST_EFFECT)
            alarms.append((named & beyond).mean())
        self.false_share, self.found, self.coverage, self.alarms = (
            float(np.mean(values)) for values in (false, found, held, alarms)
        )


def _named(method: str, base: Floats, new: Floats) -> tuple[npt.NDArray[np.bool_], statistics.Estimates]:
    compare = statistics.moderated if method == "moderated" else statistics.ratios_of_runs
    estimates = compare(times(base), times(new))
    return statistics.benjamini_hochberg(estimates.p_value) <= 1 - statistics.CONFIDENCE, estimates


# Cold runs


def cold(spread: float, runs: int, cold_by: float = 0.6, draws: int = 4000) -> tuple[float, float, float]:
    """Coverage where chance alone may take runs away, the share that it takes, and the share of cold runs that go.

    All that varies is time of loading and host, which is three tenths of a run.
    """
    random = np.random.default_rng(8)
    held = taken = found = 0
    for _ in range(draws):
        sides = [times(spread * noise(random, "normal", runs)) for _ in range(2)]
        kept = [np.delete(side, _cold(side)) for side in sides]
        taken += 2 * runs - sum(map(len, kept))
        estimate = statistics.ratio_of_runs(list(kept[0]), list(kept[1]))
        held += estimate is not None and estimate.low <= 1 <= estimate.high
        sides[0][0] += cold_by * TIME_NS
        found += 0 in _cold(sides[0])
    return held / draws, taken / (2 * runs * draws), found / draws


def _cold(side: Floats) -> list[int]:
    return statistics.cold_runs(list(side - 0.7 * TIME_NS), list(side))


# What is printed


def percent(share: float) -> str:
    """A share as the tables show it."""
    return f"{100 * share:.1f} %"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n")
    for row in (head, ["---", *["--:"] * (len(head) - 1)], *rows):
        print("| " + " | ".join(row) + " |")


SIDES = ((2, 2), (3, 3), (4, 4), (5, 5), (8, 8), (2, 4), (3, 6))
PAIRS = (2, 3, 4, 5, 8)


def print_runs(draws: int) -> None:
    """Coverage and false alarms of two sides of runs."""
    rows = [
        [f"{kind}, new varies {'alike' if ratio == 1 else f'{ratio} times as much'}"]
        + [percent(coverage(kind, (0.01, 0.01 * ratio), runs, draws)) for runs in SIDES]
        for kind in NOISES
        for ratio in (1, 3)
    ]
    table("Coverage, Welch", ["runs vary", *(f"{base} v {new}" for base, new in SIDES)], rows)
    rows = [[kind, *(percent(coverage_of_pairs(kind, pairs, draws)) for pairs in PAIRS)] for kind in NOISES]
    table("Coverage, pairs", ["runs vary", *(f"{pairs} pairs" for pairs in PAIRS)], rows)
    rows = []
    for spread in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1):
        shares = [verdicts(spread, runs, draws=draws) for runs in PAIRS]
        rows.append([percent(spread)] + [f"{percent(s['faster'] + s['slower'])}, {percent(s['same'])}" for s in shares])
    table("The same program: false alarms, same", ["runs vary by", *(f"{runs} v {runs}" for runs in PAIRS)], rows)


def print_repeats(draws: int) -> None:
    """Numbers of repeats, and what they show."""
    rows = []
    for spread in (0.005, 0.01, 0.02):
        for effect in statistics.NOISE_EFFECTS:
            runs = advised(spread, effect)
            fewer = percent(shown(spread, effect, runs - 1, draws)) if runs > statistics.LEAST_RUNS else "-"
            powers = [shown_as_advised(spread, effect, pilot) for pilot in (3, 5)]
            shares = [percent(shown(spread, effect, runs, draws)), fewer, *map(percent, powers)]
            rows.append([f"{percent(spread)}, {percent(effect)}", str(runs), *shares])
    head = ["runs vary by, change", "repeats", "shown", "one fewer", "as 3 runs advise", "as 5"]
    table("Repeats that show a change nine times in ten", head, rows)
    rows = []
    for spread in (0.005, 0.01, 0.02):
        for ratio in (1.0, 1.01, 1.03, 1.05):
            repeats, share = decided(spread, ratio, draws)
            rows.append([f"{percent(spread)}, {ratio}", str(repeats), percent(share)])
    table("Repeats to a verdict", ["runs vary by, true ratio", "repeats", "with a verdict"], rows)


def print_steps(draws: int) -> None:
    """Coverage of intervals from the steps of one run a side."""
    counts, correlations = (2, 3, 4, 5, 10, 20, 50, 100, 200), (0.0, 0.2, 0.4, 0.6, 0.8)
    rows = [
        [str(count), *(percent(coverage_of_steps(count, correlation, draws=draws)) for correlation in correlations)]
        for count in counts
    ]
    table("Coverage, steps", ["steps", *(f"rho = {correlation}" for correlation in correlations)], rows)
    spreads = (0.002, 0.005, 0.01, 0.02)
    rows = [
        [str(count), *(percent(coverage_of_steps(count, 0.2, spread, draws)) for spread in spreads)] for count in counts
    ]
    table("The same where runs vary, rho = 0.2", ["steps", *(f"runs vary by {percent(s)}" for s in spreads)], rows)


def print_kernels(draws: int) -> None:
    """Rates of many kernels at once."""
    rows = []
    for kernels, runs, common, times_more in (  # a clock is one value, however many kernels there are
        *((200, runs, 0.0, 1) for runs in (2, 3, 4)),
        *((60, runs, common, 3) for runs in (2, 3, 4) for common in (0.002, 0.005, 0.01)),
        *((kernels, 3, 0.0, 1) for kernels in (10, 30, 60)),
    ):
        count = times_more * draws
        ours, welch = (KernelRates(method, runs, common, kernels, count) for method in ("moderated", "welch"))
        shares = (ours.false_share, ours.alarms, ours.coverage, ours.found, welch.false_share, welch.found)
        rows.append([f"{kernels}, {runs} v {runs}, {percent(common)}", *map(percent, shares)])
    head = ["kernels, runs, common part", "false", "alarms", "coverage", "found", "false, Welch", "found, Welch"]
    table("Many kernels", head, rows)


def print_cold(draws: int) -> None:
    """Prints what leaving out cold runs costs and finds."""
    rows = [
        [f"{percent(spread)}, {runs}", *map(percent, cold(spread, runs, draws=draws))]
        for spread in (0.01, 0.03, 0.05, 0.1)
        for runs in (3, 4, 5, 8)
    ]
    table("Cold runs", ["runs vary by, runs a side", "coverage", "taken by chance", "cold ones found"], rows)


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the draws (default: all)")
    share = parser.parse_args().share
    for show, draws in (
        (print_runs, 40_000),
        (print_repeats, 20_000),
        (print_steps, 2000),
        (print_kernels, 500),
        (print_cold, 1000),
    ):
        show(max(int(draws * share), 1))


if __name__ == "__main__":
    main()
