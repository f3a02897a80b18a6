"""Slack: an operation that takes longer by its slack moves nothing, and by one more moves the window's end."""

import pytest
from hypothesis import given

from kanalyze.analyses.critical._graph import dependencies
from kanalyze.analyses.critical._path import first_node, span
from kanalyze.analyses.critical.critical_path import critical_path, edges, slack
from support.build import call, kernel, report
from support.strategies import EVENTS


def test_beside_the_path():
    made = report(
        [
            call("cudaLaunchKernel", 0, 1, correlation=1),
            call("cudaLaunchKernel", 1, 2, correlation=2),
            call("cudaDeviceSynchronize", 2, 50),
            kernel(2, 48, name="long", correlation=1),
            kernel(3, 10, name="short", correlation=2, stream=8),
        ]
    )
    rows = critical_path(made, by="kernel").select("name", "ns", "slack_ns", "median_slack_ns").rows()
    assert rows == [("long", 46, 0, 0), ("short", 0, 40, 40)]


def test_of_a_host_that_is_never_held_up():
    made = report(
        [
            call("cudaLaunchKernel", 0, 2, correlation=1),
            call("cudaLaunchKernel", 10, 12, correlation=2),
            call("cudaLaunchKernel", 20, 22, correlation=3),
            kernel(3, 5, name="a", correlation=1),
            kernel(13, 15, name="b", correlation=2),
            kernel(23, 30, name="c", correlation=3),
        ]
    )
    # no kernel was ever released by the stream, whose lag is taken as none; b can use up its room and not that of a
    assert slack(made).to_list() == [16, 8, 0]


def test_the_slack_of_a_kernel_is_the_least_of_its_launches_and_their_median():
    launches = [call("cudaLaunchKernel", at, at + 2, correlation=at) for at in (1, 11, 21)]
    made = report(
        [*launches, *(kernel(at + 2, end, name="k", correlation=at) for at, end in ((1, 5), (11, 15), (21, 30)))]
    )
    assert critical_path(made, by="kernel").select("count", "slack_ns", "median_slack_ns").rows() == [(3, 0, 8)]


def _delays(known, order, row, more):
    """How late each node ends when one takes longer: taken from the first to the last, by all its edges."""
    late = {}
    for node in order:
        before = [late[source] - room for source, room in known.get(node, []) if source in late]
        late[node] = max([0, *before]) + (more if node == row else 0)
    return late


@pytest.mark.slow
@given(EVENTS)
def test_one_more_moves_the_end(events):
    made = report([event for event in events if event.end is not None and event.end > event.start])
    sides = span(made)
    if sides is None:
        return
    low, high = sides
    graph, found = dependencies(made), slack(made)
    work, calls = graph.operations.rows(named=True), graph.calls.rows(named=True)
    ends = [one["end"] for one in work] + [one["end"] for one in calls] + [one["start"] for one in calls]
    begins = [one["start"] for one in work] + ends[len(work) :]
    ranks = [2] * len(work) + [0] * len(calls) + [1] * len(calls)
    first = first_node(made, high)
    last = max(high, begins[first])
    nodes = [node for node in range(len(ends)) if ends[node] > low and begins[node] <= last]
    order = sorted(nodes, key=lambda node: (begins[node], ranks[node], ends[node], node))
    known = {}
    for source, target, room in zip(*(column.tolist() for column in edges(made)), strict=True):
        known.setdefault(target, []).append((source, room))
    for row, free in enumerate(found.to_list()):
        if free is None:
            continue
        for more in (free, free + 1):
            late = _delays(known, order, row, more)
            moved = any(ends[node] + by > last for node, by in late.items() if by and ends[node] <= last)
            moved |= late.get(first, 0) > 0
            assert moved == (more > free), (row, free)


def test_too_large(monkeypatch):
    monkeypatch.setattr("kanalyze.analyses.critical.critical_path.MOST", 0)
    made = report([kernel(0, 5)])
    assert slack(made) is None
    assert critical_path(made, by="kernel").get_column("slack_ns").to_list() == [None]


@pytest.mark.parametrize("name", ["streams", "mlp_train"])
def test_kernels_on_the_path_have_none(name, request):
    from kanalyze import read  # noqa: PLC0415

    rows = critical_path(read(request.config.rootpath / "sample_reports" / name / "nsys.sqlite"), by="kernel")
    assert (rows.filter(rows["ns"] > 0)["slack_ns"] == 0).all()
