"""Allowlist of nsys export tables and columns that identify neither machine nor user.

Tables not in :data:`TABLES` and columns not listed here are removed, so that additions of later nsys versions cannot
identify anybody. Source: the schema that ``nsys export`` of 2022.4 to 2025.3 writes, and NVIDIA's schema reference for
2026.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from kanalyze.redact.rules import words

if TYPE_CHECKING:
    from collections.abc import Mapping

#: How a text is redacted: only certain matches (`name`), every identifying pattern (`free`), reduced to the last
#: path component (`path`), or to that and the kind of folder that a module is in (`module`), to the counters of a GPU
#: in a JSON text (`counters`), or emptied (`blank`).
How = Literal["name", "free", "path", "module", "counters", "blank"]

#: Which rows are kept: all, those of profiled processes, stacks of their samples, or those of allowlisted settings.
Rows = Literal["all", "profiled", "sampled", "settings"]


@dataclass(frozen=True)
class Table:
    """Columns that are kept of one table.

    Attributes:
        texts: The redaction rule of each text column.
        rows: Which rows are kept.
        numbered: Whether row ids are kept, in which a gap is a row lost by nsys.
    """

    texts: Mapping[str, How] = field(default_factory=dict)
    rows: Rows = "all"
    numbered: bool = True


#: Numeric columns kept in every table of TABLES.
NUMBERS: Final = words(
    """
    start end timestamp timestampType duration startTime stopTime rawTimestamp eventClass eventType
    globalTid globalPid globalVid endGlobalTid pid tid processId vmId hwId cpu
    deviceId cudaId gpuId contextId parentContextId greenContextId isGreenContext streamId nullStreamId
    correlationId graphId graphExecId graphNodeId originalGraphId originalGraphNodeId
    nameId textId jsonTextId symbol module CpuInstruction sourceFile demangledName shortName mangledName
    returnValue callchainId nestingLevel stackDepth unwindMethod thumbCode kernelMode unresolved specialEntry originalIP
    launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ gridId clusterX clusterY clusterZ
    staticSharedMemory dynamicSharedMemory sharedMemoryExecuted sharedMemoryLimitConfig
    localMemoryPerThread localMemoryTotal
    bytes value copyKind copyCount srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId deprecatedSrcId
    memKind migrationCause virtualAddress address numberOfPageFaults faultAccessType originalFaultPc unresolvedFaultPc
    sourceLine pc memoryOperationType operationType poolType minBytesToKeep localMemoryPoolAddress
    localMemoryPoolReleaseThreshold localMemoryPoolSize localMemoryPoolUtilizedSize importedMemoryPoolAddress
    importedMemoryPoolProcessId
    syncType deprecatedSyncType eventId eventSyncId
    rangeId category color domainId uint64Value int64Value doubleValue uint32Value int32Value floatValue
    schemaId idx numEntries size isFlag type flags payloadSize alignTo arrayOrUnionDetail offset
    id priority flag source severity nameEnum utcEpochNs isSchedIn threadState threadBlock typeId metricId pwGpuId
    isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount numMultiprocessors cuDevice revision nodeMask
    constantMemory maxIPC maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm
    cpuCycles sourceId portId globalId nicId metricsListId metricsIdx
    threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ
    maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor smMajor smMinor
    """
)

#: Columns that refer to StringIds, and how those strings are redacted.
REFERENCES: Final[Mapping[str, How]] = {
    **dict.fromkeys(
        ("demangledName", "shortName", "mangledName", "nameId", "textId", "symbol", "CpuInstruction"), "name"
    ),
    "sourceFile": "path",
    "module": "module",
    "jsonTextId": "free",
}

#: Columns that identify a device; kept but emptied, since nsys' own reports select them.
IDENTIFIERS: Final = frozenset(("uuid", "busLocation", "luid", "ctxswDevPath", "ctrlDevPath", "binaryData"))

_EVENTS: Final = Table()
_ENUM: Final = Table({"name": "name", "label": "name"})
_SETTINGS: Final = Table({"name": "free", "value": "free"}, rows="settings", numbered=False)

#: Samples, whose ids stacks are told by.
SAMPLES: Final = "COMPOSITE_EVENTS"

TABLES: Final[Mapping[str, Table]] = {
    "StringIds": Table({"value": "name"}),
    **{
        f"CUPTI_ACTIVITY_KIND_{name}": _EVENTS
        for name in (
            *("RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "CUDA_EVENT", "GRAPH_TRACE"),
            "MEM_DECOMPRESS",
        )
    },
    **dict.fromkeys(
        (
            *("CUDA_GRAPH_EVENTS", "CUDA_GRAPH_NODE_EVENTS", "CUDA_UM_CPU_PAGE_FAULT_EVENTS"),
            *("CUDA_UM_GPU_PAGE_FAULT_EVENTS", "CUDA_GPU_MEMORY_POOL_EVENTS", "PROFILER_OVERHEAD", "OSRT_API"),
            *("CUBLAS_EVENTS", "CUDNN_EVENTS", "CUDA_CALLCHAINS", "OSRT_CALLCHAINS", "SCHED_EVENTS", "GPU_METRICS"),
            *("ANALYSIS_DETAILS", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_CUDA_CONTEXT_INFO"),
            *("TARGET_INFO_CUDA_STREAM", "TARGET_INFO_CUDA_NULL_STREAM"),
            *("NET_NIC_METRIC", "NET_IB_SWITCH_METRIC", "NIC_ID_MAP"),
        ),
        _EVENTS,
    ),
    SAMPLES: Table(rows="profiled", numbered=False),
    "SAMPLING_CALLCHAINS": Table(rows="sampled", numbered=False),
    "TARGET_INFO_NETWORK_METRICS": Table({"name": "name", "description": "free", "unit": "name"}),
    "TARGET_INFO_NIC_INFO": Table({"name": "name"}),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": Table({"name": "name"}),
    "NVTX_EVENTS": Table({"text": "name", "jsonText": "free"}),
    "NVTX_PAYLOAD_SCHEMAS": Table({"name": "name"}),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": Table({"name": "name", "description": "free"}),
    "NVTX_PAYLOAD_ENUMS": Table({"name": "name"}),
    "NVTX_PAYLOAD_ENUM_ENTRIES": Table({"name": "name"}),
    "TARGET_INFO_GPU": Table({"name": "name", "chipName": "name"}),
    "TARGET_INFO_GPU_METRICS": Table({"sourceName": "name", "typeName": "name", "metricName": "name"}),
    "GENERIC_EVENTS": Table({"data": "counters"}),
    "TARGET_INFO_NVTX_CUDA_STREAM": Table({"name": "name"}),
    "TARGET_INFO_SESSION_START_TIME": Table({"utcTime": "free", "localTime": "blank"}),
    "TARGET_INFO_SYSTEM_ENV": Table(
        {"name": "free", "value": "free", "devStateName": "blank"}, "settings", numbered=False
    ),
    "META_DATA_CAPTURE": _SETTINGS,
    "META_DATA_EXPORT": _SETTINGS,
    "EXPORT_META_DATA": _SETTINGS,
    "DIAGNOSTIC_EVENT": Table({"text": "free"}, rows="settings", numbered=False),
    "PROCESSES": Table({"name": "path"}, rows="profiled", numbered=False),
    "ThreadNames": Table(rows="profiled", numbered=False),
    **{
        f"ENUM_{name}": _ENUM
        for name in (
            *("NSYS_EVENT_TYPE", "NSYS_EVENT_CLASS", "NSYS_GENERIC_EVENT_SOURCE", "NSYS_GENERIC_EVENT_GROUP"),
            *("NSYS_GENERIC_EVENT_FIELD_TYPE", "NSYS_GENERIC_EVENT_FIELD_ETW_PROPERTY"),
            *("NSYS_GENERIC_EVENT_FIELD_ETW_TYPE", "NSYS_GENERIC_EVENT_FIELD_ETW_FLAGS"),
            *("CUDA_MEMCPY_OPER", "CUDA_MEM_KIND", "CUDA_MEMPOOL_TYPE", "CUDA_MEMPOOL_OPER", "CUDA_DEV_MEM_EVENT_OPER"),
            *("CUDA_KERNEL_LAUNCH_TYPE", "CUDA_SHARED_MEM_LIMIT_CONFIG", "CUDA_UNIF_MEM_MIGRATION"),
            *("CUDA_UNIF_MEM_ACCESS_TYPE", "CUDA_FUNC_CACHE_CONFIG", "CUPTI_STREAM_TYPE", "CUPTI_SYNC_TYPE"),
            *("DIAGNOSTIC_SEVERITY_LEVEL", "DIAGNOSTIC_SOURCE_TYPE", "DIAGNOSTIC_TIMESTAMP_SOURCE"),
            *("STACK_UNWIND_METHOD", "SAMPLING_THREAD_STATE", "SCHEDULING_THREAD_STATE", "SCHEDULING_THREAD_BLOCK"),
            *("OPENGL_DEBUG_SOURCE", "OPENGL_DEBUG_TYPE", "OPENGL_DEBUG_SEVERITY"),
        )
    },
    "UnwindMethodType": _ENUM,
}

#: Tables whose rows show which processes were profiled, and the column.
PROFILED: Final = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": "globalTid",
    "CUPTI_ACTIVITY_KIND_KERNEL": "globalPid",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "globalPid",
    "CUPTI_ACTIVITY_KIND_MEMSET": "globalPid",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "globalPid",
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": "globalPid",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "globalPid",
    "NVTX_EVENTS": "globalTid",
    "OSRT_API": "globalTid",
    "CUBLAS_EVENTS": "globalTid",
    "CUDNN_EVENTS": "globalTid",
}

#: A value that cannot identify: a switch, a number, a version, a time, or a word of nsys.
_HARMLESS: Final = r"(?:[-+\d.,: TZ]*(?: sec| UTC)?|[A-Za-z]{0,24})"

#: Settings that are kept, as ``name=value``, by table.
SETTINGS: Final[Mapping[str, re.Pattern[str]]] = {
    "META_DATA_CAPTURE": re.compile(
        rf"(?:PROCESS_\d+:)?(?:COLLECT_\w+|CUDA_\w+(?::\w+)?|HOW_TO_ATTACH|LAUNCH_AS_ROOT|SAMPLING_\w+(?::\w+)?)={_HARMLESS}"
        rf"|(?:CAPTURE_EVENT_TYPE|(?:START|STOP)_TRIGGER|DEVICE_TYPE|\w+_(?:HZ|FREQ|MS|ENABLED)|COLLECT_\w+|USE_\w+|TRACE_\w+"
        rf"|INCLUDE_CHILDREN|SHOW_BACKTRACE|SAMPLE_ALL_TASKS|RESUME|RUN_DURATION_\w+|START_\w+|DISABLE_TIME_SYNC"
        rf"|NVTX_OPTIONS:\w+_(?:KEY|VALUE|INCLUDE)|SYMBOL_RESOLUTION_OPTIONS:\w+)={_HARMLESS}"
        r"|PROCESS_\d+:(?:COMMAND|ARGUMENT_\d+|NVTX_\w+)=.*|NVTX_OPTIONS:NVTX_DOMAIN_FILTER_STRING=.*",
        re.DOTALL,
    ),
    **dict.fromkeys(
        ("META_DATA_EXPORT", "EXPORT_META_DATA"),
        re.compile(
            rf"EXPORT_(?:PRODUCT_(?:NAME=[A-Za-z ]*|VERSION=[\d.]*|DATE=[\w.]*)|(?:SCHEMA_\w+|TIME_UTC)={_HARMLESS}"
            rf"|(?:PLATFORM|ARCH)=[\w-]*|PARAM_(?:OVERWRITE|APPEND|LAZY|TIME_NORMALIZE|TIME_SHIFT)={_HARMLESS}"
            rf"|CONFIG_TIME_SHIFT={_HARMLESS}|TIME={_HARMLESS}|PARAM_(?:INPUT|OUTPUT)_FILE=[^/\\]*)"
        ),
    ),
    "TARGET_INFO_SYSTEM_ENV": re.compile(
        r"(?:CpuCores|CpuSpeedMhz|CpuEmcSpeedMhz|NvDriverVersion|CudaDriverVersion|LinuxParanoidLevel|ExportLevel)=[\d.]*"
        r"|(?:CpuArchitecture|SupportedABIs|Supported64BitABIs|HardwarePlatform|SoftwarePlatform)=[\w,-]*"
        r"|(?:Is[A-Z]|Has|Supports|dpti)\w*=\d{0,2}|CpuDescription=[\w ()@.,-]*|OsDescription=[\w ().,/-]*"
    ),
    #: Informational diagnostics of nsys that are kept; all warnings and errors are, since some report lost records.
    "DIAGNOSTIC_EVENT": re.compile(
        r"Profiling has (?:started|stopped)\.|Number of [A-Za-z]+ events (?:collected|produced): .[\d,]*.*"
        r"|[\w -]+ initialized successfully\.|Buffers holding CUDA trace data .*|Enabling trace for [a-z ]+"
    ),
}

#: Severity from which a diagnostic is a warning (ENUM_DIAGNOSTIC_SEVERITY_LEVEL).
WARNING: Final = 2
