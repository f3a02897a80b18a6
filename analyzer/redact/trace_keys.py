"""Allowlist of keys that torch.profiler writes into a Chrome trace and that identify nobody.

Source: kineto's ``output_json.cpp``, ``MetadataFieldCatalog.h`` and ``EnvMetadata.h`` of August 2026, torch 2.11's
``torch/profiler`` and inductor's ``triton_heuristics.py``, and real traces.
"""

from __future__ import annotations

from typing import Final

#: Keys whose texts are kept, once redacted. Most frequent first: this is the matching order.
KEYS: Final = (
    *("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "bp", "External id", "correlation", "Ev Idx"),
    *("Record function id", "cbid", "Python id", "Python parent id", "Python module id", "Python thread"),
    *("Concrete Inputs", "Input type", "Input Strides", "Input Dims", "device", "stream", "context", "Sequence number"),
    *("Fwd thread id", "queued", "registers per thread", "shared memory", "blocks per SM", "warps per SM", "grid"),
    *(
        "block",
        "est. achieved occupancy %",
        "bytes",
        "memory bandwidth (GB/s)",
        "graph id",
        "graph node id",
        "priority",
    ),
    *("occupancy", "activeBlocksPerMultiprocessor", "allocatedRegistersPerBlock", "allocatedSharedMemPerBlock"),
    *("blockLimitBarriers", "blockLimitBlocks", "blockLimitRegs", "blockLimitSharedMem", "blockLimitWarps"),
    *("limitingFactors", "channel", "channel_type", "cuda_sync_kind", "event_id", "wait_on_stream"),
    *("wait_on_cuda_event_id", "wait_on_cuda_event_record_corr_id", "fromContext", "fromDevice", "toContext"),
    *("toDevice", "inContext", "inDevice", "Addr", "Bytes", "Total Allocated", "Total Reserved", "Device Type"),
    *("Device Id", "Module Hierarchy", "Call stack", "Backend", "CallFrom", "flops", "Flops", "scope"),
    *("kernel_backend", "kernel_name", "kernel_hash", "kernel_kwargs", "kernel_flop", "kernel_num_gb", "num_warps"),
    *("num_stages", "cooperative", "Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size"),
    *("In split size", "Out split size", "Global rank start", "Global rank stride", "Process Group Name"),
    *("Process Group Description", "Process Group Ranks", "Rank", "Src Rank", "Dst Rank", "Seq", "Comms Id"),
    *("Input Tensors start", "Output Tensors start", "Is asynchronized op", "Is asynchronous op"),
    *("overhead cost", "overhead count", "overhead kind", "kind", "Op count", "sort_index", "labels", "s", "sf", "v"),
    *("cname", "tts", "tdur", "op", "finished", "label", "iteration", "dims", "kernel_file", "file", "Trace Name"),
    # of the trace itself
    *("schemaVersion", "deviceProperties", "distributedInfo", "displayTimeUnit", "baseTimeNanoseconds", "traceEvents"),
    *("traceName", "record_shapes", "profile_memory", "with_stack", "with_modules", "with_flops"),
    *("DISABLE_CUPTI_LAZY_REINIT", "execution_trace", "is_synced", "cuda_driver_version", "cuda_runtime_version"),
    *("cupti_version", "hip_driver_version", "hip_runtime_version", "roctracer_version", "rocprofiler-sdk_version"),
    *(
        "otherData",
        "stackFrames",
        "samples",
        "backend",
        "backend_config",
        "rank",
        "world_size",
        "pg_count",
        "pg_config",
    ),
    *("pg_name", "pg_desc", "pg_size", "ranks", "nccl_version"),
    # of a device
    *("totalGlobalMem", "computeMajor", "computeMinor", "maxThreadsPerBlock", "maxThreadsPerMultiprocessor"),
    *("regsPerBlock", "regsPerMultiprocessor", "warpSize", "numSms", "sharedMemPerBlock", "sharedMemPerBlockOptin"),
    *("sharedMemPerMultiprocessor", "maxSharedMemoryPerMultiProcessor", "maxComputeUnits", "maxWorkGroupSize"),
    *("maxClockFrequency", "maxMemAllocSize", "localMemSize", "vendor", "driverVersion", "unit", "total", "used"),
)

#: Keys whose value is a path.
PATHS: Final = frozenset(("kernel_file", "file", "traceName"))

#: Keys whose value names a kernel, call or operator.
NAMES: Final = frozenset(("name", "kernel_name", "Module Hierarchy"))

#: Keys whose value is removed, and the kind it is counted as. Texts of keys not listed in KEYS are removed, too.
GONE: Final = {
    "host_name": "host names",
    "hostname": "host names",
    "trace_id": "ids of sessions and machines",
    "uuid": "ids and addresses of GPUs",
    "PT_PROFILER_JOB_NAME": "variables of the environment",
    "PT_PROFILER_JOB_VERSION": "variables of the environment",
    "PT_PROFILER_JOB_ATTEMPT_INDEX": "variables of the environment",
}
