"""The order of device operations: in streams, behind CUDA events, and within CUDA graphs.

The columns that :func:`order_in_streams` adds are described in :mod:`kanalyze.analyses.dependencies._graph`. All edges
lead down in the order of (start, end, row).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.host._call_kinds import names_that
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.streams._serialised import ordered
from kanalyze.analyses.streams._streams import streamed_operations, used_streams
from kanalyze.analyses.streams._waited_for import event_waits
from kanalyze.columns.lookup import gathered
from kanalyze.columns.ordering import in_order_of

if TYPE_CHECKING:
    from kanalyze.report import Report

_GRAPH_LAUNCH: Final = re.compile(r"(?:cuda|cu)GraphLaunch")

_EDGE: Final = {"row": pl.UInt32, "before": pl.UInt32}


def order_in_streams(report: Report, work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds the streams of `work` (start, end, process_id, call) and its edges to earlier operations."""
    line = work.with_row_index("row").with_columns(_stream(report))
    own = _placed(line, _before_in_stream(line), "stream_before")
    line = line.with_columns(own)
    line = line.with_columns(_later_of(line, own, _placed(line, _across_null_stream(report, line), "stream_before")))
    told = _kept(line, event_waits(report).rename({"behind": "before"}))
    guessed = _kept(line, _other_stream(report, line, calls)).join(told, on="row", how="anti")
    line = line.with_columns(
        _placed(line, pl.concat([told, guessed]), "event_before"),
        pl.col("row").is_in(told.get_column("row").implode()).alias("event_told"),
        _placed(line, _kept(line, _same_graph(report, line)), "graph_before"),
    )
    return line.drop("row")


def _stream(report: Report) -> pl.Series:
    """The number of the stream of each operation, as in `used_streams` of the whole report; null for migrations."""
    numbers = streamed_operations(report).get_column("number").alias("stream")
    return numbers.set(migrated(report), None)


@once_per_process
def migrated(report: Report) -> pl.Series:
    """Whether each operation is a migration of unified memory, which nothing submitted."""
    return operations(report, "migration_cause").get_column("migration_cause").is_not_null()


def _before_in_stream(line: pl.DataFrame) -> pl.DataFrame:
    """The operation of its stream that ended last before each; if one still ran, the one that started last."""
    order = in_order_of(
        line.drop_nulls("stream").select("row", "stream", "start", "end"), ("stream", "start"), ("end",)
    )
    reached = pl.col("end").cum_max().over("stream")
    latest = pl.when(pl.col("end") == reached).then("row").forward_fill()
    order = order.with_columns(reached.alias("reached"), latest.alias("latest"))
    over = pl.col("reached").shift(1) <= pl.col("start")
    chosen = pl.when(over).then(pl.col("latest").shift(1)).otherwise(pl.col("row").shift(1))
    same = pl.col("stream") == pl.col("stream").shift(1)
    return order.select("row", before=pl.when(same).then(chosen)).drop_nulls()


@once_per_process
def _null_streams(report: Report) -> pl.DataFrame:
    """Blocking and legacy null streams of contexts that use both: number, group, legacy (whether it is a null one)."""
    known = used_streams(report).filter(pl.col("type").is_in(["null", "blocking"]))
    known = known.select("number", "group", legacy=pl.col("type") == "null")
    return known.filter(pl.col("legacy").any().over("group") & ~pl.col("legacy").all().over("group"))


def _across_null_stream(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    """The operation of a null stream that ended last before each of a blocking one, and the other way round."""
    found, streams = [pl.DataFrame(schema=_EDGE)], _null_streams(report)
    if streams.is_empty():
        return found[0]
    work = line.select("row", "stream", "start", "end").join(streams, left_on="stream", right_on="number")
    for legacy in (True, False):
        asking, asked = work.filter(pl.col("legacy") == legacy), work.filter(pl.col("legacy") != legacy)
        found.append(_last_ended(asking, asked, ["group"]))
    return _kept(line, pl.concat(found))


def _same_graph(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    """The node of the same launch of a CUDA graph that ended last before each node: row and before."""
    launches = names_that(report, _GRAPH_LAUNCH.match)
    if not launches:
        return pl.DataFrame(schema=_EDGE)
    of_graph = report.kind("api").get_column("name").is_in(launches)
    nodes = line.select("row", "call", "start", "end").filter(gathered(of_graph, line.get_column("call")))
    nodes = nodes.filter(pl.col("call").is_duplicated())
    return _last_ended(nodes, nodes, ["call"])


def _other_stream(report: Report, line: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """For operations that an event may have held back: the last one of another stream to end before, if given earlier.

    See :func:`kanalyze.analyses.streams._serialised.ordered`: a call since the previous launch of the stream asked for
    an order, and which work it meant is not recorded.
    """
    launched = gathered(calls.get_column("start"), line.get_column("call")).alias("call_start")
    asking = line.select("row", "stream", "process_id", "start", "end", "stream_before").with_columns(launched)
    earlier = gathered(launched, asking.get_column("stream_before")).alias("earlier")
    asking = asking.with_columns(earlier, pl.col("stream").alias("number")).drop_nulls(["call_start", "stream"])
    if asking.get_column("stream").n_unique() < 2:  # noqa: PLR2004 - another stream is needed
        return pl.DataFrame(schema=_EDGE)
    held = asking.filter(ordered(report, asking))
    found = [pl.DataFrame(schema=_EDGE)]
    ended = asking.select("row", "stream", "process_id", "start", "end", "call_start")
    for (stream,), part in held.partition_by("stream", as_dict=True).items():
        others = ended.filter(pl.col("stream") != stream)
        edges = _last_ended(part, others, ["process_id"])
        given = (gathered(launched, edges.get_column(side)) for side in ("before", "row"))
        found.append(edges.filter(next(given) < next(given)))
    return pl.concat(found)


def _last_ended(asking: pl.DataFrame, asked: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """As-of join by `by`: the last of `asked` to end before each of `asking` starts, of several the lowest row.

    Both have row, start and end. Operations without length are not waited for: one that starts at that very moment
    could be the asking one itself. Columns: row and before.
    """
    lasting = asked.filter(pl.col("end") > pl.col("start"))
    ended = lasting.sort("end", "row", descending=[False, True]).select(*by, "end", before="row")
    waiting = asking.sort("start").select("row", *by, "start")
    found = waiting.join_asof(ended, left_on="start", right_on="end", by=by, check_sortedness=False)
    return found.select("row", "before").drop_nulls()


def _kept(line: pl.DataFrame, edges: pl.DataFrame) -> pl.DataFrame:
    """The `edges` (row, before) from an end to a start that is no earlier, down in the order of (start, end, row)."""
    starts, ends = line.get_column("start"), line.get_column("end")
    rows, before = edges.get_column("row"), edges.get_column("before")
    told = pl.DataFrame(
        {
            "row": rows,
            "before": before,
            "since": gathered(ends, before),
            "at": gathered(starts, rows),
            "before_start": gathered(starts, before),
            "end": gathered(ends, rows),
        }
    )
    down = (
        (pl.col("before_start") < pl.col("at")) | (pl.col("since") < pl.col("end")) | (pl.col("before") < pl.col("row"))
    )
    return told.filter((pl.col("since") <= pl.col("at")) & down).select(pl.col("row", "before").cast(pl.UInt32))


def _later_of(line: pl.DataFrame, own: pl.Series, other: pl.Series) -> pl.Series:
    """Of two rows per operation the one that ended later, at most at its start; of equals `own`."""
    ends, start = line.get_column("end"), line.get_column("start")
    times = pl.DataFrame([own.alias("own"), other.alias("other"), start])
    times = times.with_columns(a=gathered(ends, own), b=gathered(ends, other))
    better = pl.col("other").is_not_null() & (pl.col("own").is_null() | (pl.col("b") > pl.min_horizontal("a", "start")))
    return times.select(stream_before=pl.when(better).then("other").otherwise("own")).to_series()


def _placed(line: pl.DataFrame, found: pl.DataFrame, name: str) -> pl.Series:
    """`before` of the rows of `found` at their places among all operations; null elsewhere."""
    nothing = pl.Series(name, [None], dtype=pl.UInt32).new_from_index(0, line.height)
    return nothing.scatter(found.get_column("row"), found.get_column("before")) if found.height else nothing
