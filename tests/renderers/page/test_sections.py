"""The page's sections on what a report may or may not hold: which appear, and what stands in them."""

import pytest

from kanalyze.analyses.page.time_page import summarize
from kanalyze.renderers.page import sections
from kanalyze.renderers.page.time import page_of
from support.build import call, kernel, memcpy, nvtx, report
from support.command import ADD, REPORTS
from support.real_reports import real_summary

#: The sections of a page that not every report has.
OPTIONAL = ("NVTX RANGES", "CUDA GRAPHS", "UNIFIED MEMORY", "MEMORY")


def page_sections(name):
    path = ADD if name == "add" else REPORTS / f"{name}.sqlite"
    return {section.title: section for section in page_of(real_summary(path), 8).sections}


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
    found = page_sections(name)
    assert tuple(title for title in found if title in OPTIONAL) == titles
    assert {"WHY IT WAITED", "STREAMS"} <= set(found)


def test_a_page_without_gpu_work_has_no_sections():
    assert page_sections("empty") == {}


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
    rows = [row["culprit"] for row in table(page_sections("memory")["WHY IT WAITED"]) if row["bucket"] == "profiler"]
    assert rows == ["unnamed", "CUPTI Resource Management"]


# The others, on real reports


@pytest.mark.slow
def test_ranges_have_their_time_on_the_host_and_on_the_gpu():
    rows = {row["range"]: row for row in table(page_sections("nvtx")["NVTX RANGES"])}
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
    (row, *_) = table(page_sections(name)["CUDA GRAPHS"])
    assert row["launches"] == "30"
    assert row["graph"] == "graph 1"
    assert bool(row["idle in it"]) == idle


def test_unified_memory_is_one_row():
    (row,) = table(page_sections("thrash")["UNIFIED MEMORY"])
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
    (row,) = table(page_sections("memory")["UNIFIED MEMORY"])
    assert (row["CPU faults"], row["GPU faults"]) == ("", "")


def test_memory_has_a_row_per_kind():
    rows = table(page_sections("memory")["MEMORY"])
    assert [row["memory"] for row in rows] == ["Device, GPU 0", "Pinned, GPU 0", "Managed, GPU 0"]
    assert [row["peak"] for row in rows] == ["1.129 GB", "14.68 MB", "4.194 MB"]


@pytest.mark.slow
def test_streams_are_the_busiest_first_and_migrations_are_none():
    rows = table(page_sections("thrash")["STREAMS"])
    assert [row["stream"] for row in rows] == ["GPU 0 stream 13", "GPU 0 migrations"]
    shown = page_sections("two_gpus")["STREAMS"]
    assert len(shown.grid.rows) == 5
    assert shown.remark == "5 of 13; alone, or beside others' work"
    assert {row["stream"].split(" stream")[0] for row in table(shown)} == {"GPU 0", "GPU 1"}


def test_a_named_stream_says_its_name():
    names = [row["stream"] for row in table(page_sections("nvtx")["STREAMS"])]
    assert names[0].startswith("GPU 0 stream 13 (")
    assert names[1] == "GPU 0 stream 17"
