"""The walk of the critical path: from the end of a window back to its beginning, from each thing to what released it.

Definition: docs/whatif.md, "The critical path". The nodes of a walk are, in this order: each operation, each CUDA call,
and the begin of each call. A node that is entered at a time t gives two pieces: its own, [begin, t], and that of the
edge, [leave, begin]; the walk goes on at its next node at the time `leave`. So pieces follow each other without a gap.

Most nodes lead to the one before them: a call to the call before it, and in a stream each operation to the one before.
A walk takes such runs of nodes in one step, and only what it visits is looked at more closely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import polars as pl

from kanalyze.analyses.communication._partners import last_arrivals
from kanalyze.analyses.dependencies._graph import BEFORE, dependencies, release
from kanalyze.analyses.device._operations import BUSY_BUCKETS, operations
from kanalyze.analyses.host._context_creation import unseen_syncs
from kanalyze.columns.grouping import slices
from kanalyze.columns.lookup import gathered, rows_at

if TYPE_CHECKING:
    from kanalyze.analyses.dependencies._graph import Dependencies
    from kanalyze.report import Report

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

#: No node.
NOWHERE: Final = -1

#: Before all times.
_LONG_AGO: Final = -(1 << 62)


class Walkable(Protocol):
    """Nodes of which each has a next one: of a report, or of several ranks."""

    @property
    def next(self) -> pl.Series:
        """The node at which a walk goes on after each (UInt32); null where none is known."""

    @property
    def begin(self) -> pl.Series:
        """Start of the own piece of each (ns)."""

    def described(self, nodes: pl.Series) -> pl.DataFrame:
        """Begin, leave, own and edge of `nodes` (UInt32), as in :class:`Nodes`."""


class Nodes(NamedTuple):
    """The nodes of walks through a recording.

    Attributes:
        next: The node at which a walk goes on after each (UInt32); null where none is known.
        begin: Start of the own piece of each (ns).
        work: Of operations: leave (when the next node is entered, ns), own and edge (the causes of both pieces, as
            indices of :data:`CAUSES`).
        graph: What the nodes are of.
        unseen: Rows of calls that waited for work from before the recording.
    """

    next: pl.Series
    begin: pl.Series
    work: pl.DataFrame
    graph: Dependencies
    unseen: pl.Series

    @property
    def operations(self) -> int:
        """Number of operations, the first nodes."""
        return self.work.height

    def row(self, nodes: pl.Series) -> pl.Series:
        """Rows of the operations that `nodes` are; null for those of calls."""
        return nodes.set(nodes >= self.operations, None)

    def call(self, nodes: pl.Series) -> pl.Series:
        """Rows of the calls that `nodes` are, or are the begin of; null for operations."""
        place = nodes.set(nodes < self.operations, None) - self.operations
        return (place % max(self.graph.calls.height, 1)).cast(pl.UInt32)

    def described(self, nodes: pl.Series) -> pl.DataFrame:
        """Begin, leave, own and edge of `nodes` (UInt32), as above."""
        calls, row = self.graph.calls, self.call(nodes)
        known = rows_at(calls.select("kind", "waited_for", "process_before"), row)
        before = gathered(calls.get_column("end"), known.get_column("process_before")).alias("before")
        unseen = row.is_in(self.unseen.implode()) if len(self.unseen) else pl.lit(value=False)
        waits = pl.col("waited_for").is_not_null() & (pl.col("node") < self.operations + calls.height)
        columns = [nodes.alias("node"), gathered(self.begin, nodes).alias("begin"), before]
        told = rows_at(self.work, self.row(nodes)).hstack(known).hstack(columns)
        return told.select(
            "begin",
            pl.coalesce("leave", pl.when(waits).then("begin").otherwise("before"), _LONG_AGO),
            pl.coalesce(
                "own",
                pl.when(waits).then(_code("return of a wait")),
                pl.when(unseen).then(_code("unknown")),
                pl.when(pl.col("kind") == "launch").then(_code("launch")),
                _code("call"),
            ),
            pl.coalesce("edge", _code("host")),
        )


def nodes(report: Report) -> Nodes:
    """The nodes of all walks through a report, for any window; not kept: half a gigabyte of 7 million operations."""
    graph = dependencies(report)
    work, calls = _operations(report, graph), graph.calls
    start, behind = calls.get_column("start"), calls.get_column("waited_for")
    waits = behind.is_not_null()
    before = (calls.get_column("process_before") + work.height).cast(pl.UInt32)
    over = gathered(graph.operations.get_column("end"), behind)
    following = pl.concat([work.get_column("next"), behind.zip_with(waits, before).alias("next"), before.alias("next")])
    begin = pl.concat([work.get_column("begin"), over.zip_with(waits, start).alias("begin"), start.alias("begin")])
    return Nodes(following.rechunk(), begin.rechunk(), work.drop("next", "begin"), graph, unseen_syncs(report))


def _operations(report: Report, graph: Dependencies) -> pl.DataFrame:
    """The nodes of the operations: begin, leave, own, edge and next."""
    work, edges = graph.operations, ("call", *BEFORE)
    ends = [gathered(work.get_column("end"), work.get_column(name)).alias(f"{name}_end") for name in BEFORE]
    call_end = gathered(graph.calls.get_column("end"), work.get_column("call")).alias("call_end")
    rank = operations(report).get_column("rank").cast(pl.Int8).alias("own")
    released = [release(graph, name).alias(f"{name}_at") for name in edges]
    line = work.select("start", *edges).hstack([*released, *ends, call_end, rank])
    line = line.with_columns(latest=pl.max_horizontal(f"{name}_at" for name in edges))
    first = {name: pl.col(f"{name}_at") == pl.col("latest") for name in (*BEFORE, "call")}  # of equal ones the first
    by = pl.coalesce(pl.when(binds).then(pl.lit(place, pl.UInt8)) for place, binds in enumerate(first.values()))
    line = line.with_columns(by.alias("by"))
    by_name = {name: pl.col("by") == place for place, name in enumerate(first)}
    at_end, begins = pl.col("call_at") == pl.col("call_end"), work.height + graph.calls.height
    told = line.select(
        pl.col("start").alias("begin"),
        pl.coalesce(
            *(pl.when(by_name[name]).then(pl.min_horizontal(f"{name}_end", "start")) for name in BEFORE),
            "latest",
            _LONG_AGO,
        ).alias("leave"),
        "own",
        pl.coalesce(
            pl.when(pl.col("call").is_null() & by_name["event_before"].ne_missing(other=True)).then(_code("unknown")),
            *(pl.when(by_name[name]).then(_code(cause)) for name, cause in _EDGES.items()),
            pl.when(by_name["call"] & ~at_end).then(_code("launch")),
            pl.when(by_name["call"]).then(_code("launch latency")),
            _code("unknown"),
        ).alias("edge"),
        pl.coalesce(
            *(pl.when(by_name[name]).then(name) for name in BEFORE),
            pl.when(by_name["call"]).then(pl.col("call") + pl.when(at_end).then(work.height).otherwise(begins)),
        ).alias("next"),
    )
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
        told.get_column("next").scatter(rows, late.get_column("late")),
    )


def _code(cause: str) -> pl.Expr:
    return pl.lit(CAUSES.index(cause), dtype=pl.Int8)


def walk(through: Walkable, first: int, low: int, high: int) -> pl.DataFrame:
    """The walk from node `first`, which is entered at `high`, back to `low` (ns).

    Returns:
        The pieces in the order of time: start, end, cause, node. They are disjoint, and cover [low, high].
    """
    every = _visited(through, first, low)
    last, entered, found = int(every.item(-1)), high, []
    for part in slices(every.alias("node").to_frame()):
        pieces = _pieces(through, part.to_series(), last, low, entered)
        entered = int(pieces.item(0, "start"))
        found.append(pieces.filter(pl.col("end") > pl.col("start")))
    return pl.concat(found[::-1], rechunk=True)


def _pieces(through: Walkable, visited: pl.Series, last: int, low: int, entered: int) -> pl.DataFrame:
    """The pieces of some nodes of a walk, in the order of time, also those without length; `last` ends the walk."""
    told = through.described(visited).with_columns(left=pl.col("leave").clip(low, entered).cum_min(), node=visited)
    # a walk that came back to where it had been: events of one instant that wait for each other
    is_last = pl.col("node") == last
    stuck = is_last & (pl.col("left") > low)
    line = told.select(
        left=pl.when(is_last).then(low).otherwise("left"),
        entered=pl.col("left").shift(1, fill_value=entered),
        edge=pl.when(stuck).then(_code("unknown")).otherwise("edge"),
        begin="begin",
        own="own",
        node="node",
    )
    line = line.with_columns(pl.min_horizontal(pl.max_horizontal("begin", "left"), "entered").alias("begin")).reverse()
    pieces = line.select(
        start=pl.concat_arr("left", "begin").explode(),
        code=pl.concat_arr("edge", "own").explode(),
        node=pl.concat_arr("node", "node").explode(),
    ).with_columns(end=pl.col("start").shift(-1, fill_value=entered))
    cause = pl.Series("cause", CAUSES, dtype=_CAUSE)[pieces.get_column("code").cast(pl.UInt32)]
    return pieces.select("start", "end", cause, "node")


def _visited(through: Walkable, first: int, low: int) -> pl.Series:
    """The nodes of a walk, by runs, until one that begins at `low` or before."""
    node = pl.int_range(pl.len(), dtype=pl.UInt32)
    leads_on = (pl.col("next") + 1).eq_missing(node)
    ends = through.next.alias("next").to_frame().select(pl.when(~leads_on).then(node).forward_fill().fill_null(0))
    last_of, begin, after = ends.to_series().item, through.begin.item, through.next.item
    seen: dict[int, int] = {}  # where the run to each last node was entered
    at: int | None = first
    while at is not None:
        last = last_of(at)
        if last in seen:
            break
        seen[last] = at
        if begin(last) <= low:
            break
        at = after(last)
    runs = [(entered, last) for last, entered in seen.items()]
    if at is not None and at > seen[last]:
        runs.append((at, seen[last] + 1))
    line = pl.DataFrame(runs, schema={"entered": pl.Int64, "last": pl.Int64}, orient="row")
    every = line.select(pl.int_ranges("entered", pl.col("last") - 1, -1, dtype=pl.Int64).explode())
    return every.to_series().cast(pl.UInt32)
