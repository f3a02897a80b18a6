"""The critical path: the walk back from the end of a window, as pieces of time with what each is of; and the slack.

Slack is how much longer one operation may take, all others as long as they did, before the window's end moves. An edge
that released what it leads to keeps its lag; any other one keeps its own or the median lag of its kind where that kind
releases, whichever is less, and the rest is its room.
Definitions: docs/whatif.md, "The critical path" and "Slack".
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Unpack

import polars as pl

from kanalyze import intervals, model, schema
from kanalyze.analyses.communication._recorded import last_arrivals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, exclusive_operations, facts_of, operations, with_facts
from kanalyze.analyses.device._windows import span
from kanalyze.analyses.host._call_kinds import unseen_syncs
from kanalyze.analyses.host._range_lines import named_events, neighbours, on_lines, program_functions, range_lines
from kanalyze.analyses.host._thread_timeline import shown_calls
from kanalyze.analyses.idle._idle_parts import range_names
from kanalyze.analyses.replay._graph import dependencies
from kanalyze.analyses.replay._network import (
    LATEST,
    SLICE,
    Changed,
    Network,
    call_times,
    network,
    point_values,
    recorded_values,
)
from kanalyze.analyses.shared.analysis import once_per_report, part_of, require
from kanalyze.analyses.shared.threads import THREAD, ThreadKey, by_thread, line_of, lines_near, overlaid
from kanalyze.columns import gathered, in_order, rows_at, slices
from kanalyze.report import Report, Where

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

#: Causes in which a device runs the operation.
RUNNING: Final = pl.col("cause").is_in([*BUSY_BUCKETS, "transfer"])

#: Causes of the time between what an edge leads from and its node, by kind; other kinds are of an operation or a call.
_LAGS: Final = {
    **dict.fromkeys(("stream", "staged"), "stream order"),
    **dict.fromkeys(("thread", "handover", "tail"), "host"),
    **dict.fromkeys(("recorded", "window"), "unknown"),
    "graph": "graph order",
    "event": "event wait",
    "launch": "launch latency",
    "early launch": "launch",
    "return": "return of a wait",
}


class Ending(NamedTuple):
    """The network of a window, and what its path ends with."""

    network: Network
    row: int | None  # the operation that runs at the window's end, of several the first; else the first to start later
    at: int  # the window's end, or when that operation starts later


def ending_at(report: Report, low: int, high: int) -> Ending:
    """The end of a window; the operation is of the device and the processes in scope."""
    scope, chosen = report.scope, pl.col("stream").is_not_null() & (pl.col("end") >= high)
    if scope.device is not None:
        chosen &= pl.col("device") == scope.device
    if scope.window is not None and scope.window.process is not None:
        chosen &= pl.col("process_id") == scope.window.process
    forward = operations(report).select(pl.col("end") >= pl.col("start")).to_series()  # others never ran
    work = dependencies(report).operations.with_row_index("row").filter(chosen, forward)
    first = work.sort(pl.col("start").clip(lower_bound=high - 1), "row").head(1)  # all that run then come first
    row, start, end = first.select("row", "start", "end").row(0) if first.height else (None, high, high)
    return Ending(network(report.whole, low, max(high, end)), row, max(high, start))


@once_per_report
def ending(report: Report) -> Ending | None:
    """The end of the report's window; None without operations."""
    sides = span(report)
    return None if sides is None else ending_at(report, *sides)


class Way(NamedTuple):
    """What each node of a network waited for, along which walks lead."""

    #: One row per node: source, kind, point and place of the edge that binds, begun, over and at (when its source was,
    #: its point, and the node, ns), what the node is and its row; null of the origin. The last is the window's end.
    #: Of several ways the number of each, and whether what its point runs `moves` data between ranks.
    links: pl.DataFrame
    calls: pl.DataFrame  # by place, with cause
    operations: pl.DataFrame  # by row: call, cause while it runs, and when its call returned (ns)


def way_of(report: Report, last: Ending, state: Changed | None = None, at: pl.Series | None = None) -> Way:
    """What walks from the end of a window lead along: as recorded, or in a replay of `state` with nodes `at` times."""
    net, graph, row = last.network, dependencies(report), last.row
    values = point_values(net.line, recorded_values(net.line, graph) if state is None else state.values)
    edges, nodes = net.edges, net.nodes if at is None else net.nodes.with_columns(at.alias("at"))
    at = nodes.get_column("at")
    begun = gathered(at, edges.get_column("source")).alias("begun")
    edges = edges.with_columns(begun, (begun + gathered(values, edges.get_column("point"))).alias("over"))
    if state is not None:  # what comes last in the replay, as recorded where several do
        comes = edges.get_column("over") + state.lags == gathered(at, edges.get_column("target"))
        first = pl.int_range(pl.len()).over("target", order_by=~pl.col("binds")) == 0
        edges = edges.filter(comes).with_columns(binds=first)
    edges = edges.filter("binds").select("source", "kind", "point", "place", "begun", "over")
    links = pl.concat([edges.clear(1), edges]).hstack(nodes)
    if row is not None:
        start, finish = (places.item(row) for places in (net.numbers.starts, net.numbers.finishes))
        source, point = (start, row) if finish is None else (finish, len(values) - 1)
        end = (source, "cut", point, row, at.item(source), last.at, last.at, "window", 0)
        links = pl.concat([links, pl.DataFrame([end], schema=links.schema, orient="row")])
    sized = last_arrivals(report).filter("sized").get_column("row")
    running = pl.Series(CAUSES, dtype=_CAUSE)[operations(report).get_column("rank").cast(pl.UInt32)]
    running = running.scatter(sized, "transfer") if len(sized) else running
    unseen = pl.col("row").is_in(unseen_syncs(report).implode())
    doing = pl.when(unseen).then(pl.lit("unknown")).when(pl.col("kind") == "launch").then(pl.lit("launch"))
    times = call_times(net, at, values)
    gaps = recorded_values(net.line, graph).gaps if state is None else state.values.gaps
    calls = net.line.calls.with_columns(times.get_column("start"), gaps.alias("gap"))
    calls = calls.with_columns(cause=doing.otherwise(pl.lit("call")).cast(_CAUSE))
    returned = gathered(times.get_column("end"), gathered(net.line.places, graph.operations.get_column("call")))
    links = links.with_columns(way=pl.lit(0), moves=pl.lit(value=False))
    return Way(links, calls, graph.operations.select("call", cause=running, returned=returned))


def walk(
    ways: Sequence[Way], links: pl.DataFrame, sides: tuple[int, int], shifts: Sequence[int] = (0,)
) -> pl.DataFrame:
    """The walk from the last of `links` back to the begin of a window: the pieces of the path in the order of time.

    `links` are those of all `ways`, with the way of each, and times that are moved by `shifts`. The pieces cover the
    window without gaps: start, end, cause, row (of the operation that it is of, or in front of), call (row of the api
    events: what it is of, or leads to, or what launched the operation) and way.
    """
    source, at = links.get_column("source").item, links.get_column("at").item
    node, seen = links.height - 1, dict[int, None]()
    while node not in seen and at(node) > sides[0] and (before := source(node)) is not None:
        seen[node] = None
        node = before
    passed = links[pl.Series([*seen], dtype=pl.UInt32)].with_row_index("order")
    parts = [
        _pieces(way, passed.filter(way=number), shift).with_columns(way=pl.lit(number))
        for number, (way, shift) in enumerate(zip(ways, shifts, strict=True))
    ]
    # before all that is known, or where the walk came back: events of one instant that wait for each other
    rest = {
        "order": pl.lit(len(seen), pl.UInt32),
        "start": pl.lit(sides[0], pl.Int64),
        "cause": pl.lit("unknown", _CAUSE),
    }
    line = pl.concat([parts[0].clear(1).with_columns(**rest), *parts]).sort("order", "step", descending=[True, False])
    line = line.with_columns(pl.col("start").clip(*sides).cum_min(reverse=True))
    line = line.with_columns(end=pl.col("start").shift(-1, fill_value=sides[1]))
    return line.filter(pl.col("end") > pl.col("start")).drop("order", "step")


def _pieces(way: Way, passed: pl.DataFrame, shift: int) -> pl.DataFrame:
    """The pieces of links, each until the next begins: by order of the link, and by step in it."""
    work, calls, size, kind, what = way.operations, way.calls, way.operations.height, pl.col("kind"), pl.col("what")
    moved = pl.when("moves").then(pl.lit("transfer", _CAUSE))
    ran = passed.filter(pl.col("point") < size).select("order", start="begun", step=-1, row="point", cause=moved)
    # and what lies between the point and the node
    held = pl.when(kind == "held").then(pl.col("point") - size)
    place = pl.coalesce(pl.when(what.is_in(["begin", "end"])).then("row").when(kind == "tail").then("place"), held)
    # in whose time the operation of their place runs
    row = pl.when(kind.is_in(("transfer", "cut", "overlap"))).then("place").when(what == "start").then("row")
    lags = passed.with_columns(row=row, place=place)
    lags = lags.hstack(rows_at(work.select("call", "returned"), lags.get_column("row")))
    unlaunched = (what == "start") & pl.col("call").is_null()
    returned, over = pl.col("returned") + shift, pl.when(kind != "recorded").then("over").otherwise(-LATEST)
    untold = pl.when(unlaunched & ~kind.is_in(["event", "overlap"])).then(pl.lit("unknown"))
    before = pl.when((kind == "recorded") & (what == "begin")).then(pl.lit("host"))
    late = pl.when((kind == "staged") & returned.is_between("over", "at")).then(pl.lit("launch latency"))
    usual = kind.replace_strict(_LAGS, default=None, return_dtype=pl.String)
    cause = pl.coalesce(untold, before, late, usual).cast(_CAUSE)
    # a step that is behind all calls of the link
    lags = lags.select("order", "row", "place", start=over, step=pl.lit(1 << 40), cause=cause)
    pieces = pl.concat([lags, ran, *_of_calls(calls, passed, size, shift)], how="diagonal_relaxed")
    of_call = rows_at(calls.select(called="row", doing="cause"), pieces.get_column("place"))
    of_work = rows_at(work.select(launched="call", running="cause"), pieces.get_column("row"))
    return pieces.hstack([*of_call, *of_work]).select(
        *("order", "step", "start", "row"),
        call=pl.coalesce("called", "launched"),
        cause=pl.coalesce("cause", "running", "doing"),
    )


def _of_calls(calls: pl.DataFrame, passed: pl.DataFrame, size: int, shift: int) -> list[pl.DataFrame]:
    """The calls of a thread since the source of a link, the last of them as far as its point, and what is before each.

    `size` is the number of operations, which come before calls among points.
    """
    segment, point, last = calls.get_column("segment"), pl.col("point"), pl.col("last")
    through = passed.filter(point.is_between(size, size + 2 * calls.height - 1))
    through = through.select("order", last=(point - size) % max(calls.height, 1), whole=point >= size + calls.height)
    # the end of a call that blocks is a node of its own
    through = through.filter(~(pl.col("whole") & gathered(calls.get_column("blocks"), through.get_column("last"))))
    opens = calls.get_column("place").filter(segment != segment.shift(1, fill_value=0))
    first = gathered(opens, gathered(segment, through.get_column("last")) - 1)
    through = through.with_columns(place=pl.int_ranges(first, last + 1, dtype=pl.UInt32)).explode("place")
    through = through.hstack(calls.select("start", "gap", "begins")[through.get_column("place")])
    start, step = pl.col("start") + shift, pl.col("place").cast(pl.Int64) * 2
    before, during = through.filter(~pl.col("begins")), through.filter(pl.col("whole") | (pl.col("place") != last))
    return [
        before.select("order", "place", start=start - pl.col("gap"), step=step, cause=pl.lit("host", _CAUSE)),
        during.select("order", "place", start=start, step=step + 1),
    ]


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
    """
    sides, last = span(report), ending(report)
    if sides is None or last is None:
        return pl.DataFrame(schema=PATH)
    way = way_of(report, last)
    pieces = walk([way], way.links, sides)
    call, row = pieces.get_column("call"), pieces.get_column("row")
    process, thread, at = (gathered(dependencies(report).calls.get_column(name), call) for name in (*THREAD, "start"))
    if process.has_nulls():
        of_row = gathered(operations(report).get_column("process_id"), row)
        process = process.zip_with(process.is_not_null(), of_row)
    return pieces.with_columns(process, thread, at.alias("at")).select(*PATH)


#: Causes of what a host thread does, whose pieces have the time of that thread.
ON_HOST: Final = ("launch", "return of a wait", "call", "host")


def with_names(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name` to the pieces of a path, in the order of time; those of the host are cut by what their thread was in.

    Of an operation, or of the time before it, its name; of a call its name; of the host the innermost operator, range
    or Python function, else the calls before and after.
    """
    of_host = pieces.get_column("cause") == "host"
    others = pieces.filter(~of_host)
    in_call = others.get_column("cause").is_in([cause for cause in ON_HOST if cause != "host"])
    names = gathered(operations(report).get_column("name"), others.get_column("row"))
    of_call = shown_calls(report, gathered(report.kind("api").get_column("name"), others.get_column("call")))
    others = others.hstack([names.zip_with(~in_call & names.is_not_null(), of_call).alias("name")])
    return in_order(pl.concat([others, _host_names(report, pieces.filter(of_host))]), "start")


def by_range(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name`, the innermost NVTX range in which a piece was asked for; pieces of the host are cut by it."""
    return _around(pieces, range_lines(report), range_names(report))


def by_operator(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds `name`, the innermost operator in which a piece was asked for; pieces of the host are cut by it."""
    events = report.kind("op")
    table = events.select(*THREAD, **intervals.OF_EVENTS)
    # where a piece runs on its thread, and the moment at which it was asked for there
    moments = pl.concat([pieces.select("start", "end"), pieces.select(start="at", end=pl.col("at") + 1).drop_nulls()])
    return _around(pieces, lines_near(table, intervals.union(moments)), events.get_column("name"))


def _host_names(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    """Cuts pieces of the host by the innermost event of their thread, and adds its name."""
    table = pl.concat([named_events(report), program_functions(report)])
    cut = _cut(pieces, lines_near(table, pieces), table.get_column("name"))
    known = cut.get_column("name").is_not_null()
    others = (
        part.with_columns(neighbours(report, key, part).alias("name"))
        for key, part in by_thread(cut.filter(~known)).items()
    )
    return pl.concat([cut.filter(known), *others])


def _around(pieces: pl.DataFrame, lines: Lines, names: pl.Series) -> pl.DataFrame:
    """Adds to each piece the name of what `lines` have at it: of the host, cut by that; else where it was asked for."""
    running = pieces.get_column("cause").is_in(ON_HOST)
    others = pieces.filter(~running)
    named = others.hstack([gathered(names, on_lines(lines, others)).alias("name")])
    return pl.concat([_cut(pieces.filter(running), lines, names), named])


def _cut(pieces: pl.DataFrame, lines: Lines, names: pl.Series) -> pl.DataFrame:
    """Cuts pieces, which follow each other, by what `lines` have at them, and adds its name."""
    parts = (
        overlaid(part, line_of(lines, key).rename({"row": "around"}), "around")
        for key, part in by_thread(pieces).items()
    )
    cut = pl.concat([pieces.clear().with_columns(around=pl.lit(None, dtype=pl.UInt32)), *parts])
    return cut.drop("around").hstack([gathered(names, cut.get_column("around")).alias("name")])


@once_per_report
def slack(report: Report) -> pl.Series:
    """How much longer each operation may take before the window's end moves (ns); null where it ends outside of it.

    Nodes are taken from the last to the first: how late what follows may be is known before what it waited for.
    """
    sides, last = span(report), ending(report)
    if sides is None or last is None:
        return pl.Series("slack", [], dtype=pl.Int64)
    net, work = last.network, dependencies(report).operations
    starts, what, ends = net.numbers.starts, pl.col("what"), work.get_column("end")
    row = net.nodes.get_column("row").set(net.nodes.get_column("what") != "start", None)
    until = net.nodes.with_columns(until=gathered(ends, row)).select(pl.coalesce("until", "at"), what, "at")
    ahead = (pl.col("at") > last.at) | ((what == "window") & pl.lit(last.row is not None))
    may = until.select(pl.when(ahead).then(LATEST).otherwise((last.at - pl.col("until")).clip(0))).to_series().to_list()
    if last.row is not None:  # what the path ends with
        may[starts.item(last.row)] = 0
    for part in net.edges.select("source", "target", pl.col("slack") - pl.col("lag")).reverse().iter_slices(SLICE):
        for source, target, room in zip(*(column.to_list() for column in part), strict=True):
            least = may[target] + room
            if least < may[source]:  # noqa: PLR1730 - min() takes twice as long
                may[source] = least
    nodes = net.numbers.finishes.zip_with(net.numbers.finishes.is_not_null(), starts)
    free = gathered(pl.Series("slack", may, dtype=pl.Int64), nodes)
    return free.set(~ends.is_between(*sides, closed="right"), None)


_CAUSES: Final = schema.Column("cause", _CAUSE, "What the time went to: " + ", ".join(CAUSES) + ".")

_SUMS: Final = (
    schema.Column("ns", pl.Int64, "Time on the path."),
    schema.Column("share", pl.Float64, "Part of the window, to which all rows sum."),
    schema.Column("each_ns", pl.Float64, "Time per iteration, where the window is one of iterations.", nullable=True),
    schema.Column("pieces", pl.Int64, "Number of stretches of the path."),
)

TABLE: Final = schema.Table(
    "critical_path",
    "One cause of time on the critical path, from the end of the window back to its beginning; rows sum to the window.",
    (
        _CAUSES,
        *_SUMS,
        schema.Column("mostly", pl.String, "The kernel, copy, call or host code with most of it.", nullable=True),
        schema.Column("mostly_ns", pl.Int64, "Its time on the path by this cause."),
    ),
    purpose="what the end of the window waited for",
    telling=("cause", "ns", "share", "each_ns", "mostly"),
    groupings=("cause", "kernel", "operator", "range", "rank"),
    options=("segments",),
)

#: The table that ``segments=True`` gives.
SEGMENTS: Final = schema.Table(
    "critical_path",
    "One stretch of the critical path; each begins where the one before ends.",
    (
        schema.Column("start_ns", pl.Int64, "Start."),
        schema.Column("dur_ns", pl.Int64, "Duration."),
        _CAUSES,
        schema.Column("name", pl.String, "The kernel, copy, call or host code that it is of.", nullable=True),
        schema.Column("device", pl.Int64, "The GPU, as in `devices`; null on the host.", nullable=True),
        schema.Column("stream", pl.Int64, "CUDA stream.", nullable=True),
        schema.Column("process_id", pl.Int64, "Process.", nullable=True),
        schema.Column("thread_id", pl.Int64, "Host thread that does it, or asked for it.", nullable=True),
    ),
    when="--segments",
)

#: The table that ``by="kernel"`` gives.
BY_KERNEL: Final = schema.Table(
    "critical_path",
    "One kernel, copy or memset by name: its time on the critical path, and in all.",
    (
        schema.Column("name", pl.String, "The tool's own name for it.", nullable=True),
        *_SUMS,
        *schema.columns("""
            total_ns int: Its time in the window, on the path or not: plain sum.
            count int: Number of launches in the window.
            slack_ns int?: How much longer one of its launches may take, all else as it was, before the window's end
                moves: the least of them, 0 on the path; null where none ends in the window, and of tens of millions of
                launches.
            median_slack_ns float?: The median of its launches.
        """),
    ),
    when="--by kernel",
)

_ON_DEVICE: Final = schema.Column("device_ns", pl.Int64, "The part in which a device ran it.")


#: The tables that ``by="operator"`` and ``by="range"`` give.
def _surroundings(by: str, noun: str, doc: str) -> schema.Table:
    """The table of a grouping by what was around."""
    meaning = f"One {noun}: time on the critical path that it ran, launched or waited."
    key = schema.Column(by, pl.String, f"{doc}; null outside of any.", nullable=True)
    return schema.Table("critical_path", meaning, (key, *_SUMS, _ON_DEVICE), when=f"--by {by}")


BY_OPERATOR: Final = _surroundings("operator", "operator of the framework", "Innermost operator")
BY_RANGE: Final = _surroundings("range", "range", "Innermost NVTX range or annotation")

#: The table that ``by="rank"`` gives.
BY_RANK: Final = schema.Table(
    "critical_path",
    "One rank, or one process where the report has no ranks: its part of the critical path.",
    (
        schema.Column("rank", pl.Int64, "Rank of the job; null where the report has none.", nullable=True),
        schema.Column("process_id", pl.Int64, "Process.", nullable=True),
        *_SUMS,
        _ON_DEVICE,
        schema.Column("mostly", pl.String, "The cause with most of it."),
        schema.Column("mostly_ns", pl.Int64, "Its time on the path by this cause."),
    ),
    when="--by rank",
    job=True,
)

_NS: Final = pl.col("end") - pl.col("start")


def critical_path(
    report: Report, by: str | None = None, *, segments: bool = False, **where: Unpack[Where]
) -> pl.DataFrame:
    """Critical path: what the end of the window waited for, back to its beginning; all rows sum to the window.

    Definition: docs/whatif.md, "The critical path".

    Args:
        report: The report.
        by: ``cause`` (also without it), ``kernel``, ``operator``, ``range`` or ``rank``.
        segments: Each stretch by itself, in the order of time.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, :data:`SEGMENTS`, :data:`BY_KERNEL`, :data:`BY_OPERATOR`, :data:`BY_RANGE` or :data:`BY_RANK`,
        by time on the path, the longest first; empty without operations.

    Raises:
        CannotTellError: The report records no device operations.
        UnknownNameError: There is no such grouping.
    """
    report = part_of(report, where, TABLE, by, *model.DEVICE_KINDS)
    if not segments:
        return _GROUPINGS[by or "cause"](report)
    pieces = with_names(report, path(report))
    row = pieces.get_column("row").set(pieces.get_column("cause").is_in(ON_HOST), None)
    of_work = facts_of(report, row, "device", "stream")
    return SEGMENTS.select(pieces.with_columns(*of_work, start_ns="start", dur_ns=_NS))


def _sums(pieces: pl.DataFrame, count: int | None, *keys: str) -> pl.DataFrame:
    """Sums of pieces by `keys`, the longest first: ns, share, each_ns (of so many iterations), pieces, device_ns."""
    sums = pieces.group_by(keys).agg(ns=_NS.sum(), pieces=pl.len().cast(pl.Int64), device_ns=_NS.filter(RUNNING).sum())
    total = max(int(sums.get_column("ns").sum()), 1)
    each = pl.lit(None, dtype=pl.Float64) if count is None else pl.col("ns") / count
    rows = sums.with_columns(share=pl.col("ns") / total, each_ns=each)
    texts = [pl.col(key).cast(pl.String) if sums.schema[key] == pl.Categorical else pl.col(key) for key in keys]
    return rows.sort("ns", *texts, descending=[True, *[False] * len(keys)])


def _iterations(report: Report) -> int | None:
    return None if report.scope.window is None else report.scope.window.count


def _by_cause(report: Report) -> pl.DataFrame:
    pieces, keys = path(report), ("cause", "name")
    sums = _sums(pieces, _iterations(report), "cause")
    ns = [_NS.sum().alias("mostly_ns")]
    parts = pl.concat([with_names(report, part).group_by(keys).agg(ns) for part in slices(pieces)])
    most = parts.group_by(keys).agg(pl.col("mostly_ns").sum())
    most = most.sort("mostly_ns", pl.col("name").cast(pl.String), descending=[True, False])
    most = most.unique("cause", keep="first").rename({"name": "mostly"})
    return TABLE.select(sums.join(most, on="cause", maintain_order="left"))


def _by_kernel(report: Report) -> pl.DataFrame:
    work = exclusive_operations(report).select("row", "name", ns=pl.col("end") - pl.col("start"))
    by_name = work.with_columns(gathered(slack(report), work.get_column("row")).alias("free")).group_by("name").agg(
        total_ns=pl.col("ns").sum(),
        count=pl.len().cast(pl.Int64),
        slack_ns=pl.col("free").min(),
        median_slack_ns=pl.col("free").median(),
    )  # fmt: skip
    running = path(report).filter(RUNNING)
    on_path = _sums(with_facts(report, running, "name"), _iterations(report), "name").drop("share")
    rows = by_name.join(on_path, on="name", how="left", nulls_equal=True)
    window = max(int(path(report).select(_NS.sum()).item()), 1)
    rows = rows.with_columns(pl.col("ns", "pieces").fill_null(0)).with_columns(share=pl.col("ns") / window)
    return BY_KERNEL.select(rows.sort("ns", "total_ns", pl.col("name").cast(pl.String), descending=[True, True, False]))


def _by_surroundings(report: Report, by: str) -> pl.DataFrame:
    table, kind, named = (BY_OPERATOR, "op", by_operator) if by == "operator" else (BY_RANGE, "range", by_range)
    require(report, table, kind)
    return table.select(_sums(named(report, path(report)).rename({"name": by}), _iterations(report), by))


def sums_by_rank(pieces: pl.DataFrame, count: int | None) -> pl.DataFrame:
    """:data:`BY_RANK` of pieces of a path with rank and process_id, over so many iterations."""
    keys = ["rank", "process_id"]
    most = pieces.group_by(*keys, "cause").agg(mostly_ns=_NS.sum()).sort("mostly_ns", descending=True)
    most = most.unique(keys, keep="first", maintain_order=True).rename({"cause": "mostly"})
    return BY_RANK.select(_sums(pieces, count, *keys).join(most, on=keys, nulls_equal=True, maintain_order="left"))


_GROUPINGS: Final[dict[str, Callable[[Report], pl.DataFrame]]] = {
    "cause": _by_cause,
    "kernel": _by_kernel,
    "operator": lambda report: _by_surroundings(report, "operator"),
    "range": lambda report: _by_surroundings(report, "range"),
    "rank": lambda report: sums_by_rank(
        path(report).with_columns(rank=pl.lit(report.meta.rank, dtype=pl.Int64)), _iterations(report)
    ),
}
