"""The walk of the critical path: from the end of a window back to its beginning, from each thing to what released it.

Definition: docs/whatif.md, "The critical path". The nodes of a walk are, in this order: each operation, the end of
each CUDA call, and the begin of each. A node that is entered at a time t gives two pieces: its own, [begin, t], and
that of the edge, [leave, begin]; the walk goes on at its next node at the time `leave`. So pieces follow each other
without a gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import polars as pl

from kanalyze.analyses.communication._partners import last_arrivals
from kanalyze.analyses.dependencies._graph import BEFORE, dependencies, release
from kanalyze.analyses.device._operations import BUSY_BUCKETS, operations
from kanalyze.analyses.host._context_creation import unseen_syncs
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    import numpy.typing as npt

    from kanalyze.analyses.dependencies._graph import Dependencies
    from kanalyze.report import Report

    Ints = npt.NDArray[np.int64]

#: Causes of time on the path: what runs on a device, why it did not run yet, and what the host did.
CAUSES: Final = (
    *BUSY_BUCKETS,
    "transfer",
    "stream order",
    "graph order",
    "event wait",
    "launch latency",
    "launch",
    "return of a wait",
    "call",
    "host",
    "unknown",
)

_CAUSE: Final = pl.Enum(CAUSES)

#: Causes of the time before an operation by the edge that released it.
_EDGES: Final = dict(zip(BEFORE, ("stream order", "graph order", "event wait"), strict=True))

_Number = TypeVar("_Number", bound=np.integer[Any])

#: No next node.
NOWHERE: Final = -1

#: Before all times.
_LONG_AGO: Final = -(1 << 62)


class Nodes(NamedTuple):
    """The nodes of walks through a recording.

    Attributes:
        operations: Number of operations, the first nodes.
        calls: Number of calls; their ends are the next nodes, their begins the last.
        begin: Start of the own piece of each node (ns).
        leave: When the next node is entered (ns).
        next: That node; :data:`NOWHERE` where none is known.
        own: Cause of its own piece, an index of :data:`CAUSES`.
        edge: Cause of the piece of its edge.
    """

    operations: int
    calls: int
    begin: Ints
    leave: Ints
    next: Ints
    own: npt.NDArray[np.int8]
    edge: npt.NDArray[np.int8]


@once_per_process
def nodes(report: Report) -> Nodes:
    """The nodes of all walks through a report, for any window."""
    graph = dependencies(report)
    parts = (_operations(report, graph), _ends(report, graph), _begins(graph))
    columns = (
        np.concatenate([part.get_column(name).to_numpy() for part in parts])
        for name in ("begin", "leave", "next", "own", "edge")
    )
    begin, leave, following, own, edge = columns
    counts = graph.operations.height, graph.calls.height
    return Nodes(*counts, begin, leave, following.astype(np.int64), own.astype(np.int8), edge.astype(np.int8))


def _operations(report: Report, graph: Dependencies) -> pl.DataFrame:
    """The nodes of the operations: begin, leave, next, own, edge."""
    work, count = graph.operations, pl.lit(graph.operations.height, dtype=pl.Int64)
    edges = ("call", *BEFORE)
    line = pl.DataFrame([work.get_column("start"), work.get_column("end"), *(release(graph, name) for name in edges)])
    line = line.with_columns(latest=pl.max_horizontal(edges))
    binding = pl.coalesce(
        pl.when(pl.col(name) == pl.col("latest")).then(pl.lit(name)) for name in (*BEFORE, "call")
    ).alias("binding")
    rows = {f"{name}_row": work.get_column(name).cast(pl.Int64) for name in edges}
    ends = {f"{name}_end": gathered(work.get_column("end"), work.get_column(name)) for name in BEFORE}
    call_end = gathered(graph.calls.get_column("end"), work.get_column("call"))
    line = line.with_columns(binding, rank=operations(report).get_column("rank"), call_end=call_end, **rows, **ends)
    inside = pl.col("call_end") > pl.col("call")
    by_name = {name: pl.col("binding") == name for name in edges}
    following = pl.coalesce(
        pl.when(by_name["call"] & (pl.col("call") < pl.col("call_end")))
        .then(pl.col("call_row") + count + graph.calls.height)
        .when(by_name["call"])
        .then(pl.col("call_row") + count),
        *(pl.when(by_name[name]).then(f"{name}_row") for name in BEFORE),
        NOWHERE,
    )
    leave = pl.coalesce(
        *(pl.when(by_name[name]).then(pl.min_horizontal(f"{name}_end", "start")) for name in BEFORE),
        "latest",
        _LONG_AGO,
    )
    edge = pl.coalesce(
        pl.when(pl.col("call_row").is_null() & ~by_name["event_before"].fill_null(value=False)).then(_code("unknown")),
        pl.when(by_name["call"] & inside).then(_code("launch")),
        pl.when(by_name["call"]).then(_code("launch latency")),
        *(pl.when(by_name[name]).then(_code(cause)) for name, cause in _EDGES.items()),
        _code("unknown"),
    )
    told = line.select(begin="start", leave=leave, next=following, own=pl.col("rank").cast(pl.Int8), edge=edge)
    return _with_partners(report, told)


def _with_partners(report: Report, told: pl.DataFrame) -> pl.DataFrame:
    """Collectives with partners in the report: they transfer since the last rank came, and lead to that."""
    found = last_arrivals(report)
    if found.is_empty():
        return told
    late = found.filter(pl.col("late") != pl.col("row"))
    moving = found.filter("sized").get_column("row")
    own = told.get_column("own").scatter(moving, CAUSES.index("transfer"))
    arrival, rows = late.get_column("arrival"), late.get_column("row")
    return told.with_columns(
        own,
        *(told.get_column(name).scatter(rows, arrival) for name in ("begin", "leave")),
        told.get_column("next").scatter(rows, late.get_column("late").cast(pl.Int64)),
    )


def _ends(report: Report, graph: Dependencies) -> pl.DataFrame:
    """The nodes of the ends of calls: what they blocked on, or their begin."""
    calls, behind = graph.calls, graph.calls.get_column("waited_for")
    unseen = pl.Series([False]).new_from_index(0, calls.height)
    rows = unseen_syncs(report)
    unseen = unseen.scatter(rows, True) if len(rows) else unseen  # noqa: FBT003 - polars has no name for it
    ended = gathered(graph.operations.get_column("end"), behind)
    begins = graph.operations.height + calls.height
    line = calls.select("start", "kind").with_row_index("row").with_columns(ended.alias("ended"), behind, unseen=unseen)
    blocked = pl.col("waited_for").is_not_null()
    own = (
        pl.when(blocked)
        .then(_code("return of a wait"))
        .when("unseen")
        .then(_code("unknown"))
        .when(pl.col("kind") == "launch")
        .then(_code("launch"))
        .otherwise(_code("call"))
    )
    return line.select(
        begin=pl.coalesce("ended", "start"),
        leave=pl.coalesce("ended", "start"),
        next=pl.coalesce(pl.col("waited_for").cast(pl.Int64), pl.col("row").cast(pl.Int64) + begins),
        own=own,
        edge=_code("call"),
    )


def _begins(graph: Dependencies) -> pl.DataFrame:
    """The nodes of the begins of calls: the host comes from the call that ended last before."""
    calls, before = graph.calls, graph.calls.get_column("process_before")
    ended = gathered(calls.get_column("end"), before)
    line = calls.select("start").with_columns(ended.alias("ended"), before.cast(pl.Int64).alias("before"))
    return line.select(
        begin="start",
        leave=pl.coalesce("ended", _LONG_AGO),
        next=(pl.col("before") + graph.operations.height).fill_null(NOWHERE),
        own=_code("call"),
        edge=_code("host"),
    )


def _code(cause: str) -> pl.Expr:
    return pl.lit(CAUSES.index(cause), dtype=pl.Int8)


def walk(through: Nodes, first: int, low: int, high: int) -> pl.DataFrame:
    """The walk from node `first`, which is entered at `high`, back to `low` (ns).

    Returns:
        The pieces in the order of time: start, end, cause, node. They are disjoint, and cover [low, high].
    """
    visited = np.array(_visited(through, first, low), dtype=np.int64)
    leave = through.leave[visited]
    times = np.minimum.accumulate(np.clip(np.concatenate(([high], leave)), low, high))
    edge = through.edge[visited].copy()
    if times[-1] > low:  # the walk came back to where it had been: events of one instant that wait for each other
        edge[-1] = CAUSES.index("unknown")
        times[-1] = low
    entered, left = times[:-1], times[1:]
    begin = np.clip(through.begin[visited], left, entered)
    told = pl.DataFrame(
        {
            "start": _by_turns(left, begin),
            "end": _by_turns(begin, entered),
            "code": _by_turns(edge, through.own[visited]),
            "node": np.repeat(visited, 2)[::-1],
        }
    ).filter(pl.col("end") > pl.col("start"))
    names = pl.Series(CAUSES, dtype=_CAUSE)[told.get_column("code").cast(pl.UInt32)]
    return told.select("start", "end", names.alias("cause"), "node")


def _by_turns(edges: npt.NDArray[_Number], own: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """Values of the edge and of the own piece of each node in turn, from the last node visited to the first."""
    return np.column_stack((edges[::-1], own[::-1])).ravel()


def _visited(through: Nodes, first: int, low: int) -> list[int]:
    """The nodes of a walk, followed by their pointers until one that begins at `low` or before."""
    begin, following = through.begin.data, through.next.data
    seen, found, node = bytearray(len(through.next)), [], first
    while node >= 0 and not seen[node]:
        seen[node] = 1
        found.append(node)
        if begin[node] <= low:
            break
        node = following[node]
    return found
