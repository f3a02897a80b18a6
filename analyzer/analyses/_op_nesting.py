"""How the host events of one thread lie in each other, by the rule of torch's own profiler.

A thread's events are looked at by start, of those that start together the longer one first. Each takes from the top of
a stack what ends before it starts, when it starts, or before it ends; what is then on top contains it. So of two events
that overlap in part the later one contains what follows, and an event that has no duration contains nothing
(torch.autograd.profiler_util, EventList._populate_cpu_children).

Said without a stack: an event is taken off by the first later one that starts at its end or after it, or ends after its
end. Nearly always the first half is enough, and is one search; where events overlap in part, the second is needed, too.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Later than any time of any trace.
_AFTER_ALL: Final = (1 << 63) - 1

_PLACE: Final = pl.Int64


def nested(start: pl.Series, end: pl.Series) -> pl.DataFrame:
    """What contains each of a thread's events, which are sorted by start, then by end, the longest first.

    Returns:
        parent (the place of the innermost one around it; null for none), stop (the place of the first one after it that
        is not in it: what is in it stands between the two) and depth (how many there are around it).
    """
    places = pl.int_range(len(start), dtype=_PLACE, eager=True)
    stop = _larger(start.search_sorted(end, side="left").cast(_PLACE), places + 1)
    tree = _tree(stop, places)
    around = end.gather(tree.get_column("parent"))
    if not (end > around).any():
        return tree
    containing = places.filter(stop > places + 1)
    later = -next_greater(end, containing)
    return _tree(stop.scatter(containing, -_larger(-stop.gather(containing), later)), places)


def _larger(left: pl.Series, right: pl.Series) -> pl.Series:
    return left.zip_with(left > right, right)


def _tree(stop: pl.Series, places: pl.Series) -> pl.DataFrame:
    """The tree of events that each end before `stop`: an event is in all earlier ones whose stop is after it."""
    depth = places - stop.sort().search_sorted(places, side="right").cast(_PLACE)
    count = len(places)
    ordered = (depth * count + places).sort()
    levels = [part % count for part in _cut(ordered, ordered // max(count, 1))]
    parents = [pl.Series([None], dtype=_PLACE).new_from_index(0, len(level)) for level in levels[:1]]
    for outer, level in pairwise(levels):
        parents.append(outer.gather(outer.search_sorted(level, side="left") - 1))
    empty = pl.Series(dtype=_PLACE)
    parent = pl.concat([empty, *parents]).gather(pl.concat([empty, *levels]).arg_sort())
    return pl.DataFrame({"parent": parent, "stop": stop, "depth": depth})


def _cut(values: pl.Series, group: pl.Series) -> Sequence[pl.Series]:
    """The parts of `values` that have the same number in `group`, which rises."""
    lengths = group.rle().struct.field("len").to_list() if len(group) else []
    found, begin = [], 0
    for length in lengths:
        found.append(values.slice(begin, length))
        begin += length
    return found


def next_greater(values: pl.Series, rows: pl.Series) -> pl.Series:
    """For each of `rows` the place of the first later value that is greater; how many there are where none is.

    Goes up and down a tree of the maxima of blocks of 1, 2, 4… values, with all that still look at once.
    """
    levels = _maxima(values)
    looking = pl.DataFrame({"row": rows, "value": values.gather(rows), "at": rows + 1})
    stopped: list[pl.DataFrame] = []
    for height, level in enumerate(levels):
        at = looking.get_column("at")
        odd = at // (1 << height) % 2 == 1
        greater = level.gather(at // (1 << height)) > looking.get_column("value")
        stopped.append(looking.filter(odd & greater))
        looking = looking.with_columns(at + (odd & ~greater).cast(_PLACE) * (1 << height)).filter(~(odd & greater))
        if looking.is_empty():
            break
    found = looking
    for height in reversed(range(len(stopped))):
        if height + 1 < len(stopped):
            at = found.get_column("at")
            smaller = levels[height].gather(at // (1 << height)) <= found.get_column("value")
            found = found.with_columns(at + smaller.cast(_PLACE) * (1 << height))
        found = pl.concat([found, stopped[height]])
    return found.sort("row").get_column("at")


def _maxima(values: pl.Series) -> list[pl.Series]:
    """The values, one greater than all after them, and the maxima of blocks of 2, 4… of them up to all."""
    padding = (1 << len(values).bit_length()) - len(values)
    levels = [pl.concat([values, pl.Series([_AFTER_ALL], dtype=values.dtype).new_from_index(0, padding)])]
    while len(levels[-1]) > 1:
        left, right = levels[-1].gather_every(2), levels[-1].gather_every(2, 1)
        levels.append(_larger(left, right))
    return levels
