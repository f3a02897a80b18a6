"""The call tree as a terminal has it."""

from kanalyze.analyses.operators.tree import tree
from kanalyze.renderers.page import Look
from kanalyze.renderers.tables import listings
from support.build import host, kernel, launched, memcpy
from support.slow_ops import trace_report

POW = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
    "pow_tensor_scalar_kernel_impl<float, float>(at::TensorIteratorBase&, float)::{lambda(float)#1}, "
    "std::array<char*, 2ul> >(int, std::array<char*, 2ul>)"
)

PATH = "/opt/program/package/of/some/length/training/loop.py(1234): run"


def training():
    events = [
        host("range", "ProfilerStep#3", 0, 900_000),
        host("op", "aten::square", 10_000, 500_000),
        host("op", "aten::pow", 20_000, 400_000),
        *launched(30_000, 40_000, kernel(100_000, 2_100_000, name=POW, correlation=1, parent=2), parent=2),
        host("op", "autograd::engine::evaluate_function: PowBackward0", 600_000, 700_000),
        kernel(2_100_000, 2_600_000, name=POW, parent=5),
        memcpy(2_600_000, 2_605_000, parent=0),
    ]
    return tree(trace_report(events, {0: 1, 1: 2, 2: 3, 5: 4}))


def test_eighty_columns():
    assert listings.call_tree(training(), "device", Look(80)).splitlines() == [
        "CALL TREE",
        "  device               host  count  called",
        "2.505 ms  100.0 %  900.0 µs      1  ProfilerStep*",
        "2.000 ms   79.8 %  490.0 µs      1  ├ aten::square",
        "2.000 ms   79.8 %  380.0 µs      1  │ └ aten::pow",
        "2.000 ms   79.8 %                1  │   └ vectorized…<pow_tensor_scalar>",
        "500.0 µs   20.0 %  100.0 µs      1  └ autograd: PowBackward0",
        "500.0 µs   20.0 %                1    └ vectorized…<pow_tensor_scalar>",
        "5.000 µs    0.2 %  10.00 µs      2  … 2 smaller nodes",
    ]


def test_by_host_time_without_any_device():
    events = [host("op", "aten::linear", 0, 100), host("python", PATH, 10, 90)]
    found = tree(trace_report(events, {0: 1}), min_share=0.0)
    assert listings.call_tree(found, "host", Look(50), "step#2").splitlines() == [
        "CALL TREE  step#2",
        "  host           count  called",
        "100 ns  100.0 %      1  aten::linear",
        " 80 ns   80.0 %      1  └ …ning/loop.py(1234): run",
    ]
