"""Which of several measurements of one run are one: launches of a part of an ncu report, whoever launched them."""

import pytest

from kanalyze.analyses.joining._report_set import different
from support.counters import measured

DURATION = "gpu__time_duration.sum"


def launches(*durations, process=None):
    return measured(*({DURATION: ns} for ns in durations), process=process)


@pytest.mark.parametrize(
    ("whole", "part", "left"),
    [(None, None, 1), (None, 7, 1), (7, None, 1), (7, 7, 1), (7, 8, 2)],
)
def test_launches_of_an_unknown_process_may_be_those_of_any(whole, part, left):
    every = [launches(1_000, 2_000, 3_000, process=whole), launches(2_000, 3_000, process=part)]
    assert different(every) == every[:left]


def test_launches_that_took_another_time_are_others():
    every = [launches(1_000, 2_000, 3_000), launches(2_000, 3_100)]
    assert different(every) == every
