"""Kernels, copies and memsets in one table: each row worked out by hand, and what is not in it."""

import pytest

from kanalyze.analyses.device.gpu import gpu
from kanalyze.window import Window
from support.build import graph, kernel, memcpy, memset, report, rows_of

KEYS = ("category", "operation", "count", "total_ns", "share")


def rows(*events, **where):
    return gpu(report(events), **where).select(KEYS).rows()


def test_every_column_of_a_kernel():
    """Durations 10, 20 and 60: mean 30, deviations 20, 10 and 30, of which the sample variance is 1400 / 2."""
    (row,) = gpu(report([kernel(0, 10), kernel(10, 30), kernel(40, 100)])).to_dicts()
    assert (
        row
        == rows_of(
            "category operation count total_ns share avg_ns median_ns min_ns max_ns stddev_ns",
            ("CUDA_KERNEL", "k", 3, 90, 1.0, 30.0, 20.0, 10, 60, pytest.approx(700**0.5)),
        )[0]
    )


def test_kernels_and_memory_operations_the_longest_first():
    events = [
        memset(0, 10),
        kernel(10, 30),
        memcpy(30, 80),
        memcpy(80, 90, direction="Device-to-Host"),
        kernel(90, 100),
    ]
    assert rows(*events) == [
        ("MEMORY_OPER", "[CUDA memcpy Host-to-Device]", 1, 50, 0.5),
        ("CUDA_KERNEL", "k", 2, 30, 0.3),
        ("MEMORY_OPER", "[CUDA memcpy Device-to-Host]", 1, 10, 0.1),
        ("MEMORY_OPER", "[CUDA memset]", 1, 10, 0.1),
    ]


def test_operations_that_overlap_count_in_full():
    assert rows(kernel(0, 10), memcpy(0, 10, stream=8)) == [
        ("MEMORY_OPER", "[CUDA memcpy Host-to-Device]", 1, 10, 0.5),
        ("CUDA_KERNEL", "k", 1, 10, 0.5),
    ]


def test_a_kernel_that_is_called_like_a_memset_is_a_kernel():
    assert rows(kernel(0, 30, name="[CUDA memset]"), memset(30, 40)) == [
        ("CUDA_KERNEL", "[CUDA memset]", 1, 30, 0.75),
        ("MEMORY_OPER", "[CUDA memset]", 1, 10, 0.25),
    ]


def test_whole_graphs_are_left_out():
    assert rows(graph(0, 90), kernel(90, 100)) == [("CUDA_KERNEL", "k", 1, 10, 1.0)]


def test_a_missing_name_and_no_time_at_all():
    assert rows(kernel(5, 5, name=None)) == [("CUDA_KERNEL", None, 1, 0, 0.0)]


def test_the_part_that_is_looked_at():
    """What overlaps the window counts, whole."""
    events = [kernel(0, 10), kernel(20, 40, name="j"), kernel(20, 40, device=1, process=2)]
    assert rows(*events, window=Window(35, 50), device=0) == [("CUDA_KERNEL", "j", 1, 20, 1.0)]
    assert rows(*events, device=0) == [("CUDA_KERNEL", "j", 1, 20, 2 / 3), ("CUDA_KERNEL", "k", 1, 10, 1 / 3)]
    assert rows(*events) == [("CUDA_KERNEL", "k", 2, 30, 0.6), ("CUDA_KERNEL", "j", 1, 20, 0.4)]
    assert rows(*events, process=2) == [("CUDA_KERNEL", "k", 1, 20, 1.0)]
    assert rows(*events, window=Window(10, 20)) == []
