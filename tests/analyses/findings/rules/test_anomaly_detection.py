"""Anomaly detection of PyTorch, by its operators or else by its kernels."""

import pytest

from kanalyze.analyses.findings.rules.anomaly_detection import anomaly_detection
from kanalyze.window import Window
from support.build import call, host, kernel, memcpy, report

LAUNCH = "cudaLaunchKernel_v7000"
COMPARE = "void at::native::vectorized_elementwise_kernel<4, CompareEqFunctor>()"
ANY = "void at::native::reduce_kernel<or_kernel_cuda>()"
OWN = "void at::native::backward()"


def launched(at, name):
    """An operator's launch of a kernel, or of a copy of one byte to the host."""
    if name == "copy":
        return [
            call("cudaMemcpyAsync_v3020", at, at + 2000, correlation=at),
            memcpy(at + 1500, at + 1800, direction="Device-to-Host", size_bytes=1, correlation=at),
        ]
    return [call(LAUNCH, at, at + 2000, correlation=at), kernel(at + 2000, at + 3000, name=name, correlation=at)]


def node(at, *, own=True, checked=True):
    """A node of autograd: an operator of its own, and the check of its result."""
    events = [host("op", "autograd::engine::evaluate_function: MmBackward0", at, at + 45_000)]
    if own:
        events += [host("op", "MmBackward0", at + 1000, at + 9000), *launched(at + 2000, OWN)]
    if checked:
        for place, name, kernels in ((1, "isnan", COMPARE), (2, "_is_any_true", ANY), (3, "item", "copy")):
            start = at + 10_000 * place
            events += [host("op", f"aten::{name}", start, start + 9000), *launched(start + 2000, kernels)]
    return events


def found(nodes, *, operators=True):
    events = [event for event in nodes if operators or event.kind != "op"]
    return anomaly_detection(report(events).narrow(window=Window(0, 50_000 * 30, count=2, each="step")))


@pytest.mark.parametrize("operators", [True, False])
def test_each_node_is_checked(operators):
    nodes = [event for number in range(30) for event in node(50_000 * number)]
    (one,) = found(nodes, operators=operators)
    assert "(15 checks a step), by two kernels and a copy to the host each" in one.text
    assert one.action == "torch.autograd.set_detect_anomaly(False)"


def test_a_hook_that_checks_some_gradients_is_none():
    nodes = [event for number in range(30) for event in node(50_000 * number, checked=number % 3 == 0)]
    assert found(nodes) == []


def test_without_operators_a_loop_over_gradients_is_none():
    nodes = [event for number in range(30) for event in node(50_000 * number, own=False)]
    assert found(nodes, operators=False) == []
