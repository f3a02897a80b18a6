"""What of a report lies in operators of the trace beside it."""

from dataclasses import replace

import polars as pl
import pytest

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.findings.rules._operators import operators, outermost, own_within, within
from kanalyze.window import Window
from support.build import call, host, kernel, nvtx, report


def launches(names, *, apart, thread=1):
    """A launch of each of `names`, of 10 µs each; each kernel runs at once for 1 µs."""
    found = []
    for number, name in enumerate(names):
        at = number * apart
        found.append(call("cudaLaunchKernel", at, at + 10_000, thread=thread, correlation=number))
        found.append(kernel(at + 10_000, at + 11_000, name=name, correlation=number))
    return found


def captured(*events, names="abcdef"):
    """A report of launches 200 µs apart, beside it a trace of them 100 µs apart on another thread, with `events`."""
    trace = report([*launches(names, apart=100_000, thread=7), *events], kinds=("op", "range"))
    return replace(report(launches(names, apart=200_000)), beside=lambda: trace)


def op(name, start, end):
    return host("op", name, start, end, thread=7)


def spans(found):
    return found.host.select("start", "end").rows()


def test_time_between_two_launches_is_placed_by_its_part():
    made = captured(op("aten::full", 155_000, 200_000))
    inside = within(made, operators(made))
    assert spans(inside) == [(305_000, 400_000)]  # the last half of the time between the second and the third
    assert inside.host.select("process_id", "thread_id").rows() == [(1, 1)]
    assert len(inside.work) == len(inside.calls) == 0


def test_launches_in_an_operator_are_in_it_with_what_is_between_them():
    made = captured(op("aten::lstm", 99_000, 315_000))
    inside = within(made, operators(made))
    assert spans(inside) == [(197_888, 620_555)]
    assert operations(made)["name"].gather(inside.work).cast(pl.String).to_list() == ["b", "c", "d"]


def test_a_window_of_the_report_has_what_overlaps_it():
    made = captured(op("aten::a", 20_000, 30_000), op("aten::b", 420_000, 430_000))
    here = made.narrow(window=Window(700_000, 1_000_000))
    assert [start for start, _ in spans(within(here, operators(here)))] == [831_111]


@pytest.mark.parametrize("names", ["abcdef", "xyzxyz"])
def test_a_trace_of_another_program_tells_nothing(names):
    trace = report([*launches(names, apart=100_000), op("aten::a", 20_000, 30_000)], kinds=("op", "range"))
    made = replace(report(launches("ghijkl", apart=200_000)), beside=lambda: trace)
    assert operators(made).is_empty()
    assert spans(own_within(made, pl.DataFrame({"process_id": 1, "thread_id": 1, "start": 5, "end": 9}))) == [(5, 9)]


def test_outermost_operators_have_what_is_launched_in_them():
    inner = op("aten::empty", 99_500, 99_600)
    made = captured(
        op("aten::lstm", 99_000, 215_000),
        inner,
        nvtx("Optimizer.step#Adam.step", 300_000, 400_000, thread=7),
        op("aten::add_", 320_000, 330_000),
    )
    rows = outermost(made).select("name", "launches", "aside").rows()
    assert rows == [("aten::lstm", 2, False), ("aten::add_", 0, True)]
