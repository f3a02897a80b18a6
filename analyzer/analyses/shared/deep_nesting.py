"""Ranges nested hundreds deep, which made-up or damaged reports have, and programs that recurse.

Layer by layer (:mod:`kanalyze.analyses.shared.range_nesting`) the work grows with the depth times what lies inside.
Here one pass goes along ranges and stretches of time with a stack, in Python: slower for what is usual, and linear for
any depth. Ranges that cross have no stack; for those the functions give None, and layers are left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: From so many layers on one pass costs less: what takes it a microsecond takes a layer some nanoseconds.
DEEP: Final = 256


def layer_numbers(ends: Sequence[int], *, strict: bool) -> list[int]:
    """The layer of each range, outermost first as `outermost_first` of :mod:`.range_nesting` sorts them.

    A layer's ends rise, strictly or not: each range belongs to the first layer where its end goes on with that.
    """
    tops: list[int] = []  # minus the last end of each layer, rising
    found = []
    for end in ends:
        layer = (bisect_right if strict else bisect_left)(tops, -end)
        if layer == len(tops):
            tops.append(-end)
        else:
            tops[layer] = -end
        found.append(layer)
    return found


class _Stack:
    """The ranges around one moment that moves on, the outermost first."""

    def __init__(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        self._starts, self._ends = starts, ends
        self._next = 0
        self.places: list[int] = []
        self._minus_ends: list[int] = []
        self._touching: int | None = None

    def go_to(self, moment: int) -> Iterator[int]:
        """Open every range that starts up to a moment, and give each as it is opened.

        Raises:
            ValueError: Ranges cross.
        """
        while self._next < len(self._starts) and self._starts[self._next] <= moment:
            place = self._next
            self._leave(self._starts[place])
            while self.places and self._ends[self.places[-1]] < self._ends[place]:
                if self._ends[self.places[-1]] > self._starts[place]:
                    raise ValueError
                self._touching = self._starts[place]  # one ends where this one starts
                self._drop()
            if self._touching == self._ends[place]:
                raise ValueError  # it may lie in one that is gone
            self._next += 1
            yield place
            self.places.append(place)
            self._minus_ends.append(-self._ends[place])
        self._leave(moment)

    def around(self, since: int, until: int) -> int | None:
        """The innermost range that holds a stretch which begins where the stack is; None for none.

        Raises:
            ValueError: It is a moment at which one range ends and another starts.
        """
        if since == until == self._touching:
            raise ValueError
        count = bisect_right(self._minus_ends, -until)
        return self.places[count - 1] if count else None

    def _leave(self, moment: int) -> None:
        while self.places and self._ends[self.places[-1]] < moment:
            self._drop()

    def _drop(self) -> None:
        self.places.pop()
        self._minus_ends.pop()


def enclosing(starts: Sequence[int], ends: Sequence[int]) -> tuple[list[int | None], list[int]] | None:
    """For each range (outermost first) the one that encloses it, and how many do; None where ranges cross."""
    stack, parents, levels = _Stack(starts, ends), [], []
    try:
        for start in starts:
            for _ in stack.go_to(start):
                parents.append(stack.places[-1] if stack.places else None)
                levels.append(len(stack.places))
    except ValueError:
        return None
    return parents, levels


def holding(
    starts: Sequence[int], ends: Sequence[int], since: Sequence[int], until: Sequence[int]
) -> list[int | None] | None:
    """For each stretch of time the innermost range around it, by its place; None for all where ranges cross."""
    stack = _Stack(starts, ends)
    found: list[int | None] = [None] * len(since)
    try:
        for row in sorted(range(len(since)), key=since.__getitem__):
            for _ in stack.go_to(since[row]):
                pass
            found[row] = stack.around(since[row], until[row])
    except ValueError:
        return None
    return found


class Spans:
    """Stretches of time that do not touch, sorted, and how long they are together."""

    def __init__(self) -> None:
        """Begin with none."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.ns = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._starts)

    def add(self, start: int, end: int) -> None:
        """Unite them with one more."""
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
            self.ns -= sum(self._ends[first:last]) - sum(self._starts[first:last])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        self.ns += end - start

    def united(self, other: Spans) -> Spans:
        """Both together; the smaller one is added to the larger one, which is changed."""
        large, small = (self, other) if len(self) >= len(other) else (other, self)
        for start, end in small.all():
            large.add(start, end)
        return large

    def all(self) -> list[tuple[int, int]]:
        """Their starts and ends."""
        return list(zip(self._starts, self._ends, strict=True))


class Sums(NamedTuple):
    """What ran in a range: first start, last end, time in which anything ran, first operations of calls, operations."""

    place: int
    start: int
    end: int
    busy: int
    calls: int
    operations: int


def sums_in(
    parents: Sequence[int | None], own: Sequence[int | None], work: Sequence[tuple[int, int, bool]]
) -> Iterator[Sums]:
    """What ran in each range and all in it, for those with anything.

    `parents` are of the ranges, outermost first; `own` is the innermost range of each of `work`: start, end, and
    whether it is the first operation of its call.
    """
    inside: list[list[tuple[int, int, bool]]] = [[] for _ in parents]
    for place, operation in zip(own, work, strict=True):
        if place is not None:
            inside[place].append(operation)
    known: list[tuple[Spans, int, int, int, int] | None] = [None] * len(parents)
    for place in range(len(parents) - 1, -1, -1):
        found = known[place]
        known[place] = None
        for start, end, first in inside[place]:
            spans, low, high, calls, count = found or (Spans(), start, end, 0, 0)
            spans.add(start, end)
            found = spans, min(low, start), max(high, end), calls + first, count + 1
        if found is None:
            continue
        spans, low, high, calls, count = found
        yield Sums(place, low, high, spans.ns, calls, count)
        around = parents[place]
        if around is not None and (other := known[around]):
            both = spans.united(other[0])
            known[around] = both, min(low, other[1]), max(high, other[2]), calls + other[3], count + other[4]
        elif around is not None:
            known[around] = found
