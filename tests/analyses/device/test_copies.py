"""Copies and memsets by operation: time, bytes and bandwidth, each worked out by hand."""

import pytest

from kanalyze.analyses.device.copies import copies
from kanalyze.window import Window
from support.build import kernel, memcpy, memset, report, rows_of

NS_PER_S = 1_000_000_000
TO_DEVICE, TO_HOST = "[CUDA memcpy Host-to-Device]", "[CUDA memcpy Device-to-Host]"


def rows(*events, columns=("operation", "count", "total_ns", "total_bytes"), **where):
    return copies(report(events), **where).select(columns).rows()


def test_every_column_of_one_kind_of_copy():
    """10 and 30 ns of 100 and 500 bytes: each is 10 ns and 200 bytes from its mean."""
    (row, _) = copies(
        report([memcpy(0, 10, size_bytes=100), memcpy(20, 50, size_bytes=500), memset(60, 70)])
    ).to_dicts()
    assert (
        row
        == rows_of(
            "operation count total_ns share avg_ns median_ns min_ns max_ns stddev_ns total_bytes avg_bytes "
            "median_bytes min_bytes max_bytes stddev_bytes bandwidth_bytes_per_s exclusive_ns",
            (
                TO_DEVICE,
                2,
                40,
                0.8,
                20.0,
                20.0,
                10,
                30,
                pytest.approx((2 * 10**2) ** 0.5),
                600,
                300.0,
                300.0,
                100,
                500,
                pytest.approx((2 * 200**2) ** 0.5),
                600 * NS_PER_S / 40,
                40,
            ),
        )[0]
    )


def test_operations_the_longest_first():
    events = [memset(0, 5), memcpy(5, 10), memcpy(10, 30, direction="Device-to-Host"), kernel(30, 99)]
    assert rows(*events, columns=("operation", "total_ns", "share")) == [
        (TO_HOST, 20, 20 / 30),
        (TO_DEVICE, 5, 5 / 30),
        ("[CUDA memset]", 5, 5 / 30),
    ]


def test_time_of_its_own_is_what_no_kernel_and_no_copy_takes_and_bandwidth_is_of_all_its_time():
    events = [kernel(0, 10), memcpy(5, 25, stream=8), memset(15, 30, stream=9)]
    assert rows(*events, columns=("operation", "total_ns", "exclusive_ns", "bandwidth_bytes_per_s")) == [
        (TO_DEVICE, 20, 15, NS_PER_S / 20),
        ("[CUDA memset]", 15, 5, NS_PER_S / 15),
    ]


def test_sizes_that_are_not_known_are_left_out_and_null_where_none_is():
    sizes = ("operation", "count", "total_bytes", "avg_bytes", "stddev_bytes", "bandwidth_bytes_per_s")
    known, unknown = memcpy(0, 10, size_bytes=100), memcpy(10, 20, size_bytes=None)
    assert rows(known, unknown, columns=sizes) == [(TO_DEVICE, 2, 100, 100.0, 0.0, 100 * NS_PER_S / 20)]
    assert rows(unknown, columns=sizes) == [(TO_DEVICE, 1, None, None, None, None)]


def test_no_time_gives_no_bandwidth():
    found = rows(memcpy(5, 5, size_bytes=7), columns=("total_ns", "share", "total_bytes", "bandwidth_bytes_per_s"))
    assert found == [(0, 0.0, 7, None)]


def test_the_part_that_is_looked_at():
    """A copy that overlaps the window counts whole, but for the time of its own, which is inside."""
    events = [
        memcpy(0, 20, size_bytes=1),
        memcpy(30, 50, size_bytes=2),
        memcpy(0, 5, size_bytes=4, device=1, process=2),
    ]
    columns = ("count", "total_ns", "total_bytes", "exclusive_ns")
    assert rows(*events, columns=columns) == [(3, 45, 7, 45)]
    assert rows(*events, columns=columns, window=Window(10, 40)) == [(2, 40, 3, 20)]
    assert rows(*events, columns=columns, device=1) == [(1, 5, 4, 5)]
    assert rows(*events, columns=columns, process=1) == [(2, 40, 3, 40)]
    assert rows(*events, columns=columns, window=Window(20, 30)) == []


def test_setting_memory_counts():
    assert rows(memset(0, 10)) == [("[CUDA memset]", 1, 10, 1)]
    assert copies(report([], kinds=("memset",))).is_empty()
