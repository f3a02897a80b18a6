"""The heaviest kernels and graphs: time of their own, shares, shapes and launches, worked out by hand."""

import pytest

from kanalyze.analyses.launches.hot_kernels import hot_kernels
from kanalyze.window import Window
from support.build import call, graph, kernel, memcpy, report, rows_of

SHAPE = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]


def rows(*events, columns=("name", "exclusive_ns", "window_share", "count"), tables=None, **where):
    return hot_kernels(report(events, **(tables or {})), **where).select(columns).rows()


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


def test_the_heaviest_come_first_by_the_time_of_their_own():
    """While two run, it is the time of the one that began first."""
    events = [kernel(0, 50, name="long"), kernel(10, 70, name="hidden", stream=8), kernel(80, 110, name="short")]
    assert rows(*events, columns=("name", "exclusive_ns", "avg_ns")) == [
        ("long", 50, 50.0),
        ("short", 30, 30.0),
        ("hidden", 20, 60.0),
    ]


def test_of_launch_shapes_that_are_as_common_the_smallest_is_told():
    events = [kernel(0, 9, grid=(8, 1, 1)), kernel(10, 11, grid=(4, 2, 1)), kernel(20, 21, grid=(4, 1, 2))]
    assert rows(*events, columns=("shapes", *SHAPE)) == [(3, 4, 1, 2, 32, 1, 1)]


@pytest.mark.parametrize(("ran", "bound"), [(9, True), (10, False), (11, False)])
def test_a_kernel_is_launch_bound_where_warm_launches_take_longer_than_it_runs(ran, bound):
    """The first launch takes 90, and each of the two others 10."""
    events = [call("cudaLaunchKernel", 0, 90, correlation=1), kernel(90, 91, correlation=1)]
    for number, start in ((2, 100), (3, 200)):
        launch = call("cudaLaunchKernel", start, start + 10, correlation=number)
        events += [launch, kernel(start + 10, start + 10 + ran, correlation=number)]
    assert rows(*events, columns=("name", "launch_bound")) == [("k", bound)]


def test_a_graph_has_neither_shape_nor_family_and_is_named_with_its_process_where_others_are_called_so():
    columns = ("name", "exclusive_ns", "count", "shapes", "grid_x", "launch_bound", "family")
    own = [graph(0, 10), graph(10, 20), kernel(20, 25)]
    assert rows(*own, columns=columns) == [
        ("[CUDA graph 1]", 20, 2, 0, None, False, None),
        ("k", 5, 1, 1, 1, False, "other"),
    ]
    others = [graph(30, 60, process=2), kernel(60, 70, process=2)]
    assert rows(*own, *others, columns=columns[:3]) == [
        ("[CUDA graph 1] of process 2", 30, 1),
        ("[CUDA graph 1] of process 1", 20, 2),
        ("k", 15, 2),
    ]


def test_families_of_kernels():
    gemm, reduce = "sm80_xmma_gemm_f32f32", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [kernel(0, 30, name=gemm), kernel(30, 50, name=reduce), kernel(50, 60, name=None), kernel(60, 65)]
    assert rows(*events, columns=("name", "family")) == [
        (gemm, "gemm"),
        (reduce, "communication"),
        (None, "other"),
        ("k", "other"),
    ]
    recorded = {"collective_detail": [{"event_id": 3, "collective": "allreduce"}]}
    assert rows(*events, columns=("name", "family"), tables=recorded)[-1] == ("k", "communication")


def test_a_share_is_of_the_windows_of_all_devices_in_scope():
    """Process 1 is at work on its GPU from 0 to 100, process 2 on the other from 0 to 60."""
    events = [kernel(0, 20), kernel(90, 100), kernel(0, 40, device=1, process=2), kernel(50, 60, device=1, process=2)]
    columns = ("count", "exclusive_ns", "window_share", "busy_share")
    assert rows(*events, columns=columns) == [(4, 80, 0.5, 1.0)]
    assert rows(*events, columns=columns, device=0) == [(2, 30, 0.3, 1.0)]
    assert rows(*events, columns=columns, process=2) == [(2, 50, 50 / 60, 1.0)]


def test_time_of_its_own_is_that_inside_of_the_window():
    events = [kernel(0, 20), kernel(30, 60, name="j"), memcpy(60, 70), kernel(90, 100)]
    columns = ("name", "exclusive_ns", "window_share", "busy_share", "count", "avg_ns", "shapes")
    assert rows(*events, columns=columns, window=Window(10, 60)) == [
        ("j", 30, 0.6, 0.75, 1, 30.0, 1),
        ("k", 10, 0.2, 0.25, 1, 20.0, 1),
    ]
    assert rows(*events, window=Window(20, 30)) == []


def test_a_window_without_length_gives_no_shares():
    assert rows(kernel(5, 5), columns=("exclusive_ns", "window_share", "busy_share", "count")) == [(0, 0.0, 0.0, 1)]


def test_a_graph_is_a_kernel():
    assert hot_kernels(report([graph(0, 10)], kinds=("graph",))).height == 1
