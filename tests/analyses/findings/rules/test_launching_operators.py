"""The operators behind kernels: the report's own, those of the trace beside it, and of kernels alike."""

from dataclasses import replace

from kanalyze.analyses.findings.rules._kernels import launching_operators
from support.build import call, host, kernel, report

NODE = "autograd::engine::evaluate_function: MulBackward0"


def launches(count, *, operators=False, at=0):
    """Kernels launched one by one, in a layer's product, and in a node of autograd the last one."""
    events = []
    for number in range(count):
        start = at + 10 * number
        events.append(call("cudaLaunchKernel", start + 2, start + 3, correlation=number))
        events.append(kernel(start + 4, start + 8, name=f"kernel_{number % 4}", correlation=number))
        if operators:
            last = number % 4 == 3
            events += [host("op", NODE, start, start + 9)] if last else [host("op", "aten::linear", start, start + 9)]
            events.append(host("op", "aten::mul" if last else "aten::mm", start + 1, start + 4))
    return events


FOUR = [("aten::mm", "aten::linear", None)] * 3 + [("aten::mul", "aten::mul", "MulBackward0")]


def told(made):
    return launching_operators(made).select("inner", "outer", "node").rows()


def test_a_report_tells_the_innermost_and_the_outermost_operator_and_autograds():
    assert told(report(launches(4, operators=True))) == FOUR


def test_the_trace_beside_a_report_tells_them():
    made = replace(report(launches(16)), beside=lambda: report(launches(16, operators=True, at=1000)))
    assert told(made) == FOUR * 4


def test_kernels_without_a_partner_have_the_operators_of_others_alike():
    made = replace(report(launches(24)), beside=lambda: report(launches(16, operators=True, at=1000)))
    assert told(made) == FOUR * 6


def test_without_operators_none_is_told():
    assert told(report(launches(2))) == [(None, None, None)] * 2
