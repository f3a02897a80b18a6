"""The dependency graph of a recording: device operations and CUDA calls, and what each had to wait for.

Two frames, as :class:`Dependencies`. Row i of `operations` is row i of the frame that
:func:`kanalyze.analyses.device._operations.operations` gives; row i of `calls` is row i of ``report.kind("api")``. A
column that points to another row is UInt32, null for none:

========================  ==================================================================================
`operations`
========================  ==================================================================================
start, end                ns; end >= start
device, process_id        as in `operations(report)`
stream                    number of its stream (UInt32, dense); null for work that nothing submitted: migrations
                          of unified memory, which take no part (no edge leads to one or from one)
call                      row in `calls` of the outermost call that launched it; null where it is not recorded:
                          then what it waited for beside `stream_before` is unknown
stream_before             row of the operation before it in its stream; of legacy null and blocking streams of one
                          context, which wait for each other, the one of both that ended last
event_before              row of the operation behind the CUDA event for which its stream waited
event_told                whether that event is recorded; False: some event, graph or callback asked for an order,
                          and `event_before` is the operation of another stream that ended last before it
graph_before              for a node of a CUDA graph: row of the node of the same launch that ended last before it
========================  ==================================================================================

========================  ==================================================================================
`calls`
========================  ==================================================================================
start, end                ns; end >= start
process_id, thread_id
kind                      ``wait`` (it blocks, also if it launches, too: a copy), ``launch``, or ``other``
outer                     row of the outermost call of its thread around it: its own, unless it is nested
waited_for                row in `operations` of what it blocked on: the operation that ended last inside it, of
                          those that it can have waited for; null for none. Of nested calls the outer one has it.
                          Where the report does not say for which stream or event: of the process, in calls of more
                          than 10 µs
process_before            row of the outermost call of any thread of its process that ended last before it began;
                          null if it is nested
========================  ==================================================================================

An operation may start before its `call` ends, and before its `stream_before` ends (programmatic launches, clocks): then
the begin of that released it, not its end (:func:`release`). All other edges lead from an end to a start that is no
earlier. Edges between operations lead down in (start, end, row), edges between calls (`process_before`) down in the
order of (end, -start, -row): no cycle within either. Through both, a cycle needs events of one and the same instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.dependencies._host_order import host_calls
from kanalyze.analyses.dependencies._stream_order import order_in_streams
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Columns of `operations` that point to an earlier operation, in the order in which equal releases are told apart.
BEFORE: Final = ("stream_before", "graph_before", "event_before")


class Dependencies(NamedTuple):
    """The dependency graph of a report; the columns are those of the module's description."""

    operations: pl.DataFrame
    calls: pl.DataFrame


@once_per_process
def dependencies(report: Report) -> Dependencies:
    """The dependency graph of all operations and calls of the processes in scope, at any time."""
    calls = host_calls(report)
    work = operations(report, "call_row")
    call = gathered(calls.get_column("outer"), work.get_column("call_row")).alias("call")
    work = work.select("start", pl.max_horizontal("start", "end").alias("end"), "device", "process_id")
    return Dependencies(order_in_streams(report, work.with_columns(call), calls), calls)


def release(graph: Dependencies, column: str) -> pl.Series:
    """Time at which one kind of edge lets each operation start (ns), at most its start; null without such an edge.

    `column` is ``call`` or one of :data:`BEFORE`. The end of what it leads to; its begin where that had not ended when
    the operation started, or ended no earlier than the operation itself.
    """
    work = graph.operations
    at, source = work.get_column(column), graph.calls if column == "call" else work
    began, ended = (gathered(source.get_column(side), at) for side in ("start", "end"))
    early = ended > work.get_column("start")
    if column == "call":
        early |= ended >= work.get_column("end")
    times = pl.DataFrame([early.alias("early"), began.alias("began"), ended.alias("ended"), work.get_column("start")])
    first = pl.when("early").then("began").otherwise("ended")
    return times.select(pl.when(first.is_not_null()).then(pl.min_horizontal(first, "start"))).to_series().alias(column)
