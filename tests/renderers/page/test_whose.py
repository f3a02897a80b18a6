"""Rows of one name say whose they are, where they could not be told apart otherwise; graphs have one number."""

import pytest

from kanalyze.analyses.launches.hot_kernels import hot_kernels
from kanalyze.analyses.page.time_page import summarize
from kanalyze.renderers.page.time import page_of
from support.build import call, graph, host, kernel, nvtx, report
from support.command import REPORTS, run
from support.real_reports import real_summary


def launched(number, *, process=1, thread=1, api="cudaLaunchKernel", **of_kernel):
    at, keys = 100 * number, {"process": process, "correlation": number}
    of_kernel = {"name": "gemm", "context": process, **of_kernel}
    return [call(api, at, at + 5, thread=thread, **keys), kernel(at + 10, at + 60, **of_kernel, **keys)]


def section(events, title):
    (found,) = [one for one in page_of(summarize(report(events)), 8).sections if one.title == title]
    heads = [head.title for head in found.grid.heads]
    return heads, [dict(zip(heads, row, strict=True)) for row in found.grid.rows]


def test_launches_of_two_processes_say_which():
    heads, rows = section([*launched(1), *launched(2, process=2)], "LAUNCHES")
    assert "thread" not in heads
    assert sorted((row["kernel"], row["process"]) for row in rows) == [("gemm", "1"), ("gemm", "2")]


def test_launches_of_two_threads_say_which():
    heads, rows = section([*launched(1), *launched(2, thread=5)], "LAUNCHES")
    assert "process" not in heads
    assert sorted(row["thread"] for row in rows) == ["1", "5"]


def test_launches_on_two_gpus_say_which():
    heads, rows = section([*launched(1), *launched(2, device=1)], "LAUNCHES")
    assert "process" not in heads
    assert sorted(row["GPU"] for row in rows) == ["0", "1"]


def test_launches_that_differ_otherwise_need_no_word():
    events = [*launched(1), *launched(2, name="relu", process=2), *launched(3, api="cuLaunchKernelEx")]
    heads, _ = section(events, "LAUNCHES")
    assert {"process", "thread", "GPU"}.isdisjoint(heads)


def test_streams_of_two_processes_say_which():
    heads, rows = section([*launched(1), *launched(2, process=2)], "STREAMS")
    assert "context" not in heads
    assert sorted((row["stream"], row["process"]) for row in rows) == [("GPU 0 stream 7", "1"), ("GPU 0 stream 7", "2")]


def test_streams_of_two_contexts_say_which():
    events = [
        kernel(0, 50, context=1, stream=7, correlation=1),
        kernel(60, 99, context=2, stream=7, correlation=2),
        call("cudaLaunchKernel", 0, 1, correlation=1),
        call("cudaLaunchKernel", 50, 51, correlation=2),
    ]
    _, rows = section(events, "STREAMS")
    assert sorted(row["context"] for row in rows) == ["1", "2"]


def test_streams_on_two_gpus_need_no_word():
    heads, _ = section([*launched(1), *launched(2, process=2, device=1)], "STREAMS")
    assert {"process", "context"}.isdisjoint(heads)


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
