"""Shifts that fit as well: told apart by the program's own numbers of steps, or not at all."""

import numpy as np
import pytest

from kanalyze.analyses.communication._matching import SIZE_BITS, Sequence, _shift

EACH, STEPS = 3, 8


def alike(first_step=6, *, clock, numbered=True, lost=0):
    """A rank with so many like collectives in each of equal steps, which lost some at the beginning."""
    number = EACH * STEPS - lost
    start = (np.arange(number) + lost) * 1_000_000 + first_step * EACH * 1_000_000
    steps = first_step + (np.arange(number) + lost) // EACH
    together = np.ones(number, dtype=np.bool_)
    each = np.arange(number), np.full(number, 5), start, start + 500_000, together, together, ~together, ~together
    return Sequence(*each, clock, steps=(lambda: steps) if numbered else None)


@pytest.mark.parametrize(
    ("base", "other", "shift"),
    [
        # nothing tells equal steps apart: a clock may be off by a step
        ({"numbered": False}, {"numbered": False}, None),
        ({}, {}, 0),
        # what a rank lost at its beginning: within a step shifts by one collective leave most in another step
        *(({}, {"lost": lost}, lost) for lost in (1, 2, 3, 4)),
        # ranks that count their steps differently have none in common
        ({}, {"first_step": 60}, None),
        ({}, {"numbered": False}, None),
    ],
)
def test_numbers_of_steps_tell_shifts_apart(base, other, shift):
    assert _shift(alike(clock=0, **base), alike(clock=1, **other)) == shift


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [((2, 7), (2, 7), 0), ((2, 0), (2, 7), 0), ((2, 7), (2, 0), 0), ((2, 7), (2, 8), None), ((2, 0), (3, 7), None)],
)
def test_collectives_whose_size_one_rank_does_not_tell_are_the_same_by_their_kind(left, right, found):
    """Each a kind and a size in bytes, counted from 1 on."""
    sides = [
        alike(clock=clock)._replace(what=np.full(EACH * STEPS, (kind << SIZE_BITS) + size))
        for clock, (kind, size) in enumerate((left, right))
    ]
    assert _shift(*sides) == found
