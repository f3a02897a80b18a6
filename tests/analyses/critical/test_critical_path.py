"""The critical path: its pieces sum to the window, and each is what its definition says."""

import pytest
from hypothesis import given

from kanalyze import read
from kanalyze.analyses.critical._path import nodes, path, span
from kanalyze.analyses.critical.critical_path import critical_path
from kanalyze.errors import CannotTellError, UnknownNameError
from kanalyze.window import Window
from support.build import call, kernel, memcpy, nvtx, report
from support.simulated import PROGRAMS, run
from support.slow_path import SlowPath
from support.strategies import EVENTS, WINDOWS

ROOT = __import__("pathlib").Path(__file__).parents[3]


def _segments(*events, **where):
    rows = critical_path(report(events), segments=True, **where)
    return list(zip(rows["start_ns"], rows["dur_ns"], rows["cause"], rows["name"], strict=True))


def test_a_host_that_launches_and_waits():
    assert _segments(
        call("cudaLaunchKernel", 0, 4, correlation=1),
        call("cudaLaunchKernel", 6, 8, correlation=2),
        call("cudaDeviceSynchronize", 9, 40),
        kernel(5, 20, name="a", correlation=1),
        kernel(22, 38, name="b", correlation=2),
    ) == [
        (0, 4, "launch", "cudaLaunchKernel"),
        (4, 1, "launch latency", "a"),
        (5, 15, "kernel", "a"),
        (20, 2, "stream order", "b"),
        (22, 16, "kernel", "b"),
        (38, 2, "return of a wait", "cudaDeviceSynchronize"),
    ]


def test_a_device_that_waits_for_the_host():
    assert _segments(
        call("cudaLaunchKernel", 0, 2, correlation=1),
        call("cudaLaunchKernel", 10, 12, correlation=2),
        kernel(3, 5, name="a", correlation=1),
        kernel(13, 15, name="b", correlation=2),
        nvtx("data", 4, 9),
    ) == [
        (0, 2, "launch", "cudaLaunchKernel"),
        (2, 2, "host", "between cudaLaunchKernel and data"),
        (4, 5, "host", "data"),
        (9, 1, "host", "between data and cudaLaunchKernel"),
        (10, 2, "launch", "cudaLaunchKernel"),
        (12, 1, "launch latency", "b"),
        (13, 2, "kernel", "b"),
    ]


@pytest.mark.parametrize(
    ("begin", "causes"), [(89_000, ["host", "call"]), (20_000, ["launch latency", "kernel", "return of a wait"])]
)
def test_a_wait_for_a_stream_that_is_not_recorded_is_one_where_it_lasted(begin, causes):
    """As in traces; one that waits for nothing returns within microseconds, in which a kernel may end by chance."""
    found = _segments(
        call("cudaLaunchKernel", 0, 1_000, correlation=1),
        kernel(2_000, 90_000, name="a", correlation=1),
        call("cudaStreamSynchronize", begin, 91_000),
        call("cudaLaunchKernel", 96_000, 97_000, correlation=2),
        kernel(98_000, 100_000, name="b", correlation=2),
    )
    assert [cause for _, _, cause, _ in found] == ["launch", *causes, "host", "launch", "launch latency", "kernel"]


def test_a_blocking_copy_and_another_thread():
    assert _segments(
        call("cudaMalloc", 0, 3, thread=2),
        call("cudaMemcpy", 5, 15, correlation=1, thread=3),
        memcpy(8, 12, correlation=1),
    ) == [
        (0, 3, "call", "cudaMalloc"),
        (3, 2, "host", "before cudaMemcpy"),
        (5, 3, "launch", "cudaMemcpy"),
        (8, 4, "memcpy", "[CUDA memcpy Host-to-Device]"),
        (12, 3, "return of a wait", "cudaMemcpy"),
    ]


def test_what_launched_is_not_recorded():
    assert _segments(kernel(0, 5, name="a"), kernel(7, 9, name="b"), kernel(8, 12, name="c", stream=8)) == [
        (0, 8, "unknown", "c"),
        (8, 4, "kernel", "c"),
    ]
    assert _segments(kernel(0, 5, name="a"), kernel(7, 9, name="b")) == [
        (0, 5, "kernel", "a"),
        (5, 2, "unknown", "b"),
        (7, 2, "kernel", "b"),
    ]


def test_a_window_cuts_the_path():
    events = [call("cudaLaunchKernel", 0, 2, correlation=1), kernel(4, 9, name="a", correlation=1), kernel(30, 40)]
    assert _segments(*events, window=Window(1, 6)) == [
        (1, 1, "launch", "cudaLaunchKernel"),
        (2, 2, "launch latency", "a"),
        (4, 2, "kernel", "a"),
    ]


def test_per_iteration():
    made = report([call("cudaLaunchKernel", 0, 2, correlation=1), kernel(2, 10, correlation=1)])
    rows = critical_path(made, window=Window(0, 10, count=4, each="step"))
    assert rows.select("cause", "ns", "each_ns", "share").rows() == [("kernel", 8, 2, 0.8), ("launch", 2, 0.5, 0.2)]


def test_groupings():
    made = report(
        [
            call("cudaLaunchKernel", 0, 2, correlation=1),
            kernel(2, 10, name="a", correlation=1),
            kernel(3, 9, name="b", stream=8),
            nvtx("outer", 0, 20),
        ]
    )
    kernels = critical_path(made, by="kernel")
    assert kernels.select("name", "ns", "total_ns", "count").rows() == [("a", 8, 8, 1), ("b", 0, 6, 1)]
    assert critical_path(made, by="range").select("range", "ns", "device_ns").rows() == [("outer", 10, 8)]
    assert critical_path(made, by="rank").select("rank", "process_id", "ns").rows() == [(None, 1, 10)]
    assert critical_path(made, by="cause").equals(critical_path(made))
    with pytest.raises(CannotTellError):
        critical_path(made, by="operator")
    with pytest.raises(UnknownNameError):
        critical_path(made, by="stream")


def test_without_operations():
    assert critical_path(report([call("cudaMalloc", 0, 4)])).is_empty()
    with pytest.raises(CannotTellError):
        critical_path(report([nvtx("a", 0, 4)], kinds=()))


def _same(made, rows):
    low, high = span(made)
    slow = SlowPath(made.whole)
    expected = []
    for start, end, cause, of in reversed(slow.pieces(slow.first(high), low, high)):
        row = of[1] if of and of[0] == "operation" else None
        called = of[1] if of and of[0] == "call" else None
        expected.append((start, end, cause, row, called))
    host = ["launch", "return of a wait", "call", "host"]
    found = []
    for piece in rows.rows(named=True):
        own = piece["row"]
        launches = piece["cause"] in host and own is None
        found.append((piece["start"], piece["end"], piece["cause"], own, piece["call"] if launches else None))
    assert [one[:4] for one in found] == [one[:4] for one in expected]


@given(EVENTS, WINDOWS)
def test_pieces_are_those_of_the_slow_walk(events, window):
    made = report(events).narrow(window=Window(*window))
    if span(made) is None:
        return
    _same(made, path(made))


@given(PROGRAMS, WINDOWS)
def test_pieces_of_programs_are_those_of_the_slow_walk(program, window):
    whole, _ = run(program)
    for made in (whole, whole.narrow(window=Window(*window))):
        if span(made) is not None:
            _same(made, path(made))


@pytest.mark.parametrize("name", ["add", "two_gpus", "graph_node", "nvtx", "memory", "thrash", "communicators"])
@pytest.mark.one_in(4)
def test_pieces_of_real_reports(name):
    made = read(ROOT / "tests" / "reports" / f"{name}.sqlite")
    _same(made, path(made))


@pytest.mark.parametrize("name", ["two_gpus", "graph_node"])
def test_a_walk_in_parts_has_the_same_pieces(name, monkeypatch):
    monkeypatch.setattr("kanalyze.columns._SLICE", 7)
    made = read(ROOT / "tests" / "reports" / f"{name}.sqlite")
    _same(made, path(made))


@given(PROGRAMS)
def test_each_operation_leads_to_what_released_it(program):
    made, released = run(program)
    through = nodes(made)
    for row, why in enumerate(released):
        following = int(through.next[row])
        found = following if following < through.operations else "launch"
        assert found in why, (row, found, why)
