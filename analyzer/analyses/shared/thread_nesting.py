"""How the host events of one thread lie in each other, by the rule of torch's own profiler.

A thread's events are looked at by start, of those that start together the longer one first. Each takes from the top of
a stack what ends before it starts, when it starts, or before it ends; what is then on top contains it. So of two events
that overlap in part the later one contains what follows, and an event that has no duration contains nothing
(torch.autograd.profiler_util, EventList._populate_cpu_children).

Said without a stack: an event is taken off by the first later one that starts at its end or after it, or ends after its
end. Nearly always the first half is enough, and is one search; where events overlap in part, the second is needed, too.
"""

from __future__ import annotations

from typing import Final

import polars as pl

#: Later than any time of any trace.
_AFTER_ALL: Final = (1 << 63) - 1

_PLACE: Final = pl.Int64


def nested(start: pl.Series, end: pl.Series) -> pl.DataFrame:
    """What contains each of a thread's events, which are sorted by start, then by end, the longest first.

    Returns:
        parent (the place of the innermost one around it; null for none), stop (the place of the first one after it that
        is not in it: what is in it stands between the two) and inner_ns (the durations, summed, of those that it is the
        parent of).
    """
    places = pl.int_range(len(start), dtype=_PLACE, eager=True)
    inside = (start.shift(-1) < end).fill_null(value=False).arg_true()
    stop = (places + 1).scatter(inside, start.search_sorted(end.gather(inside), side="left").cast(_PLACE))
    tree = _tree(stop, end - start)
    if not (end > end.gather(tree.get_column("parent"))).any():
        return tree
    containing = (stop > places + 1).arg_true().cast(_PLACE)
    later = next_greater(end, containing)
    known = stop.gather(containing)
    return _tree(stop.scatter(containing, known.zip_with(known < later, later)), end - start)


def _tree(stop: pl.Series, durations: pl.Series) -> pl.DataFrame:
    """The tree of events that each end before `stop`: an event is in all earlier ones whose stop is after it.

    By depth, then by place, events with the same parent stand together, and the first of them right behind it in place.
    """
    count = len(stop)
    places = pl.int_range(count, dtype=_PLACE, eager=True)
    containing = stop > places + 1
    first = containing.shift(1, fill_value=False)
    depth = first.cast(_PLACE).cum_sum() - _up_to(stop.filter(containing).sort(), count)
    order = (depth * count + places).sort() % max(count, 1)
    firsts = first.gather(order).arg_true()
    parents = order.gather(firsts) - 1
    above = places.clear(count).scatter(firsts, parents).forward_fill()
    taken = durations.gather(order).cum_sum()
    before = taken.gather(firsts) - durations.gather(order.gather(firsts))
    inner = before.shift(-1, fill_value=int(taken[-1]) if count else 0) - before
    return pl.DataFrame(
        {
            "parent": places.clear(count).scatter(order, above),
            "stop": stop,
            "inner_ns": pl.zeros(count, dtype=pl.Int64, eager=True).scatter(parents, inner),
        }
    )


def _up_to(marks: pl.Series, count: int) -> pl.Series:
    """How many of `marks`, which are sorted, are at each of the places up to `count`, or before it."""
    runs = marks.filter(marks < count).rle().struct.unnest()
    at = pl.zeros(count, dtype=_PLACE, eager=True).scatter(runs.get_column("value"), runs.get_column("len"))
    return at.cum_sum()


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


def _larger(left: pl.Series, right: pl.Series) -> pl.Series:
    return left.zip_with(left > right, right)


def _maxima(values: pl.Series) -> list[pl.Series]:
    """The values, one greater than all after them, and the maxima of blocks of 2, 4… of them up to all."""
    padding = (1 << len(values).bit_length()) - len(values)
    levels = [pl.concat([values, pl.Series([_AFTER_ALL], dtype=values.dtype).new_from_index(0, padding)])]
    while len(levels[-1]) > 1:
        left, right = levels[-1].gather_every(2), levels[-1].gather_every(2, 1)
        levels.append(_larger(left, right))
    return levels


def innermost_line(events: pl.DataFrame) -> pl.DataFrame:
    """The spans in which one of a thread's `events` (start, end, row) is the innermost: start, end, row; sorted, apart.

    An instant belongs to the event that started last of those that cover it, of those that started together to the one
    that ends first, then to the one that stands last. Two spans of one event may touch.
    """
    real = events.filter(pl.col("end") > pl.col("start")).sort(
        "start", "end", descending=[False, True], maintain_order=True
    )
    start, end, rows = (real.get_column(name) for name in ("start", "end", "row"))
    tree = nested(start, end)
    after = tree.get_column("stop")
    # an event that a later one outlasts is not the innermost any more when it ends; of others, what is around goes on
    begins_after = start.gather(after.set(after == len(start), None))
    ending = ~(begins_after < end).fill_null(value=False)
    places = pl.int_range(len(start), dtype=pl.Int64, eager=True)
    ends = pl.DataFrame({"at": end, "place": tree.get_column("parent")}).filter(ending).reverse()
    # of what happens at one time the last counts: ends from the inside out, then beginnings from the outside in
    edges = pl.concat([ends, pl.DataFrame({"at": start, "place": places})]).sort("at", maintain_order=True)
    last = edges.filter((pl.col("at") != pl.col("at").shift(-1)).fill_null(value=True))
    spans = last.select(start="at", end=pl.col("at").shift(-1), place="place").drop_nulls()
    return spans.select("start", "end", row=rows.gather(spans.get_column("place")))
