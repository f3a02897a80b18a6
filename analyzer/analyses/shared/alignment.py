"""Pairs two sequences of integers in order, as a diff pairs the lines of two files.

Pairs never cross, and equal tokens are paired only with each other. Up to :data:`_EXACT` pairs of tokens, there are as
many pairs as can be: a longest common subsequence (LCS), computed with a bit per token (H. Hyyrö, "Bit-parallel
LCS-length computation revisited", 2004). In longer sequences the rarest n-grams that both have are seeds; the seeds
are aligned the same way, and what lies between two of them is a block of its own. Time grows with the length times
sqrt(:data:`_EXACT`) / 64, memory with the length.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    _Integers = npt.NDArray[np.int64]
    _Pairs = tuple[_Integers, _Integers]

#: Most pairs of tokens of a block whose LCS is computed: 8,192 against 8,192, in 8 MB and 10 ms.
_EXACT: Final = 1 << 26

#: Tokens of a seed, and of the stretch in which the rarest one is sought.
_GRAM: Final = 4
_STRETCH: Final = 16

#: How often seeds are sought among seeds, or in what lies between them.
_DEPTH: Final = 6

#: Greatest share of the tokens that may be seeds; more of them would not shorten the task.
_SEEDS: Final = 0.75

#: Share of the pairs that could be at most, from which on those by seeds are not compared with those in windows.
_GOOD: Final = 0.9


def aligned(base: _Integers, new: _Integers) -> _Pairs:
    """Pairs equal tokens of two sequences in order.

    Args:
        base: Tokens, int64 of any values.
        new: Those of the other sequence.

    Returns:
        Two int64 arrays of one length, both strictly increasing: places in `base`, and their partners in `new`.
    """
    codes = np.unique(np.concatenate([base, new]), return_inverse=True)[1].astype(np.int64)
    one, other = codes[: len(base)], codes[len(base) :]
    return _in_few_runs(one, other, _pairs(one, other, 0))


def _pairs(one: _Integers, other: _Integers, depth: int) -> _Pairs:
    """Pairs of two sequences of codes: equal ends, and what is between them by seeds or exactly."""
    head = _equal_head(one, other)
    tail = _equal_head(one[head:][::-1], other[head:][::-1])
    at_one, at_other = np.arange(head, len(one) - tail), np.arange(head, len(other) - tail)
    # what one side lacks is paired with nothing; the longer side has most of it
    at_one = at_one[np.isin(one[at_one], other[at_other])]
    at_other = at_other[np.isin(other[at_other], one[at_one])]
    inner = _inner_pairs(one[at_one], other[at_other], depth)
    first, last = np.arange(head), np.arange(-tail, 0)
    return (
        np.concatenate([first, at_one[inner[0]], last + len(one)]),
        np.concatenate([first, at_other[inner[1]], last + len(other)]),
    )


def _equal_head(one: _Integers, other: _Integers) -> int:
    """How many tokens both sequences begin with."""
    most = min(len(one), len(other))
    differ = one[:most] != other[:most]
    return int(differ.argmax()) if differ.any() else most


def _inner_pairs(one: _Integers, other: _Integers, depth: int) -> _Pairs:
    if len(one) * len(other) <= _EXACT:
        return _longest(one, other)
    seeds = _seed_pairs(one, other, depth) if depth < _DEPTH else None
    found = _between(one, other, seeds, depth) if seeds and len(seeds[0]) else None
    if found is not None and len(found[0]) >= _GOOD * _most(one, other):
        return found
    in_windows = _in_windows(one, other)
    return in_windows if found is None or len(found[0]) < len(in_windows[0]) else found


def _most(one: _Integers, other: _Integers) -> int:
    """Most pairs that two sequences can have, in any order."""
    codes = max(int(one.max()), int(other.max())) + 1
    return int(np.minimum(np.bincount(one, minlength=codes), np.bincount(other, minlength=codes)).sum())


def _longest(one: _Integers, other: _Integers) -> _Pairs:
    """A longest common subsequence; of several, the one whose tokens come first in the longer sequence."""
    if len(one) < len(other):
        at_other, at_one = _longest(other, one)
        return at_one, at_other
    every = (1 << len(one)) - 1
    packed = {token: np.packbits(one == token, bitorder="little") for token in np.unique(other).tolist()}
    places = {token: int.from_bytes(bits.tobytes(), "little") for token, bits in packed.items()}
    rows = [every]  # of each row, the bits of the places where the subsequence does not grow
    for token in other.tolist():
        row = rows[-1]
        here = row & places[token]
        rows.append(((row + here) | (row - here)) & every)
    found: list[tuple[int, int]] = []
    column = len(one)
    for row_number in range(len(other), 0, -1):
        grown = ~rows[row_number] & ((1 << column) - 1)
        column = grown.bit_length()
        if not column:
            break
        if rows[row_number - 1] >> (column - 1) & 1:
            column -= 1
            found.append((column, row_number - 1))
    both = np.array(found[::-1], dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _in_windows(one: _Integers, other: _Integers) -> _Pairs:
    """Pairs of sequences that keep in step: windows of both, in proportion, of which the first halves are kept."""
    part = np.sqrt(_EXACT / (len(one) * len(other)))
    wide, high = (max(int(len(side) * part), 2) for side in (one, other))
    at, beside = 0, 0
    parts: list[_Pairs] = []
    while at < len(one) and beside < len(other):
        found = _longest(one[at : at + wide], other[beside : beside + high])
        first, second = wide // 2, high // 2
        if at + wide >= len(one) and beside + high >= len(other):
            first, second = wide, high
        late = np.flatnonzero((found[0] >= first) | (found[1] >= second))[:1].tolist()
        parts.append(_shifted((found[0][: late[0]], found[1][: late[0]]) if late else found, at, beside))
        # the first pair that is left out says how far the side goes that it is still in the first half of
        at += min(first, int(found[0][late[0]])) if late else first
        beside += min(second, int(found[1][late[0]])) if late else second
    return _joined(parts)


def _shifted(pairs: _Pairs, one: int, other: int) -> _Pairs:
    return pairs[0] + one, pairs[1] + other


def _joined(parts: list[_Pairs]) -> _Pairs:
    at_one, at_other = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    order = np.argsort(at_one, kind="stable")
    return at_one[order], at_other[order]


def _seed_pairs(one: _Integers, other: _Integers, depth: int) -> _Pairs | None:
    """Pairs of places where the same seeds begin; None where seeds would be nearly all tokens."""
    grams = _grams(one, other)
    counts = [np.bincount(each, minlength=max(int(both.max()) for both in grams) + 1) for each in grams]
    rarity = np.where(np.minimum(*counts) > 0, counts[0] + counts[1], np.iinfo(np.int64).max)
    rank = np.empty(len(rarity), dtype=np.int64)
    rank[np.argsort(rarity, kind="stable")] = np.arange(len(rarity))
    common = int((np.minimum(*counts) > 0).sum())
    at_one, at_other = (_rarest(rank[each], common) for each in grams)
    if len(at_one) + len(at_other) > _SEEDS * (len(one) + len(other)):
        return None
    found = _pairs(grams[0][at_one], grams[1][at_other], depth + 1)
    return at_one[found[0]], at_other[found[1]]


def _grams(one: _Integers, other: _Integers) -> list[_Integers]:
    """For each token but the last ones, a number for it and those that follow, the same in both sequences."""
    sides, width = [one, other], 1
    while width < _GRAM and min(len(side) for side in sides) > width:
        most = max(int(side.max()) for side in sides) + 1
        longer = [side[:-width] * most + side[width:] for side in sides]
        numbers = np.unique(np.concatenate(longer), return_inverse=True)[1].astype(np.int64)
        sides = [numbers[: len(longer[0])], numbers[len(longer[0]) :]]
        width *= 2
    return sides


def _rarest(rank: _Integers, common: int) -> _Integers:
    """Places whose rank is the least of a stretch around them, and below `common`; of equal neighbours the first."""
    stretch = min(_STRETCH, len(rank))
    least = np.lib.stride_tricks.sliding_window_view(rank, stretch).min(axis=1)
    around = np.pad(least, stretch - 1, constant_values=-1)
    chosen = rank == np.lib.stride_tricks.sliding_window_view(around, stretch).max(axis=1)
    chosen &= rank < common
    chosen[1:] &= ~(chosen[:-1] & (rank[1:] == rank[:-1]))
    return np.flatnonzero(chosen)


def _between(one: _Integers, other: _Integers, seeds: _Pairs, depth: int) -> _Pairs:
    """All pairs, given those of seeds: each begins a block, and blocks that are not equal are aligned.

    Neighbours among such blocks are aligned as one where that is small enough, since the seed between them is less sure
    than the tokens around it.
    """
    edges = [pairwise([0, *at.tolist(), len(side)]) for side, at in zip((one, other), seeds, strict=True)]
    parts: list[_Pairs] = []
    unlike: list[tuple[int, int, int, int]] = []
    for (a, b), (c, d) in zip(*edges, strict=True):
        first, last, second, end = unlike[-1] if unlike else (a, -1, c, -1)
        if np.array_equal(one[a:b], other[c:d]):
            parts.append((np.arange(a, b), np.arange(c, d)))
        elif (last, end) == (a, c) and (b - first) * (d - second) <= _EXACT:
            unlike[-1] = first, b, second, d
        else:
            unlike.append((a, b, c, d))
    return _joined([*parts, *(_shifted(_pairs(one[a:b], other[c:d], depth + 1), a, c) for a, b, c, d in unlike)])


def _in_few_runs(one: _Integers, other: _Integers, pairs: _Pairs) -> _Pairs:
    """As many pairs in fewer runs: a run moves to its neighbour where the tokens in between allow it.

    So what was inserted or left out lies in one place, not before and behind tokens that could be on either side of it.
    """
    for to_next in (True, False):
        apart = np.flatnonzero((np.diff(pairs[0]) != 1) | (np.diff(pairs[1]) != 1)) + 1
        edges = [0, *apart.tolist(), len(pairs[0])]
        neighbours = list(pairwise(pairwise(edges)))
        for before, after in reversed(neighbours) if to_next else neighbours:
            gaps = [int(side[after[0]] - side[before[1] - 1]) - 1 for side in pairs]
            if min(gaps):
                continue
            side = gaps.index(max(gaps))
            tokens, at = (one, other)[side], pairs[side][slice(*(before if to_next else after))]
            moved = at + max(gaps) if to_next else at - max(gaps)
            if np.array_equal(tokens[moved], tokens[at]):
                at[:] = moved
    return pairs
