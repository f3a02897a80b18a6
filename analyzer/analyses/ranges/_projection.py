"""Projects ranges onto the GPU: an operation belongs to the ranges around its launch, on the range's own thread.

As in nsys' projection of NVTX ranges, the launching call may start where the range starts and end where it ends, and a
range that another thread ended is excluded. nsys joins every range with every call; here each thread's ranges are split
once by nesting, and calls are looked up in that.

Nothing assumes a stack. Push/pop ranges of one domain nest, but those of two domains, and start/end ranges, may cross.
So the ranges of a thread are split into layers, in which no range contains another one of the same layer: the outermost
ranges first, then the outermost of the rest, and so on. Within a layer starts and ends increase together, so the ranges
that contain an interval are adjacent, and two binary searches find them. An interval inside a range of a deeper layer
is also inside a range of every layer above; so the search stops at the first layer without a match.

Layers cost depth times number of intervals. Ranges that nest hundreds deep without crossing, as in recursive programs
and in made reports, are a tree instead, in which the innermost range is one search, whatever the depth. So are those
that a program forgot to close: all end together, after all others, and each contains all that start after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import with_facts
from kanalyze.analyses.host._captures import capture_rows, capture_source, captures
from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.analyses.shared.statistics import longest
from kanalyze.analyses.shared.threads import THREAD, next_greater
from kanalyze.columns import count_up_to, gathered, in_order, parts_by, rows_at
from kanalyze.intervals import newly_covered
from kanalyze.report import Report

#: From so many layers on a tree costs less.
DEEP: Final = 256

#: Overlapping operations of a tree are cut into at most so many pieces each, in the mean.
_MOST_PIECES: Final = 64


class Layer(NamedTuple):
    """Ranges of which none contains another, sorted by start and by end alike; `at` is their index among all ranges."""

    at: pl.Series
    start: pl.Series
    end: pl.Series


class Tree(NamedTuple):
    """Ranges that do not cross, the outermost first; `at` is their index among all ranges.

    `stop` is the place of the first later range outside of each (all between are inside), `parent` that of the
    innermost range around it, null for none. `touching` are moments at which a range ends and one beside it starts.
    """

    at: pl.Series
    start: pl.Series
    end: pl.Series
    stop: pl.Series
    parent: pl.Series
    touching: pl.Series

    def layers(self) -> list[Layer]:
        """The same ranges as layers."""
        return _layers(pl.DataFrame([self.at, self.start, self.end]))

    def innermost(self, stretches: pl.DataFrame) -> pl.Series | None:
        """Place of the innermost range that contains each interval (since, until); null for none.

        None where an interval is a moment that lies in two ranges which touch, or ends before it starts.
        """
        since, until = stretches.get_column("since"), stretches.get_column("until")
        moments = since.filter(since == until)
        if not (since <= until).fill_null(value=False).all() or moments.is_in(self.touching.implode()).any():
            return None
        return _last_above(self.end, count_up_to(self.start, since, equal=True), until - 1)

    def sums(self, work: pl.DataFrame) -> pl.DataFrame | None:
        """Sums of `work` (start, end, since, until, first) by the ranges that contain since and until of it.

        Columns: at, start (the first) and end (the last), busy_ns (union of the times), calls (sum of `first`) and
        operations (number); ranges without work are left out. None where only layers can tell.
        """
        own = self.innermost(work)
        if own is None:
            return None
        inside = work.with_columns(own.alias("own")).drop_nulls("own").sort("own")
        if (busy := _busy(self, inside)) is None:
            return None
        places = pl.int_range(len(self.at), dtype=pl.UInt32, eager=True)
        low, high = (count_up_to(inside.get_column("own"), edge, equal=False) for edge in (places, self.stop))
        some = (high > low).arg_true()
        low, high = (side.gather(some).cast(pl.Int64) for side in (low, high))
        calls = pl.Series([0], dtype=pl.Int64).extend(inside.get_column("first").cast(pl.Int64).cum_sum())
        return pl.DataFrame(
            {
                "at": self.at.gather(some),
                "start": -_most(-inside.get_column("start"), low, high),
                "end": _most(inside.get_column("end"), low, high),
                "busy_ns": busy.gather(some),
                "calls": calls.gather(high) - calls.gather(low),
                "operations": high - low,
            }
        )


class Nest(NamedTuple):
    """The ranges of one thread by nesting: trees and layers, the outermost layer first.

    Trees are of those that share the latest end, if there are several, and of those that nest deeply without crossing.
    """

    trees: list[Tree]
    layers: list[Layer]


def outermost_first(ranges: pl.DataFrame) -> pl.DataFrame:
    """Sorts ranges of one thread (start, end, row) so that a range comes before all that it contains."""
    return ranges.sort("start", "end", "row", descending=[False, True, False])


def nest(ranges: pl.DataFrame) -> Nest:
    """Splits `ranges` (start, end; sorted by :func:`outermost_first`) into trees and layers.

    Of ranges with equal start and end, the first row contains the others. Every range below the first layer is
    contained in one of the layer above.
    """
    line = ranges.with_row_index("at").select("at", "start", "end")
    last = line.select(pl.col("end") == pl.col("end").max()).to_series()
    trees = []
    if last.sum() > 1 and (chain := _tree(line.filter(last))) is not None:
        trees, line = [chain], line.filter(~last)
    layers = _layers(line, DEEP)
    if line.height and len(layers) == DEEP and (deep := _tree(line)) is not None:
        return Nest([*trees, deep], [])
    return Nest(trees, layers if len(layers) < DEEP else _layers(line))


def _layers(rest: pl.DataFrame, most: int | None = None) -> list[Layer]:
    """The layers of ranges (at, start, end), or the `most` outermost of them."""
    layers: list[Layer] = []
    while rest.height and len(layers) != most:
        rises = (pl.col("end") > pl.col("end").cum_max().shift(1)).fill_null(value=True)
        own = rest.select(rises).to_series()
        layers.append(Layer(*rest.filter(own).get_columns()))
        rest = rest.filter(~own)
    return layers


def _tree(line: pl.DataFrame) -> Tree | None:
    """The tree of ranges (at, start, end; the outermost first); None where they cross.

    None as well where a range ends before it starts, or a moment lies beside a range and in it.
    """
    at, start, end = line.get_columns()
    places = pl.int_range(len(at), dtype=pl.Int64, eager=True)
    before, upto = (count_up_to(start, end, equal=equal).cast(pl.Int64) for equal in (False, True))
    next_end = gathered(end, before.set(before == len(at), None).cast(pl.UInt32))
    beside = ((next_end > end) & (upto > before) & (end > start)).fill_null(value=False)
    stop = before.zip_with(beside, upto)
    mixed = beside & (end.gather((upto - 1).clip(lower_bound=0)) == end)
    if (end < start).any() or mixed.any() or (next_greater(end, places) < stop).any():
        return None
    return Tree(at, start, end, stop, _last_above(stop, places, places), end.filter(beside))


def _last_above(values: pl.Series, before: pl.Series, above: pl.Series) -> pl.Series:
    """Index of the last of `values` before each index that is greater than `above`; null for none."""
    count = len(values)
    last = count - 1 - next_greater(values.reverse(), count - 1 - before.cast(pl.Int64), above)
    return last.set(last < 0, None).cast(pl.UInt32)


def _busy(tree: Tree, inside: pl.DataFrame) -> pl.Series | None:
    """The time in which any of `inside` (own, start, end) runs, of each range of a tree; None if too many overlap.

    A piece of time counts for all ranges around what runs in it: for each of these innermost ones and what is around
    it, less what is around two of them that follow each other.
    """
    work = inside.filter(pl.col("end") > pl.col("start")).sort("start")
    start, end = work.get_column("start"), work.get_column("end")
    parts = [work.select("own", ns=pl.col("end") - pl.col("start"))]
    if (start < end.cum_max().shift(1)).any():
        edges = pl.concat([start.alias("edge"), end.alias("edge")]).unique().sort()
        first, stop = (count_up_to(edges, side, equal=False) for side in (start, end))
        if (stop - first).sum() > _MOST_PIECES * work.height:
            return None
        pieces = work.select("own", piece=pl.int_ranges(first, stop, dtype=pl.UInt32)).explode("piece")
        pieces = pieces.unique().sort("piece", "own")
        pieces = pieces.with_columns(ns=(edges.shift(-1) - edges).gather(pieces.get_column("piece")))
        twice = pieces.with_columns(earlier=pl.col("own").shift(1)).filter(pl.col("piece") == pl.col("piece").shift(1))
        around = _last_above(tree.stop, twice.get_column("earlier") + 1, twice.get_column("own").cast(pl.Int64))
        parts = [pieces.select("own", "ns"), twice.select(around.alias("own"), -pl.col("ns")).drop_nulls()]
    sums = pl.concat(parts).group_by("own").agg(pl.col("ns").sum())
    own = pl.zeros(len(tree.at), dtype=pl.Int64, eager=True).scatter(sums.get_column("own"), sums.get_column("ns"))
    until = pl.Series([0], dtype=pl.Int64).extend(own.cum_sum())
    return until.gather(tree.stop) - until.head(len(own))


def _most(values: pl.Series, low: pl.Series, high: pl.Series) -> pl.Series:
    """The greatest of the values from `low` to `high` (exclusive), for each; none is empty."""
    greatest, length, size = low.clone(), high - low, 1
    while len(length) and size <= longest(length.alias("length").to_frame(), "length"):
        fits = ((length >= size) & (length < 2 * size)).arg_true()
        both = (values.gather(low.gather(fits)), values.gather(high.gather(fits) - size))
        greatest = greatest.scatter(fits, both[0].zip_with(both[0] > both[1], both[1]))
        later = values.shift(-size)
        values, size = values.zip_with((values > later).fill_null(value=True), later), 2 * size
    return greatest


def containing(layers: list[Layer], stretches: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, pl.Series]]:
    """Pairs of interval and containing range, both ends included, batch by batch.

    `stretches` has the columns since and until, and any others. Each batch has some of its rows, in order, and the
    index of a containing range for each; a row occurs at most once per batch, and all rows of one range are in the same
    batch.
    """
    for layer in layers:
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


def pairs(nested: Nest, stretches: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, pl.Series]]:
    """As :func:`containing`, of all ranges of a thread; rows of one range may be in several batches."""
    for tree in nested.trees:
        own = tree.innermost(stretches)
        if own is None:
            yield from containing(tree.layers(), stretches)
            continue
        inside = stretches
        while (held := own.is_not_null()).any():
            inside, own = inside.filter(held), own.filter(held)
            yield inside, tree.at.gather(own)
            own = tree.parent.gather(own)
    yield from containing(nested.layers, stretches)


def parents(nested: Nest, ranges: pl.DataFrame) -> pl.DataFrame:
    """Parent and depth of each of `ranges` (start, end; as given to :func:`nest`): at, parent, level.

    The parent is the shortest containing range, then the one that started last, then the last row; null for outermost
    ranges. The level is the number of ancestors.
    """
    lengths = ranges.select(length=pl.col("end") - pl.col("start")).with_row_index("at")
    tightest = lengths.sort("length", "at", descending=[False, True]).get_column("at")
    places = lengths.get_column("at")
    rank = places.scatter(tightest, places)
    best = pl.Series([None], dtype=pl.UInt32).new_from_index(0, ranges.height)
    stretches = ranges.select(since="start", until="end").with_row_index("at")
    for inner, outer in _around(nested, stretches):
        own = inner.get_column("at")
        others = outer < own  # a containing range has a lower index; drops the range itself, and equal ranges after it
        own, around = own.filter(others), outer.filter(others)
        closer = pl.select(pl.min_horizontal(best.gather(own), rank.gather(around))).to_series()
        best = best.scatter(own, closer)
    parent = tightest.gather(best)
    above, level = parent, parent.is_not_null().cast(pl.Int64)
    while above.null_count() < len(above):  # of an ancestor twice as far away each time
        level, above = level + level.gather(above).fill_null(0), above.gather(above)
    return pl.DataFrame({"at": places, "parent": parent, "level": level})


def _around(nested: Nest, stretches: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, pl.Series]]:
    """:func:`pairs` that may be parents: of a tree the innermost range alone, and the one around each of its own."""
    for tree in nested.trees:
        yield stretches[tree.at].filter(tree.parent.is_not_null()), tree.at.gather(tree.parent.drop_nulls())
        others = stretches.filter(~stretches.get_column("at").is_in(tree.at.implode()))
        own = tree.innermost(others)
        if own is None:
            yield from containing(tree.layers(), others)
        else:
            yield others.filter(own.is_not_null()), tree.at.gather(own.drop_nulls())
    yield from containing(nested.layers, stretches)


#: The key of a process.
PROCESS: Final = ("process_id",)

#: The columns of :func:`projection`.
_PROJECTED: Final = {
    "row": pl.UInt32,
    "projected_start_ns": pl.Int64,
    "projected_ns": pl.Int64,
    "busy_ns": pl.Int64,
    "gpu_ops": pl.Int64,
    "operations": pl.Int64,
}


class ThreadRanges(NamedTuple):
    """The ranges of one thread that it ended itself, with their nesting by index.

    Columns: row (of :func:`named_ranges`), start and end, the outermost first.
    """

    ranges: pl.DataFrame
    nest: Nest

    @classmethod
    def none(cls) -> ThreadRanges:
        """A thread without ranges."""
        ranges = pl.DataFrame(schema={"row": pl.UInt32, "start": pl.Int64, "end": pl.Int64})
        return cls(ranges, nest(ranges))

    @property
    def deepest(self) -> int:
        """Upper bound of the nesting depth, except for ranges that cross."""
        return len(self.nest.layers) + sum(len(tree.at) for tree in self.nest.trees)

    def pairs(self, work: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Joins operations of the thread (since, until, and others) with all ranges around them, as `range_row`."""
        for inside, place in pairs(self.nest, work):
            yield inside.with_columns(self.ranges.get_column("row").gather(place).alias("range_row"))


@once_per_report
def thread_ranges(report: Report) -> dict[tuple[object, ...], ThreadRanges]:
    """The ranges of each thread, by process id and thread id."""
    own = _spans(report).filter(pl.col("end_thread_id").is_null()).drop_nulls(THREAD)
    return _nested(own.drop("end_thread_id"), THREAD)


@once_per_report
def process_ranges(report: Report) -> dict[tuple[object, ...], ThreadRanges]:
    """The ranges of each process, all threads together, by process id; includes those that another thread ended."""
    return _nested(_spans(report).drop("thread_id", "end_thread_id").drop_nulls(PROCESS), PROCESS)


def _spans(report: Report) -> pl.DataFrame:
    """The ranges as intervals: columns row, start, end, end_thread_id, process_id and thread_id.

    A range that was never closed lasts until the latest time of any range, as in nsys' projection.
    """
    ranges = named_ranges(report)
    latest = pl.max_horizontal(pl.col("start").max(), pl.col("end").filter(~pl.col("open")).max())
    end = pl.when("open").then(pl.max_horizontal("start", latest)).otherwise("end")
    return ranges.select("row", "start", end.alias("end"), "end_thread_id", *THREAD)


def _nested(ranges: pl.DataFrame, keys: Sequence[str]) -> dict[tuple[object, ...], ThreadRanges]:
    parts = outermost_first(ranges).partition_by(keys, as_dict=True, include_key=False)
    return {key: ThreadRanges(part, nest(part)) for key, part in parts.items()}


@once_per_report
def range_tree(report: Report) -> pl.DataFrame:
    """The enclosing range of each range on its thread: columns row, end, parent (its row), level; sorted by row.

    Parent and level are defined by :func:`kanalyze.analyses.ranges._projection.parents`.
    """
    parts = [pl.DataFrame(schema={"row": pl.UInt32, "end": pl.Int64, "parent": pl.UInt32, "level": pl.Int64})]
    for thread in thread_ranges(report).values():
        tree, rows = parents(thread.nest, thread.ranges), thread.ranges.get_column("row")
        parent = rows.gather(tree.get_column("parent")).alias("parent")
        parts.append(thread.ranges.select("row", "end").with_columns(parent, tree.get_column("level")))
    return pl.concat(parts).sort("row")


def launched(
    report: Report, work: pl.DataFrame, keys: Sequence[str] = THREAD
) -> dict[tuple[object, ...], pl.DataFrame]:
    """Splits `work` (rows of `operations`) by the process and thread that launched it, each part sorted by start.

    Columns: those of `work`, since and until (start and end of the launching call), call_row. Operations without a
    launching call have the key (None, None). With other `keys`, split by these alone.
    """
    work = with_facts(report, in_order(work, "start"), "call_row", "thread_id", "call_start", "call_end")
    launches = work.rename({"call_start": "since", "call_end": "until"}).with_columns(
        pl.when(pl.col("call_row").is_not_null()).then("process_id").alias("process_id")
    )
    return {key: part.drop(THREAD) for key, part in parts_by(launches, keys).items()}


def captured_work(report: Report, work: pl.DataFrame) -> dict[tuple[object, ...], pl.DataFrame]:
    """As :func:`launched`, of operations of CUDA graphs by the process and thread of the call that captured each.

    Threads and calls are those of :func:`capture_source`.
    """
    rows = gathered(capture_rows(report), work.get_column("row"))
    inside = rows.is_not_null()
    calls = rows_at(captures(report).select(*THREAD, "since", "until", "call_row"), rows.filter(inside))
    placed = in_order(work.filter(inside).drop("process_id").hstack(calls), "start").drop_nulls("thread_id")
    return {key: part.drop(THREAD) for key, part in parts_by(placed, THREAD).items()}


def captured_in(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """The ranges of :func:`capture_source` in which any of `work` was captured into CUDA graphs.

    Columns: row, captured_busy_ns and captured_operations.
    """
    projected = _projected(thread_ranges(capture_source(report)), captured_work(report, work))
    return projected.select("row", captured_busy_ns="busy_ns", captured_operations="operations")


def projection(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """The ranges that any of `work` (rows of `operations`) belongs to, in the order of their rows.

    Columns: row (of `named_ranges`); projected_start_ns and projected_ns (from the first start to the last end of its
    operations); busy_ns (union of their run times, on any device); gpu_ops (launching calls, which nsys calls GPU
    operations); operations (number).
    """
    return _projected(thread_ranges(report), launched(report, work))


def process_work(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """The ranges during which any thread of their process launched any of `work`, sorted by row.

    Like :func:`projection`, but for all threads together: the launching call lies inside the range.

    Columns: row (of `named_ranges`), process_busy_ns (union of the operations' run times, on any device),
    process_operations (number).
    """
    projected = _projected(process_ranges(report), launched(report, work, PROCESS))
    return projected.select("row", process_busy_ns="busy_ns", process_operations="operations")


def _projected(
    threads: Mapping[tuple[object, ...], ThreadRanges], parts: dict[tuple[object, ...], pl.DataFrame]
) -> pl.DataFrame:
    """The ranges of `threads` that the operations in `parts` belong to, by the same keys; empties `parts`."""
    projected = [pl.DataFrame(schema=_PROJECTED)]
    while parts:
        key, part = parts.popitem()  # releases each part, since those of a large report do not all fit into memory
        if key in threads:
            first = part.get_column("call_row").is_first_distinct()
            needed = part.select("start", "end", "since", "until", first.alias("first"))
            projected += _of_thread(threads[key], needed)
    return pl.concat(projected).sort("row")


def _of_thread(thread: ThreadRanges, work: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The sums of the operations of one thread by range; no range is in two of the frames."""
    rows, layers = thread.ranges.get_column("row"), [thread.nest.layers]
    for tree in thread.nest.trees:
        if (sums := tree.sums(work)) is None:
            layers.append(tree.layers())
        else:
            yield sums.select(
                rows.gather(sums.get_column("at")).alias("row"),
                "busy_ns",
                "operations",
                projected_start_ns="start",
                projected_ns=pl.col("end") - pl.col("start"),
                gpu_ops="calls",
            ).select(*_PROJECTED)
    for some in layers:
        for inside, place in containing(some, work):
            yield _summed(inside.with_columns(rows.gather(place).alias("range_row")))


def _summed(inside: pl.DataFrame) -> pl.DataFrame:
    """Sums operations by their range, `range_row`; those of one range are sorted by start."""
    inside = in_order(inside, "range_row")
    sums = (
        inside.with_columns(fresh=newly_covered(inside, "range_row"))
        .group_by("range_row")
        .agg(
            projected_start_ns=pl.col("start").min(),
            projected_ns=pl.col("end").max() - pl.col("start").min(),
            busy_ns=pl.col("fresh").sum(),
            gpu_ops=pl.col("first").sum().cast(pl.Int64),
            operations=pl.len().cast(pl.Int64),
        )
    )
    return sums.rename({"range_row": "row"}).select(*_PROJECTED)
