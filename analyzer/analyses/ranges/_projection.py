"""Projects ranges onto the GPU: an operation belongs to the ranges around its launch, on the range's own thread.

As in nsys' projection of NVTX ranges, the launching call may start where the range starts and end where it ends, and a
range that another thread ended is excluded. nsys joins every range with every call; here each thread's ranges are split
once by nesting (:mod:`kanalyze.analyses.shared.range_nesting`), and calls are looked up in that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import with_facts
from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.range_nesting import Nest, containing, nest, outermost_first, pairs, parents
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.grouping import parts_by
from kanalyze.columns.ordering import first_seen, in_order
from kanalyze.intervals import newly_covered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kanalyze.report import Report


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
    """The ranges of one thread that it ended itself, with their nesting.

    Attributes:
        ranges: Row (of :func:`named_ranges`), start and end, the outermost first.
        nest: Their nesting, by index into `ranges`.
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

    Parent and level are defined by :func:`kanalyze.analyses.shared.range_nesting.parents`.
    """
    found = [pl.DataFrame(schema={"row": pl.UInt32, "end": pl.Int64, "parent": pl.UInt32, "level": pl.Int64})]
    for thread in thread_ranges(report).values():
        tree, rows = parents(thread.nest, thread.ranges), thread.ranges.get_column("row")
        parent = rows.gather(tree.get_column("parent")).alias("parent")
        found.append(thread.ranges.select("row", "end").with_columns(parent, tree.get_column("level")))
    return pl.concat(found).sort("row")


def launched(
    report: Report, work: pl.DataFrame, keys: Sequence[str] = THREAD
) -> dict[tuple[object, ...], pl.DataFrame]:
    """Splits `work` (rows of `operations`) by the process and thread that launched it, each part sorted by start.

    Columns: those of `work`, since and until (start and end of the launching call), call_row. Operations without a
    launching call have the key (None, None). With other `keys`, split by these alone.
    """
    work = with_facts(report, in_order(work, "start"), "call_row", "thread_id", "call_start", "call_end")
    found = work.rename({"call_start": "since", "call_end": "until"}).with_columns(
        pl.when(pl.col("call_row").is_not_null()).then("process_id").alias("process_id")
    )
    return {key: part.drop(THREAD) for key, part in parts_by(found, keys).items()}


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
    found = _projected(process_ranges(report), launched(report, work, PROCESS))
    return found.select("row", process_busy_ns="busy_ns", process_operations="operations")


def _projected(
    threads: Mapping[tuple[object, ...], ThreadRanges], parts: dict[tuple[object, ...], pl.DataFrame]
) -> pl.DataFrame:
    """The ranges of `threads` that the operations in `parts` belong to, by the same keys; empties `parts`."""
    found = [pl.DataFrame(schema=_PROJECTED)]
    while parts:
        key, part = parts.popitem()  # releases each part, since those of a large report do not all fit into memory
        if key in threads:
            first = first_seen(part.get_column("call_row"))
            needed = part.select("start", "end", "since", "until", first.alias("first"))
            found += _of_thread(threads[key], needed)
    return pl.concat(found).sort("row")


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
            pl.col("start").min().alias("projected_start_ns"),
            pl.col("end").max().alias("projected_end"),
            pl.col("fresh").sum().alias("busy_ns"),
            pl.col("first").sum().cast(pl.Int64).alias("gpu_ops"),
            pl.len().cast(pl.Int64).alias("operations"),
        )
    )
    length = pl.col("projected_end") - pl.col("projected_start_ns")
    return sums.with_columns(length.alias("projected_ns"), row="range_row").select(*_PROJECTED)
