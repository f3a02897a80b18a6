"""Dependency of queued operations: a CUDA event, or the operation that ran before.

Definitions: definitions.md, section 5, rule 9.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import facts_of, of_device, operations, with_facts
from kanalyze.analyses.host._call_kinds import calls_that, names_that
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.columns.lookup import count_up_to, gathered, nearest, positions
from kanalyze.columns.ordering import in_order

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Key columns of a stream. The device is left out: a context has one device, and profilers may record a wrong one for a
#: synchronisation (nsys 2025 has 0 for streams of every GPU).
STREAM: Final = ("process_id", "context_id", "stream")

#: What identifies a call.
_CALL: Final = ("process_id", "correlation_id")

#: The call that makes a stream wait for a CUDA event.
_STREAM_WAITS: Final = re.compile(r"(?:cuda|cu)StreamWaitEvent")


def waited_for(report: Report, device: int, rows: pl.Series) -> pl.Series:
    """Names the operation that each of `rows` of a device waited for, such as ``after gemm on stream 7``.

    `rows` ended an idle interval, and were submitted before it began. Each waited for the operation that ended last
    before it on the device, or for the work in front of an event that its stream waited for, if that ended no earlier.
    """
    behind, event = _behind(report, device, rows)
    own, before = facts_of(report, rows, *STREAM), facts_of(report, behind, "name", "device", *STREAM)
    told = before.select("name", "stream", there="device", process="process_id").with_columns(
        event.alias("event"),
        own=before.get_column("process_id").eq_missing(own.get_column("process_id")),
        same=before.get_column("context_id").eq_missing(own.get_column("context_id"))
        & (before.get_column("stream") == own.get_column("stream")).fill_null(value=False),
    )
    texts = told.unique().with_columns(_text(device).cast(pl.Categorical).alias("culprit"))
    found = told.join(texts, on=told.columns, how="left", nulls_equal=True, maintain_order="left")
    return found.get_column("culprit")


def _behind(report: Report, device: int, rows: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Row of the operation that each of `rows` waited for, and whether by an event."""
    work, ended, held = operations(report), ended_last(report)[device], event_waits(report)
    starts, ends = work.get_column("start").gather(rows), work.get_column("end")
    # the device was busy until the interval began, so there is an operation that ended before
    first, stop = (bisect_right(ended, edge, key=ends.item) for edge in (starts.min(), starts.max()))
    near = ended[max(first - 1, 0) : stop]
    last = near.gather(count_up_to(gathered(ends, near), starts, equal=True) - 1)
    if held.is_empty():
        return last, last.is_null()
    behind = gathered(held.get_column("behind"), positions(held.get_column("row"), rows))
    in_time = ((ends.gather(behind) >= ends.gather(last)) & (ends.gather(behind) <= starts)).fill_null(value=False)
    return behind.zip_with(in_time, last), in_time


def _text(device: int) -> pl.Expr:
    """The text of :func:`waited_for` for an operation on `device`, from the columns built there."""
    after = pl.format("after {}", pl.col("name").cast(pl.String).fill_null("an operation without a name"))
    stream = pl.format("stream {}", pl.col("stream").cast(pl.String).fill_null("?"))
    gpu = pl.when(pl.col("there") == device).then(pl.lit("")).otherwise(pl.format("GPU {} ", "there"))
    return (
        pl.when("event")
        .then(pl.format("event on {}{} {}", gpu, stream, after))
        .when(~pl.col("own"))
        .then(pl.format("{} of process {}", after, pl.col("process").cast(pl.String).fill_null("?")))
        .when("same")
        .then(pl.format("{} on the same stream", after))
        .otherwise(pl.format("{} on {}", after, stream))
    )


@once_per_process
def ended_last(report: Report) -> dict[int, pl.Series]:
    """Rows of the operations by device, sorted by end; those without duration are left out."""
    work = operations(report).select("device", "start", "end", "row")
    lasting = pl.col("end") > pl.col("start")
    work = work if work.select(lasting.all()).item() else work.filter(lasting)
    devices = work.get_column("device").unique().sort()
    return {
        device: in_order(of_device(work, device).select("end", "row"), "end").get_column("row") for device in devices
    }


@once_per_process
def event_waits(report: Report) -> pl.DataFrame:
    """Operations submitted after a wait for a CUDA event, with the work in front of that event.

    Columns: row (of the first operation submitted to the stream after the wait) and behind (row of the last operation
    submitted before the event was recorded, see :func:`recorded_work`; of several waits the one whose work ended last);
    sorted by row.
    """
    nothing = pl.DataFrame(schema={"row": pl.UInt32, "behind": pl.UInt32})
    if report.table("event_records").is_empty() or not names_that(report, _STREAM_WAITS.match):
        return nothing
    synced = report.kind("sync").select("event_id", *STREAM, "correlation_id")
    known = synced.join(report.table("sync_detail").select("event_id", "record_id").drop_nulls(), on="event_id")
    asking = _first_of_each(calls_that(report, _STREAM_WAITS.match, *_CALL, at="start_ns"))
    waiting = known.join(asking, on=list(_CALL))
    waiting = waiting.join(recorded_work(report), on=["process_id", "record_id"])
    if waiting.is_empty():
        return nothing
    ends = operations(report).get_column("end").gather(waiting.get_column("behind"))
    given = _submitted(report, waiting).sort("at", "start", "row").select(*STREAM, "row", given="at")
    held = nearest(waiting.with_columns(ends.alias("ended")), given, ("at", "given"), STREAM, "after").drop_nulls("row")
    last = held.sort("row", "ended", "behind").unique("row", keep="last", maintain_order=True)
    return pl.concat([nothing, last.select("row", "behind")])


@once_per_process
def recorded_work(report: Report) -> pl.DataFrame:
    """The work in front of each record of a CUDA event: process_id, record_id and behind.

    `behind` is the row of the last operation submitted to the stream before the event; of those submitted by one call
    the one that ended last. Events without earlier work on their stream are left out.
    """
    nothing = pl.DataFrame(schema={"process_id": pl.Int64, "record_id": pl.Int64, "behind": pl.UInt32})
    records = report.table("event_records").drop_nulls(["record_id", *_CALL, *STREAM])
    if records.is_empty():
        return nothing
    calls = report.kind("api").select(*_CALL, at="start_ns")
    recording = _first_of_each(calls.join(records.select(_CALL).unique(), on=list(_CALL), how="semi"))
    made = records.join(recording, on=list(_CALL)).unique(
        ["process_id", "record_id"], keep="first", maintain_order=True
    )
    if made.is_empty():
        return nothing
    given = _submitted(report, made).sort("at", "end", "row").select(*STREAM, given="at", behind="row")
    found = nearest(made, given, ("at", "given"), STREAM, "strictly before")
    return found.select("process_id", "record_id", "behind").drop_nulls()


def _submitted(report: Report, used: pl.DataFrame) -> pl.DataFrame:
    """Operations submitted to the streams in `used`: the stream, row, start, end, and at (start of the launch call)."""
    work = operations(report, *STREAM).select(*STREAM, "row", "start", "end")
    known = work.join(used.select(STREAM).unique(), on=list(STREAM), how="semi", maintain_order="left")
    return with_facts(report, known, "call_start").rename({"call_start": "at"}).drop_nulls("at")


def _first_of_each(calls: pl.DataFrame) -> pl.DataFrame:
    """The first of the `calls` (:data:`_CALL`, at) with each id."""
    return calls.drop_nulls().sort("at", maintain_order=True).unique(_CALL, keep="first", maintain_order=True)
