"""Turns of interleaved runs: two programs that ran by turns (A B B A …), so that drift is the same for both.

A machine gets warmer, and others come and go: of runs that were interleaved, each is compared with the one beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

#: The sides of an interleaved collection, each with the other one.
_OTHER: Final = {"base": "new", "new": "base"}

SIDES: Final = tuple(_OTHER)


class Turn(NamedTuple):
    """The place of a run among the runs of an interleaved collection.

    Attributes:
        collection: Identifies the collection.
        side: ``base`` or ``new``.
        number: The place, from 1; turns 1 and 2 are the first pair, 3 and 4 the second.
    """

    collection: str
    side: str
    number: int

    @property
    def pair(self) -> tuple[str, int]:
        """Identifies the two runs that ran one after the other."""
        return self.collection, (self.number + 1) // 2


def pairs(base: Sequence[Turn | None], new: Sequence[Turn | None]) -> list[tuple[int, int]]:
    """Pairs of neighbouring runs, as indices into `base` and `new`, in the order of `base`.

    A run is in no pair where it was not interleaved, or where its neighbour is not there. What stands for one turn
    several times, such as the traces of several ranks, is in none either.
    """
    counts = Counter((*base, *new))
    beside = {(turn.side, turn.pair): at for at, turn in enumerate(new) if turn and counts[turn] == 1}
    asked = [(at, (_OTHER[turn.side], turn.pair)) for at, turn in enumerate(base) if turn and counts[turn] == 1]
    return [(at, beside[key]) for at, key in asked if key in beside]


def interleaved(base: Sequence[Turn | None], new: Sequence[Turn | None]) -> bool:
    """Whether every run of one side has its neighbour on the other, so that they can be compared pair by pair."""
    return len(base) == len(new) == len(pairs(base, new)) and bool(base)
