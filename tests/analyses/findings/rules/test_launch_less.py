"""How to launch less often, by what a program launches already."""

import pytest

from kanalyze.analyses.findings.rules._kernels import launch_less
from support.build import call, graph, kernel, report

OF_TORCH = "void at::native::add(int)"
MORE = "more work in each CUDA graph; launch the next one before you wait"


def program(graph_ns, plain_ns, *, whole, name="add", device=0):
    """A launch of a graph, whose kernels are traced whole or one by one, and one of a kernel."""
    half = graph_ns // 2
    nodes = [(0, half), (half, graph_ns)]
    traced = [graph(0, graph_ns, correlation=1)] if whole else [kernel(*at, correlation=1) for at in nodes]
    return [
        call("cudaGraphLaunch", 0, 1, correlation=1),
        *traced,
        call("cudaLaunchKernel", 2, 3, correlation=2),
        kernel(graph_ns, graph_ns + plain_ns, correlation=2, name=name, device=device),
    ]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("graph_ns", "name", "action", "ahead"),
    [
        (4, "add", "fuse them, or use cudaStreamBeginCapture", ""),
        (6, "add", "capture what is in no CUDA graph yet", ""),
        (6, OF_TORCH, "torch.compile what is in no CUDA graph yet", ""),
        (4, OF_TORCH, 'torch.compile(…, mode="reduce-overhead")', ""),
        (120, OF_TORCH, "torch.compile what is in no CUDA graph yet", MORE),
    ],
)
def test_what_is_told_depends_on_the_share_of_graphs(graph_ns, name, action, ahead, whole):
    less = launch_less(report(program(graph_ns, 100, whole=whole, name=name)), 0)
    assert (less.action, less.ahead_action) == (action, ahead)


def test_each_gpu_has_a_share_of_its_own():
    of = report(program(120, 100, whole=False, device=1))
    assert [launch_less(of, device).ahead_action for device in (0, 1)] == [MORE, ""]


@pytest.mark.parametrize(
    ("name", "action"),
    [("add", "fuse them, or use cudaStreamBeginCapture"), (OF_TORCH, 'torch.compile(…, mode="reduce-overhead")')],
)
def test_without_graphs_the_first_one_is_what_to_do(name, action):
    less = launch_less(report([kernel(0, 5, name=name)]), 0)
    assert (less.action, less.ahead_action) == (action, "")
