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

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from kanalyze.analyses.shared.deep_nesting import DEEP, enclosing, holding, layer_numbers
from kanalyze.analyses.shared.lookup import gathered
from kanalyze.analyses.shared.statistics import longest
from kanalyze.frames import count_up_to

if TYPE_CHECKING:
    from collections.abc import Iterator


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
