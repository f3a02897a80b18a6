"""Which operator launched which kernels."""

import pytest

import kanalyze
from kanalyze.analyses.operators.op_kernels import TABLE, op_kernels
from kanalyze.errors import CannotTellError
from support.build import call, graph, host, kernel, memcpy
from support.op_strategies import trace_report


def shown(events, ids, **details):
    found = op_kernels(trace_report(events, ids, **details))
    return found.select("name", "path", "kernel", "count", "exclusive_ns", "forward", "forward_path").rows()


def test_kernels_stand_under_the_operators_that_led_to_them():
    events = [
        host("op", "aten::square", 0, 20),
        host("op", "aten::pow", 2, 18),
        kernel(30, 40, name="pow_kernel", parent=1),
        host("op", "aten::square", 50, 70),
        host("op", "aten::pow", 52, 68),
        kernel(80, 95, name="pow_kernel", parent=4),
        host("op", "aten::pow", 100, 110),
        kernel(120, 121, name="pow_kernel", parent=6),
        memcpy(130, 132, parent=0),
    ]
    assert shown(events, {0: 1, 1: 2, 3: 3, 4: 4, 6: 5}) == [
        ("aten::pow", "aten::square → aten::pow", "pow_kernel", 2, 25, None, None),
        ("aten::square", "aten::square", "[CUDA memcpy Host-to-Device]", 1, 2, None, None),
        ("aten::pow", "aten::pow", "pow_kernel", 1, 1, None, None),
    ]


def backward(**details):
    """A forward operator in another one, and the backward one of both, which calls a third."""
    events = [
        host("op", "aten::linear", 0, 20),
        host("op", "aten::addmm", 2, 18),
        kernel(20, 30, name="gemm", parent=1),
        host("op", "autograd::engine::evaluate_function: AddmmBackward0", 30, 50, thread=2),
        host("op", "aten::mm", 35, 45, thread=2),
        kernel(50, 70, name="gemm", parent=4),
    ]
    return shown(events, {0: 1, 1: 2, 3: 3, 4: 4}, **details)


@pytest.mark.parametrize(
    "details",
    [
        {"of_3": {"forward_id": 1, "sequence_number": 9, "forward_thread_id": 1}, "of_1": {"sequence_number": 4}},
        {
            "of_0": {"sequence_number": 5},
            "of_1": {"sequence_number": 5},
            "of_3": {"sequence_number": 5, "forward_thread_id": 1},
        },
    ],
    ids=["torch's link", "autograd's number"],
)
def test_backward_kernels_stand_under_their_forward_operator(details):
    assert backward(**details) == [
        (
            "aten::mm",
            "autograd::engine::evaluate_function: AddmmBackward0 → aten::mm",
            "gemm",
            1,
            20,
            "aten::addmm",
            "aten::linear → aten::addmm",
        ),
        ("aten::addmm", "aten::linear → aten::addmm", "gemm", 1, 10, None, None),
    ]


def test_numbers_count_by_thread():
    """Each thread counts its own operators: the one that has most of the numbers that are asked for is meant."""
    events = [
        host("op", "on one", 0, 5, thread=1),
        host("op", "on one", 6, 9, thread=1),
        host("op", "on two", 0, 5, thread=2),
        host("op", "Backward of one", 20, 25, thread=3),
        host("op", "Backward of one", 26, 30, thread=3),
        kernel(40, 42, parent=3),
    ]
    numbers = {"of_0": 1, "of_1": 2, "of_2": 1}
    details = {place: {"sequence_number": number} for place, number in numbers.items()}
    details |= {f"of_{place}": {"sequence_number": place - 2, "forward_thread_id": 7} for place in (3, 4)}
    found = shown(events, {place: place + 1 for place in range(5)}, **details)
    assert [row[5] for row in found] == ["on one"]


def test_a_graphs_kernels_belong_to_what_launched_the_graph():
    events = [
        host("range", "step", 0, 50),
        host("op", "graph_step", 5, 20),
        call("cudaGraphLaunch", 8, 12, correlation=4),
        kernel(20, 25, name="a", correlation=4),
        kernel(25, 31, name="b", correlation=4),
        call("cudaGraphLaunch", 30, 34, correlation=5),
        graph(40, 42, name="[CUDA graph 1]", correlation=5),
        kernel(60, 61, name="of nobody", correlation=99),
        host("op", "aten::add", 70, 80),
        kernel(90, 91, name="add", parent=8),
    ]
    assert shown(events, {0: 1, 1: 2, 8: 3}) == [
        ("graph_step", "graph_step", "b", 1, 6, None, None),
        ("graph_step", "graph_step", "a", 1, 5, None, None),
        ("step", None, "[CUDA graph 1]", 1, 2, None, None),
        (None, None, "of nobody", 1, 1, None, None),
        ("aten::add", "aten::add", "add", 1, 1, None, None),
    ]


def test_a_call_of_another_thread_is_looked_for_there():
    """torch's own table takes it to be on the thread that ended the profiling; what launched a kernel is on its own."""
    events = [
        host("range", "ProfilerStep#1", 0, 50, thread=1),
        host("range", "beside", 0, 50, thread=2),
        call("cudaGraphLaunch", 8, 12, correlation=4, thread=2),
        kernel(20, 25, correlation=4),
        host("op", "aten::add", 60, 61),
        kernel(70, 71, parent=4),
    ]
    assert [row[0] for row in shown(events, {0: 1, 1: 2, 4: 3})] == ["beside", "aten::add"]


def test_one_device_and_a_window():
    events = [
        host("op", "a", 0, 5),
        kernel(10, 20, name="k", parent=0, device=0),
        kernel(10, 30, name="k", parent=0, device=1),
    ]
    report = trace_report(events, {0: 1})
    one = op_kernels(report, device=1)
    assert one.select("count", "total_ns", "avg_ns", "exclusive_ns", "share").rows() == [(1, 20, 20.0, 20, 1.0)]
    cut = op_kernels(report, window="15ns..18ns")
    assert cut.select("count", "total_ns", "exclusive_ns").rows() == [(2, 30, 6)]


def test_without_device_work_there_is_no_table():
    with pytest.raises(CannotTellError, match="kernel"):
        op_kernels(_only_operators())


def _only_operators():
    found = trace_report([host("op", "a", 0, 5)], {0: 1})
    source = found.source
    source.kinds = ("op",)
    return kanalyze.Report(found.meta, source)


def test_nothing_launched():
    assert op_kernels(trace_report([host("op", "a", 0, 5)], {0: 1})).equals(TABLE.empty())
