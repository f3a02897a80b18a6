"""Host time by library: system calls equal nsys' own CSV; domains of ranges are libraries."""

import pytest

from kanalyze.analyses.host.libraries import libraries
from kanalyze.window import Window
from support.build import host, kernel, nvtx, report
from support.nsys_csv import TIMES, assert_rows, report_of, reports_with, rows_of
from support.shares import some

KEYS = ("library", "name", "count", "total_ns", "share", "idle_ns")


def rows(of, *columns, **where):
    return libraries(of, **where).select(columns or KEYS).rows()


@pytest.mark.parametrize("name", some(name for name in reports_with("osrt_sum") if rows_of(name, "osrt_sum")))
def test_system_calls_equal_those_of_nsys(name):
    theirs, ours = rows_of(name, "osrt_sum"), libraries(report_of(name))
    ours = ours.filter(ours["library"] == "OS runtime")
    columns = {**TIMES, "Time (%)": "percent", "Num Calls": "count", "Name": "name"}
    assert_rows(ours.with_columns((ours["share"] * 100).alias("percent")), theirs, columns)


@pytest.mark.parametrize("name", some(name for name in reports_with("osrt_sum") if not rows_of(name, "osrt_sum")))
def test_where_nsys_has_no_system_calls_there_are_none(name):
    of = report_of(name)
    assert of.kind("osrt").is_empty()
    if {"osrt", "range", "library"}.intersection(of.kinds):
        assert "OS runtime" not in libraries(of)["library"].to_list()


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
    assert rows(report(events)) == [
        ("OS runtime", "poll", 2, 40, 0.8, 35),
        ("OS runtime", "read", 1, 10, 0.2, 10),
        ("cuDNN", "cudnnFind", 1, 11, 1.0, 11),
        ("NCCL", "ncclSend", 2, 10, 1.0, 5),
        ("cuBLAS", "cublasSgemm", 1, 10, 1.0, 10),
        ("other", "mine", 1, 1, 1.0, 0),
    ]


def test_time_outside_of_the_windows_of_the_devices_is_not_idle():
    assert rows(report([kernel(10, 20), kernel(30, 40), host("osrt", "poll", 0, 50)]), "idle_ns") == [(10,)]


def test_a_device_that_works_leaves_no_idle_time():
    of = report([kernel(0, 10), kernel(30, 40), kernel(5, 25, device=1), host("osrt", "poll", 0, 50)])
    assert rows(of, "idle_ns") == [(5,)]
    assert rows(of, "idle_ns", device=0) == [(20,)]


def test_without_devices_idle_time_is_not_known():
    assert rows(report([host("osrt", "poll", 0, 50)]), "total_ns", "idle_ns") == [(50, None)]


def test_an_open_range_lasts_until_the_last_event():
    of = report([nvtx("open", 10, None, domain="lib", open_until_ns=35)])
    assert rows(of, "name", "total_ns") == [("open", 25)]


def test_calls_without_time_share_nothing():
    assert rows(report([host("osrt", None, 5, 5)]), "name", "share") == [(None, 0.0)]


def test_the_part_that_is_looked_at():
    events = [kernel(0, 1), kernel(0, 1, process=2, device=1)]
    events += [host("osrt", "a", 0, 10), host("osrt", "b", 20, 30, process=2), nvtx("c", 40, 50, domain="lib")]
    of = report(events)
    assert rows(of, "name", window=Window(5, 25)) == [("a",), ("b",)]
    assert rows(of, "name", window=Window(49, None)) == [("c",)]
    assert rows(of, "name", device=1) == [("b",)]
    assert rows(of, "name", process=1) == [("a",), ("c",)]
