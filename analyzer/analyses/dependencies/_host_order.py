"""The order of CUDA calls: on their thread, in their process, and what each blocked on.

The columns that :func:`host_calls` gives are described in :mod:`kanalyze.analyses.dependencies._graph`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.dependencies._stream_order import migrated
from kanalyze.analyses.device._operations import in_time, launching_rows, operations
from kanalyze.analyses.idle._blocking_calls import blocking_calls, staged_copies, waited_for
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.streams._serialised import LATENCY_NS
from kanalyze.columns.grouping import parts_by
from kanalyze.columns.lookup import count_up_to, gathered
from kanalyze.columns.ordering import in_order_of

if TYPE_CHECKING:
    from kanalyze.report import Report

#: What a call does: it blocks until a device is done, it launches, or neither.
CALL_KINDS: Final = ("wait", "launch", "other")

_WAIT, _LAUNCH, _OTHER = range(len(CALL_KINDS))


def host_calls(report: Report) -> pl.DataFrame:
    """All CUDA calls of the processes in scope, in the order of the api events: the columns of `calls`."""
    end = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    calls = in_time(report, report.kind("api").select(*THREAD, start="start_ns", end=end))
    calls = calls.with_columns(pl.max_horizontal("start", "end").alias("end")).with_row_index("row")
    calls = calls.hstack([_outermost(calls)])
    calls = calls.hstack([_kinds(report, calls), _waited_for(report, calls), _before_in_process(calls)])
    return calls.drop("row")


def _outermost(calls: pl.DataFrame) -> pl.Series:
    """Row of the outermost call of its thread around each call: `outer`."""
    line = in_order_of(calls, (*THREAD, "start"), (-pl.col("end"),))
    first = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in THREAD)
    line = line.with_columns(thread=first.cum_sum())
    reached = pl.col("end").cum_max().shift(1).over("thread")
    inside = (reached >= pl.col("end")) & (pl.col("start") < pl.col("end"))
    found = line.select("row", before=pl.when(~inside.fill_null(value=False)).then("row").forward_fill())
    return _placed(calls, found, "outer")


def _kinds(report: Report, calls: pl.DataFrame) -> pl.Series:
    """Kind of each call, or of a call that is nested in it."""
    outer, rank = calls.get_column("outer"), pl.Series("kind", [_OTHER], dtype=pl.UInt8)
    rank = rank.new_from_index(0, calls.height)
    for kind, rows in (
        (_LAUNCH, launching_rows(report)),
        (_WAIT, blocking_calls(report).get_column("call_row")),
        (_WAIT, staged_copies(report).get_column("call_row")),
    ):
        rank = rank.scatter(gathered(outer, rows), kind) if len(rows) else rank
    names = pl.Series(CALL_KINDS, dtype=pl.Enum(CALL_KINDS))
    return names[rank.cast(pl.UInt32)].alias("kind")


def _waited_for(report: Report, calls: pl.DataFrame) -> pl.Series:
    """Row of the operation that each call blocked on: it ended inside the call, the last of those; null for none.

    Of a call that puts a pageable copy aside it is that copy, which ends soon after.
    """
    ends, staged = operations(report).get_column("end"), staged_copies(report)
    waits = _untold(report, _submitted(report, waited_for(report, blocking_calls(report))))
    found = waits.select("call_row", "behind").drop_nulls().join(staged, on="call_row", how="anti")
    found = pl.concat([found, staged.select(found.columns)])
    rows, behind = found.get_column("call_row"), found.get_column("behind")
    outer = gathered(calls.get_column("outer"), rows)
    known = pl.DataFrame([outer.alias("row"), behind, gathered(ends, behind).alias("ended")])
    inside = (gathered(calls.get_column("start"), outer) < known.get_column("ended")) & (
        (known.get_column("ended") <= gathered(calls.get_column("end"), outer))
        | behind.is_in(staged["behind"].implode())
    )
    last = known.filter(inside).sort("row", "ended", "behind", descending=[False, False, True])
    last = last.unique("row", keep="last")
    nothing = pl.Series("waited_for", [None], dtype=pl.UInt32).new_from_index(0, calls.height)
    return nothing.scatter(last.get_column("row"), last.get_column("behind")) if last.height else nothing


def _submitted(report: Report, waits: pl.DataFrame) -> pl.DataFrame:
    """Replaces migrations of unified memory in `behind` by the last operation of the process to end by then."""
    wrong = gathered(migrated(report), waits.get_column("behind")).fill_null(value=False)
    return _with_last_ended(report, waits, wrong) if wrong.any() else waits


def _untold(report: Report, waits: pl.DataFrame) -> pl.DataFrame:
    """Sets `behind` of waits for a stream or event that is not recorded: the last operation to end by then.

    That is so in traces of torch.profiler without synchronisation events. A call that waits for nothing returns within
    microseconds, in which an operation may end by chance, so that only longer ones count.
    """
    stream = pl.col("scope").is_in(["stream", "copy"]) & pl.col("stream").is_null()
    event = (pl.col("scope") == "event") & pl.col("record_id").is_null()
    lasted = pl.col("end") - pl.col("start") > LATENCY_NS
    untold = waits.select(pl.col("behind").is_null() & (stream | event) & lasted).to_series()
    return _with_last_ended(report, waits, untold) if untold.any() else waits


def _with_last_ended(report: Report, waits: pl.DataFrame, these: pl.Series) -> pl.DataFrame:
    """Replaces `behind` of some of the waits by the last operation of their process to end by then."""
    work = operations(report).filter(~migrated(report)).sort("end", "row").select("process_id", "end", behind="row")
    others = waits.filter(these).drop("behind").sort("end")
    found = others.join_asof(work, on="end", by="process_id", check_sortedness=False)
    return pl.concat([waits.filter(~these), found.select(waits.columns)])


def _before_in_process(calls: pl.DataFrame) -> pl.Series:
    """Row of the outermost call of its process that ended last before each outermost call began.

    Of several that ended at once the longest, then the one with the lower row.
    """
    found = [pl.DataFrame(schema={"row": pl.UInt32, "before": pl.UInt32})]
    outermost = calls.filter(pl.col("outer") == pl.col("row"))
    outermost = outermost.select("row", "process_id", "start", "end")
    ties = (-pl.col("start"), -pl.col("row").cast(pl.Int64))
    for part in parts_by(outermost, ["process_id"]).values():
        line = in_order_of(part, ("end",), ties).with_row_index("place")
        begun = count_up_to(line.get_column("end"), line.get_column("start"), equal=True)
        place, rows = line.get_column("place"), line.get_column("row")
        after = pl.concat([rows.clear(1), rows])  # of a number of calls the last one
        before = gathered(after, begun.zip_with(begun < place, place))
        found.append(pl.DataFrame([rows, before.alias("before")]))
    return _placed(calls, pl.concat(found), "process_before")


def _placed(calls: pl.DataFrame, found: pl.DataFrame, name: str) -> pl.Series:
    """`before` of the rows of `found` at their places among all `calls`; null elsewhere."""
    nothing = pl.Series(name, [None], dtype=pl.UInt32).new_from_index(0, calls.height)
    return nothing.scatter(found.get_column("row"), found.get_column("before")) if found.height else nothing
