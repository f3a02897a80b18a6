"""The heaviest kernels and graphs: time of their own, shares, shapes and launches, worked out by hand."""

import pytest

from kanalyze.analyses.launches.hot_kernels import hot_kernels
from kanalyze.window import Window
from support.build import kernel, memcpy, report, rows_of, timeline


def test_every_column_of_a_kernel():
    """Of a window of 100 the device was busy for 80, and 60 of them with this kernel alone."""
    events = [
        *(kernel(0, 20, grid=(4, 1, 1)), kernel(20, 50, grid=(2, 3, 4), block=(5, 6, 7))),
        *(kernel(50, 60, grid=(2, 3, 4), block=(5, 6, 7)), memcpy(55, 70), kernel(90, 100, name="j")),
    ]
    assert hot_kernels(report(events)).to_dicts() == rows_of(
        "name exclusive_ns window_share busy_share count avg_ns shapes grid_x grid_y grid_z block_x block_y "
        "block_z launch_bound family",
        ("k", 60, 0.6, 0.75, 3, 20.0, 2, 2, 3, 4, 5, 6, 7, False, "other"),
        ("j", 10, 0.1, 0.125, 1, 10.0, 1, 1, 1, 1, 32, 1, 1, False, "other"),
    )


SHARES = ("name", "exclusive_ns", "window_share", "busy_share", "count")
WITHOUT_SHAPE = ("name", "exclusive_ns", "count", "shapes", "grid_x", "launch_bound", "family")
GRAPHS = "0-10 graph; 10-20 graph; 20-25 kernel"
TWO_GPUS = "0-20 kernel; 90-100 kernel; 0-40 kernel d1 p2; 50-60 kernel d1 p2"
IN_WINDOW = "0-20 kernel; 30-60 kernel:j; 60-70 memcpy; 90-100 kernel"
OF_TWO = [("[CUDA graph 1] of process 2", 30, 1), ("[CUDA graph 1] of process 1", 20, 2), ("k", 15, 2)]
GRAPH_AND_K = [("[CUDA graph 1]", 20, 2, 0, None, False, None), ("k", 5, 1, 1, 1, False, "other")]


@pytest.mark.parametrize(
    ("events", "columns", "where", "expected"),
    [
        # the heaviest first; while two run, it is the time of the one that began first
        (
            "0-50 kernel:long; 10-70 kernel:hidden s8; 80-110 kernel:short",
            ("name", "exclusive_ns", "avg_ns"), {}, [("long", 50, 50.0), ("short", 30, 30.0), ("hidden", 20, 60.0)],
        ),
        # a graph has neither shape nor family, and is named with its process where others are called so
        (GRAPHS, WITHOUT_SHAPE, {}, GRAPH_AND_K),
        (f"{GRAPHS}; 30-60 graph p2; 60-70 kernel p2", WITHOUT_SHAPE[:3], {}, OF_TWO),
        # a share is of the windows of all devices in scope: process 1 was at work for 100, process 2 for 60
        (TWO_GPUS, SHARES, {}, [("k", 80, 0.5, 1.0, 4)]),
        (TWO_GPUS, SHARES, {"process": 2}, [("k", 50, 50 / 60, 1.0, 2)]),
        # time of its own is that inside of the window
        (IN_WINDOW, SHARES, {"window": Window(10, 60)}, [("j", 30, 0.6, 0.75, 1), ("k", 10, 0.2, 0.25, 1)]),
        ("5-5 kernel", SHARES, {}, [("k", 0, 0.0, 0.0, 1)]),  # a window without length
        # warm launches take longer than it runs: the first takes 90, and each of the two others 10
        *(
            (f"0-90 L #1; 90-91 kernel #1; 0-10 L #2; 30-{30 + ran} kernel #2; 0-10 L #3; 60-{60 + ran} kernel #3",
             ("launch_bound",), {}, [(bound,)])
            for ran, bound in ((9, True), (10, False), (11, False))
        ),
    ],
)  # fmt: skip
def test_heaviest_kernels(events, columns, where, expected):
    assert hot_kernels(report(timeline(events)), **where).select(columns).rows() == expected


def test_of_shapes_that_are_as_common_the_smallest_is_told_and_families_are_those_of_names_or_records():
    shapes = [kernel(0, 9, grid=(8, 1, 1)), kernel(10, 11, grid=(4, 2, 1)), kernel(20, 21, grid=(4, 1, 2))]
    shape = ("shapes", *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"))
    assert hot_kernels(report(shapes)).select(shape).rows() == [(3, 4, 1, 2, 32, 1, 1)]
    gemm, reduce = "sm80_xmma_gemm_f32f32", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [kernel(0, 30, name=gemm), kernel(30, 50, name=reduce), kernel(50, 60, name=None), kernel(60, 65)]
    recorded = [{"event_id": 3, "collective": "allreduce"}]
    for collectives, last in (([], "other"), (recorded, "communication")):
        found = hot_kernels(report(events, collective_detail=collectives)).select("name", "family").rows()
        assert found == [(gemm, "gemm"), (reduce, "communication"), (None, "other"), ("k", last)]
