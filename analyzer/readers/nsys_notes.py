"""What an nsys export says about its own gaps: lost rows, missing columns, and nsys' own warnings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.model import NOTES
from kanalyze.readers.nsys_events import EVENT_TABLES, RANGE_STYLES
from kanalyze.readers.sqlite_file import quoted

if TYPE_CHECKING:
    from kanalyze.readers.sqlite_file import SqliteFile

    Note = tuple[str, int | None, int | None, str]

#: Columns without which a part of the answers is missing, and what is missing then.
_NEEDED: Final = {
    (
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "correlationId",
    ): "kernels cannot be joined to the calls that launched them",
    ("CUPTI_ACTIVITY_KIND_KERNEL", "deviceId"): "kernels cannot be told apart by GPU; they count on GPU 0",
    ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"): "kernels cannot be told apart by process",
    ("CUPTI_ACTIVITY_KIND_KERNEL", "graphNodeId"): "kernels of CUDA graphs cannot be told from others",
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "srcKind"): "pageable copies cannot be told from pinned ones",
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"): "calls cannot be told apart by thread",
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId"): "calls cannot be joined to what they launched",
}

#: nsys' severities above plain information (ENUM_DIAGNOSTIC_SEVERITY_LEVEL).
_WARNING: Final = 2

#: Warnings that tell of lost or incomplete records; the rest (a process without CUDA, say) is no loss.
_LOSS: Final = re.compile(
    r"\b(lost|drop|dropped|missing|incomplete|overflow|not (?:all|be) |fail|truncat)", re.IGNORECASE
)


def notes(database: SqliteFile) -> pl.DataFrame:
    """One row per thing that the file cannot tell, as :data:`kanalyze.model.NOTES`."""
    found = [*_lost_rows(database), *_missing_columns(database), *_open_ranges(database), *_diagnostics(database)]
    return pl.DataFrame(found, schema=NOTES.schema, orient="row")


def _lost_rows(database: SqliteFile) -> list[Note]:
    """Tables whose row ids have holes: nsys numbers rows 1, 2, 3…, so a hole is a row that went missing."""
    found: list[Note] = []
    for spec in EVENT_TABLES:
        lost = database.row_span(spec.table) - database.row_count(spec.table)
        if lost:
            found.append((f"rows missing from {spec.table}", lost, None, f"times of {spec.kind} may be too low"))
    return found


def _missing_columns(database: SqliteFile) -> list[Note]:
    return [
        (f"column {table}.{column} missing", 1, None, effect)
        for (table, column), effect in _NEEDED.items()
        if table in database.tables and column not in database.columns(table)
    ]


def _open_ranges(database: SqliteFile) -> list[Note]:
    """NVTX ranges that were never closed, counted without reading them all."""
    table = next(spec.table for spec in EVENT_TABLES if spec.kind == "range")
    if table not in database.tables or not {"end", "eventType"}.issubset(database.columns(table)):
        return []
    types = ", ".join(str(number) for number in RANGE_STYLES)
    sql = f'SELECT count(*) FROM {quoted(table)} WHERE "end" IS NULL AND eventType IN ({types})'
    count = database.query(sql, where=f"table {table}")[0][0]
    return [("ranges never closed", count, None, "their end is not known")] if count else []


def _diagnostics(database: SqliteFile) -> list[Note]:
    rows = database.frame("DIAGNOSTIC_EVENT", {"severity": pl.Int64, "text": pl.String}).drop_nulls()
    texts = [text for severity, text in rows.iter_rows() if severity >= _WARNING and _LOSS.search(text)]
    return [
        (f"nsys: {text.strip()}", texts.count(text), None, "nsys says that records are missing")
        for text in dict.fromkeys(texts)
    ]
