"""The critical path of a window as pieces of time, with what each piece is of.

Definition: docs/whatif.md, "The critical path".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.critical._walk import NOWHERE, nodes, walk
from kanalyze.analyses.dependencies._graph import dependencies
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.device._windows import span
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from kanalyze.analyses.critical._walk import Nodes
    from kanalyze.report import Report

#: Schema of :func:`path`.
PATH: Final = {
    "start": pl.Int64,
    "end": pl.Int64,
    "cause": pl.Categorical,
    "row": pl.UInt32,
    "call": pl.UInt32,
    **dict.fromkeys(THREAD, pl.Int64),
    "at": pl.Int64,
}


@once_per_report
def path(report: Report) -> pl.DataFrame:
    """The pieces of the critical path of the window, in the order of time; they cover it without gaps.

    Columns: start, end, cause, row (of the operation that it is of, or that it is in front of; null for a piece of the
    host), call (row of the api events: what the piece is of, or leads to, or what launched the operation),
    process_id, thread_id and at (the host thread and time at which that was asked for).

    Raises:
        AssertionError: The pieces do not sum to the window.
    """
    sides = span(report)
    if sides is None:
        return pl.DataFrame(schema=PATH)
    low, high = sides
    first = first_node(report, high)
    if first == NOWHERE:
        return pl.DataFrame(schema=PATH)
    pieces = _described(report, _placed(nodes(report), first, sides))
    found = int((pieces.get_column("end") - pieces.get_column("start")).sum())
    if found != high - low:
        raise AssertionError(f"the critical path sums to {found} ns, its window is {high - low} ns: {pieces}")
    return pieces


def first_node(report: Report, high: int) -> int:
    """The node at which the walk from `high` begins: an operation or a call.

    The operation that runs then, of several the first one; else the first to start later, or of what ended before the
    last one, a device before the host.
    """
    graph, scope = dependencies(report), report.scope
    own = pl.col("stream").is_not_null()
    if scope.device is not None:
        own &= pl.col("device") == scope.device
    if scope.window is not None and scope.window.process is not None:
        own &= pl.col("process_id") == scope.window.process
    work = graph.operations.with_row_index("row").filter(own)
    running = work.filter((pl.col("start") < high) & (pl.col("end") >= high))
    if running.height:
        return int(running.item(0, "row"))
    later = work.filter(pl.col("start") >= high).sort("start", "row").head(1)
    if later.height:
        return int(later.item(0, "row"))
    return _latest(graph.calls, work, graph.operations.height, high)


def _latest(calls: pl.DataFrame, work: pl.DataFrame, count: int, high: int) -> int:
    """The node of what ended last before `high`: one of the operations `work`, or a call of one of their processes."""
    used = work.get_column("process_id").unique()
    own = calls.with_row_index("row").filter(
        (pl.col("outer") == pl.col("row"))
        & (pl.col("start") < high)
        & pl.col("process_id").is_in(used.implode(), nulls_equal=True)
    )
    sides = [
        part.select("start", pl.min_horizontal("end", high).alias("end"), pl.lit(rank).alias("rank"), "row")
        for rank, part in enumerate((work, own))
    ]
    last = pl.concat(sides).filter(pl.col("end") == pl.col("end").max()).sort("rank", "row").head(1)
    if last.is_empty():
        return NOWHERE
    return int(last.item(0, "row")) + count * int(last.item(0, "rank"))


def _placed(through: Nodes, first: int, sides: tuple[int, int]) -> pl.DataFrame:
    """The pieces of the walk from `first`, with the row of the operation or of the call that each is of."""
    pieces = walk(through, first, *sides)
    node = pieces.get_column("node")
    return pieces.drop("node").hstack([through.row(node).alias("row"), through.call(node).alias("call")])


def _described(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds to the pieces what they lead to, and where they were asked for: the columns of :data:`PATH`."""
    graph = dependencies(report)
    row, called = pieces.get_column("row"), pieces.get_column("call")
    call = called.zip_with(called.is_not_null(), gathered(graph.operations.get_column("call"), row))
    process, thread, at = (gathered(graph.calls.get_column(name), call) for name in (*THREAD, "start"))
    if process.has_nulls():
        own = gathered(operations(report).get_column("process_id"), row)
        process = process.zip_with(process.is_not_null(), own)
    return pieces.with_columns(call, process, thread, at.alias("at")).select(*PATH)
