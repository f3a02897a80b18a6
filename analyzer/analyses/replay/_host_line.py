"""CUDA calls thread by thread, and what the time of each is relative to.

Most calls follow the call before them on their thread, and nothing else: their times are offsets from a call that
waited for something else, or from the end of a blocking call (their base), so that a replay computes these alone one by
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import with_facts
from kanalyze.analyses.idle._blocking_calls import blocking_calls
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.streams._serialised import LATENCY_NS
from kanalyze.analyses.streams._waited_for import STREAM, recorded_work
from kanalyze.columns.lookup import gathered, marked
from kanalyze.columns.ordering import in_order_of

if TYPE_CHECKING:
    from kanalyze.analyses.dependencies._graph import Dependencies
    from kanalyze.report import Report

#: Scopes of blocking calls that wait for one stream; `event` waits for the work before an event, others for a device.
_OF_STREAM: Final = ("stream", "copy")

#: A stream holds some 1,022 launches that have not ended; a launch that took long and left so many waited for room.
_FULL: Final = 1_000
_CALLED: Final = {"start": "begun", "end": "returned"}


class HostLine(NamedTuple):
    """The outermost calls by thread and start.

    Attributes:
        calls: One row per call (its place): row (of the api events), process_id, thread_id, start, end, kind, gap (ns
            since the call before it on its thread ended; 0 for the first), handover (place of the call of another
            thread that ended last before it, if no call of its own thread did later; else null), begins (whether its
            begin is a node: it is the first of its thread, or handed over to), blocks (whether its end is a node: it
            waits for operations), segment (number of the calls with one base).
        places: Place of each call, or of the outermost call around it, by row of the api events.
        waits: What blocking calls may wait for: place, row (of the operations) of what was submitted before; and what
            launches waited for because the queue of their stream was full.
    """

    calls: pl.DataFrame
    places: pl.Series
    waits: pl.DataFrame


def host_line(report: Report, graph: Dependencies) -> HostLine:
    """The calls of the processes in scope, at any time."""
    every = graph.calls.with_row_index("row")
    own = every.filter(pl.col("outer") == pl.col("row"))
    order = ["row", "process_id", "thread_id", "start", "end", "kind", "process_before"]
    calls = in_order_of(own.select(order), (*THREAD, "start"), ("end", "row")).with_row_index("place")
    found = pl.Series("place", [None], dtype=pl.UInt32).new_from_index(0, every.height)
    places = found.scatter(calls.get_column("row"), calls.get_column("place")) if calls.height else found
    waits = _waits(report, graph, gathered(places, every.get_column("outer")))
    calls = calls.with_columns(
        handover=gathered(places, calls.get_column("process_before")),
        blocks=pl.col("place").is_in(waits.get_column("place").unique().implode()),
    )
    return HostLine(_segments(calls), gathered(places, every.get_column("outer")), waits)


def _segments(calls: pl.DataFrame) -> pl.DataFrame:
    first = pl.col("thread_id").ne_missing(pl.col("thread_id").shift(1)) | pl.col("process_id").ne_missing(
        pl.col("process_id").shift(1)
    )
    first = first | (pl.col("place") == 0)
    gap = pl.when(first).then(0).otherwise(pl.col("start") - pl.col("end").shift(1))
    elsewhere = pl.col("handover").is_not_null() & (first | (pl.col("handover") != pl.col("place") - 1))
    known = calls.with_columns(gap.alias("gap"), first.alias("first"))
    known = known.with_columns(handover=pl.when(elsewhere).then("handover"))
    begins = pl.col("first") | pl.col("handover").is_not_null()
    known = known.with_columns(begins.alias("begins"), after=pl.col("blocks").shift(1).fill_null(value=False))
    return known.with_columns(segment=(pl.col("begins") | pl.col("after")).cum_sum().cast(pl.UInt32)).drop(
        "process_before"
    )


def _waits(report: Report, graph: Dependencies, places: pl.Series) -> pl.DataFrame:
    """Operations that each blocking call may wait for: the last submitted before it, of each stream in its scope."""
    calls = blocking_calls(report).with_columns(pl.col("call_row").alias("at"))
    calls = calls.with_columns(place=gathered(places, calls.get_column("at")))
    launched = gathered(graph.calls.get_column("start"), graph.operations.get_column("call"))
    work = graph.operations.select("process_id", "device", "end", number="stream").with_row_index("row")
    work = with_facts(report, work, "context_id", "stream").with_columns(begun=launched).drop_nulls("begun")
    work = in_order_of(work.drop_nulls("number"), ("begun",), ("end", "row"))
    full = _of_full_queues(graph, places)
    parts = [_of_events(report, calls), _of_streams(calls, work), _of_devices(calls, work), full]
    copied = calls.select("place", row="copied").drop_nulls()
    told = pl.DataFrame([places.alias("place"), graph.calls.get_column("waited_for").alias("row")]).drop_nulls()
    columns = ("place", "row")
    edges = pl.concat([*parts, copied])
    ended = gathered(graph.operations.get_column("end"), edges.get_column("row"))
    until = pl.concat([calls.get_column("place"), full.get_column("place")]).alias("place").to_frame()
    ended_by = pl.DataFrame([places.alias("place"), graph.calls.get_column("end").alias("until")])
    ends = ended_by.join(until, on="place", how="semi").group_by("place").agg(pl.col("until").max())
    edges = edges.with_columns(ended=ended).join(ends, on="place", how="left")
    edges = edges.filter(pl.col("ended") <= pl.col("until")).select(columns)
    return pl.concat([edges, told]).drop_nulls().unique().sort(columns)


def _of_full_queues(graph: Dependencies, places: pl.Series) -> pl.DataFrame:
    """Operations that launches waited for with their stream full: the one that ended last inside each."""
    known = _launches_of_long_streams(graph)
    if known.is_empty():
        return pl.DataFrame(schema={"place": pl.UInt32, "row": pl.UInt32})
    call = known.get_column("call")
    times = [gathered(graph.calls.get_column(side), call).alias(name) for side, name in _CALLED.items()]
    known = in_order_of(known.hstack(times), ("stream", "begun"), ("row",))
    known = known.with_columns(number=_counted())
    done = in_order_of(known.select("stream", "end", "row"), ("stream", "end"), ("row",))
    done = done.select("stream", behind="row", ended="end", done=_counted() + 1)
    long = known.filter(pl.col("returned") - pl.col("begun") > LATENCY_NS).sort("returned")
    found = long.join_asof(done, left_on="returned", right_on="ended", by="stream", check_sortedness=False)
    waited = (pl.col("number") + 1 - pl.col("done") >= _FULL) & (pl.col("ended") >= pl.col("begun"))
    rows = found.filter(waited).select("call", row="behind")
    return rows.select(gathered(places, rows.get_column("call")).alias("place"), pl.col("row").cast(pl.UInt32))


def _launches_of_long_streams(graph: Dependencies) -> pl.DataFrame:
    """Launches of streams that have so many that these may have waited for room: stream, call, row, end.

    Of several operations of one launch in a stream, as of a graph, the one that ended last.
    """
    work = graph.operations.select("stream", "call", "end").with_row_index("row").drop_nulls()
    sizes = work.group_by("stream").len()
    long = sizes.filter(pl.col("len") > _FULL)
    if long.height < sizes.height:
        work = work.filter(pl.col("stream").is_in(long.get_column("stream").implode()))
    if work.is_empty() or int(marked(graph.calls.height, work.get_column("call")).sum()) == work.height:
        return work
    launches = work.group_by("stream", "call").agg(pl.col("row").sort_by("end", "row").last(), pl.col("end").max())
    return launches.filter(pl.len().over("stream") > _FULL)


def _counted() -> pl.Expr:
    """How many rows of its stream are before each, which are together."""
    place = pl.int_range(pl.len())
    return place - pl.when(pl.col("stream").ne_missing(pl.col("stream").shift(1))).then(place).forward_fill()


def _of_events(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    own = calls.filter(pl.col("scope") == "event")
    return own.join(recorded_work(report), on=["process_id", "record_id"]).select("place", row="behind").drop_nulls()


def _of_streams(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    own = calls.filter(pl.col("scope").is_in(_OF_STREAM) & pl.col("stream").is_not_null()).sort("start")
    by = [*STREAM]
    found = own.join_asof(
        work.select(*by, "begun", "row"), left_on="start", right_on="begun", by=by, check_sortedness=False
    )
    return found.select("place", "row").drop_nulls()


def _of_devices(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    whole = pl.col("scope").is_in(["device", "free"]) | ((pl.col("scope") == "stream") & pl.col("stream").is_null())
    own = calls.filter(whole).select("place", "start", "process_id", "device")
    used = work.select("process_id", "device", "number").unique()
    asked = own.join(used, on=["process_id", "device"]).sort("start")
    found = asked.join_asof(
        work.select("number", "begun", "row"), left_on="start", right_on="begun", by="number", check_sortedness=False
    )
    return found.select("place", "row").drop_nulls()
