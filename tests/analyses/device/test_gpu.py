"""Kernels, copies and memsets in one table: each row worked out by hand, and what is not in it."""

import pytest

from kanalyze.analyses.device.gpu import gpu
from kanalyze.window import Window
from support.build import graph, kernel, memcpy, memset, report, rows_of

TO_DEVICE, TO_HOST, SET = (f"[CUDA {what}]" for what in ("memcpy Host-to-Device", "memcpy Device-to-Host", "memset"))


def test_every_column_of_a_kernel():
    """Durations 10, 20 and 60: mean 30, deviations 20, 10 and 30, of which the sample variance is 1400 / 2."""
    assert gpu(report([kernel(0, 10), kernel(10, 30), kernel(40, 100)])).to_dicts() == rows_of(
        "category operation count total_ns share avg_ns median_ns min_ns max_ns stddev_ns",
        ("CUDA_KERNEL", "k", 3, 90, 1.0, 30.0, 20.0, 10, 60, pytest.approx(700**0.5)),
    )


MIXED = [memset(0, 10), kernel(10, 30), memcpy(30, 80), memcpy(80, 90, direction="Device-to-Host"), kernel(90, 100)]
SEVERAL = [kernel(0, 10), kernel(20, 40, name="j"), kernel(20, 40, device=1, process=2)]


@pytest.mark.parametrize(
    ("events", "where", "rows"),
    [
        # the longest first
        (MIXED, {}, [(TO_DEVICE, 1, 50, 0.5), ("k", 2, 30, 0.3), (TO_HOST, 1, 10, 0.1), (SET, 1, 10, 0.1)]),
        # operations that overlap count in full
        ([kernel(0, 10), memcpy(0, 10, stream=8)], {}, [(TO_DEVICE, 1, 10, 0.5), ("k", 1, 10, 0.5)]),
        # whole graphs are left out
        ([graph(0, 90), kernel(90, 100)], {}, [("k", 1, 10, 1.0)]),
        # a missing name, and no time at all
        ([kernel(5, 5, name=None)], {}, [(None, 1, 0, 0.0)]),
        # what overlaps the window counts, whole
        (SEVERAL, {"window": Window(35, 50), "device": 0}, [("j", 1, 20, 1.0)]),
        (SEVERAL, {"device": 0}, [("j", 1, 20, 2 / 3), ("k", 1, 10, 1 / 3)]),
        (SEVERAL, {}, [("k", 2, 30, 0.6), ("j", 1, 20, 0.4)]),
        (SEVERAL, {"process": 2}, [("k", 1, 20, 1.0)]),
        (SEVERAL, {"window": Window(10, 20)}, []),
    ],
)
def test_operations(events, where, rows):
    found = gpu(report(events), **where)
    assert found.select("operation", "count", "total_ns", "share").rows() == rows
    memory = [operation in (TO_DEVICE, TO_HOST, SET) for operation in found["operation"]]
    assert found["category"].to_list() == ["MEMORY_OPER" if one else "CUDA_KERNEL" for one in memory]


def test_a_kernel_that_is_called_like_a_memset_is_a_kernel():
    found = gpu(report([kernel(0, 30, name=SET), memset(30, 40)]))
    assert found.select("category", "total_ns").rows() == [("CUDA_KERNEL", 30), ("MEMORY_OPER", 10)]
