"""What the statistics of comparisons hold where the truth is known: benchmarks/simulate_comparing.py, with fewer draws.

Bounds leave room for chance: a rate of 95 % over 20,000 draws is off by 0.5 % once in a thousand times, and every draw
is the same in every run.
"""

import runpy
from pathlib import Path

import pytest

SIMULATED = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "simulate_comparing.py"))

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("runs", [(3, 3), (4, 4), (5, 5), (8, 8), (2, 4), (3, 6)])
@pytest.mark.parametrize(("kind", "ratio"), [("normal", 1), ("normal", 3), ("skewed", 1)])
def test_intervals_of_runs_hold_the_truth_as_often_as_they_say(kind, ratio, runs):
    assert 0.94 <= SIMULATED["coverage"](kind, (0.01, 0.01 * ratio), runs, 20_000) <= 0.972


def test_two_against_two_says_less_than_it_could():
    assert 0.955 <= SIMULATED["coverage"]("normal", (0.01, 0.01), (2, 2), 20_000) <= 0.985


def test_skewed_and_unequal_runs_lose_one_in_a_hundred():
    assert 0.93 <= SIMULATED["coverage"]("skewed", (0.01, 0.03), (5, 5), 20_000) <= 0.96


@pytest.mark.parametrize("pairs", [2, 3, 5, 8])
@pytest.mark.parametrize("kind", ["normal", "skewed"])
def test_intervals_of_pairs_hold_the_truth_as_often_as_they_say(kind, pairs):
    assert 0.94 <= SIMULATED["coverage_of_pairs"](kind, pairs, 20_000) <= 0.965


@pytest.mark.parametrize("runs", [2, 3, 5, 8])
@pytest.mark.parametrize("spread", [0.002, 0.01, 0.02, 0.05])
def test_the_same_program_is_never_faster_or_slower_beyond_the_level(spread, runs):
    shares = SIMULATED["verdicts"](spread, runs, draws=20_000)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["faster"] + shares["slower"] <= (0.005 if spread <= 0.02 else 0.02)


@pytest.mark.parametrize("ratio", [1 / 1.02, 1.02])
def test_a_change_on_the_bound_is_judged_wrongly_no_more_than_the_level_says(ratio):
    """Neither as the same nor as beyond: 2.5 % each, and somewhat less where the two verdicts crowd each other."""
    shares = SIMULATED["verdicts"](0.004, 4, ratio, draws=20_000)
    assert max(shares["faster"] + shares["slower"], shares["same"]) <= 0.03


@pytest.mark.parametrize("effect", [0.01, 0.02, 0.05])
@pytest.mark.parametrize("spread", [0.005, 0.02])
def test_as_many_repeats_as_are_told_show_the_effect_nine_times_in_ten(spread, effect):
    runs = SIMULATED["advised"](spread, effect)
    assert SIMULATED["shown"](spread, effect, runs, 20_000) >= 0.89
    assert runs == 2 or SIMULATED["shown"](spread, effect, runs - 1, 20_000) <= 0.905


@pytest.mark.parametrize("ratio", [1.0, 1.01, 0.97, 1.05])
def test_as_many_repeats_as_are_told_give_a_verdict_nine_times_in_ten(ratio):
    assert SIMULATED["decided"](0.005, ratio, 20_000)[1] >= 0.89


@pytest.mark.parametrize("correlation", [0.0, 0.2, 0.4, 0.6])
@pytest.mark.parametrize("count", [10, 20, 50, 200])
def test_intervals_of_steps_hold_the_truth_of_these_two_runs(count, correlation):
    assert 0.935 <= SIMULATED["coverage_of_steps"](count, correlation, draws=2000) <= 0.985


@pytest.mark.parametrize("correlation", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_intervals_of_few_steps_are_rather_too_wide(count, correlation):
    assert SIMULATED["coverage_of_steps"](count, correlation, draws=2000) >= 0.94


def test_intervals_of_steps_do_not_know_how_runs_vary():
    assert SIMULATED["coverage_of_steps"](200, 0.2, between_runs=0.01, draws=1000) < 0.6


@pytest.mark.parametrize("common", [0.0, 0.005, 0.01])
def test_of_the_kernels_that_are_named_one_in_twenty_is_a_false_one(common):
    rates = SIMULATED["KernelRates"]("moderated", 3, common, draws=200)
    assert rates.false_share <= 0.07
    assert rates.alarms <= (0.001 if common < 0.01 else 0.05)  # all at once, or none
    assert 0.91 <= rates.coverage <= 0.97


def test_moderation_finds_what_welch_does_not():
    ours, welch = (SIMULATED["KernelRates"](method, 2, 0.0, draws=100) for method in ("moderated", "welch"))
    assert ours.found > 0.9
    assert welch.found < 0.1


@pytest.mark.parametrize("runs", [3, 5, 8])
@pytest.mark.parametrize("spread", [0.01, 0.05])
def test_leaving_out_cold_runs_keeps_the_level(spread, runs):
    coverage, taken, found = SIMULATED["cold"](spread, runs, draws=1000)
    assert coverage >= 0.93
    assert taken <= 0.01
    assert found >= 0.95
