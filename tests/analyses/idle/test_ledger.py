"""The ledger, rule by rule of definitions.md section 5, then against a model that goes instant by instant."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.host import _context_creation
from kanalyze.analyses.idle._attribution import host_time, launch_waits
from kanalyze.analyses.idle.ledger import bucket_sums, ledger
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.window import Window
from support.build import call, graph, kernel, launched, memcpy, memset, nvtx, overhead, report
from support.large import in_batches
from support.real_reports import real_report
from support.slow_model import SlowModel
from support.strategies import EVENTS, FEWER, PROCESSES, WINDOWS


def rows(of):
    """The whole ledger of the only device."""
    found = ledger(of)
    assert found.get_column("device").n_unique() <= 1
    return found.select("bucket", "detail", "ns").rows()


def rows_by_device(of):
    return ledger(of).select("device", "bucket", "detail", "ns").rows()


# Busy: rules 1 to 4


def test_1_a_kernel_wins_over_everything():
    events = [memset(0, 30), memcpy(0, 30), kernel(0, 30, name="ncclDevKernel_AllReduce"), kernel(10, 20)]
    assert rows(report(events)) == [("kernel", None, 10), ("communication", None, 20)]


def test_1_a_whole_graph_is_a_kernel_with_detail_graph():
    assert rows(report([graph(0, 10), memcpy(5, 15)])) == [("kernel", "graph", 10), ("memcpy", "Host-to-Device", 5)]


def test_1_of_two_kernels_the_first_started_gives_the_detail():
    assert rows(report([graph(5, 20), kernel(0, 12)])) == [("kernel", None, 12), ("kernel", "graph", 8)]


def test_2_communication_is_what_no_kernel_hides():
    events = [kernel(0, 10), kernel(5, 20, name="ncclDevKernel_AllReduce"), memcpy(0, 25, direction="Peer-to-Peer")]
    assert rows(report(events)) == [("kernel", None, 10), ("communication", None, 10), ("memcpy", "Peer-to-Peer", 5)]


def test_3_copies_by_direction_the_first_started_wins():
    events = [
        memcpy(0, 10, direction="Host-to-Device"),
        memcpy(5, 17, direction="Device-to-Host"),
        memcpy(17, 20, direction="Unified Host-to-Device"),
    ]
    assert rows(report(events)) == [
        ("memcpy", "Host-to-Device", 10),
        ("memcpy", "Device-to-Host", 7),
        ("memcpy", "Unified Host-to-Device", 3),
    ]


def test_4_memset_is_what_nothing_else_hides():
    assert rows(report([memset(0, 20), memcpy(5, 10), kernel(8, 12)])) == [
        ("kernel", None, 4),
        ("memcpy", "Host-to-Device", 3),
        ("memset", None, 13),
    ]


# Idle: rules 5 to 13. The device is idle from 0, where the host begins, to the kernel.


def test_5_the_profilers_overhead_wins_over_every_call():
    events = [
        call("cuModuleLoadData", 0, 10),
        overhead("CUPTI buffer flush", 5, 15),
        call("cudaLaunchKernel", 10, 30, correlation=1),
        overhead("CUPTI buffer flush", 32, 34),
        kernel(40, 50, correlation=1),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 10),
        ("profiler", "CUPTI buffer flush", 12),
        ("loading", "cuModuleLoadData", 5),
        ("launch", "call", 15),
        ("launch", "latency", 8),
    ]


def test_5_overhead_on_another_thread_or_process_does_not_count():
    events = [
        call("cudaLaunchKernel", 0, 10, correlation=1),
        overhead("CUPTI buffer flush", 0, 10, thread=2),
        overhead("CUPTI buffer flush", 0, 10, process=2),
        kernel(10, 20, correlation=1),
    ]
    assert rows(report(events)) == [("kernel", None, 10), ("launch", "call", 10)]


def test_6_loading_nested_inside_a_launch():
    events = [
        call("cudaLaunchKernel", 0, 100, correlation=1),
        call("cuLibraryLoadData", 10, 90),
        kernel(105, 110, correlation=1),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 5),
        ("loading", "cuLibraryLoadData", 80),
        ("launch", "call", 20),
        ("launch", "latency", 5),
    ]


def test_6_the_profiler_says_which_call_made_the_context():
    events = [
        call("cudaStreamCreate", 0, 3),
        call("cudaMalloc_v3020", 3, 60),
        call("cuCtxSynchronize", 10, 50),
        overhead("CUDA context created", 20, 25),
        call("cudaMalloc_v3020", 60, 70),
        *launched(70, 80, kernel(80, 90, correlation=1)),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 10),
        ("profiler", "CUDA context created", 5),
        ("loading", "context", 17),
        ("allocation", "cudaMalloc", 45),
        ("launch", "call", 10),
        ("api", "cudaStreamCreate", 3),
    ]


def test_6_without_the_profilers_word_a_long_first_call_made_the_context():
    events = [
        call("cuInit", 0, 20_000_000),
        call("cudaMalloc", 20_000_000, 30_000_000),
        call("cudaMalloc", 30_000_000, 40_000_000),
        *launched(40_000_000, 40_000_010, kernel(40_000_010, 40_000_020, correlation=1)),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 10),
        ("loading", "context", 10_000_000),
        ("allocation", "cudaMalloc", 10_000_000),
        ("launch", "call", 10),
        ("api", "cuInit", 20_000_000),
    ]


@pytest.mark.parametrize(
    ("name", "makes"),
    [("cudaDeviceGetStreamPriorityRange", True), ("cudaDeviceGetAttribute", False), ("cudaGetDeviceCount", False)],
)
def test_6_a_call_that_needs_no_context_made_none_however_long_it_took(name, makes):
    events = [
        call(name, 0, 20_000_000),
        *launched(30_000_000, 30_000_010, kernel(30_000_010, 30_000_020, correlation=1)),
    ]
    assert (("loading", "context", 20_000_000) in rows(report(events))) == makes


def test_6_a_short_first_call_made_no_context():
    events = [
        call("cudaMalloc", 0, 9_999_999),
        *launched(9_999_999, 10_000_000, kernel(10_000_000, 10_000_001, correlation=1)),
    ]
    assert rows(report(events)) == [("kernel", None, 1), ("allocation", "cudaMalloc", 9_999_999), ("launch", "call", 1)]


def test_6_of_calls_that_begin_together_the_outermost_made_the_context():
    events = [
        call("cudaStreamCreate", 0, 10),
        call("cudaMalloc", 0, 20),
        overhead("CUDA context created", 5, 5),
        *launched(20, 30, kernel(30, 40, correlation=1)),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 10),
        ("loading", "context", 5),
        ("allocation", "cudaMalloc", 15),
        ("launch", "call", 10),
    ]


MS = 1_000_000


def after_a_long_first_call(name, *, before=(), dur=14 * MS, waits=5, ran=()):
    """Some calls, a long one, and then a launch whose kernel starts so long after it returned."""
    launched_at = 10 + dur
    return [
        *before,
        call(name, 10, 10 + dur, correlation=1),
        *launched(launched_at, launched_at + 5, kernel(launched_at + 5 + waits, launched_at + MS, correlation=2)),
        *ran,
    ]


@pytest.mark.parametrize("before", ["cuInit", "cudaGetDevice"])
@pytest.mark.parametrize(
    ("name", "tells"),
    [
        *[(name, "always") for name in ("cudaMalloc_v3020", "cudaStreamCreate", "cudaSetDevice", "cuCtxCreate_v4")],
        *[(name, "begun") for name in ("cudaFree_v3020", "cudaHostAlloc", "cudaMallocManaged")],
        *[(name, "never") for name in ("cudaDeviceSynchronize", "cudaStreamSynchronize_v3020", "cudaMemcpy_v3020")],
        *[(name, "never") for name in ("cudaMemcpyAsync", "cudaMemset", "cudaEventSynchronize", "cudaEventRecord")],
        *[
            (name, "never")
            for name in ("cudaGraphLaunch", "cuLibraryLoadData", "cudaFuncGetAttributes", "cuLaunchKernel")
        ],
        *[(name, "never") for name in ("cudaProfilerStart", "cudaFreeHost", "hipDeviceSynchronize", "hipMemcpy", None)],
    ],
)
@pytest.mark.one_in(4)
def test_6_a_first_call_that_takes_long_for_another_reason_made_no_context(name, tells, before):
    events = after_a_long_first_call(name, before=[call(before, 0, 5)])
    made = ("loading", "context", 14 * MS) in rows(report(events))
    assert made == (tells == "always" or (tells == "begun" and before == "cuInit"))


@pytest.mark.parametrize("number", [0, 1, 6])
def test_6_in_a_recording_that_begins_at_a_later_step_no_call_made_the_context(number):
    events = [*after_a_long_first_call("cudaMalloc"), nvtx(f"ProfilerStep#{number}", 0, 15 * MS)]
    assert (("loading", "context", 14 * MS) in rows(report(events))) == (number == 0)


@pytest.mark.parametrize(
    "sign",
    [
        {"ran": [kernel(0, 5, correlation=9)]},
        {"ran": [kernel(8 * MS, 9 * MS, correlation=9)]},
        {"ran": [kernel(11 * MS, 12 * MS, correlation=1)], "before": [call("cudaLaunchKernel", 0, 1, correlation=1)]},
        {"waits": 10 * MS},
    ],
)
def test_6_where_work_was_under_way_no_call_made_the_context(sign):
    found = rows(report(after_a_long_first_call("cudaMalloc", **sign)))
    assert "context" not in {detail for _, detail, _ in found}


def test_6_a_context_is_made_before_anything_runs():
    launching = [call("cudaStreamCreate", 5, 30 * MS), call("cudaLaunchKernel", 6, 25 * MS, correlation=1)]
    assert rows(report([*launching, kernel(20 * MS, 30 * MS, correlation=1)]))[1:] == [
        ("loading", "context", 20 * MS - 5)
    ]


def test_7_allocation_wins_over_the_launch_too():
    events = [
        call("cudaMalloc_v3020", 0, 10),
        call("cudaHostRegister", 12, 15),
        call("cudaLaunchKernel", 20, 40, correlation=1),
        call("cuMemAlloc_v2", 25, 30),
        call("cudaFree_v3020", 41, 43),
        kernel(45, 50, correlation=1),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 5),
        ("allocation", "cudaMalloc", 10),
        ("allocation", "cuMemAlloc_v2", 5),
        ("allocation", "cudaHostRegister", 3),
        ("allocation", "cudaFree", 2),
        ("launch", "call", 15),
        ("launch", "latency", 3),
        ("host", None, 7),
    ]


def test_8_launch_inside_the_call_and_its_latency():
    events = [
        kernel(0, 10),
        call("cudaLaunchKernel", 12, 20, correlation=1),
        call("cudaStreamSynchronize", 20, 40),
        kernel(26, 40, correlation=1),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 24),
        ("launch", "call", 8),
        ("launch", "latency", 6),
        ("host", None, 2),
    ]


def test_8_a_launch_that_begins_as_the_device_falls_idle_has_latency():
    events = [kernel(0, 10), call("cudaLaunchKernel", 10, 12, correlation=1), kernel(15, 20, correlation=1)]
    assert rows(report(events)) == [("kernel", None, 15), ("launch", "latency", 3), ("launch", "call", 2)]


def test_8_a_copy_that_blocks_is_a_launch_before_its_copy_and_a_sync_after_it():
    events = [call("cudaMemcpy", 0, 30, correlation=1), memcpy(10, 20, correlation=1)]
    assert rows(report(events)) == [
        ("memcpy", "Host-to-Device", 10),
        ("launch", "call", 10),
        ("sync", "cudaMemcpy", 10),
    ]


def test_8_any_call_that_owns_an_operation_is_a_launch_and_the_outer_one_counts():
    events = [
        call("cuMemPrefetchAsync", 5, 15, correlation=1),
        call("someLibraryCall", 0, 20, correlation=1),
        memcpy(22, 30, correlation=1),
    ]
    assert rows(report(events)) == [("memcpy", "Host-to-Device", 8), ("launch", "call", 20), ("launch", "latency", 2)]


def test_8_a_correlation_id_is_known_to_one_process_only():
    events = [
        call("cudaLaunchKernel", 0, 8, process=2, correlation=1),
        *launched(2, 4, kernel(10, 20, process=1, correlation=1), process=1),
    ]
    assert rows(report(events)) == [("kernel", None, 10), ("launch", "latency", 6), ("launch", "call", 2)]


def test_9_queued_when_the_call_had_begun_before_the_device_fell_idle():
    events = [
        call("cudaLaunchKernel", 0, 2, correlation=1),
        call("cudaLaunchKernel", 3, 12, correlation=2),
        call("cudaStreamSynchronize", 12, 30),
        kernel(2, 10, correlation=1),
        kernel(20, 30, correlation=2),
    ]
    assert rows(report(events)) == [("kernel", None, 18), ("launch", "call", 4), ("queued", None, 8)]


def test_9_a_graph_launch_owns_many_kernels_all_but_the_first_were_queued():
    events = [
        call("cudaGraphLaunch", 0, 4, correlation=1),
        kernel(5, 10, correlation=1),
        kernel(12, 20, correlation=1),
        memset(23, 30, correlation=1),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 13),
        ("memset", None, 7),
        ("launch", "call", 4),
        ("launch", "latency", 1),
        ("queued", None, 5),
    ]


def test_9_profiler_loading_and_allocation_win_over_queued():
    events = [
        call("cudaLaunchKernel", 0, 2, correlation=1),
        call("cudaLaunchKernel", 2, 4, correlation=2),
        call("cudaMalloc", 12, 14),
        call("cuModuleLoadData", 14, 15),
        overhead("CUPTI buffer flush", 15, 18),
        kernel(2, 10, correlation=1),
        kernel(20, 30, correlation=2),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 18),
        ("profiler", "CUPTI buffer flush", 3),
        ("loading", "cuModuleLoadData", 1),
        ("allocation", "cudaMalloc", 2),
        ("launch", "call", 2),
        ("queued", None, 4),
    ]


def test_10_sync_before_the_launch_wins_over_other_calls():
    events = [
        kernel(0, 10),
        call("cudaEventQuery", 8, 30),
        call("cudaStreamSynchronize_v3020", 12, 20),
        call("cudaMemcpy_v3020", 20, 24),
        *launched(30, 40, kernel(40, 50, correlation=1)),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 20),
        ("launch", "call", 10),
        ("sync", "cudaStreamSynchronize", 8),
        ("sync", "cudaMemcpy", 4),
        ("api", "cudaEventQuery", 8),
    ]


def test_11_any_other_call_by_name_without_the_short_version_suffix():
    events = [
        call("cudaEventRecord_v3020", 0, 5),
        call("cudaLaunchKernelExC_v11060", 5, 7),
        *launched(7, 8, kernel(8, 10, correlation=1)),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 2),
        ("launch", "call", 1),
        ("api", "cudaEventRecord", 5),
        ("api", "cudaLaunchKernelExC_v11060", 2),
    ]


def test_11_within_a_bucket_the_call_that_started_first_names_the_instant():
    events = [
        call("cudaEventQuery", 3, 10),
        call("cudaEventRecord", 0, 6),
        *launched(10, 12, kernel(12, 20, correlation=1)),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 8),
        ("launch", "call", 2),
        ("api", "cudaEventRecord", 6),
        ("api", "cudaEventQuery", 4),
    ]


def test_12_host_when_the_thread_is_in_no_call():
    events = [
        *launched(0, 1, kernel(1, 10, correlation=1)),
        call("cudaDeviceSynchronize", 5, 90, thread=2),
        *launched(80, 82, kernel(82, 90, correlation=2)),
    ]
    assert rows(report(events)) == [("kernel", None, 17), ("launch", "call", 3), ("host", None, 70)]


def test_13_unknown_when_the_process_launched_nothing():
    events = [call("cudaDeviceSynchronize", 0, 40), kernel(10, 20, correlation=9), kernel(25, 30)]
    assert rows(report(events)) == [("kernel", None, 15), ("unknown", None, 25)]


def test_13_unknown_without_a_process():
    events = [
        kernel(0, 10, process=None),
        kernel(15, 20, process=None, correlation=1),
        *launched(12, 14, kernel(25, 30, process=1, correlation=1), process=1),
    ]
    assert rows(report(events)) == [("kernel", None, 20), ("queued", None, 5), ("unknown", None, 5)]


# No launch of its own, and after the last operation


def test_without_launch_the_thread_of_the_most_recent_launch_is_looked_at_without_launch_and_queued():
    events = [
        call("cudaLaunchKernel", 0, 2, thread=1, correlation=1),
        call("cudaLaunchKernel", 3, 12, thread=2, correlation=2),
        call("cudaStreamSynchronize", 12, 16, thread=2),
        call("cudaMalloc", 16, 18, thread=2),
        call("cudaFree", 10, 40, thread=1),
        kernel(2, 5, correlation=1),
        kernel(5, 10, correlation=2),
        memcpy(20, 40, direction="Unified Host-to-Device"),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 8),
        ("memcpy", "Unified Host-to-Device", 20),
        ("allocation", "cudaMalloc", 2),
        ("launch", "call", 2),
        ("sync", "cudaStreamSynchronize", 4),
        ("api", "cudaLaunchKernel", 2),
        ("host", None, 2),
    ]


def test_without_launch_the_next_launch_tells_the_thread_when_there_is_none_before():
    events = [
        call("cudaStreamCreate", 0, 6, thread=2),
        memcpy(10, 20, direction="Unified Host-to-Device"),
        call("cudaLaunchKernel", 20, 22, thread=2, correlation=1),
        call("cudaLaunchKernel", 24, 26, thread=1, correlation=2),
        kernel(22, 30, correlation=1),
        kernel(30, 40, correlation=2),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 18),
        ("memcpy", "Unified Host-to-Device", 10),
        ("launch", "call", 2),
        ("api", "cudaStreamCreate", 6),
        ("host", None, 4),
    ]


def test_without_launch_the_most_recent_launch_may_be_on_another_device():
    events = [
        call("cudaLaunchKernel", 0, 2, thread=1, device=None, correlation=1),
        call("cudaLaunchKernel", 4, 6, thread=2, correlation=2),
        call("cudaDeviceSynchronize", 6, 10, thread=2),
        kernel(2, 4, device=0, correlation=1),
        kernel(6, 10, device=1, correlation=2),
        memcpy(10, 12, device=0, direction="Unified Host-to-Device"),
    ]
    on_device_0 = [row[1:] for row in rows_by_device(report(events)) if row[0] == 0]
    assert on_device_0 == [
        ("kernel", None, 2),
        ("memcpy", "Unified Host-to-Device", 2),
        ("launch", "call", 2),
        ("sync", "cudaDeviceSynchronize", 4),
        ("api", "cudaLaunchKernel", 2),
    ]


def test_after_the_last_operation_the_thread_of_the_most_recent_launch_is_looked_at():
    events = [
        call("cudaLaunchKernel", 0, 2, thread=1, correlation=1),
        call("cudaLaunchKernel", 2, 14, thread=2, correlation=2),
        call("cudaDeviceSynchronize", 14, 16, thread=2),
        call("cudaFree", 20, 30, thread=2),
        call("cudaFree", 10, 40, thread=1),
        kernel(2, 5, correlation=1),
        kernel(5, 10, correlation=2),
    ]
    assert rows(report(events)) == [
        ("kernel", None, 8),
        ("allocation", "cudaFree", 10),
        ("launch", "call", 2),
        ("sync", "cudaDeviceSynchronize", 2),
        ("api", "cudaLaunchKernel", 4),
        ("host", None, 14),
    ]


def test_after_operations_that_end_together_the_process_of_the_highest_event_id_is_looked_at():
    events = [
        kernel(5, 10, process=2, correlation=1),
        kernel(0, 10, process=1, correlation=1),
        memset(5, 10, process=1),
        call("cudaLaunchKernel", 0, 2, process=2, correlation=1),
        call("cudaLaunchKernel", 0, 2, process=1, correlation=1),
        call("cudaStreamSynchronize", 5, 20, process=2),
        call("cudaEventQuery", 5, 20, process=1),
    ]
    assert rows(report(events)) == [("kernel", None, 10), ("api", "cudaEventQuery", 10)]


def test_of_launches_that_begin_together_the_highest_event_id_is_the_most_recent():
    launches = [call("cudaLaunchKernel", 0, 2, thread=thread, correlation=thread) for thread in range(1, 101)]
    kernels = [kernel(0, 10, correlation=thread) for thread in range(1, 101)]
    events = [*launches, *reversed(kernels), call("cudaEventQuery", 5, 20, thread=100)]
    assert rows(report(events)) == [("kernel", None, 10), ("api", "cudaEventQuery", 10)]


# What ends an idle interval, and what covers nothing


def test_operations_without_duration_neither_fill_nor_end_an_idle_interval():
    events = [
        kernel(0, 10),
        call("cudaMemsetAsync", 11, 12, thread=2, correlation=1),
        memset(15, 15, correlation=1),
        *launched(20, 22, kernel(22, 30, correlation=2), thread=1),
    ]
    assert rows(report(events)) == [("kernel", None, 18), ("launch", "call", 2), ("host", None, 10)]


def test_of_operations_that_start_together_the_winning_kind_ends_the_idle_interval():
    events = [
        memcpy(10, 20, correlation=1),
        kernel(10, 20, correlation=2),
        kernel(10, 30, correlation=3),
        call("cudaMemcpyAsync", 0, 9, thread=1, correlation=1),
        call("cudaLaunchKernel", 5, 10, thread=2, correlation=2),
        call("cudaLaunchKernel", 1, 10, thread=3, correlation=3),
    ]
    assert rows(report(events)) == [("kernel", None, 20), ("launch", "call", 5), ("host", None, 5)]


# Windows


def test_a_device_is_looked_at_as_long_as_its_processes_are_active():
    events = [
        *launched(0, 5, kernel(5, 10, process=1, device=0, correlation=1), process=1),
        *launched(10, 15, kernel(15, 30, process=1, device=1, correlation=2), process=1),
        call("cudaFree", 0, 90, process=2),
    ]
    assert rows_by_device(report(events)) == [
        (0, "kernel", None, 5),
        (0, "launch", "call", 5),
        (0, "api", "cudaLaunchKernel", 5),
        (0, "host", None, 15),
        (1, "kernel", None, 15),
        (1, "launch", "call", 5),
        (1, "api", "cudaLaunchKernel", 5),
        (1, "host", None, 5),
    ]


def test_a_window_cuts_what_the_whole_report_tells():
    events = [kernel(0, 10), *launched(12, 20, kernel(26, 40, correlation=1))]
    whole = report(events)
    assert rows(whole.narrow(window=Window(18, 30))) == [
        ("kernel", None, 4),
        ("launch", "latency", 6),
        ("launch", "call", 2),
    ]
    assert rows(whole.narrow(window=Window(5, 15))) == [("kernel", None, 5), ("launch", "call", 3), ("host", None, 2)]


def test_a_window_may_be_wider_than_the_report():
    events = [call("cudaLaunchKernel", 0, 5, correlation=1), kernel(5, 10, correlation=1)]
    assert rows(report(events).narrow(window=Window(-5, 20))) == [
        ("kernel", None, 5),
        ("launch", "call", 5),
        ("host", None, 15),
    ]


def test_one_device_of_a_report_reads_as_it_does_among_the_others():
    events = [
        *launched(0, 5, kernel(5, 10, device=0, correlation=1)),
        *launched(10, 15, kernel(20, 30, device=1, correlation=2), thread=2),
    ]
    expected = [("kernel", None, 5), ("launch", "call", 5), ("api", "cudaLaunchKernel", 5), ("host", None, 15)]
    whole = report(events)
    assert [row[1:] for row in rows_by_device(whole) if row[0] == 0] == expected
    assert rows(whole.narrow(device=0)) == expected


# Outcomes


def test_shares_are_parts_of_the_devices_window():
    events = [kernel(0, 10), kernel(30, 40), kernel(0, 5, process=2, device=1)]
    assert ledger(report(events)).select("device", "bucket", "ns", "share").rows() == [
        (0, "kernel", 20, 0.5),
        (0, "unknown", 20, 0.5),
        (1, "kernel", 5, 1.0),
    ]


@pytest.mark.slow
def test_equal_times_are_in_the_order_of_their_details_every_time():
    names = ["cudaEventRecord", "cudaEventQuery", "cudaStreamCreate", "cudaEventCreate"]
    events = [call(name, start, start + 5) for name, start in zip(names, (0, 5, 10, 15), strict=True)]
    events += [call("cudaLaunchKernel", 20, 21, correlation=1), kernel(21, 25, correlation=1)]
    found = [ledger(report(events)).get_column("detail").to_list() for _ in range(20)]
    assert found == [[None, "call", *sorted(names)]] * 20


# Everything at once, against the model


def assert_same(found: pl.DataFrame, expected):
    """The same rows, each once, in the declared order."""
    order = {bucket: place for place, bucket in enumerate(BUCKETS)}
    got = [(device, bucket, detail, ns) for device, bucket, detail, ns, _ in found.iter_rows()]
    assert sorted(got, key=repr) == sorted(((*key, ns) for key, ns in expected.items()), key=repr)
    assert got == sorted(got, key=lambda row: (row[0], order[row[1]], -row[3], row[2] or ""))


def ns_of(found: pl.DataFrame, device: int, bucket: str) -> int:
    return found.filter((pl.col("device") == device) & (pl.col("bucket") == bucket)).get_column("ns").sum()


def assert_sums_to_windows(found: pl.DataFrame, model: SlowModel):
    sums = dict(found.group_by("device").agg(pl.col("ns").sum()).iter_rows())
    lengths = {device: end - start for device in model.devices for start, end in [model.window(device)]}
    assert sums == {device: length for device, length in lengths.items() if length > 0}


@given(EVENTS, WINDOWS, st.sampled_from([3, 8, 1_000]), st.sampled_from([1, 5, 1_000]), st.sampled_from([1, 2, 1_000]))
@example([], (None, None), 3, 1, 1)
@pytest.mark.slow
def test_ledger_equals_the_model(events, window, context_from_ns, prompt_ns, batch):
    model = SlowModel(events, window, context_from_ns, prompt_ns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_context_creation, "CONTEXT_FROM_NS", context_from_ns)
        patch.setattr(_context_creation, "PROMPT_NS", prompt_ns)
        in_batches(patch, batch)
        found = bucket_sums(report(events).narrow(window=Window(*window)))
    assert_same(found, model.ledger())
    assert_sums_to_windows(found, model)


@FEWER
@given(EVENTS, WINDOWS, st.sampled_from([1, 2, 3, 1_000]))
def test_the_parts_add_up_to_the_ledger(events, window, batch):
    narrowed, model = report(events).narrow(window=Window(*window)), SlowModel(events, window)
    with pytest.MonkeyPatch.context() as patch:
        in_batches(patch, batch)
        found, waits = ledger(narrowed), launch_waits(narrowed)
    on = operations(narrowed).get_column("device").gather(waits.get_column("row"))
    for device in windows(narrowed).get_column("device"):
        launch_ns = waits.filter(on == device).get_column("launch_ns").sum()
        assert launch_ns == ns_of(found, device, "launch")
        idle = {instant for instant, bucket, _ in model.instants(device) if bucket == "host"}
        longest, short, making = host_time(narrowed)[device]
        for span in making.select("start", "end").iter_rows():
            idle -= set(range(*span))
        assert longest[1] == max((end - start for start, end in runs(idle)), default=0)
        assert not longest[1] or (longest[0], sum(longest)) in runs(idle)
        assert short == (len(idle), len(runs(idle)))  # all are shorter than 300 µs


def runs(instants):
    """The intervals that a set of instants is made of."""
    starts = sorted(instant for instant in instants if instant - 1 not in instants)
    ends = sorted(instant + 1 for instant in instants if instant + 1 not in instants)
    return list(zip(starts, ends, strict=True))


@given(EVENTS, PROCESSES)
def test_one_process_is_read_as_if_it_had_been_alone(events, process):
    whole = report([*events, call("cudaGetDevice", 0, 1, process=process)])
    own = [event for event in events if event.process == process]
    assert_same(
        bucket_sums(whole.narrow(process=process)),
        SlowModel([*own, call("cudaGetDevice", 0, 1, process=process)]).ledger(),
    )


@FEWER
@given(EVENTS, WINDOWS, st.integers(0, 2))
@pytest.mark.slow
def test_one_device_is_read_as_it_is_among_the_others(events, window, device):
    whole = report([*events, kernel(3, 4, device=device)]).narrow(window=Window(*window))
    among = ledger(whole).filter(pl.col("device") == device)
    assert_same(ledger(whole.narrow(device=device)), {row[:3]: row[3] for row in among.iter_rows()})


def test_time_that_the_recording_does_not_cover_is_unknown():
    read = real_report(Path(__file__).parents[2] / "reports" / "add.sqlite")
    whole, wide = ledger(read), ledger(read, window="0s..60s")
    assert wide.get_column("ns").sum() == 60_000_000_000
    assert (
        wide.row(by_predicate=pl.col("bucket") == "kernel")[3]
        == whole.row(by_predicate=pl.col("bucket") == "kernel")[3]
    )
    assert ns_of(wide, 0, "unknown") == 60_000_000_000 - read.meta.end_ns


def test_a_window_after_the_recording_is_unknown():
    read = real_report(Path(__file__).parents[2] / "reports" / "add.sqlite")
    assert ledger(read, window=Window(70 * 10**9, 71 * 10**9)).rows() == [(0, "unknown", None, 1_000_000_000, 1.0)]
