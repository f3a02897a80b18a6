"""Joins device operations with their launch calls by process and correlation id, never by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import operations, recorded
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.grouping import parts_by
from kanalyze.columns.lookup import gathered, marked, matches, positions, rows_at, telling
from kanalyze.columns.ordering import in_order

if TYPE_CHECKING:
    from kanalyze.report import Report


#: Columns of :func:`calls_of`, with those of the api events that they are.
_CALL: Final = {
    "call_row": "",
    "thread_id": "thread_id",
    "call_id": "event_id",
    "call_start": "start_ns",
    "call_end": "",
    "call_ns": "dur_ns",
    "call_name": "name",
}


@once_per_process
def launch_rows(report: Report) -> pl.Series:
    """Row of the launch call (in the api events) of each row of :func:`operations`; null without a launch call.

    Joined on process and correlation id. Where several calls share them (a driver call inside a runtime call), the
    launch call is the one that started first, then the one with the lower event_id.
    """
    work = _correlated(report)
    found = [pl.DataFrame(schema={"row": pl.UInt32, "call": pl.UInt32})]
    for (process,), part in parts_by(work, ["process_id"]).items():
        if process is not None:
            ids, rows = _calls_by_id(report, process)
            at = positions(ids, part.get_column("correlation_id"))
            call = at if rows is None else gathered(rows, at)
            found.append(pl.DataFrame([part.get_column("row"), call.alias("call")]))
    together = pl.concat(found)
    if together.height == work.height and together.get_column("row").is_sorted():
        return together.get_column("call")
    return work.select("row").join(together, on="row", how="left", maintain_order="left").get_column("call")


def _correlated(report: Report) -> pl.DataFrame:
    """Rows of the operations with process and correlation id."""
    return recorded(report, "process_id", "correlation_id").drop("event_id").with_row_index("row")


def _calls_by_id(report: Report, process: object) -> tuple[pl.Series, pl.Series | None]:
    """Correlation ids of the calls of a process, sorted by id and start, and their rows (None for all rows)."""
    calls = report.kind("api").select("process_id", "correlation_id", "start_ns")
    ids, start, rows = calls.get_column("correlation_id"), calls.get_column("start_ns"), None
    own = calls.select(pl.col("process_id").eq_missing(process) & pl.col("correlation_id").is_not_null()).to_series()
    if not own.all():
        ids, start, rows = ids.filter(own), start.filter(own), own.arg_true()
    if ids.is_sorted() and start.is_sorted():
        return ids, rows
    rows = pl.int_range(0, len(ids), dtype=pl.UInt32, eager=True) if rows is None else rows
    line = pl.DataFrame([ids, start, rows.alias("row")]).sort("correlation_id", "start_ns", "row")
    return line.get_column("correlation_id"), line.get_column("row")


def calls_of(report: Report, rows: pl.Series, *wanted: str) -> pl.DataFrame:
    """Launch call of each operation in `rows`, in that order; nulls without a launch call.

    Columns (`wanted` selects some): call_row (in the api events), thread_id, call_id, call_start, call_end, call_ns,
    call_name.
    """
    called, calls = gathered(launch_rows(report), rows), report.kind("api")

    def told(name: str) -> pl.Series:
        if name == "call_row":
            return called
        if name == "call_end":
            return gathered(calls.get_column("start_ns"), called) + gathered(calls.get_column("dur_ns"), called)
        return gathered(calls.get_column(_CALL[name]), called)

    return pl.DataFrame([told(name).alias(name) for name in wanted or _CALL])


@once_per_process
def launching_rows(report: Report) -> pl.Series:
    """Rows of the launch calls in the api events, sorted."""
    return marked(report.kind("api").height, launch_rows(report).drop_nulls()).arg_true().alias("call")


@once_per_process
def launching_calls(report: Report) -> dict[int, pl.DataFrame]:
    """Launch calls by process: thread_id and call_start, both without nulls; sorted by call_start."""
    rows, calls = launching_rows(report), report.kind("api").select(*THREAD, call_start="start_ns")
    calls = rows_at(calls, rows).drop_nulls()
    parts = parts_by(in_order(calls, "call_start"), ["process_id"])
    return {process: part.drop("process_id") for (process,), part in parts.items()}


def launch_pairs(report: Report) -> pl.DataFrame:
    """Joins kernels with all calls of their process and correlation id: event_id and call_row.

    As nsys does: a kernel whose correlation id two calls share has two rows. An id that more than 64 calls share is not
    a usable key: its kernels have one row each, with the first call.
    """
    work = operations(report).select("row", "event_id", "kind").with_columns(call_row=launch_rows(report))
    kernels = work.filter(pl.col("kind") == "kernel")
    single = kernels.select("event_id", "call_row").drop_nulls("call_row")
    shared = _shared_calls(report)
    if shared.is_empty():
        return single
    keys = ["process_id", "correlation_id"]
    own = report.kind("kernel").select("event_id", *keys)
    doubled = own.join(shared, on=keys).select("event_id", "call_row")
    return pl.concat([single.join(doubled, on="event_id", how="anti"), doubled])


def _shared_calls(report: Report) -> pl.DataFrame:
    """Calls whose process and correlation id are not unique: process_id, correlation_id, call_row."""
    parts = [report.kind("api").select("process_id", "correlation_id", call_row=pl.lit(0, dtype=pl.UInt32)).clear()]
    for process in operations(report).get_column("process_id").unique().sort().drop_nulls():
        ids, rows = _calls_by_id(report, process)
        same = (matches(ids, ids.shift(1)) | matches(ids, ids.shift(-1))).arg_true()
        if len(same):
            shared = {"correlation_id": ids.gather(same), "call_row": same if rows is None else rows.gather(same)}
            parts.append(pl.DataFrame(shared).select(pl.lit(process, dtype=pl.Int64).alias("process_id"), pl.all()))
    return telling(pl.concat(parts), ["process_id", "correlation_id"])
