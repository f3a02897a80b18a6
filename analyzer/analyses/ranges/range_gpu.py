"""NVTX ranges projected onto the GPU: when the operations launched in a range ran."""

from __future__ import annotations

from typing import Final, Unpack

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import device_operations
from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.ranges._projection import process_work, projection, range_tree
from kanalyze.analyses.shared.analysis import check_grouping, require
from kanalyze.analyses.shared.statistics import spread
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns
from kanalyze.window import without_ids

#: The grouping by names without the ids that emit_nvtx appends.
BY_NAME: Final = "name"

_NAMED: Final = (
    Column("range", pl.String, "Domain, colon and name, as nsys 2025 prints it; the default domain has no name."),
    Column("style", pl.String, "PushPop (nests on its thread) or StartEnd.", nullable=True),
)

#: Columns beyond nsys' table: autograd launches the backward pass on a thread of its own.
OF_PROCESS: Final = columns("""
    process_busy_ns int?: Time in which at least one operation ran that any thread of the process launched while the
        range was open (on any GPU), summed over instances.
    process_operations int?: How many operations these are.
""")

_WHOLE_GRAPHS: Final = Column(
    "whole_graphs",
    pl.Int64,
    "CUDA graphs launched whose nodes were not traced; all other columns leave them out, as nsys does, unless --graphs "
    "counts each as one operation.",
)

TABLE: Final = Table(
    "range_gpu",
    "One NVTX range by name and style: what its instances that launched GPU operations look like on the GPU.",
    (
        *_NAMED,
        *columns("""
            count int: Instances that launched any operation.
            total_ns int: Sum of their durations on the host.
            projected_ns int: Sum of their projections: from the first operation's start to the last end.
            avg_ns float: Mean projection.
            median_ns float: Median projection.
            min_ns int: Shortest projection.
            max_ns int: Longest projection.
            stddev_ns float: Sample standard deviation of the projections; 0 for a single one.
            gpu_ops int: Calls that launched operations, which nsys counts as GPU operations.
            avg_gpu_ops float: Mean of that per instance.
            avg_level float: Mean number of ranges around an instance on its thread.
            avg_children float: Mean number of ranges directly inside that launched operations, too.
            busy_ns int: Time in which at least one operation of the instance ran (on any GPU), summed over instances;
                the rest of projected_ns the GPU did other things, or waited.
            operations int: Operations: each kernel of a CUDA graph counts, too.
        """),
        _WHOLE_GRAPHS,
        *OF_PROCESS,
    ),
    purpose="NVTX ranges by the GPU time of their work",
    telling=("range", "count", "projected_ns", "busy_ns", "operations"),
    equals="nsys stats nvtx_gpu_proj_sum; with --trace nvtx_gpu_proj_trace",
    groupings=(BY_NAME,),
    options=("trace", "graphs"),
)

#: The table that ``trace=True`` gives.
TRACE: Final = Table(
    "range_gpu",
    "One instance of an NVTX range that launched GPU operations.",
    (
        *_NAMED,
        Column("projected_start_ns", pl.Int64, "Start of its first operation."),
        Column("projected_ns", pl.Int64, "From there to the end of its last operation."),
        Column("start_ns", pl.Int64, "Start of the range on the host."),
        Column("dur_ns", pl.Int64, "Its duration there."),
        Column("process_id", pl.Int64, "Process."),
        Column("thread_id", pl.Int64, "Thread that started and ended it."),
        Column("gpu_ops", pl.Int64, "Calls that launched operations, which nsys counts as GPU operations."),
        Column("level", pl.Int64, "Ranges around it on its thread, the parent and its parent and so on."),
        Column("children", pl.Int64, "Ranges directly inside it that launched operations, too."),
        Column("event_id", pl.Int64, "The range in `events`."),
        Column("parent_id", pl.Int64, "The tightest range around it; null for none.", nullable=True),
        Column("stack", pl.String, "Colon and event_id of each range from the outermost to this one."),
        Column("busy_ns", pl.Int64, "Time in which at least one of its operations ran, on any GPU."),
        Column("operations", pl.Int64, "Operations: each kernel of a CUDA graph counts, too."),
        _WHOLE_GRAPHS,
        *OF_PROCESS,
    ),
    equals="nsys stats nvtx_gpu_proj_trace",
    when="--trace",
    telling=("range", "projected_start_ns", "projected_ns", "busy_ns"),
)


def range_gpu(
    report: Report, by: str | None = None, *, trace: bool = False, graphs: bool = False, **where: Unpack[Where]
) -> pl.DataFrame:
    """The NVTX ranges in scope that launched GPU operations.

    Args:
        report: Where to look; ranges that overlap its window on the host count with all their operations.
        by: ``name`` removes the ids and sizes that emit_nvtx appends, which make every range unique.
        trace: All instances, with full names, instead of sums by name.
        graphs: Also counts whole CUDA graphs whose nodes were not traced, which nsys omits.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, the longest total projection first; or :data:`TRACE`, by projected start.

    Raises:
        CannotTellError: The report lacks ranges, CUDA calls, or all GPU operations.
        UnknownNameError: There is no such grouping.
    """
    report = report.narrow(**where)
    check_grouping(TABLE, by)
    kinds = DEVICE_KINDS if graphs else tuple(kind for kind in DEVICE_KINDS if kind != "graph")
    for needed in ("range", "api"):
        require(report, TABLE.name, needed)
    require(report, TABLE, *kinds)
    found = _instances(report, kinds)
    if not trace:
        return _summary(found if by is None else by_name(report, found))
    parent = named_ranges(report).get_column("event_id").gather(found.get_column("parent")).alias("parent_id")
    found = found.with_columns(parent, start_ns="start").join(_stacks(report), on="row", how="left")
    order = ["projected_start_ns", "projected_ns", "event_id"]
    return TRACE.select(found.sort(order, descending=[False, True, False]))


def by_name(report: Report, ranges: pl.DataFrame) -> pl.DataFrame:
    """`ranges` (with row, of :func:`named_ranges`) named without the ids that emit_nvtx appends.

    A name that ranges without ids also have keeps a mark: ranges of the program may enclose those of emit_nvtx, and the
    same time would count twice.
    """
    every = named_ranges(report).select("range", alone=without_ids(pl.col("range")))
    plain = every.filter(pl.col("range") == pl.col("alone")).get_column("range").unique()
    marked = (pl.col("alone") != pl.col("range")) & pl.col("alone").is_in(plain.implode())
    names = every.select(pl.when(marked).then(pl.col("alone") + ", op_id = …").otherwise("alone")).to_series()
    return ranges.with_columns(names.gather(ranges.get_column("row")).alias("range"))


def _instances(report: Report, kinds: tuple[str, ...]) -> pl.DataFrame:
    """The ranges in scope that launched operations of `kinds`, with all columns of the tables except the stack."""
    work = device_operations(report).select("row", "kind", "process_id", "start", "end")
    whole = projection(report, work.filter(pl.col("kind") == "graph")).select("row", whole_graphs="operations")
    wanted = work if "graph" not in report.kinds else work.filter(pl.col("kind").is_in(kinds))
    known = projection(report, wanted)
    for side in (range_tree(report), whole, process_work(report, wanted)):
        known = known.join(side, on="row", how="left", maintain_order="left")
    inside = known.group_by(pl.col("parent").alias("row")).agg(pl.len().cast(pl.Int64).alias("children"))
    known = known.join(inside, on="row", how="left", maintain_order="left")
    ranges = named_ranges(report).select("event_id", "range", "style", "start", "process_id", "thread_id")
    known = pl.concat([known, ranges.select(pl.all().gather(known.get_column("row")))], how="horizontal")
    known = known.with_columns(pl.col("children", "whole_graphs").fill_null(0), dur_ns=pl.col("end") - pl.col("start"))
    return intervals.overlapping(known, report.scope.sides)


_OF_PROCESS: Final = tuple(column.name for column in OF_PROCESS)


def _summary(found: pl.DataFrame) -> pl.DataFrame:
    sums = found.group_by("range", pl.col("style").cast(pl.String)).agg(
        *spread("projected_ns", "", "_ns"),
        pl.col("gpu_ops", "level", "children").mean().name.prefix("avg_"),
        pl.col("projected_ns", "gpu_ops", "busy_ns", "operations", "whole_graphs", *_OF_PROCESS).sum(),
        count=pl.len(),
        total_ns=pl.col("dur_ns").sum(),
    )
    return TABLE.select(sums.sort("projected_ns", "range", "style", descending=[True, False, False]))


def _stacks(report: Report) -> pl.DataFrame:
    """The enclosing ranges of each range, as text of event ids: columns row, stack."""
    tree, ids = range_tree(report), named_ranges(report).get_column("event_id")
    own = ":" + ids.gather(tree.get_column("row")).cast(pl.String)
    levels = tree.select("row", "parent", "level", own.alias("stack")).sort("level").partition_by("level")
    found = [tree.select("row", pl.lit("").alias("stack")).clear()]
    for level in levels:
        outer = found[-1].rename({"row": "parent", "stack": "outer"})
        joined = level.join(outer, on="parent", how="left")
        found.append(joined.select("row", (pl.col("outer").fill_null("") + pl.col("stack")).alias("stack")))
    return pl.concat(found)
