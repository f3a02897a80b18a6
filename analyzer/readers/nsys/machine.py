"""GPUs, processes, streams and health notes of an nsys export."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import device_limits
from kanalyze.device_limits import plausible
from kanalyze.model import DEVICES, NOTES, PROCESSES, STREAMS
from kanalyze.readers.nsys.events import (
    DEVICE_COLUMNS,
    EVENT_TABLES,
    NO_ID,
    RANGE_STYLES,
    RANGES,
    EventTable,
    process_of,
)

if TYPE_CHECKING:
    from kanalyze.readers.storage import TableFile

    Note = tuple[str, int | None, int | None, str]


class Machine:
    """GPUs and processes of one database; each table is read once."""

    def __init__(self, database: TableFile) -> None:
        """Read from `database` lazily."""
        self._database = database

    @cached_property
    def gpus(self) -> dict[tuple[int, int], int]:
        """Maps (process id, CUDA ordinal) to the GPU; empty if the file does not say."""
        columns = dict.fromkeys(("pid", "cudaId", "gpuId"), pl.Int64)
        rows = self._database.frame("TARGET_INFO_CUDA_DEVICE", columns).drop_nulls()
        return {(pid, ordinal): gpu for pid, ordinal, gpu in rows.iter_rows()}

    @property
    def to_gpu(self) -> Callable[[pl.DataFrame], pl.DataFrame]:
        """A function that adds to rows with `deviceId`, the process-local ordinal, the column `device`, the GPU.

        Ordinals of a process that the file does not describe stay unchanged.
        """
        moved = {key: gpu for key, gpu in self.gpus.items() if gpu != key[1]}
        if not moved:
            return lambda raw: raw.with_columns(pl.col("deviceId").alias("device"))
        known = pl.DataFrame(
            [(pid, ordinal, gpu) for (pid, ordinal), gpu in moved.items()],
            schema={"pid": pl.Int64, "deviceId": pl.Int64, "device": pl.Int64},
            orient="row",
        )

        def add(raw: pl.DataFrame) -> pl.DataFrame:
            pid = pl.coalesce(process_of("globalTid"), process_of("globalPid")).alias("pid")
            joined = raw.with_columns(pid).join(known, on=["pid", "deviceId"], how="left", maintain_order="left")
            return joined.with_columns(pl.coalesce("device", "deviceId").alias("device"))

        return add

    def devices(self) -> pl.DataFrame:
        """The GPUs, as :data:`kanalyze.model.DEVICES`; one only named by events has null limits."""
        types = {found: DEVICES.schema[name] for name, found in DEVICE_COLUMNS.items()}
        types |= {"computeMajor": pl.Int64, "computeMinor": pl.Int64}
        rows = self._database.frame("TARGET_INFO_GPU", types).drop_nulls(DEVICE_COLUMNS["device"])
        capability = pl.format("{}.{}", "computeMajor", "computeMinor").alias("compute_capability")
        known = rows.select(capability, **{name: pl.col(found) for name, found in DEVICE_COLUMNS.items()})
        # in files that describe no GPU, the ordinals used
        used = set(self.gpus.values()) or self._distinct("deviceId", "kernel", "graph", "memcpy", "memset")
        others = sorted(used - set(known.get_column("device")))
        named = pl.DataFrame({"device": others}, schema={"device": pl.Int64})
        every = pl.concat([plausible(known), named], how="diagonal")
        return DEVICES.select(every.unique("device", keep="first").sort("device"))

    def processes(self) -> pl.DataFrame:
        """The processes named by CUDA events, as :data:`kanalyze.model.PROCESSES`."""
        names = dict(self._database.frame("PROCESSES", {"pid": pl.Int64, "name": pl.String}).iter_rows())
        rows: list[tuple[object, ...]]
        rows = [(pid, names.get(pid), ordinal, gpu) for (pid, ordinal), gpu in self.gpus.items()]
        if not rows:
            threads = pl.DataFrame({"globalTid": [*self._distinct("globalTid", "api")]}, schema={"globalTid": pl.Int64})
            pids = threads.select(process_of("globalTid")).to_series().drop_nulls().unique()
            rows = [(pid, names.get(pid), None, None) for pid in pids]
        frame = pl.DataFrame(rows, schema=PROCESSES.schema, orient="row")
        return PROCESSES.select(frame.sort("process_id", "cuda_ordinal"))

    def _distinct(self, column: str, *kinds: str) -> set[int]:
        tables = (spec.table for spec in EVENT_TABLES if spec.kind in kinds)
        return set().union(*(self._database.distinct(table, column) for table in tables))


# CUDA streams in an nsys export: kind and priority.
#
# Source: the column comments of TARGET_INFO_CUDA_STREAM, whose `flag` is CUPTI's CUpti_ActivityStreamFlag, and of the
# tables that name each context's null stream (TARGET_INFO_CUDA_CONTEXT_INFO, in older exports
# TARGET_INFO_CUDA_NULL_STREAM).

#: CUPTI calls a stream made with cudaStreamDefault (it synchronises with the null stream) a "default stream".
_TYPES: Final = {1: "blocking", 2: "non-blocking", 3: "null"}

_KEYS: Final = ("processId", "contextId", "streamId")
_NULL_STREAMS: Final = {
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId",
    "TARGET_INFO_CUDA_NULL_STREAM": "streamId",
}

#: Priorities are signed, but stored as unsigned 32-bit numbers.
_SIGN: Final = 1 << 31


def streams(database: TableFile) -> pl.DataFrame:
    """The streams of one export, as :data:`kanalyze.model.STREAMS`, by process, context and number."""
    whole = dict.fromkeys((*_KEYS, "priority", "flag"), pl.Int64)
    made = database.frame("TARGET_INFO_CUDA_STREAM", whole).select(
        *_KEYS,
        pl.col("flag").replace_strict(_TYPES, default=None, return_dtype=pl.String).alias("type"),
        ((pl.col("priority") + _SIGN) % (2 * _SIGN) - _SIGN).alias("priority"),
    )
    null = [
        database.frame(table, dict.fromkeys(("processId", "contextId", column), pl.Int64)).select(
            "processId", "contextId", pl.col(column).alias("streamId"), pl.lit("null").alias("type")
        )
        for table, column in _NULL_STREAMS.items()
    ]
    known = pl.concat([*null, made], how="diagonal").drop_nulls(_KEYS)
    merged = known.group_by(_KEYS).agg(pl.col("type", "priority").drop_nulls().first())
    names = database.frame("TARGET_INFO_NVTX_CUDA_STREAM", {**dict.fromkeys(_KEYS, pl.Int64), "name": pl.String})
    named = merged.join(names.unique(_KEYS, keep="last", maintain_order=True), on=_KEYS, how="left")
    return STREAMS.select(
        named.select(
            "type", "priority", "name", process_id="processId", context_id="contextId", stream="streamId"
        ).sort("process_id", "context_id", "stream")
    )


# Health notes of an nsys export: lost rows, missing columns and tables, nsys' own warnings.

_KERNEL, _MEMCPY, _MEMSET, _API, _SYNC, _GRAPH = (
    f"CUPTI_ACTIVITY_KIND_{name}"
    for name in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION", "GRAPH_TRACE")
)
_GPU, _ORDINALS = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"

_OCCUPANCY: Final = "occupancy and waves cannot be told"

#: Optional columns, and what is unknown without them.
_NEEDED: Final = {
    (_KERNEL, "correlationId"): "kernels cannot be joined to the calls that launched them",
    (_KERNEL, "deviceId"): "kernels cannot be told apart by GPU; they count on GPU 0",
    (_KERNEL, "globalPid"): "kernels cannot be told apart by process",
    (_KERNEL, "streamId"): "kernels cannot be told apart by stream",
    (_KERNEL, "graphNodeId"): "kernels of CUDA graphs cannot be told from others",
    **{(_KERNEL, name): _OCCUPANCY for name in ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory")},
    (_MEMCPY, "correlationId"): "copies cannot be joined to the calls that made them",
    (_MEMCPY, "bytes"): "sizes and bandwidths of copies cannot be told",
    **{(_MEMCPY, name): "pageable copies cannot be told from pinned ones" for name in ("srcKind", "dstKind")},
    (_MEMCPY, "migrationCause"): "why unified memory moved cannot be told",
    (_MEMCPY, "virtualAddress"): "which pages of unified memory moved again cannot be told",
    (_MEMSET, "bytes"): "sizes of memsets cannot be told",
    (_GRAPH, "graphExecId"): "whole graphs cannot be told apart",
    (_API, "globalTid"): "calls cannot be told apart by thread",
    (_API, "correlationId"): "calls cannot be joined to what they launched",
    (RANGES, "globalTid"): "ranges cannot be joined to what was launched in them",
    (RANGES, "endGlobalTid"): "ranges that end on another thread cannot be told from others",
    (RANGES, "domainId"): "domains of ranges cannot be told",
    ("CUDA_GPU_MEMORY_USAGE_EVENTS", "localMemoryPoolAddress"): "memory of pools cannot be told from other memory",
    **{(_GPU, name): _OCCUPANCY for name in ("smCount", "maxWarpsPerSm")},
}

#: The table of device work that we do not read.
_UNREAD: Final = "CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS"

#: nsys' severities above plain information (ENUM_DIAGNOSTIC_SEVERITY_LEVEL).
_WARNING: Final = 2

#: Warnings about lost or incomplete records; others (a process without CUDA, say) lose nothing.
_LOSS: Final = r"(?i)\b(lost|drop|dropped|missing|incomplete|overflow|not (?:all|be) |fail|truncat)"


#: Tables up to this many rows are scanned in a few milliseconds.
_FEW_ROWS: Final = 1 << 16


class Seen(NamedTuple):
    """What reading tables showed of them.

    Args:
        endless: Numbers of rows without an end, by table.
        failed: Calls that returned an error: correlationId and pid.
        undecoded: Numbers of payloads that cannot be decoded, by what they are.
    """

    endless: dict[str, int]
    failed: list[pl.DataFrame]
    undecoded: dict[str, int]


def notes(database: TableFile, seen: Seen, *, of_read: bool = False) -> pl.DataFrame:
    """One note per thing missing from the file, as :data:`kanalyze.model.NOTES`.

    `seen` is what tables read before showed; with `of_read`, larger tables that were not read are skipped.
    """
    large = {spec.table for spec in EVENT_TABLES if of_read and database.last_row(spec.table) > _FEW_ROWS}
    looked_at = [spec for spec in EVENT_TABLES if spec.table in seen.endless or spec.table not in large]
    found = [
        *_lost_rows(database, seen.endless, looked_at),
        *_failed_launches(database, seen.failed),
        *_missing_columns(database, {spec.table for spec in looked_at}),
        *_missing_tables(database),
    ]
    have = database.columns(_GPU)
    named = {DEVICE_COLUMNS[name]: name for name in DEVICES.schema if DEVICE_COLUMNS.get(name) in have}
    limits = database.frame(_GPU, {column: DEVICES.schema[name] for column, name in named.items()}).rename(named)
    if odd := device_limits.impossible(limits):
        found.append((device_limits.IMPOSSIBLE, odd, None, device_limits.EFFECT))
    if RANGES not in large and (count := database.count_missing(RANGES, "end", "eventType", RANGE_STYLES)):
        found.append(("ranges never closed", count, None, "their end is not known"))
    rows = database.frame("DIAGNOSTIC_EVENT", {"severity": pl.Int64, "text": pl.String}).drop_nulls()
    texts = [text for severity, text in rows.iter_rows() if severity >= _WARNING and re.search(_LOSS, text)]
    said = "nsys says that records are missing"
    found += [(f"nsys: {text.strip()}", texts.count(text), None, said) for text in dict.fromkeys(texts)]
    found += [(what, count, None, "what they hold is left out") for what, count in seen.undecoded.items() if count]
    return pl.DataFrame(found, schema=NOTES.schema, orient="row")


def _lost_rows(database: TableFile, endless: Mapping[str, int], looked_at: Sequence[EventTable]) -> Iterator[Note]:
    """Notes on lost rows, and on rows without an end time in tables where every nsys version writes one.

    nsys numbers rows from 1, so that a gap in the row ids is a lost row.
    """
    for spec in looked_at:
        if lost := database.row_span(spec.table) - database.row_count(spec.table):
            yield f"rows missing from {spec.table}", lost, None, f"times of {spec.kind} may be too low"
    for spec in (spec for spec in looked_at if not spec.instant and spec.kind != "range"):
        lost = endless[spec.table] if spec.table in endless else database.count_missing(spec.table, "end")
        if lost:
            effect = f"they count as of no duration: times of {spec.kind} are too low"
            yield f"rows of {spec.table} without an end", lost, None, effect


def _failed_launches(database: TableFile, failed: Sequence[pl.DataFrame]) -> Iterator[Note]:
    """Notes on operations whose launch failed."""
    if any(calls.height for calls in failed):
        columns = ("correlationId", "globalPid")
        parts = [database.integers(table, columns, lambda raw: raw) for table in (_KERNEL, _MEMCPY, _MEMSET)]
        run = pl.concat(parts).with_columns(process_of("globalPid").alias("pid"))
        if count := run.join(pl.concat(failed), on=["correlationId", "pid"], how="semi").height:
            effect = "calls that return an error launch nothing: wrong return values, or wrong correlation ids"
            yield "operations whose launch failed", count, None, effect


def _missing_columns(database: TableFile, looked_at: AbstractSet[str]) -> Iterator[Note]:
    missing = [
        (f"{table}.{column}", effect)
        for (table, column), effect in _NEEDED.items()
        if database.last_row(table) and column not in database.columns(table)
    ]
    told = _SYNC not in looked_at or "eventSyncId" in database.columns(_SYNC)
    if not told and database.distinct(_SYNC, "eventId") - {NO_ID}:
        missing.append((f"{_SYNC}.eventSyncId", "what a wait on a CUDA event waited for cannot be told"))
    return ((f"column {name} missing", 1, None, effect) for name, effect in missing)


def _missing_tables(database: TableFile) -> Iterator[Note]:
    if database.last_row(_KERNEL) and not database.last_row(_GPU):
        yield f"table {_GPU} missing", 1, None, f"limits of the GPUs are not known: {_OCCUPANCY}"
    if database.last_row(_GPU) > 1 and not database.last_row(_ORDINALS):
        effect = "GPUs go by each process's own numbers, which CUDA_VISIBLE_DEVICES changes"
        yield f"table {_ORDINALS} missing", 1, None, effect
    if database.last_row(_UNREAD):
        rows, effect = database.row_count(_UNREAD), "work of the decompression engine counts as idle time"
        yield f"table {_UNREAD} not read", rows, None, effect
