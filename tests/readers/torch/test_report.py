"""Tiny traces in, whole tables out."""

import json

import polars as pl
import pytest

import kanalyze
from kanalyze.model import READER_TABLES
from support.made_traces import counted, report_of, trace, x

KERNEL = {"device": 0, "context": 1, "stream": 7}


@pytest.fixture
def tables(tmp_path):
    """A function: the tables of a trace of some events, without the columns that are null throughout."""

    def made(*events, **properties):
        report = report_of(tmp_path, trace(events, head=properties))

        def table(name):
            frame = report.table(name) if name in READER_TABLES else report.kind(name)
            texts = [column for column, dtype in frame.schema.items() if dtype == pl.Categorical]
            frame = frame.with_columns(pl.col(texts).cast(pl.String))
            known = [column for column in frame.columns if frame.get_column(column).null_count() < frame.height]
            return frame.select(known).to_dicts()

        table.report = report
        return table

    return made


def call(name, start, length, correlation, pid=4000, **args):
    return x("cuda_runtime", name, start, length, {"correlation": correlation, **args}, pid)


def kernel(name, start, length, correlation, device=0, **args):
    return x("kernel", name, start, length, {**KERNEL, "device": device, "correlation": correlation, **args}, device, 7)


def test_a_kernel_its_call_and_its_operator(tables):
    table = tables(
        x("cpu_op", "aten::mm", 0, 50, {"External id": 3, "Input Dims": [[2, 3], [3, 4]], "Input type": ["float", ""]}),
        call("cudaLaunchKernel", 10, 5.5, 7, **{"External id": 3}),
        kernel("gemm", 20, 9.125, 7, grid=[256, 2, 1], block=[128, 1, 1], **{
            "External id": 3, "registers per thread": 32, "shared memory": 1024,
        }),
    )  # fmt: skip
    host = {"process_id": 4000, "thread_id": 4001}
    device = {"process_id": 4000, "device": 0, "context_id": 1, "stream": 7}
    assert table("kernel") == [
        {"event_id": 0, "kind": "kernel", "name": "gemm", "start_ns": 20_000, "dur_ns": 9125, **device,
         "correlation_id": 7, "parent_id": 2},
    ]  # fmt: skip
    assert table("api") == [
        {"event_id": 1, "kind": "api", "name": "cudaLaunchKernel", "start_ns": 10_000, "dur_ns": 5500, **host,
         "correlation_id": 7, "parent_id": 2},
    ]  # fmt: skip
    assert table("op") == [{"event_id": 2, "kind": "op", "name": "aten::mm", "start_ns": 0, "dur_ns": 50_000, **host}]
    assert table("op_detail") == [
        {"event_id": 2, "external_id": 3, "input_shapes": "[[2, 3], [3, 4]]", "input_types": '["float", ""]'}
    ]
    assert table("kernel_config") == [
        {"event_id": 0, "grid_x": 256, "grid_y": 2, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1,
         "registers_per_thread": 32, "static_shared_bytes": 0, "dynamic_shared_bytes": 1024},
    ]  # fmt: skip
    assert table("processes") == [{"process_id": 4000, "cuda_ordinal": 0, "device": 0}]
    assert table.report.kinds == ("kernel", "memcpy", "memset", "api", "range", "op")
    assert counted(table.report) == {"events in the trace": 3}


def arrow(phase, number, at, pid, tid):
    return {"ph": phase, "id": number, "pid": pid, "tid": tid, "ts": at, "cat": "ac2g", "name": "ac2g", "bp": "e"}


@pytest.mark.parametrize("none", [{}, {"correlation": 0}])
@pytest.mark.parametrize("apart", [False, True])
def test_calls_and_device_events_of_rocm_are_linked_by_arrows(tables, none, apart):
    """As PyTorch on ROCm writes some traces: without a correlation id that is one."""
    at = {"device": 0, "stream": 7, **none}
    events = [
        x("cuda_runtime", "hipLaunchKernel", 10, 4, none),
        x("cuda_runtime", "hipMemcpyWithStream", 20, 30, none),
        x("cuda_runtime", "hipMemsetAsync", 60.125, 3, none),
        x("cuda_runtime", "hipLaunchKernel", 70, 4, none),
        x("kernel", "Cijk_Alik", 15, 8, at, 0, 7),
        x("gpu_memcpy", "CopyHostToDevice", 30, 8, at, 0, 7),
        x("gpu_memset", "Memset (Device)", 64.5, 2, at, 0, 7),
        x("kernel", "unlinked", 90, 8, at, 0, 7),
    ]
    arrows = [
        *(arrow("s", number, ts, 4000, 4001) for number, ts in ((5, 10), (6, 20), (7, 60.125), (8, 70))),
        *(arrow("f", number, ts, 0, 7) for number, ts in ((5, 15), (6, 30), (7, 64.5))),
        {**arrow("f", 9, 90, 0, 7), "ts": "never"},
        arrow("f", 0, 90, 0, 7),
    ]
    filler = [x("cpu_op", "aten::mm", 100 + one, 1) for one in range(2_000)] if apart else []
    table = tables(*events, *filler, *arrows)
    assert [row.get("correlation_id") for row in table("api")] == [5, 6, 7, 8]
    assert [row.get("correlation_id") for row in table("kernel")] == [5, None]
    assert [row.get("correlation_id") for kind in ("memcpy", "memset") for row in table(kind)] == [6, 7]


def test_correlation_ids_count_before_arrows(tables):
    table = tables(
        call("hipLaunchKernel", 10, 4, 3),
        call("hipLaunchKernel", 20, 4, 0),
        kernel("gemm", 15, 2, 3),
        kernel("axpy", 25, 2, 0),
        *(arrow("s", number, ts, 4000, 4001) for number, ts in ((5, 10), (6, 20))),
        *(arrow("f", number, ts, 0, 7) for number, ts in ((5, 15), (6, 25))),
    )
    assert [row["correlation_id"] for row in table("api")] == [3, 6]
    assert [row["correlation_id"] for row in table("kernel")] == [3, 6]


def test_copies_and_memsets(tables):
    of_graph = {"graph id": 9, "graph node id": 4}
    table = tables(
        x("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 0, 1, {**KERNEL, "bytes": 512, "graph id": 0}, 0, 7),
        x("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 1, 1, {**KERNEL, "fromDevice": 0, "toDevice": 1}, 0, 7),
        x("gpu_memcpy", "Memcpy ??? (Unknown -> Unknown)", 2, 1, {**KERNEL}, 0, 7),
        x("gpu_memset", "Memset (Device)", 3, 1, {**KERNEL, "bytes": 64, **of_graph}, 0, 7),
    )
    assert [row["name"] for row in table("memcpy") + table("memset")] == [
        "[CUDA memcpy Host-to-Device]",
        "[CUDA memcpy Peer-to-Peer]",
        "Memcpy ??? (Unknown -> Unknown)",
        "[CUDA memset]",
    ]
    nothing = dict.fromkeys(table("copy_detail")[0])
    assert table("copy_detail") == [
        nothing | {"event_id": 0, "direction": "Host-to-Device", "size_bytes": 512, "source_memory": "Pageable",
                   "target_memory": "Device"},
        nothing | {"event_id": 1, "direction": "Peer-to-Peer", "source_memory": "Device", "target_memory": "Device",
                   "source_device": 0, "target_device": 1},
        nothing | {"event_id": 2},
        nothing | {"event_id": 3, "size_bytes": 64, "target_memory": "Device", "graph_exec_id": 9,
                   "graph_node_id": (9 << 32) + 4},
    ]  # fmt: skip


def sync(name, start, correlation, stream=-1, **args):
    given = {**KERNEL, "stream": stream, "correlation": correlation, "External id": correlation, **args}
    return x("cuda_sync", name, start, 1, given, 0, stream)


def waits(event, stream=-1, record=-1):
    return {"wait_on_cuda_event_id": event, "wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": record}


def test_synchronisations_are_named_as_nsys_names_them_and_say_what_they_waited_for(tables):
    table = tables(
        x("cpu_op", "of no interest", 0, 1, {"External id": 12}),
        call("cudaEventRecord", 0, 1, 10),
        call("cudaStreamWaitEvent", 1, 1, 11),
        sync("Stream Wait Event", 1, 11, 20, **waits(5, 7, 10)),
        sync("Event Sync", 2, 12, **waits(5, 7, 10)),
        sync("Event Sync", 3, 13, 0xFFFFFFFF, **waits(6)),
        sync("Event Sync", 4, 14, **waits(5, 7, 900)),
        sync("Stream Sync", 5, 15, 7),
        sync("Context Sync", 6, 16),
    )
    rows = [(row["name"], row["stream"], row["correlation_id"]) for row in table("sync")]
    assert rows == [
        ("Stream wait sync", 20, 11),
        ("Event sync", None, 12),
        ("Event sync", None, 13),
        ("Event sync", None, 14),
        ("Stream sync", 7, 15),
        ("Context sync", None, 16),
    ]
    assert "parent_id" not in table("sync")[0]  # the External id of a synchronisation is its own correlation id
    detail = [(row["cuda_event_id"], row["record_id"]) for row in table("sync_detail")]
    assert detail == [(5, 10), (5, 10), (6, None), (5, None), (None, None), (None, None)]
    assert table("event_records") == [
        {"process_id": 4000, "device": 0, "context_id": 1, "stream": 7, "correlation_id": 10, "cuda_event_id": 5,
         "record_id": 10},
    ]  # fmt: skip


def test_recordings_of_events_are_read_where_the_trace_has_them(tables):
    def record(correlation, stream, event):
        args = {**KERNEL, "correlation": correlation, "stream": stream, "event_id": event}
        return x("cuda_event", "cudaEvent", 0, 0, args, 0)

    table = tables(
        call("cudaEventRecord", 0, 1, 10),
        record(10, 20, 5),
        record(9, 7, 6),
        sync("Event Sync", 2, 12, **waits(5, 20, 10)),
        sync("Event Sync", 2, 13, **waits(7, 21, 11)),
    )
    rows = [(row["record_id"], row["stream"], row["cuda_event_id"]) for row in table("event_records")]
    assert rows == [(10, 20, 5), (9, 7, 6), (11, 21, 7)]
    assert counted(table.report)["recordings of CUDA events"] == 2


@pytest.mark.parametrize("number", [7, "7", "stream 7", 7.0, "0x7"])
def test_numbers_are_read_however_they_are_written(tables, number):
    event = kernel("gemm", 0, 1, number, device=0, stream=number, context=number)
    launch = call("cudaLaunchKernel", 0, 1, 1)
    table = tables({**event, "tid": number, "pid": 0}, {**launch, "pid": number, "tid": number})
    assert [(row["stream"], row["context_id"], row["correlation_id"]) for row in table("kernel")] == [(7, 7, 7)]
    assert [(row["process_id"], row["thread_id"]) for row in table("api")] == [(7, 7)]


@pytest.mark.parametrize("args", [None, [], "text", 5, {}])
def test_a_device_event_without_arguments_is_on_the_device_and_stream_that_it_is_drawn_at(tables, args):
    table = tables(x("kernel", "gemm", 0, 1, None, 3, 20) | {"args": args})
    assert [(row["device"], row["stream"]) for row in table("kernel")] == [(3, 20)]


def test_python_functions_know_their_callers(tables):
    table = tables(
        x("python_function", "main", 0, 100, {"Python id": 1, "Python parent id": None}),
        x("python_function", "forward", 10, 50, {"Python id": 2, "Python parent id": 1}),
        x("python_function", "other process", 10, 50, {"Python id": 1, "Python parent id": 2}, 4002),
        x("python_function", "Python GC", 20, 5),
    )
    shown = [(row["name"], row["parent_id"]) for row in table("python")]
    assert shown == [("main", None), ("forward", 0), ("other process", None), ("Python GC", None)]


def test_a_backward_operator_is_linked_to_the_innermost_forward_one(tables):
    def end(phase, start, tid):
        return {"ph": phase, "id": 1, "pid": 4000, "tid": tid, "ts": start, "cat": "fwdbwd", "name": "fwdbwd"}

    table = tables(
        x("cpu_op", "aten::linear", 10, 50, {"Sequence number": 4}),
        x("cpu_op", "aten::addmm", 10, 40, {"Sequence number": 4}),
        end("s", 10, 4001),
        x("cpu_op", "AddmmBackward0", 100, 9, {"Sequence number": 4, "Fwd thread id": 1}, tid=4002),
        end("f", 100, 4002),
    )
    assert [row["forward_id"] for row in table("op_detail")] == [None, None, 1]
    assert [row["forward_thread_id"] for row in table("op_detail")] == [None, None, 1]


def test_allocations_tell_what_the_allocator_holds(tables):
    def memory(size, device_type, total):
        args = {"Bytes": size, "Addr": 4096, "Device Type": device_type, "Device Id": 0 if device_type else -1}
        args |= {"Total Allocated": total, "Total Reserved": 8192}
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 2, "ts": 5}
        return event | {"args": args}

    table = tables(
        memory(512, 1, 512), memory(-512, 1, 0), memory(64, 0, 64), {**memory(0, 1, 0), "name": "[OutOfMemory]"}
    )
    expected = [("Allocation", 0, 0), ("Deallocation", 0, 0), ("Allocation", None, 0), ("Out of memory", 0, 0)]
    assert [(row["name"], row["device"], row["dur_ns"]) for row in table("memory")] == expected
    assert [tuple(row.values())[1:] for row in table("memory_detail")] == [
        ("Device", 4096, 512, 8192, 512),
        ("Device", 4096, 512, 8192, 0),
        ("Pageable", 4096, 64, None, None),
        ("Device", 4096, 0, 8192, 0),
    ]


def test_collectives_have_their_fields(tables):
    args = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8, "Group size": 2}
    args |= {"Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]"}
    table = tables(
        kernel("gemm", 9, 1, 2),
        kernel("ncclDevKernel_AllReduce", 5, 1, 1, **args),
        x("cpu_op", "record_param_comms", 0, 1, {"Collective name": "send", "In msg nelems": "odd"}),
    )
    assert table("collective_detail") == [
        {"event_id": 0, "collective": "allreduce", "type": "Float", "in_elements": 8, "out_elements": 8,
         "group_size": 2, "group": "0", "group_description": "default_pg", "ranks": "[0, 1]"},
        {"event_id": 2, "collective": "send"} | dict.fromkeys(
            ("type", "in_elements", "out_elements", "group_size", "group", "group_description", "ranks")
        ),
    ]  # fmt: skip
    assert [row["name"] for row in table("kernel")] == ["ncclDevKernel_AllReduce", "gemm"]
    stray = x("python_function", "f", 2, 1, {"Python id": 1, "Collective name": "allreduce"})
    assert tables(stray)("collective_detail") == []


PROPERTIES = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132, "warpSize": 32}


@pytest.mark.parametrize(
    ("told", "sms"),
    [
        *(([PROPERTIES | more], 132) for more in ({}, {"id": "0", "numSms": 132.0}, {"numSms": "132"})),
        *(([PROPERTIES | more], None) for more in ({"numSms": -1}, {"numSms": 10**30}, {"id": 1}, {"id": None})),
        *((odd, None) for odd in ([5, None, "text"], [], {}, None, "text")),
    ],
)
def test_properties_of_devices_may_be_odd(tables, told, sms):
    table = tables(kernel("gemm", 0, 1, 2), deviceProperties=told)
    assert [row.get("sm_count") for row in table("devices") if row["device"] == 0] == [sms]


@pytest.mark.parametrize("described", [0, 1])
def test_gpus_that_are_described_are_listed_where_none_of_those_used_is(tables, described):
    table = tables(kernel("gemm", 0, 1, 2), deviceProperties=[{**PROPERTIES, "id": described}])
    assert [row["device"] for row in table("devices")] == [0, *[described] * described]


@pytest.mark.parametrize(
    ("told", "rank", "size"),
    [
        *(({"rank": 1, "world_size": 8}, 1, 8), ({"rank": 1}, 1, None), ({"rank": "1", "world_size": None}, 1, None)),
        *(({"rank": True}, None, None), ("rank 1", None, None), (None, None, None)),
    ],
)
def test_the_rank_is_read_where_it_is_told(tables, told, rank, size):
    meta = tables(distributedInfo=told, schemaVersion=1, baseTimeNanoseconds=5).report.meta
    assert (meta.rank, meta.world_size, meta.schema_version, meta.origin_unix_ns) == (rank, size, "1", 5)


def test_of_several_recordings_the_longest_counts(tables):
    spans = [x("Trace", "PyTorch Profiler (0)", 0, length, {}, "Spans") for length in (5, 70, 9)]
    assert tables(*spans, {**spans[0], "dur": None}).report.meta.duration_ns == 70_000
    assert tables().report.meta.duration_ns is None


def merged(*ranks, shift=0):
    """The events of several processes as one file: each has device `rank`, and numbers its calls alike."""
    found = []
    for rank, numbers in enumerate(ranks):
        pid = 4000 + rank
        found.append(x("cpu_op", f"rank {rank}", 0, 1000, {"External id": 100}, pid))
        for number in numbers:
            at = 10 * number + shift * rank
            found.append(call("cudaLaunchKernel", at, 2, number, pid, **{"External id": 100}))
            found.append(kernel(f"of rank {rank}", at + 4, 1, number, rank, **{"External id": 100}))
    return found


@pytest.mark.parametrize("shift", [0, 3, -3, 500])
@pytest.mark.parametrize("contexts", [True, False])  # AMD's GPUs have none
@pytest.mark.parametrize(
    "ranks", [((1, 2, 3), (1, 2, 3, 4)), ((5, 6), (1, 2)), ((1, 2, 3), (2, 3, 9), (3, 9)), ((1,), (1,))]
)
def test_in_merged_traces_a_device_event_belongs_to_the_process_that_launched_it(tables, ranks, contexts, shift):
    events = merged(*ranks, shift=shift)
    if not contexts:
        for event in events:
            event.get("args", {}).pop("context", None)
    table = tables(*events)
    kernels = [(row["name"], row["process_id"], row["device"]) for row in table("kernel")]
    assert kernels
    assert all(name == f"of rank {rank}" and process == 4000 + rank for name, process, rank in kernels)
    ops = {row["event_id"]: row["process_id"] for row in table("op")}
    assert all(ops[row["parent_id"]] == row["process_id"] for kind in ("kernel", "api") for row in table(kind))
    told = [(row["process_id"], row.get("device")) for row in table("processes")]
    assert told == [(4000 + rank, rank) for rank in range(len(ranks))]


def test_every_entry_is_accounted_for(tables):
    flow = {"ph": "s", "id": 7, "pid": 1, "tid": 1, "ts": 20, "cat": "ac2g", "name": "ac2g"}
    table = tables(
        kernel("gemm", 0, 1, 2),
        flow,
        {**flow, "ph": "f"},
        x("gpu_user_annotation", "step", 0, 5.5, {}, 0, 7),
        x("Trace", "PyTorch Profiler (0)", 0, 9, {}, "Spans"),
        {"ph": "M", "name": "process_name", "pid": 4000, "tid": 0, "ts": 0, "args": {"name": "python3"}},
        {"ph": "M", "name": "process_labels", "pid": 4000, "tid": 0, "ts": 0, "args": {"name": "no name"}},
        {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 0, "s": "g"},
        x("hpu_op", "matmul", 0, 2.5),
        x("my own", "thing", 0, 1),
    )
    assert table("notes") == [
        {"check": "events in the trace", "count": 10, "ns": None, "effect": "1 are in the tables: 1 kernel"},
        {"check": "arrows between events", "count": 2, "ns": None,
         "effect": "ids join the same events; backward operators are joined by them"},
        {"check": "ranges drawn on devices", "count": 1, "ns": 5500,
         "effect": "where the work of a range ran; no work of their own"},
        {"check": "names and marks", "count": 4, "ns": None,
         "effect": "names of processes and threads, and where the recording began and ended"},
        {"check": "events of the category my own", "count": 1, "ns": None, "effect": "no table holds them"},
        {"check": "events of other devices and tools", "count": 1, "ns": 2500, "effect": "no table holds them"},
    ]  # fmt: skip
    assert table("processes") == [{"process_id": 4000, "name": "python3", "cuda_ordinal": 0, "device": 0}]


def test_calls_of_two_processes_that_ran_nothing_keep_their_processes(tables):
    table = tables(call("cudaSetDevice", 0, 1, 1), call("cudaSetDevice", 5, 1, 2, pid=5000))
    assert [row["process_id"] for row in table("api")] == [4000, 5000]


def test_a_call_of_mtia_that_is_drawn_on_the_accelerator_too_counts_once(tables):
    drawn = {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "MTIA 0"}}
    named = (("synchronizeStream", 4000), ("synchronize", 7))
    calls = [x("mtia_runtime", name, 0, 5, {"correlation": 1}, pid) for name, pid in named]
    table = tables(drawn, *calls, x("mtia_ccp_events", "pe_exe", 3, 9, {}, 7))
    told = [(row["name"], row["process_id"], row["dur_ns"]) for row in table("api")]
    assert told == [("synchronizeStream", 4000, 5000)]
    assert [row["process_id"] for row in table("processes")] == [4000]
    apart = [row for row in table("notes") if row["check"] == "events of other devices and tools"]
    assert [(row["count"], row["ns"]) for row in apart] == [(2, 14_000)]


def test_limits_of_a_gpu_that_cannot_be_are_missing_and_counted(tables):
    gpu = {"id": 0, "name": "NVIDIA H200", "warpSize": -32, "maxThreadsPerBlock": 1024}
    report = tables(kernel("gemm", 0, 5, 1), deviceProperties=[gpu]).report
    assert report.devices.select("threads_per_warp", "max_threads_per_block").row(0) == (None, 1024)
    assert counted(report)["limits of GPUs that are missing or cannot be"] == 1


@pytest.mark.parametrize(("correlation", "blocks"), [({"correlation": 7}, 64), ({}, 4096)], ids=["known", "unknown"])
def test_work_items_are_blocks_where_the_call_of_a_kernel_is_known(tables, correlation, blocks):
    gpu = {"id": 0, "name": "AMD Instinct MI250X", "warpSize": 64, "computeMajor": 9, "computeMinor": 0}
    launch = x("cuda_runtime", "hipExtModuleLaunchKernel", 0, 5, correlation)
    work = x("kernel", "gemm", 10, 5, {**KERNEL, **correlation, "grid": [4096, 1, 1], "block": [64, 1, 1]}, 0, 7)
    (config,) = tables(launch, work, deviceProperties=[gpu])("kernel_config")
    assert (config["grid_x"], config["block_x"]) == (blocks, 64)


# What PyTorch 2.15 writes of GPUs beside its events: sampled counters, nodes and arrows of CUDA graphs


CALL = call("cudaGraphLaunch", 1.0, 2.0, 5)
ON_GPU = kernel("k", 10.0, 30.0, 5)
NODE = {**ON_GPU, "cat": "graph_host_node", "name": "HostNode: f", "ts": 50.0, "dur": 1.0}
ARROW = {"cat": "graph_dep", "name": "graph_dep", "id": 1 << 40, "pid": 0, "tid": 7}
SORTED = {"ph": "M", "name": "process_sort_index", "pid": "GPU 0 Counters", "tid": 0, "args": {"sort_index": 100}}


def sample(name, ts, value, device=0):
    return {"ph": "C", "name": name, "pid": f"GPU {device} Counters", "ts": ts, "args": {"": value}}


SAMPLES = [
    *(sample("SM Active (%)", 2.0 * step, 60.0) for step in range(30)),
    *(sample("SM Clock (MHz)", 20.0 * step, 1500.0) for step in range(3)),
    sample("Power (W)", 5.0, 200.5, device=1),
    sample("Cycles (Current Kernel)", 10.0, 4500),
]
NODES = [NODE, {**NODE, "cat": "graph_event_node", "name": "EventRecord"}]
BETWEEN = [{**ARROW, "ph": "s", "ts": 40.0}, {**ARROW, "ph": "f", "ts": 50.0, "bp": "e"}]
EVENTS = [CALL, ON_GPU, *NODES, *BETWEEN, SORTED, *SAMPLES]


def test_counters_are_those_of_gpu_metrics(tables):
    found = tables(*EVENTS).report.table("gpu_metrics")
    assert sorted(found.select("device", "metric", "unit", "value").unique().rows()) == [
        (0, "Cycles (Current Kernel)", "", 4500.0),
        (0, "SM Active", "%", 60.0),
        (0, "SM Clock", "MHz", 1.5e9),
        (1, "Power", "W", 200.5),
    ]
    active = found.filter(metric="SM Active")
    assert active.select("start_ns", "dur_ns", "samples").rows()[:2] == [(0, 2000, 1), (2000, 2000, 1)]


def test_a_kernel_has_the_means_of_its_samples_and_none_of_it_is_a_doubt(tables):
    report = tables(*EVENTS).report
    row = kanalyze.gpu_units(report).row(0, named=True)
    assert (row["name"], row["sms_active_share"], row["sm_clock_hz"]) == ("k", 0.6, 1.5e9)
    checks = {row["check"]: row for row in kanalyze.health(report).to_dicts()}
    assert not [check for check in checks if "categor" in check]
    counts = {"nodes of CUDA graphs that are no work": 2, "arrows between events": 2}
    for check, count in {**counts, "samples of counters of GPUs": len(SAMPLES)}.items():
        assert (checks[check]["count"], checks[check]["doubt"]) == (count, False)
    other = {**SAMPLES[0], "pid": "Program"}  # a counter of anything else
    found = kanalyze.health(tables(*EVENTS, other).report).filter("doubt").get_column("check")
    assert "events without a category" in found.to_list()


def node(number, ts, **args):
    """A node of graph 3, which took 10 µs, as PyTorch 2.14 on writes it."""
    return {**ON_GPU, "ts": ts, "dur": 10.0, "args": {**ON_GPU["args"], "graph id": 3, "graph node id": number, **args}}


def arrows(kind, *ends):
    """Arrows between nodes, by their ends and begins."""
    of = {"cat": kind, "name": kind, "pid": 0, "tid": 7}
    sides = [("s", "ts"), ("f", "ts")]
    return [
        {**of, "ph": ph, "id": (1 << 40) + number, key: at}
        for number, times in enumerate(ends)
        for (ph, key), at in zip(sides, times, strict=True)
    ]


@pytest.mark.parametrize("kind", ["ac2g", "graph_dep"])
def test_nodes_of_graphs_have_what_they_depend_on(tables, kind):
    nodes = [node(1, 10.0), node(2, 20.0), node(3, 30.0), {**node(4, 40.0), "cat": "gpu_memset"}]
    # the last one waits for the first, and for the second, which ended later; an arrow that leads nowhere
    ends = (20.0, 40.0), (30.0, 40.0), (20.0, 30.0), (35.0, 40.0)
    found = tables(CALL, *nodes, *arrows(kind, *ends)).report
    ids = found.kind("kernel").get_column("event_id").to_list()
    assert found.table("kernel_config").get_column("after_id").to_list() == [None, None, ids[0]]
    assert found.table("copy_detail").get_column("after_id").to_list() == [ids[1]]
    assert found.table("kernel_config").get_column("graph_node_id").to_list() == [(3 << 32) + one for one in (1, 2, 3)]


@pytest.mark.parametrize(
    ("args", "mark"),
    [
        ({"str": "phase_A"}, "phase_A"),
        ({"name": 'layer "1"', "stream": "60"}, 'layer "1"'),
        ({"annotation": json.dumps([{"dtype": "bf16"}, {"str": "phase_B"}])}, "phase_B"),
        ({"annotation": "plain"}, "plain"),
        ({"annotation": "[{3"}, None),
        ({"name": 3}, None),
        ({}, None),
    ],
)
def test_marks_of_nodes_in_all_forms(tables, args, mark):
    found = tables(CALL, node(1, 10.0, **args), {**node(2, 30.0, **args), "cat": "gpu_memcpy"}).report
    assert [found.table(name).get_column("mark").to_list() for name in ("kernel_config", "copy_detail")] == [[mark]] * 2


def test_copies_have_their_direction_in_their_arguments(tables):
    kinds = {"copy kind": "HtoD", "src kind": "pageable", "dst kind": "device", "bytes": 8}
    copy = kernel("Memcpy", 10.0, 30.0, 5, **kinds) | {"cat": "gpu_memcpy"}
    old = {**ON_GPU, "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "ts": 90.0}
    found = tables(copy, old).report
    names = [f"[CUDA memcpy {way}]" for way in ("Host-to-Device", "Device-to-Host")]
    assert found.kind("memcpy").get_column("name").to_list() == names
    memory = found.table("copy_detail").select("direction", "source_memory", "target_memory").rows()
    assert memory == [("Host-to-Device", "Pageable", "Device"), ("Device-to-Host", "Device", "Pinned")]
