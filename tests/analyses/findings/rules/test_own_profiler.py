"""A profiler that the program itself starts, by the run without another one."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from kanalyze.analyses.findings.rules.own_profiler import profiler_left_on
from kanalyze.analyses.replay._unprofiled import OWN, OWN_END, profiled_part
from kanalyze.report import BareRun, BareRuns
from support.build import in_line, kernel, launched
from support.measures import assert_told, measures
from support.steps import alike
from support.strategies import slow_given

STEP = 1_000_000
LOOP = list(range(0, 10 * STEP, STEP))


def run(starts, ends, line="train.py:9", steps=LOOP):
    return BareRun(1, None, {"a.py:3": [7] * 3, "a.py:7": steps, OWN: starts, OWN_END: ends}, profiler=line)


def program(bare, *texts):
    """Steps with a launch 100 µs after another, and lines of the program in the last tenth of each."""
    first, second = (launched(at, at + 10_000, kernel(at + 12_000, at + 20_000)) for at in (200_000, 310_000))
    lines = [in_line(at + 900_000, at + 950_000, 30 + n, text) for at in LOOP for n, text in enumerate(texts)]
    of = alike(*first, *second, count=10, source_lines=lines)
    return replace(of, bare=lambda: BareRuns((1,), (bare,)))


@pytest.mark.parametrize(
    ("bare", "part"),
    [
        (run([5], []), "90.0 %"),
        (run([5], [9 * STEP + 5]), "90.0 %"),
        (run(LOOP[::2], [at + 5 for at in LOOP[::2]]), "50.0 %"),  # of every second step
        (run([5], [4 * STEP + 5]), None),  # of some
        (run([7 * STEP], []), None),  # late
        (run([5], [], line=""), None),  # noted by an older version
        (run([], []), None),
    ],
)
def test_a_profiler_is_left_on_where_most_steps_begin_with_it(bare, part):
    found = profiler_left_on(of := program(bare))
    # of 100 µs between the launches of a step 45 %, of those between steps 1 ms at most, the device idle meanwhile
    assert_told(found, [10 * 44_999 + 9 * 395_999] * bool(part), *([part, "train.py:9"] * bool(part)))
    assert [measures(one, of)[1:3] for one in found] == [(0, 0)] * bool(part)


def test_the_rank_that_is_reported_profiles_or_all_do():
    on, off = run([5], []), run([], [])._replace(rank=1)
    of = replace(program(on), bare=lambda: BareRuns((1,), (on._replace(rank=0), off)))
    found = [len(profiler_left_on(replace(of, meta=replace(of.meta, rank=rank)))) for rank in (0, 1, None)]
    assert found == [1, 0, 0]


def test_lines_that_work_for_the_profiler_are_its_time_too():
    own, others = program(run([5], []), "prof.step()"), program(run([5], []), "profiles.append(profile.read(path))")
    (more,), (less,) = profiler_left_on(own), profiler_left_on(others)
    assert more.at_stake_ns - less.at_stake_ns == 50_000  # in the last step: else it is before a launch


TIMES = st.lists(st.integers(0, 60), max_size=6, unique=True).map(sorted)


@slow_given(TIMES, TIMES, st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True).map(sorted))
def test_the_part_of_steps_against_a_walk_over_all_times(starts, ends, steps):
    bare, on, count = BareRun(1, None, {"step": steps, OWN: starts, OWN_END: ends}, profiler="a:1"), False, 0
    for at in range(61):
        # one that ends when another begins is off before
        on = (on and at not in ends) or at in starts
        count += on and at in steps
    assert profiled_part(bare) == (count / len(steps) if starts or ends else 0)
