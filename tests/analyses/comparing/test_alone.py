"""One run a side: what its iterations say, on digests made by hand and on a real report."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyses.comparing.test_job import process
from kanalyze.analyses.comparing._comparison import compared
from kanalyze.analyses.comparing._pair import Limits
from kanalyze.renderers.page.comparison import answer
from kanalyze.several import Asked
from kanalyze.several.sides import comparison

SAMPLES = Path(__file__).parents[3] / "sample_reports"


def alone(base, new, *, floor=None, idle=0):
    """One run a side with these steps, of which the GPU is idle for some ms."""
    sides = ([process(0, steps, idle=idle)] for steps in (base, new))
    return compared(*sides, ("base", "new"), limits=Limits(floor=floor))


STEADY = [10, 10.01, 9.99, 10, 10.02, 9.98, 10, 10]
VARYING = [9, 11, 10, 9.2, 10.8, 10, 9.5, 10.5]


def beyond(verdict):
    """Whether the interval lies beyond no change."""
    return not verdict.low <= 1 <= verdict.high


def test_single_runs_are_said_to_differ_and_get_no_verdict():
    found = alone(STEADY, [1.2 * step for step in STEADY])
    assert found.verdict.word == "cannot tell"
    assert answer(found).startswith("These two runs differ, a step by +20.0 % (+")
    assert not beyond(alone(STEADY, [1.05 * step for step in STEADY]).verdict)
    assert alone(STEADY, [1.2 * step for step in STEADY], floor=0.05).verdict.word == "slower"


def test_steps_that_vary_within_a_run_say_that_runs_vary():
    longer = [1.3 * step for step in VARYING]
    assert not beyond(alone(VARYING, longer).verdict)
    assert alone(VARYING, longer, floor=0.05).verdict.word == "slower"  # it is known by how much
    assert beyond(alone(VARYING, [4 * step for step in VARYING]).verdict)


@pytest.mark.parametrize(
    ("steps", "times", "word"),
    [(STEADY, 1.2, "slower"), (VARYING, 1.2, "cannot tell"), (VARYING, 2, "slower"), (VARYING, 1, "same")],
)
def test_two_runs_a_side_count_for_as_much_as_their_iterations_vary(steps, times, word):
    base, new = ([process(0, [by * step for step in steps])] * 2 for by in (1, times))
    verdict = compared(base, new, ("base", "new")).verdict
    assert verdict.word == word
    assert (verdict.repeats == 3) == (word == "cannot tell")


def test_runs_that_differ_among_themselves_by_more_than_the_sides_are_said():
    base, new = ([process(0, [by * step for step in STEADY]) for by in runs] for runs in ((1, 1.5, 1), (1.1, 1.1, 1.1)))
    assert "Runs of base differ among themselves by 50.0 %." in answer(compared(base, new, ("base", "new")))


def test_few_steps_give_a_wide_interval():
    few, more = (alone([10, 10.1] * often, [20, 20.2] * often).verdict for often in (1, 4))
    assert few.basis == more.basis == "steps"
    assert beyond(few)
    assert beyond(more)
    assert few.high / few.low > more.high / more.low > 1.05**2


def test_of_few_steps_idle_time_may_come_once_more():
    assert beyond(alone([10] * 3, [12] * 3).verdict)
    assert not beyond(alone([10] * 3, [12] * 3, idle=9).verdict)
    assert beyond(alone([10] * 5, [12] * 5, idle=9).verdict)  # of which steps show that they do not vary


@pytest.mark.parametrize(
    ("base", "new", "reason"),
    [
        ([10], [12], "too few iterations (step: 1 in base and 1 in new)"),
        ([10], [12] * 5, "too few iterations (step: 1 in base and 5 in new)"),
        ([10, 40, 90], [90, 10, 1], "Iterations (step) within one run a side vary too much"),
    ],
)
def test_why_there_is_no_interval_is_said(base, new, reason):
    found = alone(base, new)
    assert found.verdict.low is None
    assert reason in answer(found)


def test_one_run_against_several_is_said():
    base, new = [process(0, STEADY)], [process(0, STEADY) for _ in range(3)]
    assert "1 of base against 3 of new do not show how much runs vary" in answer(compared(base, new, ("a", "b")))


TIMES = st.lists(st.floats(1, 100), min_size=1, max_size=12)


@given(TIMES, TIMES)
def test_an_interval_holds_its_ratio_and_never_less_than_the_noise_of_runs(base, new):
    verdict = alone(base, new).verdict
    if verdict.low is not None:
        assert verdict.low * 1.05 <= verdict.ratio * (1 + 1e-9)
        assert verdict.ratio <= verdict.high / 1.05 * (1 + 1e-9)
        assert verdict.high <= 10 * verdict.ratio


@pytest.mark.slow
def test_the_iterations_of_a_window_are_its_steps():
    path = SAMPLES / "launch_bound_plain"
    three = comparison([path], [path], Asked({"window": "step#2..step#4"}))
    steps = three.base.digests[0].steps.get_column("dur_ns")
    assert (len(steps), steps.sum()) == (3, three.base.about.ns)
    assert three.verdict.basis == "steps"
    single = comparison([path], [path], Asked({"window": "step#2"}))
    assert single.base.digests[0].steps.is_empty()
    assert "says nothing of how much" in answer(single)


@pytest.mark.slow
def test_the_steady_part_is_what_is_compared_by_itself():
    path = SAMPLES / "launch_bound_plain"
    asked, by_itself = (comparison([path], [path], Asked(where)) for where in ({"window": "steady"}, {}))
    assert asked.base.about == by_itself.base.about
    assert asked.base.digests[0].steps.equals(by_itself.base.digests[0].steps)
