"""Which runs of two programs were beside each other."""

from hypothesis import given
from hypothesis import strategies as st

from kanalyze.turns import Turn, interleaved, pairs


def turns(side, *numbers, collection="a"):
    return [Turn(collection, side, number) for number in numbers]


def test_neighbours_are_a_pair_whatever_their_order():
    base, new = turns("base", 1, 4, 5, 8), turns("new", 2, 3, 6, 7)
    assert pairs(base, new) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert pairs(base, new[::-1]) == [(0, 3), (1, 2), (2, 1), (3, 0)]
    assert interleaved(base, new)


@given(st.integers(1, 12), st.data())
def test_of_any_runs_that_are_left_the_pairs_are_of_two_turns_one_after_the_other(count, data):
    sides = [("base", "new") if pair % 2 == 0 else ("new", "base") for pair in range(count)]
    every = [Turn("a", side, number) for number, side in enumerate((one for two in sides for one in two), 1)]
    left = data.draw(st.lists(st.sampled_from(every), unique=True))
    base, new = ([turn for turn in left if turn.side == side] for side in ("base", "new"))
    found = {(base[one].number, new[other].number) for one, other in pairs(base, new)}
    numbers = {turn.number for turn in left}
    both = [(first, first + 1) for first in range(1, 2 * count, 2) if {first, first + 1} <= numbers]
    assert {tuple(sorted(pair)) for pair in found} == set(both)
    assert interleaved(base, new) == (bool(left) and len(left) == 2 * len(both))
