"""What an nsys export says about its own gaps: lost rows, missing columns and tables, and nsys' own warnings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import device_limits
from kanalyze.model import DEVICES, NOTES
from kanalyze.readers.nsys.events import DEVICE_COLUMNS, EVENT_TABLES, NO_ID, RANGE_STYLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from kanalyze.readers.nsys.events import EventTable
    from kanalyze.readers.storage.table_file import TableFile

    Note = tuple[str, int | None, int | None, str]

_KERNEL, _MEMCPY, _MEMSET, _API, _SYNC, _GRAPH = (
    f"CUPTI_ACTIVITY_KIND_{name}"
    for name in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION", "GRAPH_TRACE")
)
_GPU, _ORDINALS, _RANGE = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "NVTX_EVENTS"

_OCCUPANCY: Final = "occupancy and waves cannot be told"

#: Columns without which a part of the answers is missing, and what is missing then.
_NEEDED: Final = {
    (_KERNEL, "correlationId"): "kernels cannot be joined to the calls that launched them",
    (_KERNEL, "deviceId"): "kernels cannot be told apart by GPU; they count on GPU 0",
    (_KERNEL, "globalPid"): "kernels cannot be told apart by process",
    (_KERNEL, "streamId"): "kernels cannot be told apart by stream",
    (_KERNEL, "graphNodeId"): "kernels of CUDA graphs cannot be told from others",
    (_KERNEL, "registersPerThread"): _OCCUPANCY,
    (_KERNEL, "staticSharedMemory"): _OCCUPANCY,
    (_KERNEL, "dynamicSharedMemory"): _OCCUPANCY,
    (_MEMCPY, "correlationId"): "copies cannot be joined to the calls that made them",
    (_MEMCPY, "bytes"): "sizes and bandwidths of copies cannot be told",
    (_MEMCPY, "srcKind"): "pageable copies cannot be told from pinned ones",
    (_MEMCPY, "dstKind"): "pageable copies cannot be told from pinned ones",
    (_MEMCPY, "migrationCause"): "why unified memory moved cannot be told",
    (_MEMCPY, "virtualAddress"): "which pages of unified memory moved again cannot be told",
    (_MEMSET, "bytes"): "sizes of memsets cannot be told",
    (_GRAPH, "graphExecId"): "whole graphs cannot be told apart",
    (_API, "globalTid"): "calls cannot be told apart by thread",
    (_API, "correlationId"): "calls cannot be joined to what they launched",
    (_RANGE, "globalTid"): "ranges cannot be joined to what was launched in them",
    (_RANGE, "endGlobalTid"): "ranges that end on another thread cannot be told from others",
    (_RANGE, "domainId"): "domains of ranges cannot be told",
    ("CUDA_GPU_MEMORY_USAGE_EVENTS", "localMemoryPoolAddress"): "memory of pools cannot be told from other memory",
    (_GPU, "smCount"): _OCCUPANCY,
    (_GPU, "maxWarpsPerSm"): _OCCUPANCY,
}

#: Tables of work on a device that no table here holds.
_UNREAD: Final = {
    "CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS": "work of the decompression engine counts as idle time",
}

#: nsys' severities above plain information (ENUM_DIAGNOSTIC_SEVERITY_LEVEL).
_WARNING: Final = 2

#: Warnings that tell of lost or incomplete records; the rest (a process without CUDA, say) is no loss.
_LOSS: Final = re.compile(
    r"\b(lost|drop|dropped|missing|incomplete|overflow|not (?:all|be) |fail|truncat)", re.IGNORECASE
)


#: Tables of up to so many rows are gone through in a few milliseconds.
_FEW_ROWS: Final = 1 << 16


def notes(database: TableFile, endless: Mapping[str, int], *, of_read: bool = False) -> pl.DataFrame:
    """One row per thing that the file cannot tell, as :data:`kanalyze.model.NOTES`.

    `endless` has the number of rows without an end, for the tables that were read before; with `of_read` larger ones
    that were not are left out.
    """
    large = {spec.table for spec in EVENT_TABLES if of_read and database.last_row(spec.table) > _FEW_ROWS}
    looked_at = [spec for spec in EVENT_TABLES if spec.table in endless or spec.table not in large]
    found = [
        *_lost_rows(database, looked_at),
        *_lost_ends(database, endless, looked_at),
        *_missing_columns(database, {spec.table for spec in looked_at}),
        *_missing_tables(database),
        *_limits(database),
        *(_open_ranges(database) if _RANGE not in large else ()),
        *_diagnostics(database),
    ]
    return pl.DataFrame(found, schema=NOTES.schema, orient="row")


def _lost_rows(database: TableFile, looked_at: Sequence[EventTable]) -> list[Note]:
    """Tables whose row ids have holes: nsys numbers rows 1, 2, 3…, so a hole is a row that went missing."""
    found: list[Note] = []
    for spec in looked_at:
        lost = database.row_span(spec.table) - database.row_count(spec.table)
        if lost:
            found.append((f"rows missing from {spec.table}", lost, None, f"times of {spec.kind} may be too low"))
    return found


def _lost_ends(database: TableFile, endless: Mapping[str, int], looked_at: Sequence[EventTable]) -> list[Note]:
    """Rows of which every version of nsys says when they end."""
    found: list[Note] = []
    for spec in looked_at:
        if spec.instant or spec.kind == "range":
            continue
        lost = endless[spec.table] if spec.table in endless else database.count_missing(spec.table, "end")
        if lost:
            effect = f"they count as of no duration: times of {spec.kind} are too low"
            found.append((f"rows of {spec.table} without an end", lost, None, effect))
    return found


def _missing_columns(database: TableFile, looked_at: AbstractSet[str]) -> list[Note]:
    missing = {
        (table, column): effect
        for (table, column), effect in _NEEDED.items()
        if database.last_row(table) and column not in database.columns(table)
    }
    waits = database.distinct(_SYNC, "eventId") - {NO_ID} if _SYNC in looked_at else set()
    if waits and "eventSyncId" not in database.columns(_SYNC):
        missing[_SYNC, "eventSyncId"] = "what a wait on a CUDA event waited for cannot be told"
    return [(f"column {table}.{column} missing", 1, None, effect) for (table, column), effect in missing.items()]


def _missing_tables(database: TableFile) -> list[Note]:
    missing = {}
    if database.last_row(_KERNEL) and not database.last_row(_GPU):
        missing[_GPU] = f"limits of the GPUs are not known: {_OCCUPANCY}"
    if database.last_row(_GPU) > 1 and not database.last_row(_ORDINALS):
        missing[_ORDINALS] = "GPUs go by each process's own numbers, which CUDA_VISIBLE_DEVICES changes"
    unread: list[Note] = [
        (f"table {table} not read", database.row_count(table), None, effect)
        for table, effect in _UNREAD.items()
        if database.last_row(table)
    ]
    return [*((f"table {table} missing", 1, None, effect) for table, effect in missing.items()), *unread]


def _limits(database: TableFile) -> list[Note]:
    """Limits of GPUs, in columns that this version of nsys has, that are missing or cannot be."""
    have = database.columns(_GPU)
    named = {DEVICE_COLUMNS[name]: name for name in DEVICES.schema if DEVICE_COLUMNS.get(name) in have}
    told = database.frame(_GPU, {found: DEVICES.schema[name] for found, name in named.items()})
    count = device_limits.impossible(told.rename(named))
    return [(device_limits.IMPOSSIBLE, count, None, device_limits.EFFECT)] if count else []


def _open_ranges(database: TableFile) -> list[Note]:
    """NVTX ranges that were never closed, counted without reading them all."""
    count = database.count_missing(_RANGE, "end", "eventType", RANGE_STYLES)
    return [("ranges never closed", count, None, "their end is not known")] if count else []


def _diagnostics(database: TableFile) -> list[Note]:
    rows = database.frame("DIAGNOSTIC_EVENT", {"severity": pl.Int64, "text": pl.String}).drop_nulls()
    texts = [text for severity, text in rows.iter_rows() if severity >= _WARNING and _LOSS.search(text)]
    return [
        (f"nsys: {text.strip()}", texts.count(text), None, "nsys says that records are missing")
        for text in dict.fromkeys(texts)
    ]
