"""The dependency graph of a recording: device operations and CUDA calls, and what each had to wait for.

Two frames, as :class:`Dependencies`. Row i of `operations` is row i of the frame that
:func:`kanalyze.analyses.device._operations.operations` gives; row i of `calls` is row i of ``report.kind("api")``. A
column that points to another row is UInt32, null for none.

Columns of `operations`, besides device and process_id as there:

- start, end: ns; end >= start
- stream: number of its stream (UInt32, dense); null for work that nothing submitted: migrations of unified memory,
  which take no part (no edge leads to one or from one)
- call: row in `calls` of the outermost call that launched it; null where it is not recorded: then what it waited for
  beside `stream_before` is unknown
- stream_before: row of the operation before it in its stream; of legacy null and blocking streams of one context,
  which wait for each other, the one of both that ended last
- event_before: row of the operation behind the CUDA event for which its stream waited; where that is not recorded, but
  some event, graph or callback asked for an order, the operation of another stream that ended last before it
- graph_before: for a node of a CUDA graph: row of the node that it depends on, of several the one that ended last;
  where the report tells no dependencies, of the node of the same launch that ended last before it

Columns of `calls`, besides process_id and thread_id:

- start, end: ns; end >= start
- kind: ``wait`` (it blocks, also if it launches, too: a copy), ``launch``, or ``other``
- outer: row of the outermost call of its thread around it: its own, unless it is nested
- process_before: row of the outermost call of any thread of its process that ended last before it began; null if it
  is nested

An operation may start before its `call` ends, and before its `stream_before` ends (programmatic launches, clocks). All
other edges lead from an end to a start that is no earlier. Edges between operations lead down in (start, end, row),
edges between calls (`process_before`) down in the order of (end, -start, -row): no cycle within either. Through both, a
cycle needs events of one and the same instant.
"""

import re
from typing import Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import facts_of, in_time, launching_rows, operations
from kanalyze.analyses.host._call_kinds import names_that
from kanalyze.analyses.idle.syncs import blocking_calls, staged_copies
from kanalyze.analyses.shared import analysis, threads
from kanalyze.analyses.streams.concurrency import event_waits, ordered, streamed_operations, used_streams
from kanalyze.columns import count_up_to, gathered, in_order_of, marked, nearest, parts_by, scattered, sure
from kanalyze.intervals import OF_EVENTS
from kanalyze.report import Report

_GRAPH_LAUNCH: Final = re.compile(r"(?:cuda|cu)GraphLaunch")

_EDGE: Final = {"row": pl.UInt32, "before": pl.UInt32}


def order_in_streams(report: Report, work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds the streams of `work` (start, end, process_id, call) and its edges to earlier operations."""
    numbers = streamed_operations(report).get_column("number").alias("stream")
    line = work.with_row_index("row").with_columns(numbers.set(migrated(report), None))
    own = _placed(line, _before_in_stream(line), "stream_before")
    other = _placed(line, _across_null_stream(report, line.with_columns(own)), "stream_before")
    # of both the one that ended later, at most at the operation's start
    mine, theirs = (gathered(line.get_column("end"), rows) for rows in (own, other))
    later = other.is_not_null() & (own.is_null() | sure((theirs > mine) | (theirs > line.get_column("start"))))
    line = line.with_columns(other.zip_with(later, own))
    recorded = _kept(line, event_waits(report).rename({"behind": "before"}))
    guessed = _kept(line, _other_stream(report, line, calls)).join(recorded, on="row", how="anti")
    line = line.with_columns(
        _placed(line, pl.concat([recorded, guessed]), "event_before"),
        _placed(line, _kept(line, _same_graph(report, line)), "graph_before"),
    )
    return line.drop("row")


@analysis.once_per_process
def migrated(report: Report) -> pl.Series:
    """Whether each operation is a migration of unified memory, which nothing submitted."""
    return operations(report, "migration_cause").get_column("migration_cause").is_not_null()


def _before_in_stream(line: pl.DataFrame) -> pl.DataFrame:
    """The operation of its stream that ended last before each; if one still ran, the one that started last."""
    work = line.drop_nulls("stream").select("row", "stream", "start", "end")
    order = in_order_of(work, ("stream", "start"), ("end",))
    reached = pl.col("end").cum_max().over("stream")
    latest = pl.when(pl.col("end") == reached).then("row").forward_fill()
    order = order.with_columns(reached.alias("reached"), latest.alias("latest"))
    over = pl.col("reached").shift(1) <= pl.col("start")
    chosen = pl.when(over).then(pl.col("latest").shift(1)).otherwise(pl.col("row").shift(1))
    same = pl.col("stream") == pl.col("stream").shift(1)
    return order.select("row", before=pl.when(same).then(chosen)).drop_nulls()


def _across_null_stream(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    """The operation of a null stream that ended last before each of a blocking one, and the other way round."""
    used = used_streams(report).filter(pl.col("type").is_in(["null", "blocking"]))
    used = used.select("number", "group", legacy=pl.col("type") == "null")
    # of contexts that use both
    streams = used.filter(pl.col("legacy").any().over("group") & ~pl.col("legacy").all().over("group"))
    work = line.select("row", "stream", "start", "end").join(streams, left_on="stream", right_on="number")
    null, blocking = work.filter("legacy"), work.filter(~pl.col("legacy"))
    sides = ((null, blocking), (blocking, null))
    return _kept(line, pl.concat(_last_ended(asking, others, ["group"]) for asking, others in sides))


def _same_graph(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    """What each node of a CUDA graph had to wait for in it: row and before.

    That is what the report tells for any node of the launch, else the node of the launch that ended last before it.
    """
    of_graph = report.kind("api").get_column("name").is_in(names_that(report, _GRAPH_LAUNCH.match))
    nodes = line.select("row", "call", "start", "end").filter(gathered(of_graph, line.get_column("call")))
    nodes = nodes.filter(pl.col("call").is_duplicated())
    ids = operations(report).select(before="row", after_id="event_id")
    recorded = nodes.select("row", "call").hstack(facts_of(report, nodes.get_column("row"), "after_id"))
    recorded = recorded.join(ids, on="after_id")
    guessed = nodes.join(recorded, on="call", how="anti")
    return pl.concat([recorded.select(pl.col(*_EDGE).cast(pl.UInt32)), _last_ended(guessed, guessed, ["call"])])


def _other_stream(report: Report, line: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """For operations that an event may have held back: the last one of another stream to end before, if given earlier.

    See :func:`kanalyze.analyses.streams.concurrency.ordered`: a call since the previous launch of the stream asked for
    an order, and which work it meant is not recorded.
    """
    launched = gathered(calls.get_column("start"), line.get_column("call")).alias("call_start")
    asking = line.select("row", "stream", "process_id", "start", "end", "stream_before").with_columns(launched)
    earlier = gathered(launched, asking.get_column("stream_before")).alias("earlier")
    asking = asking.with_columns(earlier, pl.col("stream").alias("number")).drop_nulls(["call_start", "stream"])
    if asking.get_column("stream").n_unique() < 2:  # noqa: PLR2004 - another stream is needed
        return pl.DataFrame(schema=_EDGE)
    held = asking.filter(ordered(report, asking))
    frames = [pl.DataFrame(schema=_EDGE)]
    ended = asking.select("row", "stream", "process_id", "start", "end", "call_start")
    for (stream,), part in held.partition_by("stream", as_dict=True).items():
        edges = _last_ended(part, ended.filter(pl.col("stream") != stream), ["process_id"])
        times = (gathered(launched, edges.get_column(side)) for side in ("before", "row"))
        frames.append(edges.filter(next(times) < next(times)))
    return pl.concat(frames)


def _last_ended(asking: pl.DataFrame, others: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """As-of join by `by`: the last of `others` to end before each of `asking` starts, of several the lowest row.

    Both have row, start and end. Operations without length are not waited for: one that starts at that very moment
    could be the asking one itself. Columns: row and before.
    """
    lasting = others.filter(pl.col("end") > pl.col("start"))
    ended = lasting.sort("end", "row", descending=[False, True]).select(*by, "end", before="row")
    pairs = nearest(asking.select("row", *by, "start"), ended, ("start", "end"), by)
    return pairs.select("row", "before").drop_nulls()


def _kept(line: pl.DataFrame, edges: pl.DataFrame) -> pl.DataFrame:
    """The `edges` (row, before) from an end to a start that is no earlier, down in the order of (start, end, row)."""
    starts, ends = line.get_column("start"), line.get_column("end")
    rows, before = edges.get_column("row"), edges.get_column("before")
    since, at = gathered(ends, before), gathered(starts, rows)
    down = (gathered(starts, before) < at) | (since < gathered(ends, rows)) | (before < rows)
    return edges.filter((since <= at) & down).select(pl.col("row", "before").cast(pl.UInt32))


def _placed(line: pl.DataFrame, edges: pl.DataFrame, name: str) -> pl.Series:
    """`before` of the rows of `edges` at their places among all operations; null elsewhere."""
    return scattered(line.height, edges.get_column("row"), edges.get_column("before")).alias(name)


#: What a call does: it blocks until a device is done, it launches, or neither.
CALL_KINDS: Final = pl.Enum(("wait", "launch", "other"))


def _outermost(calls: pl.DataFrame) -> pl.Series:
    """Row of the outermost call of its thread around each call: `outer`."""
    line = in_order_of(calls, (*threads.THREAD, "start"), (-pl.col("end"),))
    first = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in threads.THREAD)
    line = line.with_columns(thread=first.cum_sum())
    reached = pl.col("end").cum_max().shift(1).over("thread")
    inside = (reached >= pl.col("end")) & (pl.col("start") < pl.col("end"))
    rows = line.select("row", before=pl.when(~inside.fill_null(value=False)).then("row").forward_fill())
    return _placed(calls, rows, "outer")


def _before_in_process(calls: pl.DataFrame) -> pl.Series:
    """Row of the outermost call of its process that ended last before each outermost call began.

    Of several that ended at once the longest, then the one with the lower row.
    """
    frames = [pl.DataFrame(schema=_EDGE)]
    outermost = calls.filter(pl.col("outer") == pl.col("row")).select("row", "process_id", "start", "end")
    ties = (-pl.col("start"), -pl.col("row").cast(pl.Int64))
    for part in parts_by(outermost, ["process_id"]).values():
        line = in_order_of(part, ("end",), ties).with_row_index("place")
        begun = count_up_to(line.get_column("end"), line.get_column("start"), equal=True)
        place, rows = line.get_column("place"), line.get_column("row")
        after = pl.concat([rows.clear(1), rows])  # of a number of calls the last one
        frames.append(pl.DataFrame([rows, gathered(after, begun.zip_with(begun < place, place)).alias("before")]))
    return _placed(calls, pl.concat(frames), "process_before")


class Dependencies(NamedTuple):
    """The dependency graph of a report; the columns are those of the module's description."""

    operations: pl.DataFrame
    calls: pl.DataFrame


@analysis.once_per_process
def dependencies(report: Report) -> Dependencies:
    """The dependency graph of all operations and calls of the processes in scope, at any time."""
    calls = in_time(report, report.kind("api").select(*threads.THREAD, **OF_EVENTS))
    calls = calls.with_columns(pl.max_horizontal("start", "end").alias("end")).with_row_index("row")
    calls = calls.hstack([_outermost(calls)])
    # of each call, or of a call that is nested in it
    waiting = pl.concat(of(report).get_column("call_row") for of in (blocking_calls, staged_copies))
    outer = calls.get_column("outer")
    waits, launches = (marked(calls.height, gathered(outer, rows)) for rows in (waiting, launching_rows(report)))
    kind = pl.when(waits).then(pl.lit("wait")).when(launches).then(pl.lit("launch")).otherwise(pl.lit("other"))
    calls = calls.with_columns(_before_in_process(calls), kind=kind.cast(CALL_KINDS)).drop("row")
    work = operations(report, "call_row")
    call = gathered(outer, work.get_column("call_row")).alias("call")
    work = work.select("start", pl.max_horizontal("start", "end").alias("end"), "device", "process_id")
    return Dependencies(order_in_streams(report, work.with_columns(call), calls), calls)
