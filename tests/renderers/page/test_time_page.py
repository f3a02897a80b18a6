"""The page of time: which sections appear and what stands in them, whose rows are, and of a trace its own words."""

from dataclasses import replace
from functools import cache

import pytest

from kanalyze.analyses.launches.hot_kernels import hot_kernels
from kanalyze.analyses.page.time_page import summarize, tables_of
from kanalyze.analyses.ranges.instances import compare
from kanalyze.renderers import page
from kanalyze.renderers.page import time as sections
from kanalyze.renderers.page.time import instances_page, page_of
from support.build import call, graph, host, kernel, nvtx, report, timeline
from support.command import REPORTS
from support.real_reports import real_summary


def made_sections(of, top=8):
    return {section.title: section for section in page_of(summarize(of), top).sections}


def table(section):
    """The rows of a section as objects."""
    heads = [head.title for head in section.grid.heads]
    return [dict(zip(heads, row, strict=True)) for row in section.grid.rows]


def test_a_page_without_gpu_work_has_no_sections():
    assert page_of(real_summary(REPORTS / "empty.sqlite"), 8).sections == []


WAITING = timeline(
    """
    0-10 cudaLaunchKernel #1; 10-20 kernel:gemm #1; 20-60 [prepare]; 60-70 cudaLaunchKernel_v11060 #2
    70-80 memcpy Host-to-Device #2; 80-100 cudaDeviceSynchronize; 120-130 cudaLaunchKernel #3; 130-140 kernel:gemm #3
    """
)


def test_culprits_are_named_as_the_page_names_them():
    found = table(sections.culprits(tables_of(report(WAITING))[0], 8))
    rows = [(row["time"], row["bucket"], row["in range"], row["culprit"]) for row in found]
    assert rows == [
        ("40 ns", "host", "prepare", "in prepare"),
        ("20 ns", "launch", "", "gemm"),
        ("20 ns", "sync", "", "cudaDeviceSynchronize"),
        ("20 ns", "host", "", "between cudaDeviceSynchronize and cudaLaunchKernel"),
        ("10 ns", "launch", "", "memcpy Host-to-Device"),
    ]


def test_the_same_culprit_on_several_gpus_is_one_row_and_a_part_of_all_windows():
    events = [
        *(call("cudaLaunchKernel", 0, 10, correlation=1), kernel(10, 20, correlation=1, name="gemm")),
        *(call("cudaLaunchKernel", 20, 30, correlation=2), kernel(30, 40, correlation=2, name="gemm", device=1)),
        *(call("cudaLaunchKernel", 40, 50, correlation=3), kernel(50, 60, correlation=3, name="gemm")),
    ]
    tables, _ = tables_of(report(events))
    assert tables["culprits"].filter(bucket="launch").height == 2
    (launch,) = (row for row in table(sections.culprits(tables, 8)) if row["bucket"] == "launch")
    assert (launch["culprit"], launch["time"], launch["share"]) == ("gemm", "30 ns", "25.0 %")


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_families_of_kernels_are_told_of_a_gpu_that_is_alone(devices):
    """The table of kernels is of all GPUs together."""
    events = [kernel(10 * at, 10 * at + 5, correlation=at, device=at % devices) for at in (1, 2)]
    calls = [call("cudaLaunchKernel", at, at + 1, correlation=at) for at in (1, 2)]
    ledgers = page_of(summarize(report([*calls, *events])), 8).ledgers
    details = [share.detail for ledger in ledgers for share in ledger.shares if share.bucket == "kernel"]
    assert details == (["other 100 %"] if devices == 1 else ["", ""])


def test_ranges_without_gpu_work_have_a_section_too():
    tables, _ = tables_of(report([nvtx("load", 0, 10)], kinds=["range", "api"]))
    tables = {name: frame for name, frame in tables.items() if name != "range_gpu"}
    heads = ("host time", "count", "median", "on GPU", "GPU busy", "GPU ops", "range")
    texts = ("10 ns", "1", "10 ns", "", "", "", "load")
    assert table(sections.ranges(tables, 8)) == [dict(zip(heads, texts, strict=True))]


BEGIN = 4_299_665_000_000_000
BACK = "_tensor.py(5): backward"


def trace(events, tool="torch.profiler"):
    """A report of a tool whose clock did not start with the recording."""
    later = [replace(event, start=event.start + BEGIN, end=event.end + BEGIN) for event in events]
    return report(later, meta={"tool": tool})


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


@cache
def page_of_events():
    return page_of(summarize(trace(EVENTS)), 8)


@pytest.mark.slow
def test_times_are_told_since_the_first_event():
    page = page_of_events()
    assert page.ledgers[0].heading == "GPU 0, +0.503 ms to +0.507 ms"
    (finding,) = (point.finding for point in page.points if point.finding.rule == "host-computes")
    assert "from +503.1 µs on" in finding.text
    assert page_of(summarize(trace(EVENTS, "nsys")), 8).ledgers[0].heading.startswith("GPU 0, 4299665.000")


@pytest.mark.slow
def test_steps_are_one_row_among_the_ranges():
    rows = table(next(section for section in page_of_events().sections if section.title == "RANGES"))
    told = [(row["range"], row["count"], row["host time"], row["median"]) for row in rows]
    assert told == [("ProfilerStep*", "5", "5.000 µs", ""), ("forward", "1", "300 ns", "300 ns")]


def test_each_step_has_a_row():
    section = next(section for section in page_of_events().sections if section.title == "STEPS")
    assert table(section)[0] == {
        "step": "3", "time": "1.000 µs", "of median": "1.00 ×", "GPU busy": "3.0 %", "launched": "1",
        "idle most in": "host 960 ns",
    }  # fmt: skip
    assert [row["step"] for row in table(section)] == ["3", "4", "5", "6", "7"]
    assert (section.remark, section.foot) == ("", "5 steps: 1.000 µs in the median, from 1.000 µs to 1.000 µs.")


@pytest.mark.slow
def test_of_many_steps_those_furthest_from_the_median():
    lengths = [100, 101, 99, 100, 700, 100, 102]
    events = [event for number, length in enumerate(lengths) for event in step(number, 1000 * number, length)]
    section = made_sections(trace(events), top=3)["STEPS"]
    assert [(row["step"], row[""]) for row in table(section)] == [("1", ""), ("4", "odd (host)"), ("6", "")]
    assert section.remark == "3 of 7; furthest from the median"


def test_steps_of_several_gpus_say_which():
    far = kernel(60, 70, device=1, correlation=9)
    events = [*step(1, 0, 100), call("cudaLaunchKernel", 30, 31, correlation=9), far]
    rows = table(sections.steps(tables_of(trace(events))[0], 8))
    assert [row["step"] for row in rows] == ["GPU 0 1", "GPU 1 1"]


@pytest.mark.parametrize(
    ("culprit", "shown", "alone"),
    [
        ("aten::to in mine/train.py(31): step", "aten::to in train.py(31): step", "aten::to"),
        (f"torch/{BACK} in mine/train.py(31): step", f"{BACK} in train.py(31): step", BACK),
        ("data in epoch", "data in epoch", "data in epoch"),
    ],
)
def test_functions_are_shortened_where_space_is_short(culprit, shown, alone):
    assert (page.without_folders(culprit), page.without_function(culprit)) == (shown, alone)


def test_all_steps_beside_each_other():
    of = trace(EVENTS)
    page = instances_page(compare([of.narrow(window=window) for window in of.windows("steps")]), 2)
    assert page.heading[-1] == "window steps"
    assert page.answer.startswith("5 steps: 1.000 µs in the median")
    slowest = table(page.sections[1])
    assert [(row["instance"], row["start"]) for row in slowest] == [("step:3", "+0.503 ms"), ("step:4", "+0.504 ms")]
    assert page.more.endswith(" --window step:3")


def launched(number, *, process=1, thread=1, **of_kernel):
    at, keys = 100 * number, {"process": process, "correlation": number}
    of_kernel = {"name": "gemm", "context": process, **of_kernel}
    return [call("cudaLaunchKernel", at, at + 5, thread=thread, **keys), kernel(at + 10, at + 60, **of_kernel, **keys)]


def section(events, title):
    found = made_sections(report(events))[title]
    return [head.title for head in found.grid.heads], table(found)


CONTEXTS = [
    *(kernel(0, 50, context=1, stream=7, correlation=1), kernel(60, 99, context=2, stream=7, correlation=2)),
    *(call("cudaLaunchKernel", 0, 1, correlation=1), call("cudaLaunchKernel", 50, 51, correlation=2)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "events", "told"),
    [
        ("LAUNCHES", [*launched(1), *launched(2, process=2)], {"process": ["1", "2"]}),
        ("LAUNCHES", [*launched(1), *launched(2, thread=5)], {"thread": ["1", "5"]}),
        ("LAUNCHES", [*launched(1), *launched(2, device=1)], {"GPU": ["0", "1"]}),
        ("LAUNCHES", [*launched(1), *launched(2, name="relu", process=2)], {}),
        ("STREAMS", [*launched(1), *launched(2, process=2)], {"process": ["1", "2"]}),
        ("STREAMS", CONTEXTS, {"context": ["1", "2"]}),
        ("STREAMS", [*launched(1), *launched(2, process=2, device=1)], {}),
    ],
)
def test_rows_of_one_name_say_whose_they_are(title, events, told):
    heads, rows = section(events, title)
    assert {"process", "thread", "context", "GPU"} & {*heads} == {*told}
    assert {head: sorted(row[head] for row in rows) for head in told} == told


@pytest.mark.slow
def test_memory_of_two_processes_says_whose():
    def allocated(process):
        side = {"size_bytes": 64, "memory": "Device", "allocates": True}
        return host("memory", "Allocation", 5, 5, process=process, device=0, side=side)

    heads, rows = section([*launched(1), *launched(2, process=2), allocated(1), allocated(2)], "MEMORY")
    assert sorted((row["memory"], row["process"]) for row in rows) == [("Device, GPU 0", "1"), ("Device, GPU 0", "2")]
    heads, _ = section([*launched(1), allocated(1)], "MEMORY")
    assert "process" not in heads


def whole_graph(number, *, process, exec_id, graph_id):
    at, keys = 100 * number, {"process": process, "correlation": number}
    side = {"graph_exec_id": exec_id, "graph_id": graph_id}
    ran = graph(at + 10, at + 60, name=f"[CUDA graph {graph_id}]", side=side, **keys)
    return [call("cudaGraphLaunch", at, at + 5, **keys), ran]


@pytest.mark.slow
def test_graphs_of_two_processes_are_two_and_numbered_alike_in_both_sections():
    events = [
        *whole_graph(1, process=2, exec_id=4, graph_id=3),
        *whole_graph(2, process=1, exec_id=4, graph_id=3),
        *whole_graph(3, process=1, exec_id=9, graph_id=8),
    ]
    names = hot_kernels(report(events)).get_column("name").to_list()
    assert sorted(names) == ["[CUDA graph 3] of process 1", "[CUDA graph 3] of process 2", "[CUDA graph 8]"]
    _, rows = section(events, "CUDA GRAPHS")
    shown = sorted((row["graph"], row["process"]) for row in rows)
    assert shown == [("graph 3", "1"), ("graph 3", "2"), ("graph 8", "1")]
