"""Which ranges of one thread contain what: also where they overlap without nesting, as start/end ranges may.

Nothing here assumes a stack. Push/pop ranges of one domain nest, but those of two domains, and start/end ranges, may
cross. So a thread's ranges are cut into layers, of which none contains another of its own layer: the outermost first,
then the outermost of the rest, and so on. Within a layer starts and ends rise together, and the ranges that contain
a stretch of time are neighbours, found by two searches. What a range of a deeper layer contains, one of every layer
above contains, too; so what no range of a layer contains need not be looked for further down.

Ranges that a program forgot to close all end together, at the end of all others, and each contains all that start
after it: thousands of layers of one range each. They are a chain of their own (:class:`Nest`), searched by start alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.shared.lookup import gathered
from kanalyze.analyses.shared.statistics import longest
from kanalyze.frames import count_up_to

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Layer(NamedTuple):
    """Ranges of which none contains another, sorted by start and by end alike.

    Attributes:
        start: When each starts.
        end: When each ends.
        at: Which each is: its place among all ranges.
    """

    start: pl.Series
    end: pl.Series
    at: pl.Series


class Nest(NamedTuple):
    """How the ranges of one thread lie in each other.

    Attributes:
        chain: Those that end when the last one ends, if there are several: each contains all after it.
        layers: The others, the outermost first.
    """

    chain: Layer
    layers: list[Layer]


def outermost_first(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges of one thread (start, end, row) in the order that this module needs: what contains another before it."""
    return ranges.sort("start", "end", "row", descending=[False, True, False])


def nest(ranges: pl.DataFrame) -> Nest:
    """The chain and the layers of `ranges` (start, end; as :func:`outermost_first` sorts them).

    Of ranges that start and end together the one that stands first contains the others. Every range of a layer but
    the first is contained in one of the layer above.
    """
    line = ranges.select("start", "end").with_row_index("at")
    last = line.select((pl.col("end") == pl.col("end").max()) & pl.lit(ranges.height > 1)).to_series()
    last = last & (last.sum() > 1)
    chain = line.filter(last)
    rises = pl.col("end") > pl.col("end").cum_max().shift(1)
    return Nest(_layer(chain), _layers(line.filter(~last), rises, strict=True))


def flat_layers(ranges: pl.DataFrame) -> list[Layer]:
    """The layers of `ranges` (start, end; as :func:`outermost_first` sorts them); those of one end may share one.

    They do for :func:`innermost`, which asks only for the last of those that contain something.
    """
    line = ranges.select("start", "end").with_row_index("at")
    return _layers(line, pl.col("end") >= pl.col("end").cum_max().shift(1), strict=False)


def _layers(rest: pl.DataFrame, outermost: pl.Expr, *, strict: bool) -> list[Layer]:
    found: list[Layer] = []
    while rest.height and len(found) < DEEP:
        own = rest.select(outermost.fill_null(value=True)).to_series()
        found.append(_layer(rest.filter(own)))
        rest = rest.filter(~own)
    if rest.height:
        numbers = pl.Series("layer", layer_numbers(rest.get_column("end").to_list(), strict=strict))
        found += map(_layer, rest.with_columns(numbers).partition_by("layer", maintain_order=True))
    return found


def _layer(rows: pl.DataFrame) -> Layer:
    return Layer(rows.get_column("start"), rows.get_column("end"), rows.get_column("at"))


def chained(chain: Layer, stretches: pl.DataFrame) -> pl.Series:
    """How many of a chain's ranges contain each stretch of time (since, until): the first so many of them."""
    if chain.start.is_empty():
        return pl.zeros(stretches.height, dtype=pl.UInt32, eager=True)
    begun = count_up_to(chain.start, stretches.get_column("since"), equal=True)
    return begun.set(stretches.get_column("until") > chain.end.item(0), 0)


def containing(found: list[Layer], stretches: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, pl.Series]]:
    """Every stretch of time with every range that contains it, both ends included.

    `stretches` has the columns `since` and `until`, and any others. Each step gives some of its rows, in their order,
    and for each row the place of the range around it; no row stands twice in one step, and the rows of one range are
    all in the same step.
    """
    for layer in found:
        begun = count_up_to(layer.start, stretches.get_column("since"), equal=True)
        over = count_up_to(layer.end, stretches.get_column("until"), equal=False)
        inside = over < begun
        stretches, over, begun = stretches.filter(inside), over.filter(inside), begun.filter(inside)
        if stretches.is_empty():
            return
        most = longest(pl.DataFrame({"ranges": begun - over}), "ranges")
        for lane in range(most):
            # every so many places a range of this lane: one of them, at most, is around any stretch
            place = over + (lane + most - over % most) % most
            around = place < begun
            yield stretches.filter(around), layer.at.gather(place.filter(around))


def parents(found: Nest, ranges: pl.DataFrame) -> pl.DataFrame:
    """What encloses each of `ranges` (start, end; as :func:`nest` took them): columns at, parent, level.

    The parent is the shortest range that contains it, of equals the one that started last, then the one that stands
    last; null for a range in no other. The level counts the ranges from there outwards, parent by parent.
    """
    if len(found.layers) >= DEEP:
        told = enclosing(ranges.get_column("start").to_list(), ranges.get_column("end").to_list())
        if told is not None:
            kinds = {"parent": pl.UInt32, "level": pl.Int64}
            return pl.DataFrame(dict(zip(kinds, told, strict=True)), schema=kinds).with_row_index("at")
    lengths = ranges.select(length=pl.col("end") - pl.col("start")).with_row_index("at")
    tightest = lengths.sort("length", "at", descending=[False, True]).get_column("at")
    places = lengths.get_column("at")
    rank = places.scatter(tightest, places)
    chain = found.chain.at
    # of the chain the last one that contains it is the tightest; its own ranges are in nothing else
    before = chained(found.chain, ranges.select(since="start", until="end")).cast(pl.Int64)
    before = before.scatter(chain, pl.int_range(len(chain), eager=True)) - 1
    best = gathered(rank.gather(chain), before.set(before < 0, None))
    for inner, outer in containing(found.layers, ranges.select(since="start", until="end").with_row_index("at")):
        own = inner.get_column("at")
        others = outer < own  # what contains a range stands before it; the range itself, and its later equals, do not
        own, around = own.filter(others), outer.filter(others)
        closer = pl.select(pl.min_horizontal(best.gather(own), rank.gather(around))).to_series()
        best = best.scatter(own, closer)
    parent = tightest.gather(best)
    level = pl.zeros(ranges.height, dtype=pl.Int64, eager=True)
    level = level.scatter(chain, pl.int_range(len(chain), eager=True))
    for layer in found.layers:
        level = level.scatter(layer.at, (level.gather(parent.gather(layer.at)) + 1).fill_null(0))
    return pl.DataFrame({"at": places, "parent": parent, "level": level})


def held(found: list[Layer], stretches: pl.DataFrame) -> pl.Series | None:
    """What :func:`innermost` gives of the ranges of all layers, in one pass; None where ranges cross."""
    starts, ends, at = (pl.concat([getattr(layer, name) for layer in found]) for name in Layer._fields)
    line = pl.DataFrame([starts, ends, at]).sort("at")
    ranges, asked = (line.get_column(name).to_list() for name in ("start", "end")), ("since", "until")
    places = holding(*ranges, *(stretches.get_column(name).to_list() for name in asked))
    return None if places is None else gathered(line.get_column("at"), pl.Series(places, dtype=pl.UInt32)).alias("at")


def innermost(found: list[Layer], stretches: pl.DataFrame) -> pl.Series:
    """For each stretch of time (since, until), the place of the range around it that started last; null for none.

    Of those that started together it is the shorter one, then the one that stands last.
    """
    if len(found) >= DEEP and (told := held(found, stretches)) is not None:
        return told
    left = stretches.select("since", "until").with_row_index("row")
    best = pl.Series("at", [None], dtype=pl.UInt32).new_from_index(0, stretches.height)
    for layer in found:
        begun = layer.start.search_sorted(left.get_column("since"), side="right")
        over = layer.end.search_sorted(left.get_column("until"), side="left")
        inside = over < begun
        left, begun = left.filter(inside), begun.filter(inside)
        if left.is_empty():
            break
        rows, latest = left.get_column("row"), layer.at.gather(begun - 1)
        best = best.scatter(rows, pl.select(pl.max_horizontal(best.gather(rows), latest)).to_series())
    return best


# Ranges nested hundreds deep, which made-up or damaged reports have, and programs that recurse.
#
# Layer by layer the work grows with the depth times what lies inside. Here one pass goes along ranges and stretches of
# time with a stack, in Python: slower for what is usual, and linear for any depth. Ranges that cross have no stack; for
# those the functions give None, and layers are left.

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
