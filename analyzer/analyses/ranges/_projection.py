"""Projects ranges onto the GPU: an operation belongs to the ranges around its launch, on the range's own thread.

As in nsys' projection of NVTX ranges, the launching call may start where the range starts and end where it ends, and a
range that another thread ended is excluded. nsys joins every range with every call; here two binary searches find the
calls inside a range.

Nothing assumes a stack: ranges of two domains, and start/end ranges, may cross. Calls of one thread follow each other,
but those of several threads may lie in each other. So calls are split into layers, in which none contains another one:
there starts and ends increase together, and the calls inside a range are adjacent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import with_facts
from kanalyze.analyses.host._captures import capture_rows, capture_source, captures
from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.analyses.shared.threads import THREAD, nested
from kanalyze.columns import count_up_to, gathered, in_order, parts_by, rows_at
from kanalyze.intervals import newly_covered
from kanalyze.report import Report

#: Ranges and the operations in them are joined in batches of so many pairs, about 100 MB; a range's own are in one.
MOST_PAIRS: Final = 1_000_000


def outermost_first(ranges: pl.DataFrame) -> pl.DataFrame:
    """Sorts ranges of one thread (start, end, row) so that a range comes before all that it contains."""
    return ranges.sort("start", "end", "row", descending=[False, True, False])


def pairs(ranges: pl.DataFrame, work: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Joins `work` (since, until, and others) with all of the `ranges` around it, both ends included, as `range_row`.

    `ranges` have the columns row, start and end. All rows of one range are in the same batch.
    """
    layers, rest = list[pl.DataFrame](), work.drop_nulls(["since", "until"]).sort("since", "until")
    number = count_up_to(rest.get_column("until").sort(), ranges.get_column("end"), equal=True).cast(pl.Int64)
    number -= count_up_to(rest.get_column("since"), ranges.get_column("start"), equal=False)
    while rest.height:
        rises = rest.select(pl.col("until") >= pl.col("until").cum_max()).to_series()
        layers.append(rest.filter(rises))
        rest = rest.filter(~rises)
    for some in ranges.with_columns(part=number.clip(0).cum_sum() // MOST_PAIRS).partition_by("part"):
        inside = [work.clear().with_columns(range_row=pl.lit(0, dtype=pl.UInt32))]
        for layer in layers:
            first = count_up_to(layer.get_column("since"), some.get_column("start"), equal=False)
            stop = count_up_to(layer.get_column("until"), some.get_column("end"), equal=True)
            at = pl.int_ranges(first, pl.max_horizontal(first, stop), dtype=pl.UInt32)
            both = some.select(range_row="row", at=at).explode("at").drop_nulls("at")
            inside.append(layer[both.get_column("at")].with_columns(both.get_column("range_row")))
        yield pl.concat(inside)


def parents(ranges: pl.DataFrame) -> pl.DataFrame:
    """Parent and depth of each of `ranges` (start, end; sorted by :func:`outermost_first`): at, parent, level.

    The parent is the shortest containing range, then the one that started last, then the last row; null for outermost
    ranges. The level is the number of ancestors.
    """
    start, end = ranges.get_column("start"), ranges.get_column("end")
    places = pl.int_range(ranges.height, dtype=pl.UInt32, eager=True)
    tree, following = nested(start, end), count_up_to(start, end, equal=False)
    parent = tree.get_column("parent").cast(pl.UInt32)
    if not (start < end).all() or (tree.get_column("stop") != following.zip_with(following > places, places + 1)).any():
        parent = _tightest(ranges.select("start", "end", row=places))  # some cross, or are moments
    above, level = parent, parent.is_not_null().cast(pl.Int64)
    while above.null_count() < len(above):  # of an ancestor twice as far away each time
        level, above = level + level.gather(above).fill_null(0), above.gather(above)
    return pl.DataFrame({"at": places, "parent": parent, "level": level})


def _tightest(ranges: pl.DataFrame) -> pl.Series:
    """The parent of each of `ranges`, which may cross: row, start, end."""
    length, row = pl.col("end") - pl.col("start"), ranges.get_column("row")
    tightest = ranges.sort(length, "row", descending=[False, True]).get_column("row")
    rank, asked = row.scatter(tightest, row), ranges.select(since="start", until="end", inner="row")
    best = pl.Series([None], dtype=pl.UInt32).new_from_index(0, ranges.height)
    for batch in pairs(ranges, asked):
        # a containing range has a lower row; drops the range itself, and equal ranges after it
        others = batch.filter(pl.col("range_row") < pl.col("inner"))
        others = others.select("inner", rank=rank.gather(others.get_column("range_row")))
        closest = others.group_by("inner").agg(pl.col("rank").min())
        inner, new = closest.get_columns()
        known = best.gather(inner)
        best = best.scatter(inner, new.zip_with(known.is_null() | (new < known), known))
    return tightest.gather(best)


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


@once_per_report
def thread_ranges(report: Report) -> dict[tuple[object, ...], pl.DataFrame]:
    """The ranges of each thread that it ended itself, the outermost first, by process id and thread id."""
    own = _spans(report).filter(pl.col("end_thread_id").is_null()).drop_nulls(THREAD)
    return parts_by(outermost_first(own), THREAD)


@once_per_report
def process_ranges(report: Report) -> dict[tuple[object, ...], pl.DataFrame]:
    """The ranges of each process, all threads together, by process id; includes those that another thread ended."""
    return parts_by(_spans(report).drop_nulls(PROCESS), PROCESS)


def _spans(report: Report) -> pl.DataFrame:
    """The ranges as intervals: columns row, start, end, end_thread_id, process_id and thread_id.

    A range that was never closed lasts until the latest time of any range, as in nsys' projection.
    """
    ranges = named_ranges(report)
    latest = pl.max_horizontal(pl.col("start").max(), pl.col("end").filter(~pl.col("open")).max())
    end = pl.when("open").then(pl.max_horizontal("start", latest)).otherwise("end")
    return ranges.select("row", "start", end.alias("end"), "end_thread_id", *THREAD)


@once_per_report
def range_tree(report: Report) -> pl.DataFrame:
    """The enclosing range of each range on its thread: columns row, end, parent (its row), level; sorted by row.

    Parent and level are those of :func:`parents`.
    """
    parts = [pl.DataFrame(schema={"row": pl.UInt32, "end": pl.Int64, "parent": pl.UInt32, "level": pl.Int64})]
    for ranges in thread_ranges(report).values():
        tree, rows = parents(ranges), ranges.get_column("row")
        parent = rows.gather(tree.get_column("parent")).alias("parent")
        parts.append(ranges.select("row", "end").with_columns(parent, tree.get_column("level")))
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
    threads: Mapping[tuple[object, ...], pl.DataFrame], parts: dict[tuple[object, ...], pl.DataFrame]
) -> pl.DataFrame:
    """The ranges of `threads` that the operations in `parts` belong to, by the same keys; empties `parts`."""
    projected = [pl.DataFrame(schema=_PROJECTED)]
    while parts:
        key, part = parts.popitem()  # releases each part, since those of a large report do not all fit into memory
        if key in threads:
            first = part.get_column("call_row").is_first_distinct()
            needed = part.select("start", "end", "since", "until", first.alias("first"))
            projected += map(_summed, pairs(threads[key], needed))
    return pl.concat(projected).sort("row")


def _summed(inside: pl.DataFrame) -> pl.DataFrame:
    """Sums operations by their range, `range_row`."""
    inside = inside.sort("range_row", "start")
    fresh = inside.with_columns(fresh=newly_covered(inside, "range_row"))
    sums = fresh.group_by(row="range_row").agg(
        projected_start_ns=pl.col("start").min(),
        projected_ns=pl.col("end").max() - pl.col("start").min(),
        busy_ns=pl.col("fresh").sum(),
        gpu_ops=pl.col("first").sum().cast(pl.Int64),
        operations=pl.len().cast(pl.Int64),
    )
    return sums.select(*_PROJECTED)
