"""Events of host threads: their call tree and timelines."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from kanalyze.columns import count_up_to, gathered, nearest_place, parts_by, sure
from kanalyze.intervals import AFTER_ALL, BEFORE_ALL

#: Key columns of a host thread, and the type of its values.
THREAD: Final = ("process_id", "thread_id")
ThreadKey = tuple[int | None, int | None]


def of_thread(key: ThreadKey) -> pl.Expr:
    """Whether a row is of a thread; null counts as a number."""
    return pl.all_horizontal(pl.col(name).eq_missing(value) for name, value in key_columns(key).items())


def outermost(ranges: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """The ranges (`keys` or :data:`THREAD`, start, end) in no other one of the same keys, sorted by these and start."""
    keys = keys or THREAD
    line = ranges.sort(*keys, "start", "end", descending=[*(False for _ in keys), False, True])
    reached = pl.col("end").cum_max().shift(1).over(keys)
    return line.filter((pl.col("start") >= reached).fill_null(value=True))


def on_line(line: pl.DataFrame, at: pl.Series) -> pl.Series:
    """The row of the interval of a timeline (:data:`LINE`) that contains each point; null for none, and for null."""
    place = nearest_place(line.get_column("start"), at)
    inside = sure(gathered(line.get_column("end"), place) > at)
    return gathered(line.get_column("row"), place.set(~inside, None))


def line_of(lines: Mapping[ThreadKey, pl.DataFrame], key: ThreadKey) -> pl.DataFrame:
    """The timeline of a thread, if there is one: :data:`LINE`."""
    return lines.get(key, pl.DataFrame(schema=LINE))


def joined_up(line: pl.DataFrame, value: str) -> pl.DataFrame:
    """A timeline (start, end, `value`, any others; sorted, disjoint) with intervals that adjoin as one, by value."""
    goes_on = pl.col(value).eq_missing(pl.col(value).shift(1)) & (pl.col("start") == pl.col("end").shift(1))
    begins = line.select(~goes_on.fill_null(value=False)).to_series()
    return line.filter(begins).with_columns(line.get_column("end").filter(begins.shift(-1, fill_value=True)))


#: Schema of a timeline: disjoint intervals, each with a row number of another table.
LINE: Final = {"start": pl.Int64, "end": pl.Int64, "row": pl.UInt32}


def key_columns(key: Sequence[object]) -> dict[str, pl.Expr]:
    """The columns :data:`THREAD` of what is of one thread."""
    return {name: pl.lit(value, dtype=pl.Int64) for name, value in zip(THREAD, key, strict=True)}


def by_thread(events: pl.DataFrame) -> dict[ThreadKey, pl.DataFrame]:
    """The rows of each thread in `events` (:data:`THREAD`, any others), in their order, the threads sorted by key."""
    return {(key[0], key[1]): own for key, own in parts_by(events, THREAD).items()}


# Call tree of the host events of one thread, by the rule of torch's own profiler; and timelines cut by others.
#
# Events are processed by start, of equal starts the longer one first. Each pops from a stack all events that end no
# later than it starts, or before it ends; the event then on top is its parent. So of two events that overlap in part
# the later one contains what follows, and an event without duration contains nothing (torch.autograd.profiler_util,
# EventList._populate_cpu_children).
#
# Vectorised: an event is popped by the first later one that starts at or after its end, or that ends after it. The
# first condition is one binary search, and nearly always enough; the second is needed where events overlap in part.

_PLACE: Final = pl.Int64


def nested(start: pl.Series, end: pl.Series) -> pl.DataFrame:
    """Call tree of the events of a thread, which are sorted by start, then by end, the longest first.

    Columns: parent (index of the innermost enclosing event; null for none), stop (index of the first later event
    outside of it; all between are its descendants) and inner_ns (summed duration of its children).
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
    """Builds the tree from `stop`: an event is a descendant of all earlier ones whose stop is after it.

    Sorted by depth, then by index, siblings are adjacent, and the index of the first one follows that of its parent.
    """
    count = len(stop)
    places = pl.int_range(count, dtype=_PLACE, eager=True)
    containing = stop > places + 1
    first = containing.shift(1, fill_value=False)
    # how many stop at or before each place
    runs = stop.filter(containing & (stop < count)).sort().rle().struct.unnest()
    stopped = pl.zeros(count, dtype=_PLACE, eager=True).scatter(runs.get_column("value"), runs.get_column("len"))
    depth = first.cast(_PLACE).cum_sum() - stopped.cum_sum()
    order = (depth * count + places).sort() % max(count, 1)
    firsts = first.gather(order).arg_true()
    parents = order.gather(firsts) - 1
    above = places.clear(count).scatter(firsts, parents).forward_fill()
    elapsed_ns = durations.gather(order).cum_sum()
    before = elapsed_ns.gather(firsts) - durations.gather(order.gather(firsts))
    inner = before.shift(-1, fill_value=int(elapsed_ns[-1]) if count else 0) - before
    return pl.DataFrame(
        {
            "parent": places.clear(count).scatter(order, above),
            "stop": stop,
            "inner_ns": pl.zeros(count, dtype=pl.Int64, eager=True).scatter(parents, inner),
        }
    )


def next_greater(values: pl.Series, rows: pl.Series) -> pl.Series:
    """Index of the next value after each of `rows` that is greater; their number for none.

    Vectorised search, up and down, in a segment tree of maxima of blocks of 1, 2, 4… values.
    """
    # the values padded with a sentinel, then blocks of 2, 4… up to all
    padding = (1 << len(values).bit_length()) - len(values)
    # greater than any time of any trace
    levels = [pl.concat([values, pl.Series([(1 << 63) - 1], dtype=values.dtype).new_from_index(0, padding)])]
    while len(levels[-1]) > 1:
        left, right = levels[-1].gather_every(2), levels[-1].gather_every(2, 1)
        levels.append(left.zip_with(left > right, right))
    looking = pl.DataFrame({"value": values.gather(rows), "at": rows + 1}).with_row_index("query")
    stopped: list[pl.DataFrame] = []
    for height, level in enumerate(levels):
        at = looking.get_column("at")
        odd = at // (1 << height) % 2 == 1
        greater = level.gather(at // (1 << height)) > looking.get_column("value")
        stopped.append(looking.filter(odd & greater))
        looking = looking.with_columns(at + (odd & ~greater).cast(_PLACE) * (1 << height)).filter(~(odd & greater))
        if looking.is_empty():
            break
    queries = looking
    for height in reversed(range(len(stopped))):
        if height + 1 < len(stopped):
            at = queries.get_column("at")
            smaller = levels[height].gather(at // (1 << height)) <= queries.get_column("value")
            queries = queries.with_columns(at + smaller.cast(_PLACE) * (1 << height))
        queries = pl.concat([queries, stopped[height]])
    return queries.sort("query").get_column("at")


def innermost_lines(events: pl.DataFrame) -> dict[ThreadKey, pl.DataFrame]:
    """The :func:`innermost_line` of each thread in `events` (process_id, thread_id, start, end, row) that has one."""
    lines = {key: innermost_line(own) for key, own in by_thread(events).items()}
    return {key: line for key, line in lines.items() if line.height}


def lines_near(events: pl.DataFrame, spans: pl.DataFrame) -> dict[ThreadKey, pl.DataFrame]:
    """The :func:`innermost_lines` of those `events` that overlap any of `spans`; their rows are places in `events`."""
    return innermost_lines(events.with_row_index("row").filter(touched(events, spans)))


def innermost_line(events: pl.DataFrame) -> pl.DataFrame:
    """Timeline of the innermost of a thread's `events` (start, end, row): start, end, row; sorted, disjoint.

    An instant belongs to the covering event that started last, then to the one that ends first, then to the last row.
    Two intervals of one event may touch.
    """
    real = events.filter(pl.col("end") > pl.col("start")).sort(
        "start", "end", descending=[False, True], maintain_order=True
    )
    start, end, rows = (real.get_column(name) for name in ("start", "end", "row"))
    tree = nested(start, end)
    after = tree.get_column("stop")
    # at the end of an event its parent becomes the innermost, unless a later event outlasts it
    begins_after = start.gather(after.set(after == len(start), None))
    ending = ~(begins_after < end).fill_null(value=False)
    places = pl.int_range(len(start), dtype=pl.Int64, eager=True)
    ends = pl.DataFrame({"at": end, "place": tree.get_column("parent")}).filter(ending).reverse()
    # of edges at one time the last counts: first ends, innermost first, then starts, outermost first
    edges = pl.concat([ends, pl.DataFrame({"at": start, "place": places})]).sort("at", maintain_order=True)
    last = edges.filter((pl.col("at") != pl.col("at").shift(-1)).fill_null(value=True))
    spans = last.select(start="at", end=pl.col("at").shift(-1), place="place").drop_nulls()
    return spans.select("start", "end", row=rows.gather(spans.get_column("place")))


def overlaid(pieces: pl.DataFrame, spans: pl.DataFrame, value: str) -> pl.DataFrame:
    """Splits `pieces` at the edges of `spans`; adds the column `value` of the span around each part, null for none.

    Both (start, end) are sorted and disjoint; the parts are sorted by start and keep the columns of `pieces`.
    """
    if spans.is_empty() or pieces.is_empty():
        return pieces.with_columns(pl.lit(None, dtype=spans.schema[value]).alias(value))
    spans = spans.slice(bisect_right(spans.get_column("end"), pieces.item(0, "start")))  # those before touch nothing
    spans = spans.head(bisect_left(spans.get_column("start"), pieces.item(-1, "end")))
    values = spans.get_column(value)
    edges = spans.select(pl.concat_arr("start", "end")).to_series().explode()  # sorted, as spans are
    # elementary intervals are numbered by their first edge, from 1 on: odd ones are inside a span, even ones between
    first = count_up_to(edges, pieces.get_column("start"), equal=True)
    last = count_up_to(edges, pieces.get_column("end"), equal=False)
    last = last.zip_with(last > first, first)
    parts, between = pieces, first
    if (last > first).any():
        touched_by = pl.DataFrame([first.alias("first"), last.alias("last")]).with_row_index("row")
        every = touched_by.select("row", at=pl.int_ranges("first", pl.col("last") + 1, dtype=pl.UInt32)).explode("at")
        parts, between = pieces[every.get_column("row")], every.get_column("at")
    sides = pl.Series([BEFORE_ALL], dtype=pl.Int64).extend(edges).extend(pl.Series([AFTER_ALL], dtype=pl.Int64))
    inside = values[((between - 1) // 2).set((between & 1) == 0, None)]
    cut = parts.with_columns(
        pl.max_horizontal("start", sides[between].alias("begin")).alias("start"),
        pl.min_horizontal("end", sides[between + 1].alias("stop")).alias("end"),
        inside.alias(value),
    )
    return cut.filter(cut.get_column("end") > cut.get_column("start"))


def touched(pieces: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Whether each of `pieces` overlaps any of `spans`, which are sorted, disjoint and longer than 0."""
    begun = count_up_to(spans.get_column("start"), pieces.get_column("end"), equal=False)
    return begun > count_up_to(spans.get_column("end"), pieces.get_column("start"), equal=True)
