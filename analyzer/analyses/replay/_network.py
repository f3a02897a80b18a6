"""The recording as a network of times: each is the latest of some earlier times plus lags.

Nodes are starts of operations, ends of collectives that end with other ranks, begins of calls that follow no call of
their own thread alone, ends of blocking calls, and the end of the window. What a lag is relative to is a point: the
start or end of an operation, or the begin or end of a call, which lies a known time (its value) after a node.

Of the edges that lead to a node the one with the least slack binds, and keeps its lag. Any other keeps the lesser of
its slack and of the median lag of its kind where that kind binds: what a launch, a stream or an event takes when
something waits for it. With the recorded values every node therefore gets its recorded time.
"""

import re
from typing import Final, NamedTuple

import polars as pl

from kanalyze.analyses.communication._recorded import last_arrivals
from kanalyze.analyses.device._operations import operations, with_facts
from kanalyze.analyses.host._call_kinds import names_that
from kanalyze.analyses.idle.syncs import blocking_calls, staged_copies, waited_for
from kanalyze.analyses.replay._graph import Dependencies, dependencies, migrated
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.analyses.streams.concurrency import LATENCY_NS, STREAM, recorded_work
from kanalyze.columns import gathered, in_order, in_order_of, marked, nearest, scattered, sure
from kanalyze.report import Report

#: Scopes of blocking calls that wait for one stream; `event` waits for the work before an event, others for a device.
_OF_STREAM: Final = ("stream", "copy")

#: A stream holds some 1,022 launches that have not ended; a launch that took long and left so many waited for room, and
#: one of a graph, that takes its time, if it took so many times as long as the shortest one.
_FULL: Final = 1_000
_LONG_GRAPH: Final = 4
_TOOK: Final = pl.col("returned") - pl.col("begun")

#: A call that enqueues a host function returns within microseconds; one that took so long waited for the device (ns).
_HOST_FUNCTION: Final = re.compile(r"(?:cuda|cu)LaunchHostFunc")
_LONG_NS: Final = 1_000_000


class HostLine(NamedTuple):
    """The outermost calls by thread and start."""

    #: One row per call (its place): row (of the api events), process_id, thread_id, start, end, kind, gap (ns since the
    #: call before it on its thread ended; 0 for the first), handover (place of the call of another thread that ended
    #: last before it, if no call of its own thread did later; else null), begins (whether its begin is a node: it is
    #: the first of its thread, or handed over to), blocks (whether its end is a node: it waits for operations), segment
    #: (number of the calls with one base).
    calls: pl.DataFrame
    places: pl.Series  # place of each call, or of the outermost call around it, by row of the api events
    #: What blocking calls may wait for: place, row (of the operations) of what was submitted before; and what launches
    #: waited for because the queue of their stream was full.
    waits: pl.DataFrame


def host_line(report: Report, graph: Dependencies) -> HostLine:
    """The calls of the processes in scope, at any time."""
    all_calls = graph.calls.with_row_index("row")
    outermost = all_calls.filter(pl.col("outer") == pl.col("row"))
    order = ["row", "process_id", "thread_id", "start", "end", "kind", "process_before"]
    calls = in_order_of(outermost.select(order), (*THREAD, "start"), ("end", "row")).with_row_index("place")
    places = scattered(all_calls.height, calls.get_column("row"), calls.get_column("place"))
    around = gathered(places, all_calls.get_column("outer"))
    waits = _waits(report, graph, around)
    calls = calls.with_columns(
        handover=gathered(places, calls.get_column("process_before")),
        blocks=pl.col("place").is_in(waits.get_column("place").unique().implode()),
    )
    return HostLine(_segments(calls), around, waits)


def _segments(calls: pl.DataFrame) -> pl.DataFrame:
    first = pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift(1)) for key in THREAD) | (pl.col("place") == 0)
    gap = pl.when("first").then(0).otherwise(pl.col("start") - pl.col("end").shift(1))
    elsewhere = pl.col("first") | (pl.col("handover") != pl.col("place") - 1)
    rows = calls.with_columns(first=first).with_columns(gap=gap, handover=pl.when(elsewhere).then("handover"))
    begins = pl.col("first") | pl.col("handover").is_not_null()
    opens = begins | pl.col("blocks").shift(1).fill_null(value=False)
    return rows.with_columns(begins=begins, segment=opens.cum_sum().cast(pl.UInt32)).drop("process_before")


def _waits(report: Report, graph: Dependencies, places: pl.Series) -> pl.DataFrame:
    """Operations that each blocking call may wait for: the last submitted before it, of each stream in its scope.

    And the one that ended last while it blocked, whose launch may not be recorded. Of a call that puts a pageable copy
    aside it is that copy, which ends soon after.
    """
    calls = waited_for(report, blocking_calls(report))
    calls = calls.with_columns(place=gathered(places, calls.get_column("call_row")))
    launched = gathered(graph.calls.get_column("start"), graph.operations.get_column("call"))
    work = graph.operations.select("process_id", "device", "end", number="stream").with_row_index("row")
    work = with_facts(report, work, "context_id", "stream").with_columns(begun=launched).drop_nulls("begun")
    work = in_order_of(work.drop_nulls("number"), ("begun",), ("end", "row"))
    full = pl.concat([_of_full_queues(graph, places), _of_host_functions(report, graph, places)])
    copied = calls.select("place", row="copied")
    recorded = calls.drop("behind").filter(pl.col("scope") == "event")
    recorded = recorded.join(recorded_work(report), on=["process_id", "record_id"])
    one = pl.col("scope").is_in(_OF_STREAM) & pl.col("stream").is_not_null()
    every = pl.col("scope").is_in(["device", "free"]) | ((pl.col("scope") == "stream") & pl.col("stream").is_null())
    pairs = calls.filter(every).select("place", "start", "process_id", "device")
    pairs = pairs.join(work.select("process_id", "device", "number").unique(), on=["process_id", "device"])
    streams = [
        nearest(blocked.select("place", "start", *keys), work.select(*keys, "begun", "row"), ("start", "begun"), keys)
        for blocked, keys in ((calls.filter(one), STREAM), (pairs, ["number"]))
    ]
    events, staged = recorded.select("place", row="behind"), staged_copies(report)
    last = _ended_last(report, calls.join(staged, on="call_row", how="anti"))
    edges = pl.concat([events, *(rows.select("place", "row") for rows in streams), full, copied, last]).drop_nulls()
    # what had ended when the call did
    ended_by = pl.DataFrame([places.alias("place"), graph.calls.get_column("end").alias("until")])
    blocking = pl.col("place").is_in(edges.get_column("place").unique().implode())
    ends = ended_by.filter(blocking).group_by("place").agg(pl.col("until").max())
    ended = gathered(graph.operations.get_column("end"), edges.get_column("row"))
    edges = edges.with_columns(ended=ended).join(ends, on="place").filter(pl.col("ended") <= pl.col("until"))
    staged = staged.select(gathered(places, staged.get_column("call_row")).alias("place"), row="behind")
    columns = ("place", "row")
    return pl.concat([edges.select(columns), staged]).drop_nulls().unique().sort(columns)


def _ended_last(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """The operation that ended last in each of blocking calls, of those that it waits for: place and row."""
    # nothing submitted migrations of unified memory
    moved = sure(gathered(migrated(report), calls.get_column("behind")))
    # traces of torch.profiler without synchronisation events tell no stream and no event; a call that waits for nothing
    # returns within microseconds, in which an operation may end by chance, so that only longer ones count
    stream = pl.col("scope").is_in(_OF_STREAM) & pl.col("stream").is_null()
    event = (pl.col("scope") == "event") & pl.col("record_id").is_null()
    untold = pl.col("behind").is_null() & (stream | event) & (pl.col("end") - pl.col("start") > LATENCY_NS)
    unmoved, searched = calls.filter(~moved), calls.filter(moved | calls.select(untold).to_series())
    work = operations(report).filter(~migrated(report)).select("process_id", "row", ended="end").sort("ended", "row")
    pairs = nearest(searched.select("place", "process_id", "start", "end"), work, ("end", "ended"), ["process_id"])
    pairs = pairs.filter(pl.col("ended") > pl.col("start")).select("place", "row")
    return pl.concat([unmoved.select("place", row="behind"), pairs])


def _of_full_queues(graph: Dependencies, places: pl.Series) -> pl.DataFrame:
    """Operations that launches waited for with their stream full: the one that ended last inside each.

    They are looked for in streams of so many operations. Of several operations of one launch in a stream, as of a
    graph, the one that ended last counts; the launch of a graph waited if it took far longer than others.
    """
    work = graph.operations.select("stream", "call", "end").with_row_index("row").drop_nulls()
    work = work.with_columns(many=pl.len().cast(pl.Int64).over("stream", "call"))
    launches = work.filter(pl.len().over("stream") > _FULL).sort("end", "row").unique(["stream", "call"], keep="last")
    times, counted = graph.calls.select(begun="start", returned="end"), pl.col("many").cum_sum().over("stream")
    line = launches.hstack(times[launches.get_column("call")])
    line = in_order_of(line, ("stream", "begun"), ("row",)).with_columns(number=counted, took=_TOOK)
    done = in_order_of(launches.select("stream", "end", "row", "many"), ("stream", "end"), ("row",))
    done = done.select("stream", behind="row", ended="end", done=counted)
    usual = pl.when(pl.col("many") > 1).then(pl.col("took").min().over("stream", "many")).otherwise(0)
    long = line.filter(pl.col("took") > pl.max_horizontal(LATENCY_NS, _LONG_GRAPH * usual))
    pairs = nearest(long, done, ("returned", "ended"), ["stream"])
    rows = pairs.filter((pl.col("number") - pl.col("done") >= _FULL) & (pl.col("ended") >= pl.col("begun")))
    place = gathered(places, rows.get_column("call")).alias("place")
    return pl.DataFrame([place, rows.get_column("behind").cast(pl.UInt32).alias("row")])


def _of_host_functions(report: Report, graph: Dependencies, places: pl.Series) -> pl.DataFrame:
    """Operations that long enqueuing of host functions waited for, as for room: the one that ended last inside."""
    enqueues = report.kind("api").get_column("name").is_in(names_that(report, _HOST_FUNCTION.match))
    calls = graph.calls.select("process_id", "start", "end", place=places).filter(enqueues)
    work = graph.operations.select("process_id", ended="end").with_row_index("row").sort("ended", "row")
    pairs = nearest(calls.filter(pl.col("end") - pl.col("start") > _LONG_NS), work, ("end", "ended"), ["process_id"])
    return pairs.filter(pl.col("ended") >= pl.col("start")).select("place", "row")


#: Kinds of edges.
KINDS: Final = (
    *("stream", "graph", "event", "overlap", "launch", "early launch", "transfer", "return", "own", "thread"),
    *("handover", "window", "cut", "tail", "held", "recorded", "staged"),
)
_KIND: Final = pl.Enum(KINDS)

#: What begins in so small a last part of an operation (in a graph, or by a programmatic launch) follows its end.
_LATE: Final = 0.25
_LATEST_NS: Final = 50_000

#: What a node is.
_WHAT: Final = pl.Enum(("origin", "finish", "end", "begin", "start", "window"))

#: Of the lags of a kind that bind, the share that is no larger than what is taken as their largest.
_MOST: Final = 0.95

#: Edges that are host code: what they name is the place of the call before or after it.
HOST_EDGES: Final = ("thread", "handover", "tail")

#: Edges to the end of the window; where another binds, nothing comes between.
_OF_END: Final = ("window", "tail", "held")

#: A kernel that is queued begins so long after the one before it in its stream (ns): on H100 and H200 some 1,000.
_NEXT_NS: Final = 1_000

#: Later than any slack.
LATEST: Final = 1 << 62


class Numbers(NamedTuple):
    """Nodes by what they are, null for none: of calls by place, of operations by row."""

    ends: pl.Series
    begins: pl.Series
    starts: pl.Series
    finishes: pl.Series
    bases: pl.Series


class Network(NamedTuple):
    """The network of a report up to the end of a window."""

    #: One row per node in topological order: at (recorded time), what it is (:data:`_WHAT`), and row (the place of its
    #: call, or the row of its operation). Node 0 is the origin, at time 0; the last one is the end of the window.
    nodes: pl.DataFrame
    #: Target and source (nodes), point, kind, slack (recorded, ns), place (of the call whose host time it is; for kinds
    #: cut, overlap and transfer the row of the operation that runs; else null), binds, lag (ns; that of a replay), low
    #: and high (those of its bounds); sorted by target.
    edges: pl.DataFrame
    numbers: Numbers  # the nodes of calls, by place, and of operations, by row; null past the end
    line: HostLine
    graph: Dependencies
    start: int  # of the window
    end: int  # of the window


class Values(NamedTuple):
    """Durations that a replay assumes."""

    durations: pl.Series  # of operations, by row
    own: pl.Series  # of calls that do not block, by place
    gaps: pl.Series  # since the call before on the thread, by place


class Changed(NamedTuple):
    """Values and lags of a network after a change; `amdahl_ns` is what it takes from what it changes, summed."""

    values: Values
    lags: pl.Series
    amdahl_ns: int

    def less(self, saved_ns: int, lags: pl.Series | None = None, **values: pl.Series) -> "Changed":
        """The same with other lags, and other values by their names, which take `saved_ns` less in all."""
        kept = self.lags if lags is None else lags
        return Changed(self.values._replace(**values), kept, self.amdahl_ns + saved_ns)


def as_recorded(network: Network, lags: str = "lag") -> Changed:
    """The network's values, and its `lags` (lag, low or high)."""
    return Changed(recorded_values(network.line, network.graph), network.edges.get_column(lags).alias("lag"), 0)


def recorded_values(line: HostLine, graph: Dependencies) -> Values:
    """The recorded durations."""
    work, calls = graph.operations, line.calls
    return Values(
        (work.get_column("end") - work.get_column("start")).alias("durations"),
        (calls.get_column("end") - calls.get_column("start")).alias("own"),
        calls.get_column("gap").alias("gaps"),
    )


def point_values(line: HostLine, values: Values) -> pl.Series:
    """Value of each point: ends of operations, begins of calls, ends of calls, and 0 for starts and nodes."""
    begins, blocks, segment = line.calls.select("begins", "blocks", "segment")
    blocked = blocks.shift(1, fill_value=False)
    step = (values.gaps + values.own.shift(1, fill_value=0).set(blocked, 0)).set(begins, 0)
    reached = step.cum_sum()
    begin = reached - (reached - step).filter(begins | blocked)[segment - 1]
    end = (begin + values.own).set(blocks, 0)
    parts = (values.durations, begin, end, pl.Series([0]))
    return pl.concat([part.alias("value") for part in parts], rechunk=True)


#: Edges that are numbers of Python at a time.
SLICE: Final = 1 << 18


def replayed(net: Network, state: Changed) -> pl.Series:
    """The time of every node (ns) with other values and lags of edges; the last is the end of the window."""
    lags = gathered(point_values(net.line, state.values), net.edges.get_column("point")) + state.lags
    times = [0, *[-LATEST] * (net.nodes.height - 1)]
    for part in net.edges.select("source", "target", lags).iter_slices(SLICE):
        for source, target, lag in zip(*(column.to_list() for column in part), strict=True):
            time = times[source] + lag
            if time > times[target]:  # noqa: PLR1730 - max() takes twice as long
                times[target] = time
    return pl.Series("at", times, dtype=pl.Int64)


def call_times(net: Network, at: pl.Series, points: pl.Series) -> pl.DataFrame:
    """When calls begin and return (start, end), by place: of nodes at such times, and points of such values."""
    calls, size = net.line.calls, net.graph.operations.height
    bases, ends = (gathered(at, nodes) for nodes in (net.numbers.bases, net.numbers.ends))
    begins, returns = (bases + points.slice(size + first, calls.height) for first in (0, calls.height))
    return pl.DataFrame({"start": begins, "end": returns.zip_with(~calls.get_column("blocks"), ends)})


def network(report: Report, start: int, end: int) -> Network:
    """The network of a report for a window."""
    graph = dependencies(report)
    line = host_line(report, graph)
    collectives = last_arrivals(report).select("row", "late")  # whose ranks are all in the report; late: the last one's
    nodes = _nodes(line, graph, collectives, end)
    numbers = _numbers(line, graph, nodes)
    edges = _edges(line, graph, nodes, numbers, collectives)
    return Network(nodes.select("at", "what", "row"), edges, numbers, line, graph, start, end)


def _nodes(line: HostLine, graph: Dependencies, collectives: pl.DataFrame, end: int) -> pl.DataFrame:
    """The nodes in topological order: what (:data:`_WHAT`), row (place or row), at.

    At one instant ends come before begins and those before starts; edges that are against that order are left out.
    """
    calls, work = line.calls, graph.operations.with_row_index("row")
    ended = marked(work.height, collectives.get_column("row"))
    parts = [
        work.filter(ended).select(what=pl.lit("finish", _WHAT), row="row", at="end", then="end"),
        calls.filter("blocks").select(what=pl.lit("end", _WHAT), row="place", at="end", then="end"),
        calls.filter("begins").select(what=pl.lit("begin", _WHAT), row="place", at="start", then="end"),
        work.select(what=pl.lit("start", _WHAT), row="row", at="start", then="end"),
    ]
    nodes = in_order_of(pl.concat(parts).filter(pl.col("at") <= end), ("at",), ("what", "then", "row"))
    ends = pl.DataFrame([("origin", 0, 0, 0), ("window", 0, end, 0)], schema=nodes.schema, orient="row")
    return pl.concat([ends.head(1), nodes, ends.tail(1)]).with_row_index("node").drop("then")


def _numbers(line: HostLine, graph: Dependencies, nodes: pl.DataFrame) -> Numbers:
    def placed(what: str, size: int) -> pl.Series:
        rows = nodes.filter(pl.col("what") == what)
        return scattered(size, rows.get_column("row"), rows.get_column("node"))

    calls, work = line.calls.height, graph.operations.height
    ends, begins = placed("end", calls), placed("begin", calls)
    # the base of a segment: the begin of its first call, or the end of the blocking call before
    base = pl.DataFrame([*line.calls.select("segment", "begins"), begins.alias("begin"), ends.alias("end")])
    opens = pl.col("segment") != pl.col("segment").shift(1, fill_value=0)
    base = base.select(pl.when("begins").then("begin").otherwise(pl.col("end").shift(1)).filter(opens))
    bases = gathered(base.to_series(), line.calls.get_column("segment") - 1)
    return Numbers(ends, begins, placed("start", work), placed("finish", work), bases)


def _edges(
    line: HostLine, graph: Dependencies, nodes: pl.DataFrame, numbers: Numbers, collectives: pl.DataFrame
) -> pl.DataFrame:
    parts = [
        *_of_operations(line, graph, numbers),
        *_of_calls(line, graph, numbers),
        *_of_window(line, graph, numbers, *nodes.select("node", "at").row(-1)),
    ]
    at = nodes.get_column("at")
    values = point_values(line, recorded_values(line, graph))
    edges = pl.concat(parts)
    if collectives.height:
        edges = _from_finishes(edges, graph, numbers, len(values) - 1)
        # the end of each collective waits for the starts of all ranks
        pairs = collectives.join(collectives.select("late", other="row"), on="late")
        rows, others = pairs.get_column("row"), gathered(numbers.starts, pairs.get_column("other"))
        ends = gathered(numbers.finishes, rows)
        edges = pl.concat([edges, _edge("transfer", ends, others, len(values) - 1, rows)])
    edges = edges.drop_nulls(["target", "source", "point"]).filter(pl.col("source") < pl.col("target"))
    since = gathered(at, edges.get_column("source")) + gathered(values, edges.get_column("point"))
    edges = edges.with_columns((gathered(at, edges.get_column("target")) - since).alias("slack"))
    lonely = nodes.filter(~marked(nodes.height, edges.get_column("target"))).slice(1)
    fixed = lonely.select(
        target="node",
        source=pl.lit(0, pl.UInt32),
        point=pl.lit(len(values) - 1, pl.UInt32),
        kind=pl.lit("recorded", _KIND),
        slack="at",
        place=pl.lit(None, pl.UInt32),
    )
    all_edges = in_order(pl.concat([edges.select(fixed.columns), fixed]), "target")
    follows = line.calls.select(pl.col("gap").filter(~pl.col("begins") & (pl.col("gap") >= 0)).median()).item()
    return _lags(all_edges, follows if isinstance(follows, float) else 0.0)


def _from_finishes(edges: pl.DataFrame, graph: Dependencies, numbers: Numbers, zero: int) -> pl.DataFrame:
    """Edges from the end of a collective that ends with others lead from that node, in place of its start."""
    rows = edges.get_column("point").set(edges.get_column("point") >= graph.operations.height, None)
    edges = edges.with_columns(finish=gathered(numbers.finishes, rows))
    ended = pl.col("finish").is_not_null()
    return edges.with_columns(
        source=pl.when(ended).then("finish").otherwise("source"),
        point=pl.when(ended).then(pl.lit(zero, pl.UInt32)).otherwise("point"),
    ).drop("finish")


def _lags(edges: pl.DataFrame, follows: float) -> pl.DataFrame:
    """Adds which edges bind, and the lag of each; `follows` is the median time between two calls of a thread (ns).

    A blocking call that waited takes, if there is nothing to wait for, as long as it took to return. At the end of the
    window the host counts with all that it did since its last call, unless the window ends with an operation.
    """
    last = pl.col("target") == pl.lit(edges.item(-1, "target"), pl.UInt32)
    of_end = edges.filter(last)
    exact = of_end.select(((pl.col("kind") == "window") & (pl.col("slack") == 0)).any()).item()
    counts = pl.col("kind").is_in(["window"] if exact else ["tail", "cut"])
    others = last & ~counts if of_end.select(counts.any()).item() else pl.lit(value=False)
    rank = pl.when(others).then(pl.lit(LATEST)).otherwise("slack").alias("rank")
    order = in_order_of(edges.select("target", rank).with_row_index("edge"), ("target",), ("rank", "edge"))
    first = order.filter(pl.col("target") != pl.col("target").shift(1, fill_value=0)).get_column("edge")
    edges = edges.with_columns(binds=marked(edges.height, first))
    lags = _usual_lags(edges, follows)[edges.get_column("kind").to_physical().cast(pl.UInt32)]
    ends = edges.select("target", "slack", "kind").with_row_index("edge")
    ends = ends.filter(pl.col("kind").is_in(["own", "return", "transfer"]))
    back = ends.filter(pl.col("kind") != "own").group_by("target").agg(back=pl.col("slack").min().clip(0))
    ends = ends.filter(pl.col("kind") != "return").join(back, on="target", how="left", maintain_order="left")
    lags = lags.with_columns(column.scatter(ends.get_column("edge"), ends.get_column("back")) for column in lags)
    keeps = pl.col("binds") | pl.col("kind").is_in(["cut"] if exact else ["cut", "tail"])
    least = (pl.when(~keeps & (pl.col(name) < pl.col("slack"))).then(name).otherwise("slack") for name in lags.columns)
    return edges.hstack(lags).with_columns(lag.alias(name) for name, lag in zip(lags.columns, least, strict=True))


def _usual_lags(edges: pl.DataFrame, follows: float) -> pl.DataFrame:
    """Lag of each of :data:`KINDS` where it does not bind, and its bounds: lag, low and high (ns)."""
    usual = edges.group_by("kind").agg(
        usual=pl.col("slack").filter(pl.col("binds") & (pl.col("slack") >= 0)).median(),
        most=pl.col("slack").filter(pl.col("binds") & (pl.col("slack") >= 0)).quantile(_MOST, "higher"),
        least=pl.col("slack").filter(pl.col("slack") >= 0).min(),
    )
    kinds = pl.Series("kind", KINDS, dtype=_KIND).to_frame().join(usual, on="kind", how="left", maintain_order="left")
    # of a kind that never binds nothing is known but that it takes no longer than its least slack
    launch = usual.filter(pl.col("kind") == "launch").get_column("usual").max()
    most = pl.when(pl.col("kind") == "stream").then(_NEXT_NS).otherwise(LATENCY_NS)
    unknown = pl.min_horizontal("least", pl.lit(launch, dtype=pl.Float64), most).clip(lower_bound=0)
    lag = pl.coalesce("usual", unknown, pl.lit(0))
    high = pl.coalesce("most", "usual", pl.min_horizontal("least", pl.lit(LATENCY_NS)))
    fixed = pl.when(pl.col("kind").is_in(_OF_END)).then(0).when(pl.col("kind") == "thread").then(int(follows))
    lags = {"lag": fixed.otherwise(lag), "low": pl.lit(0), "high": fixed.otherwise(high)}
    return kinds.select(value.floor().cast(pl.Int64).alias(name) for name, value in lags.items())


def _edge(
    kind: str, target: pl.Series | int, source: pl.Series, point: pl.Series | int, place: pl.Series | None = None
) -> pl.DataFrame:
    """Edges of one kind; a number is that of all."""
    edges = pl.DataFrame([source.alias("source")]).with_columns(target=target, point=point, place=place)
    return edges.select(pl.all().cast(pl.UInt32), kind=pl.lit(kind, _KIND))


def _of_operations(line: HostLine, graph: Dependencies, numbers: Numbers) -> list[pl.DataFrame]:
    """Edges to each operation: from earlier operations, and from its launch."""
    work, calls = graph.operations.with_row_index("row"), line.calls
    zero, parts = work.height + 2 * calls.height, []
    # what a blocking call launches once it has waited starts as late as the host makes it
    staged = sure(gathered(calls.get_column("blocks"), gathered(line.places, work.get_column("call"))))
    for column, kind in {"stream_before": "stream", "graph_before": "graph", "event_before": "event"}.items():
        following = work.drop_nulls(column)
        before = work.select("start", "end")[following.get_column(column)]
        late = ((before.get_column("end") - before.get_column("start")) * _LATE).clip(upper_bound=_LATEST_NS)
        over = before.get_column("end") - following.get_column("start") <= late
        held = over & gathered(staged, following.get_column("row"))
        for chosen, name in ((over & ~held, kind), (held, "staged"), (~over, "overlap")):
            source, rows = (following.get_column(key).filter(chosen) for key in (column, "row"))
            point, place = (zero, source) if name == "overlap" else (source, None)
            parts.append(_edge(name, gathered(numbers.starts, rows), gathered(numbers.starts, source), point, place))
    places = gathered(line.places, work.get_column("call")).alias("place")
    launched = work.with_columns(places).drop_nulls("place")
    ended = calls.select("end", "blocks")[launched.get_column("place")]
    late = (ended.get_column("end") <= launched.get_column("start")) & ~ended.get_column("blocks")
    for chosen, name, first in ((late, "launch", work.height + calls.height), (~late, "early launch", work.height)):
        rows, place = (launched.get_column(key).filter(chosen) for key in ("row", "place"))
        parts.append(_edge(name, gathered(numbers.starts, rows), gathered(numbers.bases, place), place + first))
    return parts


def _ends(line: HostLine, numbers: Numbers, work: int, place: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Source and point of the ends of calls: their own node, or their base."""
    ends, bases = gathered(numbers.ends, place), gathered(numbers.bases, place)
    return ends.zip_with(gathered(line.calls.get_column("blocks"), place), bases), place + (work + line.calls.height)


def _of_calls(line: HostLine, graph: Dependencies, numbers: Numbers) -> list[pl.DataFrame]:
    """Edges to begins and ends of calls, where these are nodes."""
    calls, work = line.calls, graph.operations.height
    handed = calls.filter(pl.col("handover").is_not_null())
    place, before = handed.get_column("place"), handed.get_column("handover")
    parts = [_edge("handover", gathered(numbers.begins, place), *_ends(line, numbers, work, before), place)]
    place = handed.filter(~pl.col("first")).get_column("place")
    parts.append(_edge("thread", gathered(numbers.begins, place), *_ends(line, numbers, work, place - 1), place))
    blocks = calls.filter("blocks").get_column("place")
    parts.append(_edge("own", gathered(numbers.ends, blocks), gathered(numbers.bases, blocks), blocks + work))
    rows, place = line.waits.get_column("row"), line.waits.get_column("place")
    return [*parts, _edge("return", gathered(numbers.ends, place), gathered(numbers.starts, rows), rows)]


def _of_window(line: HostLine, graph: Dependencies, numbers: Numbers, node: int, end: int) -> list[pl.DataFrame]:
    """Edges to the end of the window: from the host after its last call, and from operations that ran up to it.

    A host that a call holds by then has come as far as that call's begin.
    """
    work, calls = graph.operations.with_row_index("row").drop_nulls("stream"), line.calls
    size = graph.operations.height
    holds = pl.col("blocks") & ~pl.col("first") & (pl.col("start") < end) & (pl.col("end") > end)
    returned = calls.with_columns(held=holds.shift(-1, fill_value=False)).filter(pl.col("end") <= end)
    latest = pl.col("end") == pl.col("end").max()
    over = returned.group_by("process_id", maintain_order=True).agg(pl.col("place", "held").filter(latest).last())
    held, over = over.filter("held").get_column("place") + 1, over.filter(~pl.col("held"))
    ended = work.filter(pl.col("end") <= end).group_by("stream", maintain_order=True)
    rows = ended.agg(pl.col("row").filter(latest).last()).get_column("row")
    cut = work.filter((pl.col("start") < end) & (pl.col("end") > end))
    place, running = over.get_column("place"), cut.get_column("row")
    return [
        _edge("tail", node, *_ends(line, numbers, size, place), place),
        _edge("held", node, gathered(numbers.bases, held), held + size),
        _edge("window", node, gathered(numbers.starts, rows), rows),
        _edge("cut", node, gathered(numbers.starts, running), size + 2 * calls.height, running),
    ]
