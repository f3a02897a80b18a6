"""Blocking calls, and the device operation that each waited for.

Definitions: definitions.md, `syncs`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import facts_of, operations, used_devices, with_facts
from kanalyze.analyses.host._call_kinds import BLOCKING_COPY, call_names, cuda_name
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.streams._waited_for import STREAM, recorded_work
from kanalyze.columns.lookup import as_of, beside, gathered, rows_at

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Scope of a blocking call by pattern of its name; the first match counts.
_SCOPES: Final = (
    ("device", re.compile(r"(?:cuda|cu)(?:Device|Ctx|Thread)Synchronize")),
    ("stream", re.compile(r"(?:cuda|cu)StreamSynchronize")),
    ("event", re.compile(r"(?:cuda|cu)EventSynchronize")),
    ("copy", re.compile(BLOCKING_COPY)),
    (
        "free",
        re.compile(
            r"cudaFree(?!Async)|cuMemFree(?!Async)|cu(?:da|Mem)HostUnregister|cuArrayDestroy|cuMipmappedArrayDestroy"
        ),
    ),
)

SCOPES: Final = tuple(scope for scope, _ in _SCOPES)

#: Scopes of calls that do nothing but wait; a copy or freeing memory does work as well.
WAITING: Final = ("device", "stream", "event")

#: An asynchronous copy into pageable memory returns only when the copy has finished.
_PAGEABLE: Final = "Pageable"


def scope_of(name: str | None) -> str | None:
    """The scope of a blocking call, one of :data:`SCOPES`, by its name; None for a call that does not block."""
    known = cuda_name(name or "")
    return next((scope for scope, names in _SCOPES if names.match(known)), None)


@once_per_process
def blocking_calls(report: Report) -> pl.DataFrame:
    """Blocking calls of the processes in scope, at any time, in the order of the api events.

    Columns: call_row, name, scope (of :data:`SCOPES`), process_id, thread_id, correlation_id, start, end, copied (row
    of the last copy that it launched), context_id, stream and record_id (of its CUDA event) that it waits for, where
    recorded, and device (null where not known).
    """
    return _with_devices(report, _with_streams(report, _blocking(report))).sort("call_row")


def waited_for(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Joins blocking calls with the operation that each waited for: adds `behind`, its row.

    That is, within the scope of the call, the operation that ended last before the call returned; null if none ended
    while it blocked.
    """
    work = operations(report, *STREAM).select("row", *STREAM, "device", ended="end")
    parts = [
        calls.filter(pl.col("scope") == "event").join(
            recorded_work(report), on=["process_id", "record_id"], how="left"
        ),
        _last_ended(calls.filter(pl.col("scope").is_in(["stream", "copy"])), work, list(STREAM)),
        _last_ended(calls.filter(pl.col("scope").is_in(["device", "free"])), work, ["process_id", "device"]),
    ]
    found = pl.concat(part.select(*calls.columns, "behind") for part in parts).sort("call_row")
    behind = found.get_column("behind")
    pending = work.get_column("ended").gather(behind) > found.get_column("start")
    return found.with_columns(behind.set(~pending.fill_null(value=False), None))


def _blocking(report: Report) -> pl.DataFrame:
    """The blocking calls, with the row of the last copy that each launched as `copied`."""
    calls = report.kind("api").select(
        "name", "process_id", "thread_id", "correlation_id", start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns")
    )
    names = call_names(report)
    scopes = pl.Series([scope_of(name) for name in names.cast(pl.String)], dtype=pl.Enum(SCOPES))
    told = pl.DataFrame([names, scopes.alias("scope")]).drop_nulls()
    numbered = calls.with_row_index("call_row")
    named = numbered.filter(pl.col("name").is_in(told.get_column("name").implode()))
    copies = _copies(report)
    pageable = copies.filter("pageable").get_column("call_row").unique()
    others = rows_at(numbered, pageable)
    found = pl.concat([named, others]).unique("call_row").sort("call_row")
    found = found.join(told, on="name", how="left", maintain_order="left")
    last = copies.sort("ended", "row").unique("call_row", keep="last").select("call_row", copied="row")
    return found.with_columns(pl.col("scope").fill_null("copy")).join(
        last, on="call_row", how="left", maintain_order="left"
    )


def _copies(report: Report) -> pl.DataFrame:
    """Copies with a launch call: row, ended, call_row, and whether the destination is pageable memory."""
    copies = operations(report, "call_row").filter(pl.col("kind") == "memcpy").drop_nulls("call_row")
    pageable = (pl.col("target_memory") == _PAGEABLE).fill_null(value=False).alias("pageable")
    return with_facts(report, copies, "target_memory").select("row", "call_row", pageable, ended="end")


def staged_copies(report: Report) -> pl.DataFrame:
    """Copies from pageable memory that began before their call returned: call_row and behind (row of the copy).

    The driver puts such memory into a buffer of its own, part by part; the call returns with the last part there, some
    microseconds before the copy ends. Where all of it fits, the call returns at once, and the copy begins later.
    """
    known = operations(report, "source_memory", "target_memory")
    known = known.filter((pl.col("source_memory") == _PAGEABLE) & pl.col("target_memory").ne_missing(_PAGEABLE))
    known = with_facts(report, known, "call_row", "call_end").filter(pl.col("start") < pl.col("call_end"))
    return known.select("call_row", behind="row")


def _with_streams(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds the context_id, stream and record_id (of its CUDA event) that each call waits for, where recorded."""
    synced = report.kind("sync").select("event_id", "process_id", "correlation_id", "context_id", "stream")
    keys = ["process_id", "correlation_id"]
    known = beside(synced, report.table("sync_detail"), "record_id").drop("event_id").drop_nulls(keys)
    found = calls.join(known.unique(keys, keep="first"), on=keys, how="left", maintain_order="left")
    of_copy = facts_of(report, found.get_column("copied"), "context_id", "stream")
    own = pl.col("copied").is_not_null()
    return found.with_columns(
        pl.when(own).then(of_copy.get_column(name)).otherwise(name).alias(name) for name in of_copy.columns
    )


def _with_devices(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds the device that each call waits for.

    In this order: the device of its copy, of its context, the only one that its process used, or that of the last
    operation that its thread launched before it; else null.
    """
    used = used_devices(report.whole).group_by("process_id").agg(pl.col("device").first(), n=pl.len())
    only = used.filter(pl.col("n") == 1).select("process_id", "device")
    known = calls.join(only, on="process_id", how="left", nulls_equal=True, maintain_order="left")
    unsure = known.filter(pl.col("device").is_null()).drop("device")
    if unsure.is_empty():
        return known
    work = operations(report, "context_id", "thread_id", "call_start")
    contexts = work.drop_nulls(["process_id", "context_id"]).unique(["process_id", "context_id"], keep="first")
    of_context = contexts.select("process_id", "context_id", of_context="device")
    work = work.select(*THREAD, "device", at="call_start").drop_nulls("at")
    recent = as_of(unsure.select(*THREAD, at="start"), work.select(*THREAD, "at"))
    told = unsure.with_columns(gathered(work.get_column("device"), recent))
    told = told.join(of_context, on=["process_id", "context_id"], how="left")
    copied = facts_of(report, told.get_column("copied"), "device").to_series().alias("copied_on")
    told = told.with_columns(device=pl.coalesce(copied, "of_context", "device"))
    return pl.concat([known.drop_nulls("device"), told.select(known.columns)])


def _last_ended(calls: pl.DataFrame, work: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Adds `behind`, the row of the last of `work` of the same values of `by` to end before each call returned."""
    last = as_of(calls.select(*by, at="end"), work.select(*by, at="ended"))
    return calls.with_columns(gathered(work.get_column("row"), last).alias("behind"))


def in_scope(report: Report) -> pl.DataFrame:
    """The :func:`blocking_calls` that overlap the window and wait for the device in scope."""
    calls, scope = blocking_calls(report), report.scope
    if scope.device is not None:
        calls = calls.filter(pl.col("device") == scope.device)
    return intervals.overlapping(calls, scope.sides)
