"""Alignment of ranks: where the collectives of each begin in the order of all.

Definition: docs/definitions.md, section 11, "The same collective".
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

#: How far the clock of one host may drift from that of another, and the error of a time stamp.
DRIFT: Final = 1e-4
STAMP_ERROR_NS: Final = 1_000

#: How far the time stamps of two processes of one host may be apart.
_ONE_HOST_NS: Final = 50_000

#: Where a shift is tried before it is tried on all rows, as parts of what two ranks have in common.
_TRIED: Final = (8, 64)
_GOLDEN: Final = 0.618034

#: The part of the shorter sequence that ranks on two clocks must have in common, and the fewest collectives; and the
#: part of that which must be in steps of one number, since what is at an edge may begin outside.
_COMMON: Final = 0.5
_FEWEST: Final = 2
_SAME_STEPS: Final = 0.9

#: Shifts with as small a part in common may be the true one as well, where clocks are no farther apart than this.
_POSSIBLE: Final = 0.1
_APART_NS: Final = 100_000_000

#: How many other ranks a rank that does not fit the first is held against.
_OTHERS: Final = 3

#: Beyond all differences of times.
_FAR: Final = 1 << 60

#: Bits of a size in bytes, which is counted from 1 on.
SIZE_BITS: Final = 48
SIZES: Final = (1 << SIZE_BITS) - 1


class Sequence(NamedTuple):
    """The collectives of one rank in one lane, in their order; the arrays are what is told of their calls.

    `steps` gives the program's number of the step of each.
    """

    at: Ints
    what: Ints
    start: Ints
    end: Ints
    enters: Bools
    leaves: Bools
    by_pairs: Bools
    pairs: Bools
    clock: int
    steps: Callable[[], Ints] | None

    @property
    def pair(self) -> bool:
        """Whether all are between two ranks."""
        return bool(self.pairs.all())

    def of(self, by_pairs: bool) -> Sequence:  # noqa: FBT001 - a value
        """Those that run as a kernel of sends and receives, or the others."""
        own, steps = self.by_pairs == by_pairs, self.steps
        parts: dict[str, Any] = {name: getattr(self, name)[own] for name in self._fields[:8]}
        return self._replace(**parts, steps=None if steps is None else lambda: steps()[own])


def aligned(members: dict[int, Sequence]) -> dict[int, int]:
    """The place of the first collective of each rank in the order of the lane; a rank that fits no other has none.

    Each rank is held against the longest sequence of its clock, and those against the longest of all; what does not fit
    it, against some others.
    """
    if not members:
        return {}
    order = sorted(members, key=lambda one: (-len(members[one].at), one))
    heads: dict[int, int] = {}
    for one in order:
        heads.setdefault(members[one].clock, one)
    places = {order[0]: 0}
    for one in [*heads.values(), *order]:
        if one in places:
            continue
        head = heads[members[one].clock]
        bases = dict.fromkeys([*([head] if head in places else []), order[0], *list(places)[1 : 1 + _OTHERS]])
        for base in bases:
            shift = _shift(members[base], members[one])
            if shift is not None:
                places[one] = places[base] + shift
                break
    return places


def _shift(base: Sequence, other: Sequence) -> int | None:
    """By how many collectives `other` begins later than `base`; None if no shift fits, or several do."""
    lengths = len(base.at), len(other.at)
    one_clock = base.clock == other.clock
    least = 1 if one_clock else max(1, int(_POSSIBLE * min(lengths)))
    shifts = np.arange(least - lengths[1], lengths[0] - least + 1)
    if not one_clock:
        low = np.maximum(0, shifts)
        much = np.minimum(lengths[0], lengths[1] + shifts) - low >= _COMMON * min(lengths)
        shifts = shifts[much | (np.abs(other.start[low - shifts] - base.start[low]) < _APART_NS)]
    for number in _TRIED:
        shifts = shifts[_may_fit(base, other, shifts, number)]
    if base.pair and one_clock:
        return _latest_sends(base, other, shifts)
    fitting = [*islice((shift for shift in shifts.tolist() if _fits(base, other, shift)), 2)]
    if len(fitting) != 1:
        return _by_steps(base, other, shifts) if fitting else None
    ours, _ = _common(base, other, fitting[0])
    enough = one_clock or ours.stop - ours.start >= max(_FEWEST, _COMMON * min(lengths))
    return fitting[0] if enough else None


def _common(base: Sequence, other: Sequence, shift: int) -> tuple[slice, slice]:
    """What two ranks have in common where `other` begins so many collectives later, in each of them."""
    low, high = max(0, shift), min(len(base.at), len(other.at) + shift)
    return slice(low, high), slice(low - shift, high - shift)


def _by_steps(base: Sequence, other: Sequence, shifts: Ints) -> int | None:
    """Of several shifts that fit, the one that leaves collectives in the same steps, by the program's own numbers."""
    if base.steps is None or other.steps is None:
        return None
    mine, theirs = base.steps(), other.steps()
    agreeing = []
    for shift in shifts.tolist():
        ours, others = _common(base, other, shift)
        left, right = mine[ours], theirs[others]
        inside = (left >= 0) & (right >= 0)
        if inside.any() and (left == right)[inside].mean() >= _SAME_STEPS and _fits(base, other, shift):
            agreeing.append(shift)
    return agreeing[0] if len(agreeing) == 1 else None


def _latest_sends(base: Sequence, other: Sequence, shifts: Ints) -> int | None:
    """Of the shifts that let no receive end before its send began, the one that pairs receives with the latest sends.

    Sends may end long before they are received, so that earlier ones would do as well; but a receive that waited
    ended with its own send, and one must have, or nothing is told.
    """
    sends = bool(base.enters.all())
    shift = next((one for one in (shifts[::-1] if sends else shifts).tolist() if _fits(base, other, one)), None)
    if shift is None:
        return None
    mine, theirs = _common(base, other, shift)
    begun, sent = (base.start[mine], base.end[mine]) if sends else (other.start[theirs], other.end[theirs])
    received = other.end[theirs] if sends else base.end[mine]
    return shift if (np.abs(received - sent) <= sent - begun).any() else None


def _may_fit(base: Sequence, other: Sequence, shifts: Ints, number: int) -> Bools:
    """Whether each shift fits at so many places of what the two have in common."""
    parts = np.arange(number) * _GOLDEN % 1
    low = np.maximum(0, shifts)
    common = np.minimum(len(base.at), len(other.at) + shifts) - low
    mine = low[:, None] + (parts[None, :] * common[:, None]).astype(np.int64)
    return _agree(base, other, mine, mine - shifts[:, None])


def _fits(base: Sequence, other: Sequence, shift: int) -> bool:
    """Whether kinds and sizes agree, and some offset of the clocks lets each rank leave after the other entered."""
    ours, _ = _common(base, other, shift)
    mine = np.arange(ours.start, ours.stop)[None, :]
    return bool(_agree(base, other, mine, mine - shift)[0])


def _agree(base: Sequence, other: Sequence, mine: Ints, theirs: Ints) -> Bools:
    """Row by row of places in both: whether kinds and sizes agree, and clocks can be right."""
    left, right = base.what[mine], other.what[theirs]
    unsized = (left & SIZES == 0) | (right & SIZES == 0)
    same = ((left == right) | (unsized & (left >> SIZE_BITS == right >> SIZE_BITS))).all(axis=1)
    # most shifts fail here, before the times are looked up
    same[same] = _in_time(base, other, mine[same], theirs[same])
    return np.asarray(same)


def _in_time(base: Sequence, other: Sequence, mine: Ints, theirs: Ints) -> Bools:
    """Row by row of places in both: whether clocks can be right."""
    after, before = base.leaves[mine] & other.enters[theirs], other.leaves[theirs] & base.enters[mine]
    # as if nothing could be buffered
    nothing = ~np.any(after | before, axis=1, keepdims=True) | (base.pair and base.clock != other.clock)
    after, before = after | nothing, before | nothing
    least = (other.start[theirs] - base.end[mine]).max(axis=1, where=after, initial=-_FAR)
    greatest = (other.end[theirs] - base.start[mine]).min(axis=1, where=before, initial=_FAR)
    if base.clock == other.clock:
        return np.asarray((least <= _ONE_HOST_NS) & (greatest >= -_ONE_HOST_NS))
    span = base.end[mine].max(axis=1) - base.start[mine].min(axis=1)
    return np.asarray(least <= greatest + 2 * STAMP_ERROR_NS + (DRIFT * span).astype(np.int64))
