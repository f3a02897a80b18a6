"""The call tree: who called what, and what it took."""

from collections import defaultdict

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.operators.tree import tree
from support.build import call, host, kernel, memcpy, timeline
from support.slow_ops import host_nodes, trace_report, traces
from support.strategies import FEWER


def nodes_of(report, **how):
    """Each node's name below those around it, with count, host, own host, device and own device time."""
    found = tree(report, **how)
    columns = ("count", "host_ns", "self_host_ns", "device_ns", "self_device_ns")
    return [("  " * row["depth"] + str(row["name"]), *(row[name] for name in columns)) for row in found.to_dicts()]


def squares():
    """Two squares in a step, and a copy outside of it."""
    events = [host("range", "step", 0, 100)]
    for start in (10, 50):
        square = len(events)
        events += [
            host("op", "aten::square", start, start + 30),
            host("op", "aten::pow", start + 2, start + 20),
            call("cudaLaunchKernel", start + 5, start + 9, correlation=start, parent=square + 1),
            kernel(start + 10, start + 20, name="pow_kernel", correlation=start, parent=square + 1),
        ]
    events += [host("op", "aten::copy_", 110, 120), memcpy(130, 135, parent=9)]
    return trace_report(events, {0: 1, 1: 2, 2: 3, 5: 4, 6: 5, 9: 6})


SQUARES = [
    ("step", 1, 100, 40, 20, 0), ("  aten::square", 2, 60, 24, 20, 0), ("    aten::pow", 2, 36, 28, 20, 0),
    ("      pow_kernel", 2, 0, 0, 20, 20), ("aten::copy_", 1, 10, 10, 5, 0),
    ("  [CUDA memcpy Host-to-Device]", 1, 0, 0, 5, 5),
]  # fmt: skip
OTHER_SQUARES = [*SQUARES[:3], ("      cudaLaunchKernel", 2, 8, 8, 0, 0), SQUARES[4], ("None", 3, 0, 0, 25, 25)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        # what was called in the same way is one node
        ({}, [*SQUARES, ("None", 2, 8, 8, 0, 0)]),
        # by host time calls are nodes, and kernels are left out
        ({"by": "host"}, OTHER_SQUARES),
        # small nodes are one
        ({"min_share": 0.5}, [*SQUARES[:4], ("None", 3, 18, 18, 5, 5)]),
        ({"depth": 2}, [*SQUARES[:2], *SQUARES[4:]]),
        (
            {"window": "55ns..66ns", "min_share": 0.0},
            [
                *(("step", 1, 11, 0, 6, 0), ("  aten::square", 1, 11, 0, 6, 0), ("    aten::pow", 1, 11, 7, 6, 0)),
                *(("      pow_kernel", 1, 0, 0, 6, 6), ("      cudaLaunchKernel", 1, 4, 4, 0, 0)),
            ],
        ),
    ],
)
def test_squares_in_a_step(how, expected):
    assert nodes_of(squares(), **how) == expected


@FEWER
@given(traces(), st.sampled_from([0.0, 0.05, 0.4]), st.sampled_from(["device", "host"]))
def test_whatever_is_left_out_the_nodes_own_times_sum_to_all(trace, min_share, by):
    report = trace_report(*trace)
    found = tree(report, by=by, min_share=min_share)
    whole = sum(node.self_ns for node in host_nodes(*trace, python=True))
    assert found.get_column("self_host_ns").sum() == whole
    assert found.get_column("self_device_ns").sum() == exclusive_operations(report).get_column("exclusive_ns").sum()
    inside = defaultdict(int)
    for row in found.filter(pl.col("kind") != "rest").to_dicts():
        inside[row["parent"]] += row["device_ns"]
    for row in found.to_dicts():
        assert inside[row["node"]] <= row["device_ns"]
        above = row["parent"]
        assert (above is None) == (row["depth"] == 0)
        assert above is None or (above < row["node"] and found["depth"][above] == row["depth"] - 1)
    assert found.get_column("node").to_list() == list(range(found.height))


def test_nodes_of_small_operators_of_threads_and_of_functions_that_only_pass_on():
    small = []
    for number in range(10):
        small.append(host("op", f"op {number}", number * 4, number * 4 + 2))
        small.append(kernel(100 + number, 101 + number, parent=1 + 2 * number))
    ids = {0: 1} | {1 + 2 * number: 2 + number for number in range(10)}
    table = tree(trace_report([host("op", "all", 0, 50), *small], ids), min_share=0.2)
    told = table.select("node", "parent", "depth", "kind", "name", "device_ns", "nodes").rows()
    assert told == [(0, None, 0, "op", "all", 10, 1), (1, 0, 1, "rest", None, 10, 10)]
    events = "0-20 op:fwd; 20-30 kernel ^0; 30-40 op:bwd t9; 40-60 kernel ^2; 70-71 kernel:of nobody #8"
    assert nodes_of(trace_report(timeline(events), {0: 1, 2: 2})) == [
        ("thread 9", 1, 10, 0, 20, 0), ("  bwd", 1, 10, 10, 20, 0), ("    k", 1, 0, 0, 20, 20),
        ("thread 1", 1, 20, 0, 10, 0), ("  fwd", 1, 20, 20, 10, 0), ("    k", 1, 0, 0, 10, 10),
        ("of nobody", 1, 0, 0, 1, 1),
    ]  # fmt: skip
    functions = timeline("""
        0-1000 python:t.py(9): main; 1-999 python:module.py(1): _wrapped; 2-998 python:module.py(2): _call
        3-997 python:nn.Module: Net_0; 4-996 op:aten::mm; 100-300 python:<built-in method a of object at 0x1>
        400-600 python:<built-in method a of object at 0x2>
    """)
    found = trace_report(functions, {4: 1})
    assert nodes_of(found) == [
        ("nn.Module: Net_0", 1, 994, 2, 0, 0), ("  aten::mm", 1, 992, 592, 0, 0),
        ("    <built-in method a of object>", 2, 400, 400, 0, 0), ("None", 3, 6, 6, 0, 0),
    ]  # fmt: skip
    rows = [name for name, *_ in nodes_of(found, min_share=0.0)][:2]
    assert rows == ["t.py(9): main", "  module.py(1): _wrapped"]
