"""Copies and memsets by operation: time, bytes and bandwidth, each worked out by hand."""

import pytest

from kanalyze.analyses.device.copies import copies
from kanalyze.window import Window
from support.build import kernel, memcpy, memset, report, rows_of

NS_PER_S = 1_000_000_000
TO_DEVICE, TO_HOST, SET = (f"[CUDA {what}]" for what in ("memcpy Host-to-Device", "memcpy Device-to-Host", "memset"))


def test_every_column_of_one_kind_of_copy():
    """10 and 30 ns of 100 and 500 bytes: each is 10 ns and 200 bytes from its mean."""
    events = [memcpy(0, 10, size_bytes=100), memcpy(20, 50, size_bytes=500), memset(60, 70)]
    assert copies(report(events)).head(1).to_dicts() == rows_of(
        "operation count total_ns share avg_ns median_ns min_ns max_ns stddev_ns total_bytes avg_bytes "
        "median_bytes min_bytes max_bytes stddev_bytes bandwidth_bytes_per_s exclusive_ns",
        (
            *(TO_DEVICE, 2, 40, 0.8, 20.0, 20.0, 10, 30, pytest.approx(200**0.5), 600),
            *(300.0, 300.0, 100, 500, pytest.approx(80_000**0.5), 600 * NS_PER_S / 40, 40),
        ),
    )
    assert copies(report([], kinds=("memset",))).is_empty()


SIZES = ("total_bytes", "avg_bytes", "stddev_bytes", "bandwidth_bytes_per_s")
TIMES = ("count", "total_ns", "total_bytes", "exclusive_ns")
KNOWN, UNKNOWN = memcpy(0, 10, size_bytes=100), memcpy(10, 20, size_bytes=None)
SEVERAL = [memcpy(0, 20, size_bytes=1), memcpy(30, 50, size_bytes=2), memcpy(0, 5, size_bytes=4, device=1, process=2)]


@pytest.mark.parametrize(
    ("events", "columns", "where", "rows"),
    [
        # the longest first
        (
            [memset(0, 5), memcpy(5, 10), memcpy(10, 30, direction="Device-to-Host"), kernel(30, 99)],
            ("operation", "total_ns", "share"),
            {},
            [(TO_HOST, 20, 20 / 30), (TO_DEVICE, 5, 5 / 30), (SET, 5, 5 / 30)],
        ),
        # time of its own is what no kernel and no copy takes; bandwidth is of all its time
        (
            [kernel(0, 10), memcpy(5, 25, stream=8), memset(15, 30, stream=9)],
            ("total_ns", "exclusive_ns", "bandwidth_bytes_per_s"),
            {},
            [(20, 15, NS_PER_S / 20), (15, 5, NS_PER_S / 15)],
        ),
        # sizes that are not known are left out, and null where none is
        ([KNOWN, UNKNOWN], SIZES, {}, [(100, 100.0, 0.0, 100 * NS_PER_S / 20)]),
        ([UNKNOWN], SIZES, {}, [(None, None, None, None)]),
        # no time gives no bandwidth
        ([memcpy(5, 5)], ("share", "total_bytes", "bandwidth_bytes_per_s"), {}, [(0.0, 1, None)]),
        # a copy that overlaps the window counts whole, but for the time of its own, which is inside
        (SEVERAL, TIMES, {}, [(3, 45, 7, 45)]),
        (SEVERAL, TIMES, {"window": Window(10, 40)}, [(2, 40, 3, 20)]),
        (SEVERAL, TIMES, {"device": 1}, [(1, 5, 4, 5)]),
        (SEVERAL, TIMES, {"process": 1}, [(2, 40, 3, 40)]),
        (SEVERAL, TIMES, {"window": Window(20, 30)}, []),
    ],
)
def test_operations(events, columns, where, rows):
    assert copies(report(events), **where).select(columns).rows() == rows
