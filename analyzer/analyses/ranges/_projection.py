"""Projects ranges onto the GPU: an operation belongs to the ranges around its launch, on the range's own thread.

As in nsys' projection of NVTX ranges, the launching call may start where the range starts and end where it ends, and a
range that another thread ended is excluded. nsys joins every range with every call; here each thread's ranges are split
once into a chain and layers (:mod:`kanalyze.analyses.shared.range_nesting`), which calls are looked up in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import with_facts
from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.range_nesting import (
    DEEP,
    Nest,
    chained,
    containing,
    enclosing,
    held,
    nest,
    outermost_first,
    parents,
    sums_in,
)
from kanalyze.analyses.shared.statistics import longest
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.grouping import parts_by
from kanalyze.columns.lookup import gathered
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

#: The columns that :func:`kanalyze.analyses.shared.range_nesting.sums_in` gives.
_SUMS: Final = {
    "place": pl.UInt32,
    **dict.fromkeys(("projected_start_ns", "projected_end", "busy_ns", "gpu_ops", "operations"), pl.Int64),
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
        return len(self.nest.layers) + len(self.nest.chain.at)


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


def pairs(thread: ThreadRanges, work: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Joins the operations of one thread (sorted by start) with all ranges that they belong to, as `range_row`.

    Yields batches sorted by start; all operations of one range are in the same batch.
    """
    if len(chain := thread.nest.chain.at):
        rows = thread.ranges.get_column("row").gather(chain)
        around = work.with_columns(place=pl.int_ranges(pl.lit(0), chained(thread.nest.chain, work)))
        inside = around.explode("place").drop_nulls("place")
        yield inside.drop("place").with_columns(rows.gather(inside.get_column("place")).alias("range_row"))
    yield from _layered(thread, work)


def _layered(thread: ThreadRanges, work: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """:func:`pairs` without the ranges of the chain."""
    rows = thread.ranges.get_column("row")
    for inside, place in containing(thread.nest.layers, work):
        yield inside.with_columns(rows.gather(place).alias("range_row"))


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
            deep = _in_one_pass(threads[key], needed)
            found += [_summed(inside) for inside in _layered(threads[key], needed)] if deep is None else [deep]
            found.append(_in_chain(threads[key], needed))
    return pl.concat(found).sort("row")


def _in_one_pass(thread: ThreadRanges, work: pl.DataFrame) -> pl.DataFrame | None:
    """Projects deeply nested ranges of a thread, except its chain, in one pass; None if they are not nested deeply."""
    layers = thread.nest.layers
    if len(layers) < DEEP or (own := held(layers, work)) is None:
        return None
    rows = thread.ranges.get_column("row")
    at = pl.concat([layer.at for layer in layers]).sort()
    ranges = thread.ranges.select("start", "end")[at]
    told = enclosing(*(ranges.get_column(name).to_list() for name in ("start", "end")))
    if told is None:
        return None
    order = pl.int_range(0, len(at), dtype=pl.UInt32, eager=True)
    places = pl.zeros(rows.len(), dtype=pl.UInt32, eager=True).scatter(at, order)
    operations = list(work.select("start", "end", "first").iter_rows())
    sums = pl.DataFrame(sums_in(told[0], gathered(places, own).to_list(), operations), schema=_SUMS, orient="row")
    length = pl.col("projected_end") - pl.col("projected_start_ns")
    found = sums.with_columns(
        length.alias("projected_ns"), rows.gather(at.gather(sums.get_column("place"))).alias("row")
    )
    return found.select(*_PROJECTED)


def _in_chain(thread: ThreadRanges, work: pl.DataFrame) -> pl.DataFrame:
    """The ranges of a thread's chain that any of `work` belongs to."""
    chain = thread.nest.chain
    if chain.at.is_empty():
        return pl.DataFrame(schema=_PROJECTED)
    rows = thread.ranges.get_column("row").gather(chain.at)
    sums = chain_sums(work.with_columns(chained(chain, work).alias("around")), len(rows))
    sums = sums.with_columns(rows.gather(sums.get_column("place")).alias("row"))
    return sums.select(*_PROJECTED)


def _summed(inside: pl.DataFrame) -> pl.DataFrame:
    """Sums a batch of :func:`pairs` by range."""
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


def chain_sums(work: pl.DataFrame, ranges: int) -> pl.DataFrame:
    """Sums for the ranges of a chain that contain any of `work` (start, end, first, around: how many contain it).

    Columns: place (in the chain), projected_start_ns, projected_ns, busy_ns, gpu_ops and operations, as in
    :func:`kanalyze.analyses.ranges._projection.projection`.
    """
    own = work.group_by("around").agg(
        pl.col("start").min(),
        pl.col("end").max(),
        gpu_ops=pl.col("first").sum().cast(pl.Int64),
        operations=pl.len().cast(pl.Int64),
    )
    line = pl.DataFrame({"around": pl.int_range(1, ranges + 1, dtype=pl.UInt32, eager=True)})
    for part in (own, _innermost_busy(work)):
        line = line.join(part, on="around", how="left", maintain_order="left")
    sums = line.select(
        pl.col("around") - 1,
        pl.col("start").cum_min(reverse=True).backward_fill(),
        pl.col("end").cum_max(reverse=True).backward_fill(),
        pl.col("busy_ns", "gpu_ops", "operations").fill_null(0).cum_sum(reverse=True),
    )
    return sums.filter(pl.col("operations") > 0).select(
        "busy_ns",
        "gpu_ops",
        "operations",
        place="around",
        projected_start_ns="start",
        projected_ns=pl.col("end") - pl.col("start"),
    )


def _innermost_busy(work: pl.DataFrame) -> pl.DataFrame:
    """Busy time by the innermost range with a running operation: columns around, busy_ns.

    Time is split where operations start and end. An operation covers consecutive pieces, expressed as two runs of a
    power of two of pieces, which are halved until every piece has the maximum of what covers it.
    """
    work = work.select("around", "start", "end").filter((pl.col("around") > 0) & (pl.col("end") > pl.col("start")))
    edges = pl.concat([work.get_column("start"), work.get_column("end").alias("start")]).unique().sort()
    first = edges.search_sorted(work.get_column("start"))
    after = edges.search_sorted(work.get_column("end"))
    runs = pl.DataFrame({"around": work.get_column("around"), "first": first, "pieces": after - first})
    most, length = pl.zeros(len(edges), dtype=pl.UInt32, eager=True), 1
    while length * 2 <= longest(runs, "pieces"):
        length *= 2
    while length:
        fits = (pl.col("pieces") >= length) & (pl.col("pieces") < 2 * length)
        own = runs.filter(fits).with_columns(last=pl.col("first") + pl.col("pieces") - length)
        for side in ("first", "last"):
            found = own.group_by(side).agg(pl.col("around").max())
            at = found.get_column(side)
            both = pl.select(pl.max_horizontal(most.gather(at), found.get_column("around"))).to_series()
            most = most.scatter(at, both)
        length //= 2
        if length:
            most = pl.select(pl.max_horizontal(most, most.shift(length, fill_value=0))).to_series()
    took = pl.DataFrame({"around": most, "ns": edges.shift(-1) - edges})
    return took.group_by("around").agg(busy_ns=pl.col("ns").sum())
