"""Pairs two sequences of integers in order, as a diff pairs the lines of two files.

Pairs never cross, equal tokens are paired only with each other, and there are as many pairs as can be: a longest common
subsequence (LCS), computed with a bit per token (H. Hyyrö, "Bit-parallel LCS-length computation revisited", 2004), of
long sequences in halves (D. Hirschberg, "A linear space algorithm for computing maximal common subsequences", 1975).
Time grows with the product of both lengths, by 64 tokens at once: 60,000 against 60,000 take about a second. Still
longer ones are paired at anchors first, and then what lies between two of them.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

_Integers = npt.NDArray[np.int64]
_Pairs = tuple[_Integers, _Integers]

#: Most pairs of tokens of a block that is not halved: 8,192 against 8,192, in 8 MB and 10 ms.
_WHOLE: Final = 1 << 26

#: Most pairs of tokens whose LCS is computed: about 90,000 against 90,000.
_EXACT: Final = 1 << 33

#: Anchors are the least of a stretch of so many hashes, each of so many tokens with random odd factors.
_STRETCH: Final = 16
_FACTORS: Final = np.random.default_rng(1).integers(1 << 62, size=4, dtype=np.uint64) * 2 + 1

#: Different tokens whose places are kept as bits.
_TOKENS: Final = 1 << 10


def aligned(base: _Integers, new: _Integers) -> _Pairs:
    """Pairs equal tokens (int64 of any values) of two sequences in order.

    Gives int64 arrays of one length, both strictly increasing: places in `base`, and their partners in `new`.
    """
    return _in_few_runs(base, new, _pairs(base, new))


def _pairs(one: _Integers, other: _Integers) -> _Pairs:
    """An LCS as pairs of places: equal ends, and what is between them."""
    head = _equal_head(one, other)
    tail = _equal_head(one[head:][::-1], other[head:][::-1])
    at_one, at_other = np.arange(head, len(one) - tail), np.arange(head, len(other) - tail)
    # what one side lacks is paired with nothing; the longer side has most of it
    at_one = at_one[np.isin(one[at_one], other[at_other])]
    at_other = at_other[np.isin(other[at_other], one[at_one])]
    inner = _longest(one[at_one], other[at_other])
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


def _longest(one: _Integers, other: _Integers) -> _Pairs:
    """An LCS: of several in a block, the one whose tokens come first in the longer sequence."""
    if len(one) < len(other):
        at_other, at_one = _longest(other, one)
        return at_one, at_other
    if len(one) * len(other) > _WHOLE and len(other) > 1:
        return _at_anchors(one, other) or _in_halves(one, other)
    rows = [*_rows(one, other)]
    pairs: list[tuple[int, int]] = []
    column = len(one)
    for row_number in range(len(other), 0, -1):
        grown = ~rows[row_number] & ((1 << column) - 1)
        column = grown.bit_length()
        if not column:
            break
        if rows[row_number - 1] >> (column - 1) & 1:
            column -= 1
            pairs.append((column, row_number - 1))
    both = np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _rows(one: _Integers, other: _Integers) -> Iterator[int]:
    """For each beginning of `other`, the bits of the places in `one` at which the length of the LCS does not grow."""
    order = np.argsort(one, kind="stable")
    tokens = one[order]

    @lru_cache(_TOKENS)
    def bits(token: int) -> int:
        mask = np.zeros(len(one), dtype=np.bool_)
        first, stop = (np.searchsorted(tokens, token, side) for side in ("left", "right"))
        mask[order[first:stop]] = True
        return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")

    row = every = (1 << len(one)) - 1
    yield row
    for token in other.tolist():
        here = row & bits(token)
        row = ((row + here) | (row - here)) & every
        yield row


def _in_halves(one: _Integers, other: _Integers) -> _Pairs:
    """An LCS of both halves of `other`, each with the part of `one` with which they are longest together."""
    half = len(other) // 2
    before, after = _lengths(one, other[:half]), _lengths(one[::-1], other[half:][::-1])[::-1]
    cut = int((before + after).argmax())
    first, second = _pairs(one[:cut], other[:half]), _pairs(one[cut:], other[half:])
    return np.concatenate([first[0], second[0] + cut]), np.concatenate([first[1], second[1] + half])


def _lengths(one: _Integers, other: _Integers) -> _Integers:
    """The length of the LCS of each beginning of `one` with all of `other`."""
    for row in _rows(one, other):
        last = row
    packed = np.frombuffer(last.to_bytes(len(one) // 8 + 1, "little"), np.uint8)
    grown = 1 - np.unpackbits(packed, count=len(one), bitorder="little").astype(np.int64)
    return np.concatenate([[0], np.cumsum(grown)])


def _at_anchors(one: _Integers, other: _Integers) -> _Pairs | None:
    """Pairs of very long sequences: those of anchors, and of what lies between; None where these are hardly fewer."""
    if len(one) * len(other) <= _EXACT or len(other) < _STRETCH + len(_FACTORS):
        return None
    hashes = [(sliding_window_view(own.view(np.uint64), len(_FACTORS)) * _FACTORS).sum(axis=1) for own in (one, other)]
    least = [sliding_window_view(side, _STRETCH).argmin(axis=1) for side in hashes]
    anchors = [np.unique(np.arange(len(at)) + at) for at in least]
    if sum(map(len, anchors)) > (len(one) + len(other)) / 2:
        return None
    matches = _pairs(*(side[at].view(np.int64) for side, at in zip(hashes, anchors, strict=True)))
    at_one, at_other = ([0, *at[own].tolist()] for at, own in zip(anchors, matches, strict=True))
    parts = []
    for (a, b), (c, d) in zip(pairwise([*at_one, len(one)]), pairwise([*at_other, len(other)]), strict=True):
        own, theirs = _pairs(one[a:b], other[c:d])
        parts.append((own + a, theirs + c))
    return np.concatenate([own for own, _ in parts]), np.concatenate([theirs for _, theirs in parts])


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
