"""Maps nsys tables and columns to kinds of events, and its numbers to names: the only module that knows their names.

Source: the column comments that `nsys export` writes into the schema (EXPORT_SCHEMA_VERSION 3.20), and the SQL of
the reports that nsys itself ships (``cuda_gpu_kern_sum.py`` and others). Columns come and go between versions: one
that is absent reads as null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from kanalyze.readers.storage import TableFile

    Namer = Callable[[pl.DataFrame], pl.Series]

#: A globalTid holds the thread id in bits 0 to 23 and the process id in bits 24 to 47; globalPid has no thread.
_THREAD_MASK: Final = 0xFFFFFF
_PROCESS_MASK: Final = 0xFFFFFF000000
_PROCESS_UNIT: Final = 1 << 24


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
        return (*_OF_EVENTS, *filter(None, more))


#: Integer columns that events are made of.
_PLACED: Final = ("globalTid", "globalPid", "deviceId", "contextId", "streamId", "correlationId")
_OF_EVENTS: Final = ("start", "end", *_PLACED)

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

#: Kinds recorded together: the nsys setting, and the kinds that it enables.
TRACES: Final = {
    "COLLECT_CUDA_TRACE": ("kernel", "graph", "memcpy", "memset", "api"),
    "COLLECT_NVTX_TRACE": ("range",),
    "COLLECT_GPU_MEMORY_USAGE": ("memory",),
    "COLLECT_UVM_CPU_PAGE_FAULTS": ("fault",),
    "COLLECT_UVM_GPU_PAGE_FAULTS": ("fault",),
    "COLLECT_CUBLAS_TRACE": ("library",),
    "COLLECT_CUDNN_TRACE": ("library",),
    "COLLECT_OSRT_TRACE": ("osrt",),
}

#: Columns of the devices table and their names in TARGET_INFO_GPU.
DEVICE_COLUMNS: Final = {
    "device": "id",
    "name": "name",
    "sm_count": "smCount",
    "memory_bytes": "totalMemory",
    "memory_bandwidth_bytes_per_s": "memoryBandwidth",
    "l2_bytes": "l2CacheSize",
    "clock_hz": "clockRate",
    "max_warps_per_sm": "maxWarpsPerSm",
    "max_blocks_per_sm": "maxBlocksPerSm",
    "max_threads_per_block": "maxThreadsPerBlock",
    "registers_per_sm": "maxRegistersPerSm",
    "shared_per_sm_bytes": "maxShmemPerSm",
    "shared_per_block_bytes": "maxShmemPerBlockOptin",
    "threads_per_warp": "threadsPerWarp",
}

#: CUPTI's names, by number, for files without the enumeration table (CUpti_ActivityMemcpyKind and others).
_FALLBACK_LABELS: Final = {
    "ENUM_CUDA_MEMCPY_OPER": (
        *("Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array"),
        *("Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer"),
        *("Unified Host-to-Device", "Unified Device-to-Host", "Unified Device-to-Device"),
    ),
    "ENUM_CUDA_MEM_KIND": (
        *("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown"),
    ),
    "ENUM_CUPTI_SYNC_TYPE": ("Unknown", "Event sync", "Stream wait sync", "Stream sync", "Context sync"),
    "ENUM_CUDA_DEV_MEM_EVENT_OPER": ("Allocation", "Deallocation"),
    "ENUM_CUDA_UNIF_MEM_MIGRATION": (  # the third as nsys writes it
        *("Unknown", "User prefetch", "Page fault", "Speculative prefecth", "Eviction", "Access counters"),
    ),
    "ENUM_CUDA_UNIF_MEM_ACCESS_TYPE": ("Unknown", "Read", "Write", "Atomic", "Prefetch"),
}


def process_of(column: str) -> pl.Expr:
    """The process id in a globalTid or globalPid; null where the id is missing (null, or 0 in old files)."""
    number = (pl.col(column) & _PROCESS_MASK) // _PROCESS_UNIT
    return pl.when(pl.col(column) != 0).then(number)


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
#
# Source: as in :mod:`kanalyze.readers.nsys.events`. A column that a file lacks reads as null.

#: CUPTI's value for an invalid id.
NO_ID: Final = 0xFFFFFFFF

#: A graph node id holds the graph id in its high bits.
_NODES_OF_A_GRAPH: Final = 1 << 32


def known_id(column: str) -> pl.Expr:
    """An id column with CUPTI's invalid id replaced by null."""
    return pl.when(pl.col(column) != NO_ID).then(pl.col(column))


def graph_of_node(column: str) -> pl.Expr:
    """The graph id in a graph node id; null if there is none."""
    found = pl.col(column) // _NODES_OF_A_GRAPH
    return pl.when(found != 0).then(found)


#: Graph id of a kernel, copy or memset.
_OF_GRAPH: Final = {"graph_exec_id": graph_of_node("graphNodeId"), "graph_node_id": absent_as_null("graphNodeId")}


class Details(NamedTuple):
    """Mapping of one nsys table to a side table.

    Attributes:
        source: nsys' table.
        columns: Each column as an expression over that table's integer columns.
        labels: Columns of text: the integer column and the table that spells it out.
    """

    source: str
    columns: Mapping[str, pl.Expr]
    labels: Mapping[str, Named] = {}

    @property
    def wanted(self) -> tuple[str, ...]:
        """The integer columns to read."""
        plain = [name for made in self.columns.values() for name in made.meta.root_names()]
        return tuple(dict.fromkeys([*plain, *(named.column for named in self.labels.values())]))


def _copy(source: str) -> Details:
    return Details(
        source,
        {
            "size_bytes": pl.col("bytes"),
            "source_device": pl.col("srcDeviceId"),
            "target_device": pl.col("dstDeviceId"),
            "address": pl.col("virtualAddress"),
            **_OF_GRAPH,
        },
        {
            "direction": Named("copyKind", "ENUM_CUDA_MEMCPY_OPER"),
            "source_memory": Named("srcKind", "ENUM_CUDA_MEM_KIND"),
            "target_memory": Named("dstKind", "ENUM_CUDA_MEM_KIND"),
            "migration_cause": Named("migrationCause", "ENUM_CUDA_UNIF_MEM_MIGRATION"),
        },
    )


#: The nsys tables that each side table is built from.
DETAILS: Final = {
    "kernel_config": (
        Details(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            {
                **{f"{what}_{axis}": pl.col(f"{what}{axis.upper()}") for what in ("grid", "block") for axis in "xyz"},
                "registers_per_thread": pl.col("registersPerThread"),
                "static_shared_bytes": pl.col("staticSharedMemory"),
                "dynamic_shared_bytes": pl.col("dynamicSharedMemory"),
                "shared_config_bytes": absent_as_null("sharedMemoryExecuted"),
                "local_per_thread_bytes": pl.col("localMemoryPerThread"),
                **_OF_GRAPH,
            },
        ),
    ),
    "copy_detail": (_copy("CUPTI_ACTIVITY_KIND_MEMCPY"), _copy("CUPTI_ACTIVITY_KIND_MEMSET")),
    "sync_detail": (
        Details(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            {"cuda_event_id": known_id("eventId"), "record_id": known_id("eventSyncId")},
        ),
    ),
    "fault_detail": (
        Details(
            "CUDA_UM_CPU_PAGE_FAULT_EVENTS",
            {
                "side": pl.lit("CPU"),
                "address": pl.col("address"),
                "faults": pl.lit(1),
                "source_line": absent_as_null("sourceLine"),
            },
            {"function": Named("CpuInstruction"), "module": Named("module"), "source_file": Named("sourceFile")},
        ),
        Details(
            "CUDA_UM_GPU_PAGE_FAULT_EVENTS",
            {"side": pl.lit("GPU"), "address": pl.col("address"), "faults": pl.col("numberOfPageFaults")},
            {"access": Named("faultAccessType", "ENUM_CUDA_UNIF_MEM_ACCESS_TYPE")},
        ),
    ),
    "memory_detail": (
        Details(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            {
                "address": pl.col("address"),
                "size_bytes": pl.col("bytes"),
                "pool": absent_as_null("localMemoryPoolAddress"),
                "pool_size_bytes": pl.col("localMemoryPoolSize"),
                "pool_used_bytes": pl.col("localMemoryPoolUtilizedSize"),
            },
            {"memory": Named("memKind", "ENUM_CUDA_MEM_KIND")},
        ),
    ),
    "graph_detail": (
        Details(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            {"graph_id": absent_as_null("graphId"), "graph_exec_id": absent_as_null("graphExecId")},
        ),
    ),
}


# Numbers (StringIds, ENUM_* tables) to names, column by column.

#: Labels are looked up in an array if it has at most this many unused slots per label.
_SPARSE: Final = 8
_SMALL: Final = 1024

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
            self._known[table] = dict(kept.iter_rows()) or dict(enumerate(_FALLBACK_LABELS.get(table, ())))
        return self._known[table]

    def namer(self, named: Named) -> Namer:
        """A function from raw rows to their Categorical column of names, as described by `named`; null without one."""
        if not named.column:
            constant = pl.Series([named.template], dtype=pl.Categorical)
            return lambda raw: constant.new_from_index(0, raw.height)
        if not named.table:
            text = pl.format(named.template, named.column).cast(pl.Categorical)
            return lambda raw: raw.select(text).to_series()
        labels = {number: named.template.format(label) for number, label in self.of(named.table).items()}
        top = max(labels, default=-1)
        if top < _SPARSE * len(labels) + _SMALL:
            values = pl.Series([labels.get(number) for number in range(top + 1)] or [None], dtype=pl.Categorical)
            column = pl.col(named.column)
            return lambda raw: values.gather(raw.select(pl.when(column.is_between(0, top)).then(column)).to_series())
        schema = {named.column: pl.Int64, "label": pl.Categorical}
        numbered = pl.DataFrame([*labels.items()], schema=schema, orient="row")
        return lambda raw: raw.select(named.column).join(numbered, on=named.column, how="left", maintain_order="left")[
            "label"
        ]
