"""The page of time: which sections appear and what stands in them, whose rows are, and of a trace its own words."""

from dataclasses import replace

import polars as pl
import pytest

from kanalyze.analyses.launches.hot_kernels import TABLE, hot_kernels
from kanalyze.analyses.page.time_page import summarize
from kanalyze.analyses.ranges._instances import compare
from kanalyze.renderers.page import time as sections
from kanalyze.renderers.page.time import instances_page, page_of
from support.build import call, graph, host, kernel, memcpy, nvtx, report
from support.command import ADD, REPORTS, run
from support.real_reports import real_summary

#: The sections of a page that not every report has.
OPTIONAL = ("NVTX RANGES", "CUDA GRAPHS", "UNIFIED MEMORY", "MEMORY")


def real_sections(name):
    path = ADD if name == "add" else REPORTS / f"{name}.sqlite"
    return {section.title: section for section in page_of(real_summary(path), 8).sections}


def made_sections(of, top=8):
    return {section.title: section for section in page_of(summarize(of), top).sections}


def table(section):
    """The rows of a section as objects."""
    heads = [head.title for head in section.grid.heads]
    return [dict(zip(heads, row, strict=True)) for row in section.grid.rows]


@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("add", ()),
        ("graph_node", ("NVTX RANGES", "CUDA GRAPHS")),
        ("graph_graph", ("NVTX RANGES", "CUDA GRAPHS")),
        ("memory", ("NVTX RANGES", "UNIFIED MEMORY", "MEMORY")),
        ("thrash", ("NVTX RANGES", "UNIFIED MEMORY")),
        ("two_gpus", ("NVTX RANGES",)),
        ("nvtx", ("NVTX RANGES", "CUDA GRAPHS")),
    ],
)
@pytest.mark.one_in(4)
def test_what_a_report_holds_has_a_section_and_nothing_else_has(name, titles):
    found = real_sections(name)
    assert tuple(title for title in found if title in OPTIONAL) == titles
    assert {"WHY IT WAITED", "STREAMS"} <= set(found)


def test_a_page_without_gpu_work_has_no_sections():
    assert real_sections("empty") == {}


# Culprits

WAITING = [
    call("cudaLaunchKernel", 0, 10, correlation=1),
    kernel(10, 20, correlation=1, name="gemm"),
    nvtx("prepare", 20, 60),
    call("cudaLaunchKernel_v11060", 60, 70, correlation=2),
    memcpy(70, 80, correlation=2, direction="Host-to-Device"),
    call("cudaDeviceSynchronize", 80, 100),
    call("cudaLaunchKernel", 120, 130, correlation=3),
    kernel(130, 140, correlation=3, name="gemm"),
]


def waiting(top=8):
    return sections.culprits(summarize(report(WAITING)).tables, top)


def test_culprits_are_named_as_the_page_names_them():
    rows = [(row["time"], row["bucket"], row["in range"], row["culprit"]) for row in table(waiting())]
    assert rows == [
        ("40 ns", "host", "prepare", "in prepare"),
        ("20 ns", "launch", "", "gemm"),
        ("20 ns", "sync", "", "cudaDeviceSynchronize"),
        ("20 ns", "host", "", "between cudaDeviceSynchronize and cudaLaunchKernel"),
        ("10 ns", "launch", "", "memcpy Host-to-Device"),
    ]


@pytest.mark.slow
def test_few_culprits_are_shown_and_how_many_there_are():
    assert len(waiting(3).grid.rows) == 3
    assert waiting(3).remark == "3 of 5; idle time by what held it up"
    assert waiting().remark == "idle time by what held it up"


def test_the_same_culprit_on_several_gpus_is_one_row_and_a_part_of_all_windows():
    events = [
        *(call("cudaLaunchKernel", 0, 10, correlation=1), kernel(10, 20, correlation=1, name="gemm")),
        *(call("cudaLaunchKernel", 20, 30, correlation=2), kernel(30, 40, correlation=2, name="gemm", device=1)),
        *(call("cudaLaunchKernel", 40, 50, correlation=3), kernel(50, 60, correlation=3, name="gemm")),
    ]
    tables = summarize(report(events)).tables
    assert tables["culprits"].filter(bucket="launch").height == 2
    (launch,) = (row for row in table(sections.culprits(tables, 8)) if row["bucket"] == "launch")
    assert (launch["culprit"], launch["time"], launch["share"]) == ("gemm", "30 ns", "25.0 %")


def test_what_the_profiler_does_not_name_is_unnamed():
    rows = [row["culprit"] for row in table(real_sections("memory")["WHY IT WAITED"]) if row["bucket"] == "profiler"]
    assert rows == ["unnamed", "CUPTI Resource Management"]


# The others, on real reports


@pytest.mark.slow
def test_ranges_have_their_time_on_the_host_and_on_the_gpu():
    rows = {row["range"]: row for row in table(real_sections("nvtx")["NVTX RANGES"])}
    assert rows["step"] == {
        "host time": "1.238 ms",
        "count": "20",
        "median": "44.81 µs",
        "on GPU": "724.2 µs",
        "GPU busy": "572.0 µs",
        "any thread": "572.0 µs",
        "GPU ops": "68",
        "range": "step",
    }
    assert rows["cross-thread"]["on GPU"] == ""
    assert rows["cross-thread"]["any thread"] == "7.424 µs"


def test_ranges_without_gpu_work_have_a_section_too():
    found = summarize(report([nvtx("load", 0, 10)], kinds=["range", "api"]))
    tables = {name: frame for name, frame in found.tables.items() if name != "range_gpu"}
    assert table(sections.ranges(tables, 8)) == [
        dict(
            zip(
                ("host time", "count", "median", "on GPU", "GPU busy", "GPU ops", "range"),
                ("10 ns", "1", "10 ns", "", "", "", "load"),
                strict=True,
            )
        )
    ]


@pytest.mark.parametrize(("name", "idle"), [("graph_node", True), ("graph_graph", False)])
def test_graphs_tell_what_is_known_of_their_inside(name, idle):
    (row, *_) = table(real_sections(name)["CUDA GRAPHS"])
    assert row["launches"] == "30"
    assert row["graph"] == "graph 1"
    assert bool(row["idle in it"]) == idle


def test_unified_memory_is_one_row():
    (row,) = table(real_sections("thrash")["UNIFIED MEMORY"])
    assert row == {
        "to GPU": "167.8 MB",
        "to host": "159.4 MB",
        "again": "310.4 MB",
        "copies": "3,698",
        "time": "14.31 ms",
        "CPU faults": "241",
        "GPU faults": "738",
    }


def test_faults_that_were_not_recorded_are_not_none():
    (row,) = table(real_sections("memory")["UNIFIED MEMORY"])
    assert (row["CPU faults"], row["GPU faults"]) == ("", "")


def test_memory_has_a_row_per_kind():
    rows = table(real_sections("memory")["MEMORY"])
    assert [row["memory"] for row in rows] == ["Device, GPU 0", "Pinned, GPU 0", "Managed, GPU 0"]
    assert [row["peak"] for row in rows] == ["1.129 GB", "14.68 MB", "4.194 MB"]


@pytest.mark.slow
def test_streams_are_the_busiest_first_and_migrations_are_none():
    rows = table(real_sections("thrash")["STREAMS"])
    assert [row["stream"] for row in rows] == ["GPU 0 stream 13", "GPU 0 migrations"]
    shown = real_sections("two_gpus")["STREAMS"]
    assert len(shown.grid.rows) == 5
    assert shown.remark == "5 of 13; alone, or beside others' work"
    assert {row["stream"].split(" stream")[0] for row in table(shown)} == {"GPU 0", "GPU 1"}


def test_a_named_stream_says_its_name():
    names = [row["stream"] for row in table(real_sections("nvtx")["STREAMS"])]
    assert names[0].startswith("GPU 0 stream 13 (")
    assert names[1] == "GPU 0 stream 17"


# A trace of torch.profiler: times since its first event, its own words, and its steps

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


@pytest.mark.slow
def test_times_are_told_since_the_first_event():
    page = page_of(summarize(trace(EVENTS)), 8)
    assert page.ledgers[0].heading == "GPU 0, +0.503 ms to +0.507 ms"
    (finding,) = (point.finding for point in page.points if point.finding.rule == "host-computes")
    assert "from +503.1 µs on" in finding.text
    assert page_of(summarize(trace(EVENTS, "nsys")), 8).ledgers[0].heading.startswith("GPU 0, 4299665.000")


@pytest.mark.slow
def test_ranges_of_a_trace_are_not_nvtx():
    assert "RANGES" in made_sections(trace(EVENTS))
    assert "NVTX RANGES" not in made_sections(trace(EVENTS))
    assert "NVTX RANGES" in made_sections(trace(EVENTS, "nsys"))


def test_steps_are_one_row_among_the_ranges():
    rows = table(made_sections(trace(EVENTS))["RANGES"])
    assert [(row["range"], row["count"], row["host time"], row["median"]) for row in rows] == [
        ("ProfilerStep*", "5", "5.000 µs", ""),
        ("forward", "1", "300 ns", "300 ns"),
    ]


def test_each_step_has_a_row():
    section = made_sections(trace(EVENTS))["STEPS"]
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
    section = made_sections(trace(events), top=3)["STEPS"]
    assert [(row["step"], row[""]) for row in table(section)] == [("1", ""), ("4", "odd (host)"), ("6", "")]
    assert section.remark == "3 of 7; furthest from the median"


def test_steps_of_several_gpus_say_which():
    events = [
        *step(1, 0, 100),
        call("cudaLaunchKernel", 30, 31, correlation=9),
        kernel(60, 70, device=1, correlation=9),
    ]
    rows = table(sections.steps(summarize(trace(events)).tables, 8))
    assert [row["step"] for row in rows] == ["GPU 0 1", "GPU 1 1"]


@pytest.mark.slow
def test_where_the_host_was_is_told_without_steps():
    page = page_of(summarize(trace(EVENTS)), 8)
    (share,) = (share for share in page.ledgers[0].shares if share.bucket == "host")
    assert share.detail.startswith("between cudaLaunchKernel and cudaLaunchKernel")
    assert "ProfilerStep#" not in share.detail
    rows = table(made_sections(trace(EVENTS))["WHY IT WAITED"])
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


# Rows of one name say whose they are; graphs have one number


def launched(number, *, process=1, thread=1, api="cudaLaunchKernel", **of_kernel):
    at, keys = 100 * number, {"process": process, "correlation": number}
    of_kernel = {"name": "gemm", "context": process, **of_kernel}
    return [call(api, at, at + 5, thread=thread, **keys), kernel(at + 10, at + 60, **of_kernel, **keys)]


def section(events, title):
    found = made_sections(report(events))[title]
    return [head.title for head in found.grid.heads], table(found)


CONTEXTS = [
    *(kernel(0, 50, context=1, stream=7, correlation=1), kernel(60, 99, context=2, stream=7, correlation=2)),
    *(call("cudaLaunchKernel", 0, 1, correlation=1), call("cudaLaunchKernel", 50, 51, correlation=2)),
]


@pytest.mark.parametrize(
    ("title", "events", "told"),
    [
        ("LAUNCHES", [*launched(1), *launched(2, process=2)], {"process": ["1", "2"]}),
        ("LAUNCHES", [*launched(1), *launched(2, thread=5)], {"thread": ["1", "5"]}),
        ("LAUNCHES", [*launched(1), *launched(2, device=1)], {"GPU": ["0", "1"]}),
        (
            "LAUNCHES",
            [*launched(1), *launched(2, name="relu", process=2), *launched(3, api="cuLaunchKernelEx")],
            {},
        ),
        ("STREAMS", [*launched(1), *launched(2, process=2)], {"process": ["1", "2"]}),
        ("STREAMS", CONTEXTS, {"context": ["1", "2"]}),
        ("STREAMS", [*launched(1), *launched(2, process=2, device=1)], {}),
    ],
)
def test_rows_of_one_name_say_whose_they_are(title, events, told):
    heads, rows = section(events, title)
    assert {"process", "thread", "context", "GPU"} & {*heads} == {*told}
    assert {head: sorted(row[head] for row in rows) for head in told} == told


def profiled(process, device):
    """Two steps of a profiler, each with a kernel."""
    steps = [nvtx(f"ProfilerStep#{n}", 100 * n, 100 * n + 90, process=process, thread=process) for n in (1, 2)]
    work = [launched(n, process=process, thread=process, device=device) for n in (1, 2)]
    return [*steps, *(event for events in work for event in events)]


@pytest.mark.slow
def test_steps_of_two_ranks_on_one_gpu_say_whose():
    heads, rows = section([*profiled(1, 0), *profiled(2, 0)], "STEPS")
    assert sorted((row["step"], row["process"]) for row in rows) == [("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")]
    heads, rows = section([*profiled(1, 0), *profiled(2, 1)], "STEPS")
    assert "process" not in heads
    assert sorted(row["step"] for row in rows) == ["GPU 0 1", "GPU 0 2", "GPU 1 1", "GPU 1 2"]


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
    return [
        call("cudaGraphLaunch", at, at + 5, **keys),
        graph(at + 10, at + 60, name=f"[CUDA graph {graph_id}]", side=side, **keys),
    ]


def test_graphs_of_two_processes_are_two_and_numbered_alike_in_both_sections():
    events = [
        *whole_graph(1, process=2, exec_id=4, graph_id=3),
        *whole_graph(2, process=1, exec_id=4, graph_id=3),
        *whole_graph(3, process=1, exec_id=9, graph_id=8),
    ]
    names = hot_kernels(report(events)).get_column("name").to_list()
    assert sorted(names) == ["[CUDA graph 3] of process 1", "[CUDA graph 3] of process 2", "[CUDA graph 8]"]
    _, rows = section(events, "CUDA GRAPHS")
    assert sorted((row["graph"], row["process"]) for row in rows) == [
        ("graph 3", "1"),
        ("graph 3", "2"),
        ("graph 8", "1"),
    ]


@pytest.mark.one_in(16)
@pytest.mark.parametrize("columns", [60, 80, 130])
@pytest.mark.parametrize("name", ["two_processes", "visible_devices", "nccl"])
def test_no_row_of_these_sections_stands_twice(name, columns):
    text = run("summarize", REPORTS / f"{name}.sqlite", columns=columns).text
    assert max(map(len, text.partition("\nMore: ")[0].splitlines())) <= columns
    page = page_of(real_summary(REPORTS / f"{name}.sqlite"), 99)
    for title in ("LAUNCHES", "STREAMS", "CUDA GRAPHS", "KERNELS"):
        for one in page.sections:
            if one.title != title:
                continue
            kept = [
                i for i, head in enumerate(one.grid.heads) if head.left or head.title in ("process", "thread", "GPU")
            ]
            labels = [tuple(row[i] for i in kept) for row in one.grid.rows]
            assert labels
            assert len(set(labels)) == len(labels), title


# The line below the kernels: what they do by their names, with the share of those that do not say


def line(**ns):
    """The line for so many nanoseconds of each family; `graph` stands for whole graphs, which have none."""
    rows = [
        {
            **dict.fromkeys(TABLE.schema),
            "name": family,
            "exclusive_ns": time,
            "window_share": 0.0,
            "busy_share": 0.0,
            "count": 1,
            "avg_ns": 1.0,
            "shapes": 0,
            "launch_bound": False,
            "family": None if family == "graph" else family,
        }
        for family, time in ns.items()
    ]
    return sections.kernels({"hot_kernels": TABLE.check(pl.DataFrame(rows, schema=TABLE.schema))}, 8).foot


@pytest.mark.parametrize(
    ("ns", "told"),
    [
        ({"gemm": 3, "other": 1}, "families: gemm 75.0 %, other 25.0 %"),
        ({"gemm": 1, "graph": 9}, "families: gemm 100.0 %, other 0.0 %"),
        ({"other": 5}, "families: other 100.0 %"),
        ({"graph": 5}, ""),
        ({"gemm": 0}, ""),
        ({"sort": 1, "scan": 2, "fill": 1}, "families: scan 50.0 %, sort 25.0 %, fill 25.0 %, other 0.0 %"),
        (
            {"communication": 60, "normalization": 20, "elementwise": 10, "optimizer": 6, "other": 4},
            "families: communication 60.0 %, 3 more 36.0 %, other 4.0 %",
        ),
    ],
)
def test_the_heaviest_come_first_and_other_always_last(ns, told):
    assert line(**ns) == told


def test_the_line_fits_whatever_there_is():
    assert len(line(**{f"normalization{n}": 1000 + n for n in range(20)}, other=1)) <= 78
