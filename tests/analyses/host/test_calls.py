"""Calls by name, launches, their sums and libraries: worked out by hand, and what nsys' own CSV has of libraries."""

from functools import cache

import polars as pl
import pytest

from kanalyze import catalog
from kanalyze.analyses.host.calls import api, launch_pairs, launch_summary, launches, libraries
from kanalyze.errors import CannotTellError
from kanalyze.window import Window
from support.build import call, host, kernel, nvtx, report, timeline
from support.nsys_csv import TIMES, assert_rows, report_of, reports_with, rows_of
from support.shares import some

TWO_FORMS = """
    0-30 cudaGetDeviceProperties_v2_v12000; 30-50 cudaMemcpy_v3020; 50-60 cudaMemcpy; 60-64 cudaMemcpy_v12000
"""
ON_DEVICES = """
    0-1 kernel; 0-1 kernel d1; 0-1 kernel d1 p2; 0-5 cudaFree; 0-11 cudaFree p2; 0-100 cudaFree p3; 20-25 cudaFree
"""


@pytest.mark.parametrize(
    ("events", "where", "rows"),
    [
        # the longest in total first, then by name; a call inside a call counts in both
        (
            "0-5 cudaFree; 5-10 cudaMalloc; 10-30 cudaLaunchKernel; 15-25 cuLaunchKernel",
            {},
            [("cudaLaunchKernel", 1, 20, 0.5), ("cuLaunchKernel", 1, 10, 0.25), ("cudaFree", 1, 5, 0.125),
             ("cudaMalloc", 1, 5, 0.125)],
        ),
        # two forms of a call are two rows, and a version of five digits stays
        (
            TWO_FORMS,
            {},
            [("cudaGetDeviceProperties_v2_v12000", 1, 30, 30 / 64), ("cudaMemcpy", 1, 20, 20 / 64),
             ("cudaMemcpy", 1, 10, 10 / 64), ("cudaMemcpy_v12000", 1, 4, 4 / 64)],
        ),
        # of a device the calls are those of processes that used it
        (ON_DEVICES, {"device": 0}, [("cudaFree", 2, 10, 1.0)]),
        (ON_DEVICES, {"device": 1}, [("cudaFree", 3, 21, 1.0)]),
        # a call that overlaps the window counts whole
        (ON_DEVICES, {"process": 1, "window": Window(10, 21)}, [("cudaFree", 1, 5, 1.0)]),
        (ON_DEVICES, {"process": 1, "window": Window(5, 20)}, []),
        ("5-5 cudaFree", {}, [("cudaFree", 1, 0, 0.0)]),  # no time at all
    ],
)  # fmt: skip
def test_calls_by_name(events, where, rows):
    assert api(report(timeline(events)), **where).select("name", "count", "total_ns", "share").rows() == rows


def test_two_forms_of_one_call_stand_in_one_order():
    made = report(timeline("0-5 cudaMemcpy_v3020; 5-6 cudaMemcpy_v3020; 10-16 cudaMemcpy"))
    assert {tuple(api(made).get_column("count")) for _ in range(30)} == {(1, 2)}


APART = """
    0-10 cudaLaunchKernel #1; 10-70 kernel #1; 0-10 cudaLaunchKernel #2; 10-60 kernel:j #2
    0-10 cuLaunchKernel #3; 10-50 kernel #3; 0-10 cudaLaunchKernel #4 t2; 10-40 kernel #4
    0-10 cudaLaunchKernel #5; 10-30 kernel #5 d1; 0-10 cudaLaunchKernel #6 p2; 10-20 kernel #6 p2
    0-10 cudaLaunchKernel #7; 10-70 kernel #7 s8
"""
QUEUES = ("queue_count", "queue_avg_ns", "queue_min_ns", "queue_stddev_ns")
IN_PARTS = "0-5 L #1; 10-20 kernel #1; 20-25 L #2; 30-45 kernel #2 d1; 50-55 L #3 p2; 60-70 kernel #3 p2"
PARTS = ("device", "process_id", "kernel_avg_ns")
MANY_LAUNCHES = "0-9 L #1; 9-20 kernel:a #1; 0-5 L #2; 5-10 kernel:c #2; 0-5 L #3; 5-10 kernel:c #3; 70-80 kernel:b #2"


@pytest.mark.parametrize(
    ("events", "columns", "where", "rows"),
    [
        # kernel, call, thread, device and process tell rows apart, and the longest mean comes first
        (
            APART, ("kernel", "api", "thread_id", "device", "process_id", "count"), {},
            [("k", "cudaLaunchKernel", 1, 0, 1, 2), ("j", "cudaLaunchKernel", 1, 0, 1, 1),
             ("k", "cuLaunchKernel", 1, 0, 1, 1), ("k", "cudaLaunchKernel", 2, 0, 1, 1),
             ("k", "cudaLaunchKernel", 1, 1, 1, 1), ("k", "cudaLaunchKernel", 1, 0, 2, 1)],
        ),
        # then the name
        (MANY_LAUNCHES, ("kernel", "count", "total_avg_ns"), {}, [("b", 1, 80.0), ("a", 1, 20.0), ("c", 2, 10.0)]),
        # one that starts before its call returns has no queue
        ("0-10 L #1; 5-20 kernel #1", QUEUES, {}, [(0, None, None, 0.0)]),
        ("0-10 L #1; 10-20 kernel #1", QUEUES, {}, [(1, 0.0, 0, 0.0)]),
        # a call that launched several is charged once
        ("0-8 L #1; 10-20 kernel #1; 20-30 kernel #1", ("count", "api_avg_ns", "charged_api_ns"), {}, [(2, 8.0, 8)]),
        (IN_PARTS, PARTS, {"window": Window(15, 35)}, [(1, 1, 15.0), (0, 1, 10.0)]),
        (IN_PARTS, PARTS, {"device": 1}, [(1, 1, 15.0)]),
    ],
)  # fmt: skip
def test_sums_of_launches(events, columns, where, rows):
    assert launch_summary(report(timeline(events)), **where).select(columns).rows() == rows


LAUNCH_TIMES = ("api_start_ns", "api_ns", "queue_ns", "kernel_start_ns", "kernel_ns", "total_ns")
PLACES = ("gpu", "kernel_start_ns")
TWO_DEVICES = "0-5 L #1; 20-30 kernel #1; 5-10 L #2; 30-40 kernel #2 d1"
TWO_CALLS = [("L", 2, 20, 10), ("M", 4, 18, 6)]
OF_PLACES = ("process_id", *PLACES)


@pytest.mark.parametrize(
    ("events", "columns", "where", "rows"),
    [
        # a call from 0 to 10: its kernel starts as it returns, before, ends before it, or takes no time
        ("0-10 L #1; 10-30 kernel #1", LAUNCH_TIMES, {}, [(0, 10, 0, 10, 20, 30)]),
        ("0-10 L #1; 9-30 kernel #1", LAUNCH_TIMES, {}, [(0, 10, None, 9, 21, 30)]),
        ("0-10 L #1; 2-5 kernel #1", LAUNCH_TIMES, {}, [(0, 10, None, 2, 3, 10)]),
        ("0-10 L #1; 10-10 kernel #1", LAUNCH_TIMES, {}, [(0, 10, 0, 10, 0, 10)]),
        # in the order of their calls, each with the call of its own process
        ("20-25 L #1; 30-40 kernel #1; 0-5 L #1 p2; 50-60 kernel #1 p2", OF_PLACES, {}, [(2, 0, 50), (1, 0, 30)]),
        ("20-25 L #1; 30-40 kernel #1; 0-5 L #1 p2; 50-60 kernel #1 p2", PLACES, {"process": 2}, [(0, 50)]),
        # a call that launched several is charged once, and a kernel whose id two calls share stands with both
        ("0-8 L #1; 20-30 kernel #1; 10-20 kernel #1", ("kernel_start_ns", "charged_api_ns"), {}, [(10, 0), (20, 8)]),
        ("0-10 L #1; 2-8 M #1; 12-20 kernel #1", ("api", "queue_ns", "total_ns", "charged_api_ns"), {}, TWO_CALLS),
        # without a partner
        ("0-5 L #1; 5-10 memcpy #1; 10-15 L; 20-30 kernel; 30-40 kernel #3", LAUNCH_TIMES, {}, []),
        # it is looked at where its kernel is
        (TWO_DEVICES, PLACES, {"window": Window(25, 28)}, [(0, 20)]),
        (TWO_DEVICES, PLACES, {"device": 1}, [(1, 30)]),
    ],
)  # fmt: skip
def test_launches_and_their_kernels(events, columns, where, rows):
    assert launches(report(timeline(events)), **where).select(columns).rows() == rows


def test_names_and_threads_that_are_missing():
    made = report([call(None, 0, 5, correlation=1, thread=None), kernel(5, 9, name=None, correlation=1, stream=None)])
    assert launches(made).select("api", "thread_id", "kernel", "stream").rows() == [(None, None, None, None)]
    assert launch_summary(made).select("api", "kernel", "count").rows() == [(None, None, 1)]
    assert api(made).select("name", "count").rows() == [(None, 1)]


def test_a_device_has_the_number_that_its_process_gives_it_and_a_launch_its_shape():
    """Process 2 sees only the second GPU, and calls it 0."""
    processes = [
        {"process_id": number, "name": "app", "device": 1, "cuda_ordinal": 2 - number} for number in (1, 2)
    ]  # fmt: skip
    ran = [kernel(at, at + 4, correlation=1, device=1, process=number, grid=(2, 3, 4), block=(5, 6, 7))
           for number, at in ((1, 5), (2, 15))]  # fmt: skip
    events = [*timeline("0-5 L #1; 10-15 L #1 p2; 20-21 kernel"), *ran]
    of = launches(report(events, processes=processes))
    assert of.select("process_id", "gpu", "device").rows() == [(1, 1, 1), (2, 1, 0)]
    shape = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
    assert of.select(shape).unique().rows() == [(2, 3, 4, 5, 6, 7)]


@cache
def same_id(calls, kernels):
    events = [call("cudaLaunchKernel", 10 * at, 10 * at + 5, correlation=1, thread=1) for at in range(calls)]
    return report([*events, *(kernel(1000 + 10 * at, 1005 + 10 * at, correlation=1) for at in range(kernels))])


@pytest.mark.parametrize(("calls", "kernels", "pairs"), [(1, 3, 3), (64, 3, 192), (65, 3, 3), (500, 500, 500)])
def test_a_kernel_stands_once_for_each_call_of_its_id_unless_they_are_too_many(calls, kernels, pairs):
    """Then it stands with the call that started first."""
    made = launch_pairs(same_id(calls, kernels))
    assert made.height == pairs
    assert calls <= 64 or made.get_column("call_row").unique().to_list() == [0]


@pytest.mark.parametrize("name", [name for name in catalog.names() if not catalog.table(name).together])
def test_every_table_of_such_a_report_is_no_larger_than_it(name):
    count = 300
    try:
        made = catalog.make(same_id(count, count), name)
    except CannotTellError:
        return
    assert made.height <= 4 * count


def by_library(of, *names, **where):
    return libraries(of, **where).select(names or ("library", "name", "count", "total_ns", "share", "idle_ns")).rows()


@pytest.mark.parametrize(("name", "prefix"), [("libraries", "cuBLAS"), ("nccl", "NCCL"), ("torch_node", "CCCL")])
def test_ranges_of_a_domain_are_those_of_nsys(name, prefix):
    theirs = [row for row in rows_of(name, "nvtx_sum") if row["Range"].startswith(prefix + ":")]
    ours = libraries(report_of(name))
    ours = ours.filter(ours["library"] == prefix).rows(named=True)
    found = {(f"{prefix}:{row['name']}", str(row["count"]), str(row["total_ns"])) for row in ours}
    assert found == {(row["Range"], row["Instances"], row["Total Time (ns)"]) for row in theirs}
    assert len(theirs) == len(ours) > 0


def test_libraries_and_their_calls_the_longest_first():
    events = [
        *(kernel(0, 10), kernel(90, 100)),
        *(host("osrt", "poll", 5, 35), host("osrt", "read", 40, 50), host("osrt", "poll", 50, 60)),
        *(host("library", "cublasSgemm", 10, 20), host("library", "cudnnFind", 10, 21), host("library", "mine", 0, 1)),
        *(nvtx("ncclSend", 85, 95, domain="NCCL"), nvtx("step", 0, 50), nvtx("ncclSend", 20, 20, domain="NCCL")),
    ]
    assert by_library(report(events)) == [
        ("OS runtime", "poll", 2, 40, 0.8, 35),
        ("OS runtime", "read", 1, 10, 0.2, 10),
        ("cuDNN", "cudnnFind", 1, 11, 1.0, 11),
        ("NCCL", "ncclSend", 2, 10, 1.0, 5),
        ("cuBLAS", "cublasSgemm", 1, 10, 1.0, 10),
        ("other", "mine", 1, 1, 1.0, 0),
    ]


@pytest.mark.parametrize("name", some(reports_with("osrt_sum")))
def test_system_calls_equal_those_of_nsys(name):
    theirs, of = rows_of(name, "osrt_sum"), report_of(name)
    if not {"osrt", "range", "library"}.intersection(of.kinds):
        assert not theirs
        return
    ours = libraries(of).filter(pl.col("library") == "OS runtime")
    names = {**TIMES, "Time (%)": "percent", "Num Calls": "count", "Name": "name"}
    assert_rows(ours.with_columns(percent=pl.col("share") * 100), theirs, names)


BESIDE_A_DEVICE = [kernel(0, 10), kernel(30, 40), kernel(5, 25, device=1), host("osrt", "poll", 0, 50)]
OF_PROCESSES = [
    *(kernel(0, 1), kernel(0, 1, process=2, device=1), host("osrt", "a", 0, 10)),
    *(host("osrt", "b", 20, 30, process=2), nvtx("c", 40, 50, domain="lib")),
]


@pytest.mark.parametrize(
    ("events", "columns", "where", "expected"),
    [
        # time outside of the windows of the devices, or while another device works, is not idle
        ([kernel(10, 20), kernel(30, 40), host("osrt", "poll", 0, 50)], ("idle_ns",), {}, [(10,)]),
        (BESIDE_A_DEVICE, ("idle_ns",), {}, [(5,)]),
        (BESIDE_A_DEVICE, ("idle_ns",), {"device": 0}, [(20,)]),
        ([host("osrt", "poll", 0, 50)], ("total_ns", "idle_ns"), {}, [(50, None)]),
        # an open range lasts until the last event, and calls without time share nothing
        ([nvtx("open", 10, None, domain="lib", open_until_ns=35)], ("name", "total_ns"), {}, [("open", 25)]),
        ([host("osrt", None, 5, 5)], ("name", "share"), {}, [(None, 0.0)]),
        (OF_PROCESSES, ("name",), {"window": Window(5, 25)}, [("a",), ("b",)]),
        (OF_PROCESSES, ("name",), {"window": Window(49, None)}, [("c",)]),
        (OF_PROCESSES, ("name",), {"device": 1}, [("b",)]),
        (OF_PROCESSES, ("name",), {"process": 1}, [("a",), ("c",)]),
    ],
)
def test_which_time_counts(events, columns, where, expected):
    assert by_library(report(events), *columns, **where) == expected
