"""Lines that launch nothing, and for which the GPU waits."""

import pytest

from kanalyze.analyses.findings.rules.host_computes import own_code
from kanalyze.window import Window
from support.build import call, kernel, report

STEPS = Window(count=2, each="step")


def line(start, end, number, text):
    """A stretch of time in a line of the program."""
    place = {"process_id": 1, "thread_id": 1, "file": "train.py", "function": "step", "line": number, "text": text}
    return {**place, "start_ns": start, "dur_ns": end - start}


def two_kernels(apart_ns):
    """Two launches, so far apart."""
    second = 20_000 + apart_ns
    return [
        call("cudaLaunchKernel", 0, 5_000, correlation=1),
        kernel(6_000, 20_000, correlation=1),
        call("cudaLaunchKernel", second - 5_000, second, correlation=2),
        kernel(second + 1_000, second + 15_000, correlation=2),
    ]


def test_time_in_a_line_that_launches_nothing_is_told_with_its_call():
    events = two_kernels(100_000)
    lines = [line(0, 10_000, 3, "y = model(x)"), line(10_000, 110_000, 4, "log(json.dumps(row))")]
    of = report(events, source_lines=[*lines, line(110_000, 200_000, 5, "y = model(y)")])
    (one,) = own_code(of.narrow(window=STEPS))
    assert own_code(of) == []  # what a program does once is no step's
    assert one.at_stake_ns == 90_000  # from the end of the first kernel to the end of the line
    assert one.headline == "The GPU waits for code that launches nothing: log()"
    assert "most in train.py:4" in one.text


@pytest.mark.parametrize(
    ("lines", "apart_ns"),
    [
        pytest.param([line(0, 200_000, 3, "y = model(x)")], 100_000, id="the line launches"),
        pytest.param([line(0, 25_000, 3, "y = model(x)"), line(25_000, 28_000, 4, "n += 1")], 100_000, id="too short"),
        pytest.param([], 100_000, id="no lines"),
    ],
)
def test_other_time_is_not(lines, apart_ns):
    assert own_code(report(two_kernels(apart_ns), source_lines=lines).narrow(window=STEPS)) == []


def test_a_line_that_launches_on_another_device_or_beside_other_work_launches():
    lines = [line(0, 10_000, 3, "y = model(x)"), line(10_000, 110_000, 4, "z = other(y)")]
    lines.append(line(110_000, 200_000, 5, "y = model(y)"))
    there = [call("cudaLaunchKernel", 60_000, 65_000, correlation=3), kernel(66_000, 70_000, correlation=3, device=1)]
    beside = [call("cudaLaunchKernel", 11_000, 12_000, correlation=3)]
    beside.append(kernel(13_000, 15_000, correlation=3, stream=8))
    for more in (there, beside):
        assert own_code(report([*two_kernels(100_000), *more], source_lines=lines).narrow(window=STEPS)) == []


def test_the_time_of_threads_that_launch_nothing_is_not_spared():
    lines = [line(0, 10_000, 3, "y = model(x)"), line(10_000, 40_000, 4, "parse(row)"), line(40_000, 150_000, 5, "m()")]
    helper = {**line(0, 150_000, 4, "parse(row)"), "thread_id": 2}
    of = report(two_kernels(100_000), source_lines=[*lines, helper]).narrow(window=STEPS)
    (one,) = own_code(of)
    assert one.change(of).host.select("start", "end").rows() == [(10_000, 40_000)]


@pytest.mark.parametrize(
    ("text", "call_told"),
    [("while(True):", ""), ("n += 1  # as sum(x)", ""), ("s = 'f(x)'", ""), ("if(ready(x)):", ": ready()")],
)
def test_the_headline_has_a_call_of_the_line(text, call_told):
    lines = [line(0, 10_000, 3, "y = model(x)"), line(10_000, 110_000, 4, text), line(110_000, 200_000, 5, "m()")]
    (one,) = own_code(report(two_kernels(100_000), source_lines=lines).narrow(window=STEPS))
    assert one.headline == f"The GPU waits for code that launches nothing{call_told}"
