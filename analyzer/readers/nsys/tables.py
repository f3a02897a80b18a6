"""Maps nsys tables and columns to kinds of events, and its numbers to names: the only module that knows their names.

Source: the column comments that `nsys export` writes into the schema (EXPORT_SCHEMA_VERSION 3.20), and the SQL of
the reports that nsys itself ships (``cuda_gpu_kern_sum.py`` and others). Columns come and go between versions: one
that is absent reads as null.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from kanalyze import device_limits
from kanalyze.columns import gathered, positions
from kanalyze.model import DEVICES, NODES_OF_A_GRAPH, NOTES, PROCESSES, STREAMS, Note
from kanalyze.readers.storage.table_files import TableFile

Namer = Callable[[pl.DataFrame], pl.Series]

#: A globalTid holds the thread id in bits 0 to 23 and the process id in bits 24 to 47; globalPid has no thread.
_THREAD_MASK, _PROCESS_MASK, _PROCESS_UNIT = 0xFFFFFF, 0xFFFFFF000000, 1 << 24

#: Column of what a call returned, and what of that is no error: success, and of cudaEventQuery that work goes on.
RETURNED: Final = "returnValue"
SUCCESSES: Final = (0, 600)


class Named(NamedTuple):
    """Source of an event's name: an integer column, the table that maps it to text, and a template.

    A table without a column (``column == ""``) gives every event the same name, the template.
    """

    column: str = ""
    table: str = "StringIds"
    template: str = "{}"


class EventTable(NamedTuple):
    """An nsys table and the kind of event in its rows.

    `only` selects rows by a column's value. An `instant` has no end.
    """

    kind: str
    table: str
    named: Named
    only: tuple[str, int] | None = None
    instant: bool = False

    @property
    def wanted(self) -> tuple[str, ...]:
        """The integer columns to read, as far as this table has them."""
        more = (self.named.column, self.only[0] if self.only else "", RETURNED if self.kind == "api" else "")
        return ("start", "end", *_PLACED, *filter(None, more))


#: Integer columns that events are made of.
_PLACED: Final = ("globalTid", "globalPid", "deviceId", "contextId", "streamId", "correlationId")
#: The columns with a kernel's mangled and demangled name.
KERNEL_NAME, SYMBOL = Named("demangledName"), Named("mangledName")
#: The table of NVTX ranges, and of other events of NVTX.
RANGES: Final = "NVTX_EVENTS"

EVENT_TABLES: Final = (
    EventTable("kernel", "CUPTI_ACTIVITY_KIND_KERNEL", KERNEL_NAME),
    EventTable("graph", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", Named("graphId", "", "[CUDA graph {}]")),
    EventTable("memcpy", "CUPTI_ACTIVITY_KIND_MEMCPY", Named("copyKind", "ENUM_CUDA_MEMCPY_OPER", "[CUDA memcpy {}]")),
    EventTable("memset", "CUPTI_ACTIVITY_KIND_MEMSET", Named("", "", "[CUDA memset]")),
    EventTable("api", "CUPTI_ACTIVITY_KIND_RUNTIME", Named("nameId")),
    EventTable("sync", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", Named("syncType", "ENUM_CUPTI_SYNC_TYPE")),
    EventTable("range", RANGES, Named("textId")),
    EventTable("overhead", "PROFILER_OVERHEAD", Named("nameId")),
    EventTable("fault", "CUDA_UM_CPU_PAGE_FAULT_EVENTS", Named("", "", "CPU page fault"), instant=True),
    EventTable("fault", "CUDA_UM_GPU_PAGE_FAULT_EVENTS", Named("", "", "GPU page faults")),
    EventTable(
        "memory",
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        Named("memoryOperationType", "ENUM_CUDA_DEV_MEM_EVENT_OPER"),
        instant=True,
    ),
    EventTable("osrt", "OSRT_API", Named("nameId"), only=("eventClass", 27)),  # other event types are marks
    EventTable("library", "CUBLAS_EVENTS", Named("nameId")),
    EventTable("library", "CUDNN_EVENTS", Named("nameId")),
)

#: NVTX ranges by event type: push/pop (59, and 70 from imported logs) and start/end (60 and 71). Text may be inline.
RANGE_STYLES: Final = {59: "PushPop", 60: "StartEnd", 70: "PushPop", 71: "StartEnd"}
#: Event type of rows that name an NVTX domain.
DOMAIN_CREATED: Final = 75
#: Columns of NVTX_EVENTS needed for ranges, except for the inline text.
RANGE_COLUMNS: Final = (*("start", "end", "eventType", "textId", "globalTid", "endGlobalTid", "domainId", "category"),)
#: nsys' tables of recorded CUDA events and of the nodes of CUDA graphs.
EVENT_RECORDS: Final = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
EVENT_RECORD_COLUMNS: Final = (*_PLACED, "eventId", "eventSyncId")
#: Tables that name graph nodes; exports before 2024 use the table of graphs.
GRAPH_NODES: Final = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
OF_GRAPH_NODES: Final = ("start", "globalTid", "graphNodeId", "originalGraphNodeId")

_MAPS: Final = tomllib.loads(Path(__file__).with_name("maps.toml").read_text(encoding="utf-8"))
#: Kinds recorded together, by the nsys setting that enables them.
TRACES: Final[dict[str, list[str]]] = _MAPS["traces"]
#: Columns of the devices table and their names in TARGET_INFO_GPU.
DEVICE_COLUMNS: Final[dict[str, str]] = _MAPS["devices"]


def process_of(column: str) -> pl.Expr:
    """The process id in a globalTid or globalPid; null where the id is missing (null, or 0 in old files)."""
    return pl.when(pl.col(column) != 0).then((pl.col(column) & _PROCESS_MASK) // _PROCESS_UNIT)


def thread_of(column: str) -> pl.Expr:
    """The thread id in a globalTid."""
    return pl.when(pl.col(column) != 0).then(pl.col(column) & _THREAD_MASK)


def absent_as_null(column: str) -> pl.Expr:
    """An id column with 0 replaced by null, for files of old versions."""
    return pl.when(pl.col(column) != 0).then(pl.col(column))


#: Columns of `events`: the nsys columns of which each needs one, and the expression that builds it from raw rows.
EVENT_COLUMNS: Final = {
    "start_ns": (("start",), pl.col("start")),
    "dur_ns": (("start",), pl.col("end") - pl.col("start")),
    "process_id": (("globalTid", "globalPid"), pl.coalesce(process_of("globalTid"), process_of("globalPid"))),
    "thread_id": (("globalTid",), thread_of("globalTid")),
    "device": (("deviceId",), pl.col("device")),
    "context_id": (("contextId",), absent_as_null("contextId")),
    "stream": (("streamId",), absent_as_null("streamId")),
    "correlation_id": (("correlationId",), absent_as_null("correlationId")),
}


# Side tables keyed by event_id: what nsys records about an event besides name and times, and from which columns.

#: CUPTI's value for an invalid id.
NO_ID: Final = 0xFFFFFFFF


def known_id(column: str) -> pl.Expr:
    """An id column with CUPTI's invalid id replaced by null."""
    return pl.when(pl.col(column) != NO_ID).then(pl.col(column))


def graph_of_node(column: str) -> pl.Expr:
    """The graph id in a graph node id; null if there is none."""
    graph = pl.col(column) // NODES_OF_A_GRAPH
    return pl.when(graph != 0).then(graph)


class Details(NamedTuple):
    """Mapping of one nsys table to a side table."""

    source: str  # nsys' table
    columns: Mapping[str, pl.Expr]  # each column as an expression over that table's integer columns
    labels: Mapping[str, Named] = {}  # columns of text: the integer column and the table that spells it out

    @property
    def wanted(self) -> tuple[str, ...]:
        """The integer columns to read."""
        plain = [name for made in self.columns.values() for name in made.meta.root_names()]
        return tuple(dict.fromkeys([*plain, *(named.column for named in self.labels.values())]))


#: How columns are made of one of nsys' columns.
_MADE: Final[dict[str, Callable[[str], pl.Expr]]] = {
    "": pl.col,
    "some": absent_as_null,
    "known": known_id,
    "graph": graph_of_node,
}


def _details(sources: dict[str, dict[str, str]]) -> Iterator[Details]:
    """The mappings of a side table, as maps.toml declares them."""
    for names, columns in sources.items():
        made, labels = dict[str, pl.Expr](), dict[str, Named]()
        for name, mapping in columns.items():
            how, _, column = mapping.rpartition(" ")
            if how.endswith(" of"):
                labels[name] = Named(how.removesuffix(" of"), column)
            elif how == "=":
                made[name] = pl.lit(int(column) if column.isdecimal() else column)
            else:
                made[name] = _MADE[how](column)
        yield from (Details(source, made, labels) for source in names.split())


#: The nsys tables that each side table is built from.
DETAILS: Final = {table: [*_details(sources)] for table, sources in _MAPS["details"].items()}


# Numbers (StringIds, ENUM_* tables) to names, column by column.

#: Texts end after so many characters: each is copied and looked through a hundred times.
_LONGEST: Final = 1 << 20
_CUT: Final = f"ends of texts, after {_LONGEST:,} characters"


class Labels:
    """Cache of the string and enumeration tables of one database."""

    def __init__(self, database: TableFile, undecoded: dict[str, int]) -> None:
        """Read from `database` lazily; `undecoded` counts the texts that are cut."""
        self._database, self._undecoded = database, undecoded
        self._known: dict[str, dict[int, str]] = {}

    def of(self, table: str) -> dict[int, str]:
        """Label by number of StringIds or of an ENUM_* table; CUPTI's own labels where the table is missing."""
        if table not in self._known:
            column = "value" if table == "StringIds" else "label"
            rows = self._database.frame(table, {"id": pl.Int64, column: pl.String}).drop_nulls()
            kept = rows.with_columns(pl.col(column).str.head(_LONGEST))
            cut = int((kept.get_column(column) != rows.get_column(column)).sum())
            self._undecoded[_CUT] = self._undecoded.get(_CUT, 0) + cut
            self._known[table] = dict(kept.iter_rows()) or dict(enumerate(_MAPS["labels"].get(table, ())))
        return self._known[table]

    def namer(self, named: Named) -> Namer:
        """A function from raw rows to their Categorical column of names, as described by `named`; null without one."""
        if not named.column:
            constant = pl.Series([named.template], dtype=pl.Categorical)
            return lambda raw: constant.new_from_index(0, raw.height)
        if not named.table:
            text = pl.format(named.template, named.column).cast(pl.Categorical)
            return lambda raw: raw.select(text).to_series()
        labels = self.of(named.table)
        ids = pl.Series([*labels], dtype=pl.Int64)
        values = pl.Series([named.template.format(label) for label in labels.values()], dtype=pl.Categorical)
        return lambda raw: gathered(values, positions(ids, raw.get_column(named.column)))


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

    def to_gpu(self, raw: pl.DataFrame) -> pl.DataFrame:
        """Adds to rows with `deviceId`, the process-local ordinal, the column `device`, the GPU.

        Ordinals of a process that the file does not describe stay unchanged.
        """
        moved = [(*key, gpu) for key, gpu in self.gpus.items() if gpu != key[1]]
        if not moved:
            return raw.with_columns(pl.col("deviceId").alias("device"))
        known = pl.DataFrame(moved, schema=dict.fromkeys(("pid", "deviceId", "device"), pl.Int64), orient="row")
        pid = pl.coalesce(process_of("globalTid"), process_of("globalPid")).alias("pid")
        joined = raw.with_columns(pid).join(known, on=["pid", "deviceId"], how="left", maintain_order="left")
        return joined.with_columns(pl.coalesce("device", "deviceId").alias("device"))

    def devices(self) -> pl.DataFrame:
        """The GPUs, as :data:`kanalyze.model.DEVICES`; one only named by events has null limits."""
        types = {column: DEVICES.schema[name] for name, column in DEVICE_COLUMNS.items()}
        types |= {"computeMajor": pl.Int64, "computeMinor": pl.Int64}
        rows = self._database.frame("TARGET_INFO_GPU", types).drop_nulls(DEVICE_COLUMNS["device"])
        capability = pl.format("{}.{}", "computeMajor", "computeMinor").alias("compute_capability")
        known = rows.select(capability, **{name: pl.col(column) for name, column in DEVICE_COLUMNS.items()})
        # in files that describe no GPU, the ordinals used
        used = set(self.gpus.values()) or self._distinct("deviceId", "kernel", "graph", "memcpy", "memset")
        named = pl.DataFrame({"device": sorted(used - set(known.get_column("device")))}, schema={"device": pl.Int64})
        every = pl.concat([device_limits.plausible(known), named], how="diagonal")
        return DEVICES.select(every.unique("device", keep="first").sort("device"))

    def processes(self) -> pl.DataFrame:
        """The processes named by CUDA events, as :data:`kanalyze.model.PROCESSES`."""
        names = dict(self._database.frame("PROCESSES", {"pid": pl.Int64, "name": pl.String}).iter_rows())
        keys: list[tuple[int, int | None, int | None]] = [(*key, gpu) for key, gpu in self.gpus.items()]
        if not keys:
            threads = pl.DataFrame({"globalTid": [*self._distinct("globalTid", "api")]}, schema={"globalTid": pl.Int64})
            pids = threads.select(process_of("globalTid")).to_series().drop_nulls().unique()
            keys = [(pid, None, None) for pid in pids]
        rows = [(pid, names.get(pid), ordinal, gpu) for pid, ordinal, gpu in keys]
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
_NULL_STREAMS: Final = {"TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId", "TARGET_INFO_CUDA_NULL_STREAM": "streamId"}
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
    null = (
        database.frame(table, dict.fromkeys((*_KEYS[:2], column), pl.Int64)).select(
            *_KEYS[:2], streamId=column, type=pl.lit("null")
        )
        for table, column in _NULL_STREAMS.items()
    )
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

_KERNEL, _MEMCPY, _MEMSET, _SYNC = (
    f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION")
)
_GPU, _ORDINALS = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"

#: The table of device work that we do not read.
_UNREAD: Final = "CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS"
#: nsys' severities above plain information (ENUM_DIAGNOSTIC_SEVERITY_LEVEL).
_WARNING: Final = 2
#: Warnings about lost or incomplete records; others (a process without CUDA, say) lose nothing.
_LOSS: Final = r"(?i)\b(lost|drop|dropped|missing|incomplete|overflow|not (?:all|be) |fail|truncat)"


class Seen(NamedTuple):
    """What reading tables showed of them."""

    endless: dict[str, int]  # numbers of rows without an end, by table
    failed: list[pl.DataFrame]  # calls that returned an error: correlationId and pid
    undecoded: dict[str, int]  # numbers of payloads that cannot be decoded, by what they are


def notes(database: TableFile, seen: Seen, *, of_read: bool = False) -> pl.DataFrame:
    """One note per thing missing from the file, as :data:`kanalyze.model.NOTES`.

    `seen` is what tables read before showed; with `of_read`, larger tables that were not read are skipped.
    """
    # fewer rows are scanned in a few milliseconds
    large = {spec.table for spec in EVENT_TABLES if of_read and database.last_row(spec.table) > 1 << 16}
    looked_at = [spec for spec in EVENT_TABLES if spec.table in seen.endless or spec.table not in large]
    entries = [
        *_lost_rows(database, seen.endless, looked_at),
        *_failed_launches(database, seen.failed),
        *_missing(database, {spec.table for spec in looked_at}),
    ]
    have = database.columns(_GPU)
    named = {DEVICE_COLUMNS[name]: name for name in DEVICES.schema if DEVICE_COLUMNS.get(name) in have}
    limits = database.frame(_GPU, {column: DEVICES.schema[name] for column, name in named.items()}).rename(named)
    if odd := device_limits.impossible(limits):
        entries.append((device_limits.IMPOSSIBLE, odd, None, device_limits.EFFECT))
    if RANGES not in large and (count := database.count_missing(RANGES, "end", "eventType", RANGE_STYLES)):
        entries.append(("ranges never closed", count, None, "their end is not known"))
    rows = database.frame("DIAGNOSTIC_EVENT", {"severity": pl.Int64, "text": pl.String}).drop_nulls()
    texts = [text for severity, text in rows.iter_rows() if severity >= _WARNING and re.search(_LOSS, text)]
    effect = "nsys says that records are missing"
    entries += [(f"nsys: {text.strip()}", texts.count(text), None, effect) for text in dict.fromkeys(texts)]
    entries += [(what, count, None, "what they hold is left out") for what, count in seen.undecoded.items() if count]
    return pl.DataFrame(entries, schema=NOTES.schema, orient="row")


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


def _missing(database: TableFile, looked_at: AbstractSet[str]) -> Iterator[Note]:
    """Notes on columns and tables that are missing."""
    for table, effects in _MAPS["needed"].items():
        for effect, names in effects.items() if database.last_row(table) else ():
            for column in (name for name in names.split() if name not in database.columns(table)):
                yield f"column {table}.{column} missing", 1, None, effect
    has_sync_ids = _SYNC not in looked_at or "eventSyncId" in database.columns(_SYNC)
    if not has_sync_ids and database.distinct(_SYNC, "eventId") - {NO_ID}:
        effect = "what a wait on a CUDA event waited for cannot be told"
        yield f"column {_SYNC}.eventSyncId missing", 1, None, effect
    if database.last_row(_KERNEL) and not database.last_row(_GPU):
        yield f"table {_GPU} missing", 1, None, "limits of the GPUs are not known: occupancy and waves cannot be told"
    if database.last_row(_GPU) > 1 and not database.last_row(_ORDINALS):
        effect = "GPUs go by each process's own numbers, which CUDA_VISIBLE_DEVICES changes"
        yield f"table {_ORDINALS} missing", 1, None, effect
    if database.last_row(_UNREAD):
        rows, effect = database.row_count(_UNREAD), "work of the decompression engine counts as idle time"
        yield f"table {_UNREAD} not read", rows, None, effect
