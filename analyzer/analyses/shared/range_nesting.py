"""Containment of intervals in the ranges of one thread, which may also cross, as start/end ranges do.

Nothing here assumes a stack. Push/pop ranges of one domain nest, but those of two domains, and start/end ranges, may
cross. So the ranges of a thread are split into layers, in which no range contains another one of the same layer: the
outermost ranges first, then the outermost of the rest, and so on. Within a layer starts and ends increase together, so
the ranges that contain an interval are adjacent, and two binary searches find them. An interval inside a range of a
deeper layer is also inside a range of every layer above; so the search stops at the first layer without a match.

Ranges that a program forgot to close all end together, after all others, and each contains all that start after it:
thousands of layers of one range each. They form a chain of their own (:class:`Nest`), searched by start alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.shared.statistics import longest
from kanalyze.columns.lookup import count_up_to, gathered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Layer(NamedTuple):
    """Ranges of which none contains another, sorted by start and by end alike.

    Attributes:
        start: When each starts.
        end: When each ends.
        at: Index of each among all ranges.
    """

    start: pl.Series
    end: pl.Series
    at: pl.Series


class Nest(NamedTuple):
    """The ranges of one thread as layers by nesting.

    Attributes:
        chain: Ranges that share the latest end, if there are several: each contains all after it.
        layers: The other ranges, the outermost layer first.
    """

    chain: Layer
    layers: list[Layer]


def outermost_first(ranges: pl.DataFrame) -> pl.DataFrame:
    """Sorts ranges of one thread (start, end, row) so that a range comes before all that it contains."""
    return ranges.sort("start", "end", "row", descending=[False, True, False])


def nest(ranges: pl.DataFrame) -> Nest:
    """Splits `ranges` (start, end; sorted by :func:`outermost_first`) into chain and layers.

    Of ranges with equal start and end, the first row contains the others. Every range below the first layer is
    contained in one of the layer above.
    """
    line = ranges.select("start", "end").with_row_index("at")
    last = line.select((pl.col("end") == pl.col("end").max()) & pl.lit(ranges.height > 1)).to_series()
    last = last & (last.sum() > 1)
    chain = line.filter(last)
    rises = pl.col("end") > pl.col("end").cum_max().shift(1)
    return Nest(_layer(chain), _layers(line.filter(~last), rises, strict=True))


def flat_layers(ranges: pl.DataFrame) -> list[Layer]:
    """Splits `ranges` (start, end; sorted by :func:`outermost_first`) into layers; equal ends may share a layer.

    Enough for :func:`innermost`, which needs only the last range of a layer that contains an interval.
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
    """Number of ranges of a chain that contain each interval (since, until), counted from its first range."""
    if chain.start.is_empty():
        return pl.zeros(stretches.height, dtype=pl.UInt32, eager=True)
    begun = count_up_to(chain.start, stretches.get_column("since"), equal=True)
    return begun.set(stretches.get_column("until") > chain.end.item(0), 0)


def containing(found: list[Layer], stretches: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, pl.Series]]:
    """Pairs of interval and containing range, both ends included, batch by batch.

    `stretches` has the columns since and until, and any others. Each batch has some of its rows, in order, and the
    index of a containing range for each; a row occurs at most once per batch, and all rows of one range are in the same
    batch.
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
            # ranges whose index is equal to `lane` modulo `most`: at most one of them contains an interval
            place = over + (lane + most - over % most) % most
            around = place < begun
            yield stretches.filter(around), layer.at.gather(place.filter(around))


def parents(found: Nest, ranges: pl.DataFrame) -> pl.DataFrame:
    """Parent and depth of each of `ranges` (start, end; as given to :func:`nest`): at, parent, level.

    The parent is the shortest containing range, then the one that started last, then the last row; null for outermost
    ranges. The level is the number of ancestors.
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
    # the last containing range of the chain is the shortest; ranges of the chain lie only within the chain
    before = chained(found.chain, ranges.select(since="start", until="end")).cast(pl.Int64)
    before = before.scatter(chain, pl.int_range(len(chain), eager=True)) - 1
    best = gathered(rank.gather(chain), before.set(before < 0, None))
    for inner, outer in containing(found.layers, ranges.select(since="start", until="end").with_row_index("at")):
        own = inner.get_column("at")
        others = outer < own  # a containing range has a lower index; drops the range itself, and equal ranges after it
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
    """The :func:`innermost` ranges in one pass with a stack; None where ranges cross."""
    starts, ends, at = (pl.concat([getattr(layer, name) for layer in found]) for name in Layer._fields)
    line = pl.DataFrame([starts, ends, at]).sort("at")
    ranges, asked = (line.get_column(name).to_list() for name in ("start", "end")), ("since", "until")
    places = holding(*ranges, *(stretches.get_column(name).to_list() for name in asked))
    return None if places is None else gathered(line.get_column("at"), pl.Series(places, dtype=pl.UInt32)).alias("at")


def innermost(found: list[Layer], stretches: pl.DataFrame) -> pl.Series:
    """Index of the innermost range that contains each interval (since, until); null for none.

    Innermost is the one that started last, then the shorter one, then the last row.
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


# Ranges nested hundreds deep, as in recursive programs and in synthetic or damaged reports.
#
# The layers above cost depth times number of intervals. The functions below make one pass over ranges and intervals
# with a stack, in Python: slower in the usual case, linear for any depth. Ranges that cross form no stack; then the
# functions give None, and the caller falls back to layers.

#: From so many layers on one pass costs less: it takes a microsecond per interval, a layer some nanoseconds.
DEEP: Final = 256


def layer_numbers(ends: Sequence[int], *, strict: bool) -> list[int]:
    """Layer number of each range, given the ends in the order of :func:`outermost_first`.

    The ends of a layer increase, strictly or not: a range belongs to the first layer that its end continues.
    """
    tops: list[int] = []  # negated last end of each layer, in ascending order for bisect
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
    """Stack of the ranges open at a moment that only advances, the outermost first."""

    def __init__(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        self._starts, self._ends = starts, ends
        self._next = 0
        self.places: list[int] = []
        self._minus_ends: list[int] = []
        self._touching: int | None = None

    def go_to(self, moment: int) -> Iterator[int]:
        """Advances to a moment, and yields each range that starts up to it as it is pushed.

        Raises:
            ValueError: Ranges cross.
        """
        while self._next < len(self._starts) and self._starts[self._next] <= moment:
            place = self._next
            self._leave(self._starts[place])
            while self.places and self._ends[self.places[-1]] < self._ends[place]:
                if self._ends[self.places[-1]] > self._starts[place]:
                    raise ValueError
                self._touching = self._starts[place]  # a range ends where this one starts
                self._drop()
            if self._touching == self._ends[place]:
                raise ValueError  # a range already popped may contain it
            self._next += 1
            yield place
            self.places.append(place)
            self._minus_ends.append(-self._ends[place])
        self._leave(moment)

    def around(self, since: int, until: int) -> int | None:
        """Index of the innermost range that contains ``[since, until]``; `since` is the current moment. None for none.

        Raises:
            ValueError: The interval is a moment at which one range ends and another starts.
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
    """Parent and depth of each range (sorted by :func:`outermost_first`); None where ranges cross."""
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
    """Index of the innermost range that contains each interval (since, until); None where ranges cross."""
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
    """Mutable union of intervals: sorted, disjoint, with its total length `ns`."""

    def __init__(self) -> None:
        """Starts empty."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.ns = 0

    def __len__(self) -> int:
        """Number of disjoint intervals."""
        return len(self._starts)

    def add(self, start: int, end: int) -> None:
        """Adds an interval to the union."""
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
            self.ns -= sum(self._ends[first:last]) - sum(self._starts[first:last])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        self.ns += end - start

    def united(self, other: Spans) -> Spans:
        """Merges the smaller union into the larger one, in place, and gives that."""
        large, small = (self, other) if len(self) >= len(other) else (other, self)
        for start, end in small.all():
            large.add(start, end)
        return large

    def all(self) -> list[tuple[int, int]]:
        """The disjoint intervals as (start, end)."""
        return list(zip(self._starts, self._ends, strict=True))


class Sums(NamedTuple):
    """Operations in a range: its index, first start, last end, busy time (ns), and numbers of calls and operations."""

    place: int
    start: int
    end: int
    busy: int
    calls: int
    operations: int


def sums_in(
    parents: Sequence[int | None], own: Sequence[int | None], work: Sequence[tuple[int, int, bool]]
) -> Iterator[Sums]:
    """Sums of the operations in each range, nested ranges included; ranges without operations are left out.

    `parents` has the parent of each range (outermost first), `work` the operations (start, end, whether it is the first
    of its call), and `own` the innermost range of each operation.
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
