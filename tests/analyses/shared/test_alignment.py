"""Pairs of two sequences are as many as a longest common subsequence has, and of long ones nearly so."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.shared import alignment
from kanalyze.analyses.shared.alignment import aligned

#: Tokens of few kinds, so that many of them are equal.
TOKENS = st.lists(st.integers(-2, 4), max_size=40)

#: Places and what is put there, or None where a token is left out.
EDITS = st.lists(st.tuples(st.integers(0, 200), st.none() | st.integers(0, 9)), max_size=12)


def pairs_of(base, new):
    """The pairs as lists, after a check that they are pairs of equal tokens that do not cross."""
    base, new = np.array(base, dtype=np.int64), np.array(new, dtype=np.int64)
    at_base, at_new = aligned(base, new)
    assert at_base.dtype == at_new.dtype == np.int64
    assert len(at_base) == len(at_new)
    for at, side in ((at_base, base), (at_new, new)):
        assert (np.diff(at) > 0).all()
        assert ((at >= 0) & (at < len(side))).all()
    assert (base[at_base] == new[at_new]).all()
    return at_base.tolist(), at_new.tolist()


def lcs_length(base, new):
    """Length of a longest common subsequence, by the table of the definition."""
    row = [0] * (len(new) + 1)
    for token in base:
        before = row
        row = [0]
        for at, other in enumerate(new):
            row.append(before[at] + 1 if token == other else max(before[at + 1], row[at]))
    return row[-1]


def edited(tokens, edits):
    """The tokens after each edit, one after the other."""
    tokens = list(tokens)
    for at, put in edits:
        place = at % (len(tokens) + 1)
        tokens[place : place + (put is None)] = [] if put is None else [put]
    return tokens


@given(TOKENS, TOKENS)
def test_short_sequences_have_a_longest_common_subsequence(base, new):
    assert len(pairs_of(base, new)[0]) == lcs_length(base, new)


@given(st.lists(st.integers(0, 30), min_size=2, max_size=20), st.integers(2, 4), EDITS, st.integers(1, 400))
def test_sequences_in_halves_have_one_too(period, count, edits, whole):
    base = period * count
    new = edited(base, edits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "_WHOLE", whole)
        assert len(pairs_of(base, new)[0]) == lcs_length(base, new)


@given(TOKENS, TOKENS)
def test_any_numbers_may_be_tokens(base, new):
    far = [[token * (1 << 60) - 1 for token in side] for side in (base, new)]
    assert pairs_of(*far) == pairs_of(base, new)


def test_what_was_put_in_lies_in_one_place():
    # the first 9 could be either one; with the second all are a single run
    assert pairs_of([9, 1, 2], [9, 5, 9, 1, 2]) == ([0, 1, 2], [2, 3, 4])
    assert pairs_of([9, 5, 9, 1, 2], [9, 1, 2]) == ([2, 3, 4], [0, 1, 2])
    assert pairs_of([1, 2, 9], [1, 2, 9, 5, 9]) == ([0, 1, 2], [0, 1, 2])


def test_each_period_may_lack_a_token():
    period = np.random.default_rng(1).integers(0, 25, 40)
    base, new = np.tile(period, 30), np.tile(np.delete(period, 7), 30)
    at_base, at_new = pairs_of(base, new)
    assert len(at_new) == 39 * 30
    # 31 runs of neighbours on both sides
    assert ((np.diff(at_base) != 1) | (np.diff(at_new) != 1)).sum() == 30


STEPS = np.tile(np.random.default_rng(2).integers(0, 60, 1_000), 20)
KEPT = np.random.default_rng(3).random(len(STEPS)) >= 0.03


@pytest.mark.parametrize(
    ("new", "number"),
    [
        (STEPS[KEPT], int(KEPT.sum())),  # nothing is missed of what lacks tokens, nor of a part
        (STEPS[3_123:8_777], 5_654),
        (np.insert(STEPS, 9_123, np.random.default_rng(5).integers(0, 60, 9_000)), 20_000),
        (np.where(KEPT, STEPS, STEPS + 100), int(KEPT.sum())),
    ],
)
def test_long_sequences_are_paired_whole(new, number):
    assert len(pairs_of(STEPS, new)[0]) == number


@pytest.mark.parametrize("new", [STEPS[KEPT], np.where(KEPT, STEPS, STEPS + 100)])
def test_at_anchors_hardly_a_pair_is_missed(new, monkeypatch):
    for bound in ("_WHOLE", "_EXACT"):
        monkeypatch.setattr(alignment, bound, 1 << 24)
    assert len(pairs_of(STEPS, new)[0]) >= 0.99 * KEPT.sum()


def test_sequences_of_unlike_orders_have_one_pair():
    assert len(pairs_of(np.arange(9_000), np.arange(9_000)[::-1])[0]) == 1
