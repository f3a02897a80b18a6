"""What the statistics of comparisons hold where the truth is known: benchmarks/simulate_comparing.py, with fewer draws.

Bounds leave room for chance: a rate of 95 % over 20,000 draws is off by 0.5 % once in a thousand times, and every draw
is the same in every run.
"""

import runpy
from pathlib import Path

import pytest

SIMULATED = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "simulate_comparing.py"))
DRAWS = 20_000

pytestmark = pytest.mark.slow

#: How often intervals hold the truth: by function and its arguments the least and the most.
COVERAGE = [
    *(
        ("coverage", (kind, (0.01, 0.01 * ratio), runs, DRAWS), 0.94, 0.972)
        for kind, ratio in (("normal", 1), ("normal", 3), ("skewed", 1))
        for runs in ((3, 3), (8, 8), (2, 4), (3, 6))
    ),
    ("coverage", ("normal", (0.01, 0.01), (2, 2), DRAWS), 0.955, 0.985),  # which say less than they could
    ("coverage", ("skewed", (0.01, 0.03), (5, 5), DRAWS), 0.93, 0.96),
    *(("coverage_of_pairs", (kind, pairs, DRAWS), 0.94, 0.965) for kind in ("normal", "skewed") for pairs in (2, 8)),
    *(("coverage_of_steps", (count, 0.4, 0.0, 2000), 0.935, 0.985) for count in (10, 50, 200)),
    *(("coverage_of_steps", (count, 0.4, 0.0, 2000), 0.94, 1.0) for count in (2, 4)),  # rather too wide
    ("coverage_of_steps", (200, 0.2, 0.01, 1000), 0.0, 0.6),  # they do not know how runs vary
]


@pytest.mark.parametrize(("name", "arguments", "least", "most"), COVERAGE)
def test_intervals_hold_the_truth_as_often_as_they_say(name, arguments, least, most):
    assert least <= SIMULATED[name](*arguments) <= most


@pytest.mark.parametrize(("spread", "most"), [(0.002, 0.005), (0.02, 0.005), (0.05, 0.02)])
@pytest.mark.parametrize("runs", [2, 8])
def test_the_same_program_is_never_faster_or_slower_beyond_the_level(spread, runs, most):
    shares = SIMULATED["verdicts"](spread, runs, draws=DRAWS)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["faster"] + shares["slower"] <= most


@pytest.mark.parametrize(("spread", "effect"), [(0.005, 0.01), (0.02, 0.02), (0.02, 0.05)])
def test_as_many_repeats_as_are_told_show_the_effect_nine_times_in_ten(spread, effect):
    runs = SIMULATED["advised"](spread, effect)
    assert SIMULATED["shown"](spread, effect, runs, DRAWS) >= 0.89
    assert runs == 2 or SIMULATED["shown"](spread, effect, runs - 1, DRAWS) <= 0.905


@pytest.mark.parametrize(("ratio", "runs"), [(1.0, 4), (1.01, 7), (0.99, 7), (1.03, 7), (0.9, 3)])
def test_as_many_repeats_as_are_told_give_a_verdict_nine_times_in_ten(ratio, runs):
    repeats, share = SIMULATED["decided"](0.005, ratio, DRAWS)
    assert (repeats, share >= 0.9) == (runs, True)
    fewer = 1 - SIMULATED["verdicts"](0.005, runs - 1, ratio, DRAWS)["cannot tell"]
    assert fewer < 0.9 or ratio == 0.9  # two would do, but for how rarely chance may be called a change


@pytest.mark.parametrize("common", [0.0, 0.005, 0.01])
def test_of_the_kernels_that_are_named_one_in_twenty_is_a_false_one(common):
    rates = SIMULATED["KernelRates"]("moderated", 3, common, draws=200)
    assert rates.false_share <= 0.07
    assert rates.alarms <= (0.001 if common < 0.01 else 0.05)  # all at once, or none
    assert 0.91 <= rates.coverage <= 0.97
