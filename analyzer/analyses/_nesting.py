"""Which ranges of one thread contain what: also where they overlap without nesting, as start/end ranges may.

Nothing here assumes a stack. Push/pop ranges of one domain nest, but those of two domains, and start/end ranges, may
cross. So a thread's ranges are cut into layers, of which none contains another of its own layer: the outermost first,
then the outermost of the rest, and so on. Within a layer starts and ends rise together, and the ranges that contain
a stretch of time are neighbours, found by two searches. What a range of a deeper layer contains, one of every layer
above contains, too; so what no range of a layer contains need not be looked for further down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kanalyze.analyses._common import longest

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Layer:
    """Ranges of which none contains another, sorted by start and by end alike.

    Attributes:
        start: When each starts.
        end: When each ends.
        at: Which each is: its place in the frame that :func:`layers` was given.
    """

    start: pl.Series
    end: pl.Series
    at: pl.Series


def outermost_first(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges of one thread (start, end, row) in the order that this module needs: what contains another before it."""
    return ranges.sort("start", "end", "row", descending=[False, True, False])


def layers(ranges: pl.DataFrame) -> list[Layer]:
    """The layers of `ranges` (start, end; as :func:`outermost_first` sorts them), the outermost first.

    Of ranges that start and end together the one that stands first contains the others. Every range of a layer but
    the first is contained in one of the layer above.
    """
    rest, found = ranges.select("start", "end").with_row_index("at"), []
    while rest.height:
        end = rest.get_column("end")
        outermost = (end > end.cum_max().shift(1)).fill_null(value=True)
        layer = rest.filter(outermost)
        found.append(Layer(layer.get_column("start"), layer.get_column("end"), layer.get_column("at")))
        rest = rest.filter(~outermost)
    return found


def containing(found: list[Layer], stretches: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, pl.Series]]:
    """Every stretch of time with every range that contains it, both ends included.

    `stretches` has the columns `since` and `until`, and any others. Each step gives some of its rows, in their order,
    and for each row the place of the range around it; no row stands twice in one step, and the rows of one range are
    all in the same step.
    """
    for layer in found:
        begun = layer.start.search_sorted(stretches.get_column("since"), side="right")
        over = layer.end.search_sorted(stretches.get_column("until"), side="left")
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


def parents(found: list[Layer], ranges: pl.DataFrame) -> pl.DataFrame:
    """What encloses each of `ranges` (start, end; as :func:`layers` took them): columns at, parent, level.

    The parent is the shortest range that contains it, of equals the one that started last, then the one that stands
    last; null for a range in no other. The level counts the ranges from there outwards, parent by parent.
    """
    lengths = ranges.select(length=pl.col("end") - pl.col("start")).with_row_index("at")
    tightest = lengths.sort("length", "at", descending=[False, True]).get_column("at")
    places = lengths.get_column("at")
    rank = places.scatter(tightest, places)
    best = places.clear(ranges.height)
    for inner, outer in containing(found, ranges.select(since="start", until="end").with_row_index("at")):
        own = inner.get_column("at")
        others = outer < own  # what contains a range stands before it; the range itself, and its later equals, do not
        own, around = own.filter(others), outer.filter(others)
        closer = pl.select(pl.min_horizontal(best.gather(own), rank.gather(around))).to_series()
        best = best.scatter(own, closer)
    parent = tightest.gather(best)
    level = pl.zeros(ranges.height, dtype=pl.Int64, eager=True)
    for layer in found[1:]:
        level = level.scatter(layer.at, level.gather(parent.gather(layer.at)) + 1)
    return pl.DataFrame({"at": places, "parent": parent, "level": level})


def innermost(found: list[Layer], stretches: pl.DataFrame) -> pl.Series:
    """For each stretch of time (since, until), the place of the range around it that started last; null for none.

    Of those that started together it is the shorter one, then the one that stands last.
    """
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
