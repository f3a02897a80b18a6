"""The critical path of a window: the walk back from its end, as pieces of time with what each is of, and their names.

Definition: docs/whatif.md, "The critical path".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.communication._recorded import last_arrivals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, operations
from kanalyze.analyses.device._windows import span
from kanalyze.analyses.host._call_kinds import unseen_syncs
from kanalyze.analyses.host._range_lines import named_events, neighbours, on_lines, program_functions, range_lines
from kanalyze.analyses.host._thread_timeline import shown_calls
from kanalyze.analyses.idle._idle_parts import range_names
from kanalyze.analyses.replay._graph import BEFORE, Dependencies, dependencies, releases
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.analyses.shared.threads import THREAD, ThreadKey, by_thread, innermost_lines, line_of, overlaid, touched
from kanalyze.columns import gathered, in_order, rows_at, slices
from kanalyze.report import Report

Lines = dict[ThreadKey, pl.DataFrame]

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


class Walkable(NamedTuple):
    """Nodes of which each has a next one, of several ranks; those of a report give the same."""

    next: pl.Series  # the node at which a walk goes on after each (UInt32); null where none is known
    begin: pl.Series  # start of the own piece of each (ns)
    #: Gives of nodes (UInt32) begin, leave (when the next one is entered, ns), own and edge (the causes of both pieces,
    #: as indices of :data:`CAUSES`).
    described: Callable[[pl.Series], pl.DataFrame]


class Nodes(NamedTuple):
    """The nodes of walks through a recording."""

    next: pl.Series  # the node at which a walk goes on after each (UInt32); null where none is known
    begin: pl.Series  # start of the own piece of each (ns)
    #: Of operations: leave (when the next node is entered, ns), own and edge (the causes of both pieces, as
    #: indices of :data:`CAUSES`).
    work: pl.DataFrame
    graph: Dependencies  # what the nodes are of
    unseen: pl.Series  # rows of calls that waited for work from before the recording

    def row(self, nodes: pl.Series) -> pl.Series:
        """Rows of the operations that `nodes` are, which are the first nodes; null for those of calls."""
        return nodes.set(nodes >= self.work.height, None)

    def call(self, nodes: pl.Series) -> pl.Series:
        """Rows of the calls that `nodes` are, or are the begin of; null for operations."""
        place = nodes.set(nodes < self.work.height, None) - self.work.height
        return (place % max(self.graph.calls.height, 1)).cast(pl.UInt32)

    def described(self, nodes: pl.Series) -> pl.DataFrame:
        """What :attr:`Walkable.described` gives."""
        calls, row = self.graph.calls, self.call(nodes)
        known = rows_at(calls.select("kind", "waited_for", "process_before"), row)
        before = gathered(calls.get_column("end"), known.get_column("process_before")).alias("before")
        unseen = row.is_in(self.unseen.implode()) if len(self.unseen) else pl.lit(value=False)
        waits = pl.col("waited_for").is_not_null() & (pl.col("node") < self.work.height + calls.height)
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
    work = graph.operations
    ends = [gathered(work.get_column("end"), work.get_column(name)).alias(f"{name}_end") for name in BEFORE]
    call_end = gathered(graph.calls.get_column("end"), work.get_column("call")).alias("call_end")
    rank = operations(report).get_column("rank").cast(pl.Int8).alias("own")
    line = work.select("start", "call", *BEFORE).hstack([*releases(graph), *ends, call_end, rank])
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


def walk(through: Walkable | Nodes, first: int, low: int, high: int) -> pl.DataFrame:
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


def _pieces(through: Walkable | Nodes, visited: pl.Series, last: int, low: int, entered: int) -> pl.DataFrame:
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


def _visited(through: Walkable | Nodes, first: int, low: int) -> pl.Series:
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
    if sides is None or (first := first_node(report, sides[1])) == NOWHERE:
        return pl.DataFrame(schema=PATH)
    low, high = sides
    through = nodes(report)
    pieces = walk(through, first, low, high)
    node = pieces.get_column("node")
    of = [through.row(node).alias("row"), through.call(node).alias("call")]
    pieces = _described(report, pieces.drop("node").hstack(of))
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
    since = pl.col("start").clip(lower_bound=high - 1)  # all that run then come first
    last = work.filter(pl.col("end") >= high).sort(since, "row").head(1)
    if last.height:
        return int(last.item(0, "row"))
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


#: Causes of what a host thread does, whose pieces have the time of that thread.
ON_HOST: Final = ("launch", "return of a wait", "call", "host")

_IN_CALLS: Final = tuple(cause for cause in ON_HOST if cause != "host")


def with_names(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name` to the pieces of a path, in the order of time: see :func:`named_pieces`."""
    return in_order(named_pieces(report, pieces), "start")


def named_pieces(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name` to the pieces of a path, in no order; pieces of the host are cut by what their thread was in.

    Of an operation, or of the time before it, its name; of a call its name; of the host the innermost operator, range
    or Python function, else the calls before and after.
    """
    of_host = pieces.get_column("cause") == "host"
    others = pieces.filter(~of_host)
    in_call = others.get_column("cause").is_in(_IN_CALLS)
    names = gathered(operations(report).get_column("name"), others.get_column("row"))
    of_call = shown_calls(report, gathered(report.kind("api").get_column("name"), others.get_column("call")))
    others = others.hstack([names.zip_with(~in_call & names.is_not_null(), of_call).alias("name")])
    return pl.concat([others, _host_names(report, pieces.filter(of_host))])


def by_range(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name`, the innermost NVTX range in which a piece was asked for; pieces of the host are cut by it."""
    return _around(pieces, range_lines(report), range_names(report))


def by_operator(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name`, the innermost operator in which a piece was asked for; pieces of the host are cut by it."""
    events = report.kind("op")
    table = events.select(*THREAD, **intervals.OF_EVENTS)
    # where a piece runs on its thread, and the moment at which it was asked for there
    moments = pl.concat([pieces.select("start", "end"), pieces.select(start="at", end=pl.col("at") + 1).drop_nulls()])
    return _around(pieces, _lines(table, intervals.union(moments)), events.get_column("name"))


def _host_names(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Cuts pieces of the host by the innermost event of their thread, and adds its name."""
    table = pl.concat([named_events(report), program_functions(report)])
    cut = _cut(pieces, _lines(table, pieces), table.get_column("name"))
    known = cut.get_column("name").is_not_null()
    others = (
        part.with_columns(neighbours(report, key, part).alias("name"))
        for key, part in by_thread(cut.filter(~known)).items()
    )
    return pl.concat([cut.filter(known), *others])


def _lines(table: pl.DataFrame, spans: pl.DataFrame) -> Lines:
    """Timelines of the innermost of the events `table` (start, end) that overlap any of `spans`, by thread."""
    near = table.with_row_index("row").filter(touched(table, spans))
    return innermost_lines(near)


def _around(pieces: pl.DataFrame, lines: Lines, names: pl.Series) -> pl.DataFrame:
    """Adds to each piece the name of what `lines` have at it: of the host, cut by that; else where it was asked for."""
    running = pieces.get_column("cause").is_in(ON_HOST)
    asked = pieces.filter(~running)
    told = asked.hstack([gathered(names, on_lines(lines, asked)).alias("name")])
    return pl.concat([_cut(pieces.filter(running), lines, names), told])


def _cut(pieces: pl.DataFrame, lines: Lines, names: pl.Series) -> pl.DataFrame:
    """Cuts pieces, which follow each other, by what `lines` have at them, and adds its name."""
    parts = (
        overlaid(part, line_of(lines, key).rename({"row": "around"}), "around")
        for key, part in by_thread(pieces).items()
    )
    cut = pl.concat([pieces.clear().with_columns(around=pl.lit(None, dtype=pl.UInt32)), *parts])
    return cut.drop("around").hstack([gathered(names, cut.get_column("around")).alias("name")])
