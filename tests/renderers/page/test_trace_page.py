"""The page of a torch.profiler trace: times since its first event, its own words, and its steps."""

from dataclasses import replace

import pytest

from kanalyze.analyses.page.time_page import summarize
from kanalyze.analyses.ranges._instances import compare
from kanalyze.renderers.page import sections
from kanalyze.renderers.page.sections import steps as steps_section
from kanalyze.renderers.page.time import instances_page, page_of
from support.build import call, host, kernel, nvtx, report

BEGIN = 4_299_665_000_000_000


def trace(events, tool="torch.profiler"):
    """A report of a tool whose clock did not start with the recording."""
    later = [replace(event, start=event.start + BEGIN, end=event.end + BEGIN) for event in events]
    made = report(later)
    return replace(made, meta=replace(made.meta, tool=tool))


def step(number, start, length):
    """A step with a launch in it, and its kernel."""
    return [
        nvtx(f"ProfilerStep#{number}", start, start + length),
        call("cudaLaunchKernel", start + 10, start + 20, correlation=number),
        kernel(start + 20, start + 50, correlation=number),
    ]


EVENTS = [
    host("op", "aten::to", -500_000, -400_000),
    *(event for number in range(3, 8) for event in step(number, 1000 * number, 1000)),
    nvtx("forward", 3100, 3400),
    host("op", "aten::copy_", 3200, 3300),
]


def page_sections(of, top=8):
    return {section.title: section for section in page_of(summarize(of), top).sections}


def table(section):
    heads = [head.title for head in section.grid.heads]
    return [dict(zip(heads, row, strict=True)) for row in section.grid.rows]


@pytest.mark.slow
def test_times_are_told_since_the_first_event():
    page = page_of(summarize(trace(EVENTS)), 8)
    assert page.ledgers[0].heading == "GPU 0, +0.503 ms to +0.507 ms"
    (finding,) = (point.finding for point in page.points if point.finding.rule == "host-computes")
    assert "from +503.1 µs on" in finding.text
    assert page_of(summarize(trace(EVENTS, "nsys")), 8).ledgers[0].heading.startswith("GPU 0, 4299665.000")


@pytest.mark.slow
def test_ranges_of_a_trace_are_not_nvtx():
    assert "RANGES" in page_sections(trace(EVENTS))
    assert "NVTX RANGES" not in page_sections(trace(EVENTS))
    assert "NVTX RANGES" in page_sections(trace(EVENTS, "nsys"))


def test_steps_are_one_row_among_the_ranges():
    rows = table(page_sections(trace(EVENTS))["RANGES"])
    assert [(row["range"], row["count"], row["host time"], row["median"]) for row in rows] == [
        ("ProfilerStep*", "5", "5.000 µs", ""),
        ("forward", "1", "300 ns", "300 ns"),
    ]


def test_each_step_has_a_row():
    section = page_sections(trace(EVENTS))["STEPS"]
    assert table(section)[0] == {
        "step": "3",
        "time": "1.000 µs",
        "of median": "1.00 ×",
        "GPU busy": "3.0 %",
        "launched": "1",
        "idle most in": "host 960 ns",
    }
    assert [row["step"] for row in table(section)] == ["3", "4", "5", "6", "7"]
    assert (section.remark, section.foot) == ("", "5 steps: 1.000 µs in the median, from 1.000 µs to 1.000 µs.")


def test_of_many_steps_those_furthest_from_the_median():
    lengths = [100, 101, 99, 100, 700, 100, 102]
    events = [event for number, length in enumerate(lengths) for event in step(number, 1000 * number, length)]
    section = page_sections(trace(events), top=3)["STEPS"]
    assert [(row["step"], row[""]) for row in table(section)] == [("1", ""), ("4", "odd (host)"), ("6", "")]
    assert section.remark == "3 of 7; furthest from the median"


def test_steps_of_several_gpus_say_which():
    events = [
        *step(1, 0, 100),
        call("cudaLaunchKernel", 30, 31, correlation=9),
        kernel(60, 70, device=1, correlation=9),
    ]
    rows = table(steps_section(summarize(trace(events)).tables, 8))
    assert [row["step"] for row in rows] == ["GPU 0 1", "GPU 1 1"]


@pytest.mark.slow
def test_where_the_host_was_is_told_without_steps():
    page = page_of(summarize(trace(EVENTS)), 8)
    (share,) = (share for share in page.ledgers[0].shares if share.bucket == "host")
    assert share.detail.startswith("between cudaLaunchKernel and cudaLaunchKernel")
    assert "ProfilerStep#" not in share.detail
    rows = table(page_sections(trace(EVENTS))["WHY IT WAITED"])
    assert ("forward", "in aten::copy_") in [(row["in range"], row["culprit"]) for row in rows]


@pytest.mark.parametrize(
    ("culprit", "shown", "alone"),
    [
        ("aten::to in mine/train.py(31): step", "aten::to in train.py(31): step", "aten::to"),
        ("/a/b/train.py(31): step", "train.py(31): step", "train.py(31): step"),
        (
            "torch/_tensor.py(5): backward in mine/train.py(31): step",
            "_tensor.py(5): backward in train.py(31): step",
            "_tensor.py(5): backward",
        ),
        (
            "<built-in function sleep> in train.py(3): f",
            "<built-in function sleep> in train.py(3): f",
            "<built-in function sleep>",
        ),
        ("between a and b", "between a and b", "between a and b"),
        ("data in epoch", "data in epoch", "data in epoch"),
    ],
)
def test_functions_are_shortened_where_space_is_short(culprit, shown, alone):
    assert (sections.without_folders(culprit), sections.without_function(culprit)) == (shown, alone)


def test_all_steps_beside_each_other():
    of = trace(EVENTS)
    page = instances_page(compare([of.narrow(window=window) for window in of.windows("steps")]), 2)
    assert page.heading[-1] == "window steps"
    assert page.answer.startswith("5 steps: 1.000 µs in the median")
    slowest = table(page.sections[1])
    assert [(row["instance"], row["start"]) for row in slowest] == [("step:3", "+0.503 ms"), ("step:4", "+0.504 ms")]
    assert page.more.endswith(" --window step:3")
