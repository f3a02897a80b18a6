"""Shifts that fit as well: told apart by the program's own numbers of steps, or not at all."""

import numpy as np
import pytest

from kanalyze.analyses.communication._aligning import SIZE_BITS, Sequence, _shift

EACH, STEPS = 3, 8


def alike(first_step, *, clock, numbered=True, lost=0):
    """A rank with so many like collectives in each of equal steps, which lost some at the beginning."""
    number = EACH * STEPS - lost
    start = (np.arange(number) + lost) * 1_000_000 + first_step * EACH * 1_000_000
    steps = first_step + (np.arange(number) + lost) // EACH
    together = np.ones(number, dtype=np.bool_)
    return Sequence(
        np.arange(number),
        np.full(number, 5),
        start,
        start + 500_000,
        together,
        together,
        ~together,
        ~together,
        clock,
        steps=(lambda: steps) if numbered else None,
    )


def test_equal_steps_on_two_clocks_fit_at_several_shifts():
    """Nothing tells them apart: a clock may be off by a step."""
    assert _shift(alike(6, clock=0, numbered=False), alike(6, clock=1, numbered=False)) is None


def test_numbers_of_steps_tell_them_apart():
    assert _shift(alike(6, clock=0), alike(6, clock=1)) == 0


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_what_a_rank_lost_at_its_beginning_is_found_so(lost):
    """Within a step shifts by one collective leave most in another step."""
    found = _shift(alike(6, clock=0), alike(6, clock=1, lost=lost))
    assert found == lost


def test_steps_that_do_not_agree_tell_nothing():
    """Ranks that count their steps differently have none in common."""
    assert _shift(alike(6, clock=0), alike(60, clock=1)) is None


def test_a_rank_without_numbers_tells_nothing():
    assert _shift(alike(6, clock=0), alike(6, clock=1, numbered=False)) is None


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [((2, 7), (2, 7), 0), ((2, 0), (2, 7), 0), ((2, 7), (2, 0), 0), ((2, 7), (2, 8), None), ((2, 0), (3, 7), None)],
)
def test_collectives_whose_size_one_rank_does_not_tell_are_the_same_by_their_kind(left, right, found):
    """Each a kind and a size in bytes, counted from 1 on."""
    sides = [
        alike(6, clock=clock)._replace(what=np.full(EACH * STEPS, (kind << SIZE_BITS) + size))
        for clock, (kind, size) in enumerate((left, right))
    ]
    assert _shift(*sides) == found
