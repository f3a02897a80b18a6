"""Sentences of the first page that hold only of some reports, and with what the GPU was busy."""

from dataclasses import replace
from pathlib import Path

import pytest

from kanalyze.analyses.host._call_kinds import context_calls
from kanalyze.analyses.iterations._marks import marked_iterations
from kanalyze.analyses.iterations.phases import phases
from kanalyze.analyses.page.overview_page import overview
from kanalyze.analyses.page.time_page import summarize
from kanalyze.analyses.ranges._instances import compare
from kanalyze.renderers.formats import terminal
from kanalyze.renderers.page import Look
from kanalyze.report import Meta, Report
from support.build import CUDA_KINDS, Listed, call, kernel, memcpy, memset, nvtx, report
from support.command import REPORTS, run

MS = 1_000_000


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("ncclGroupEnd", None),
        ("ncclGroupEnd", "NCCL"),
        ("cub::DeviceReduce::Sum", None),
        ("cub::DeviceReduce::Sum", "CCCL"),
        ("cublasGemmEx", None),
        ("gemm", "libcublas"),
        ("cudnnConvolutionForward", None),
        ("cusparseSpMM", None),
    ],
)
def test_ranges_of_libraries_are_no_iterations(name, domain):
    events = [
        one
        for at in range(0, 60, 10)
        for one in (
            nvtx(name, at, at + 5, domain=domain),
            call("cudaLaunchKernel", at + 1, at + 2, correlation=at + 1),
            kernel(at + 3, at + 8, correlation=at + 1),
        )
    ]
    assert marked_iterations(report(events)).is_empty()
    own = [replace(one, name="train") if one.kind == "range" else one for one in events]
    assert domain is not None or marked_iterations(report(own)).height == 6


def launched(number, start, took=10_000):
    return [
        call("cudaLaunchKernel", start, start + took, correlation=number),
        kernel(start + took + 5_000, start + took + 100_000, correlation=number),
    ]


@pytest.mark.parametrize(("first", "made"), [(150 * MS, 1), (400_000, 0)])
def test_a_context_may_be_made_in_the_first_launch(first, made):
    events = launched(1, 0, first) + [one for at in range(2, 9) for one in launched(at, (200 + at) * MS)]
    assert context_calls(report(events)).height == made


def test_where_every_launch_is_long_none_makes_a_context():
    events = [one for at in range(1, 9) for one in launched(at, at * 100 * MS, 50 * MS)]
    assert context_calls(report(events)).is_empty()


def of_tool(events, **meta):
    return Report(Meta(Path("made by hand"), **meta), Listed(events, CUDA_KINDS, {}, {}))


def looped(end, *before):
    events = [
        *before,
        *(
            one
            for at in range(1, 40)
            for one in [nvtx("step", (15_540 + at) * MS, (15_541 + at) * MS - 9), *launched(at, (15_540 + at) * MS + 9)]
        ),
    ]
    return of_tool(events, tool="nsys", end_ns=end)


def test_a_slice_of_a_session_has_no_start_up():
    of = looped(33_090 * MS)
    assert 0 < phases(of).get_column("ns").sum() < 100 * MS
    assert "START-UP" not in terminal.render([overview(of)], Look(), None)
    assert overview(of).answer.endswith("The report shows 39.00 ms of the 33.09 s of the session.")


def test_a_program_that_begins_in_the_recording_has_a_start_up():
    of = looped(16_000 * MS, call("cuInit", 15_000 * MS, 15_001 * MS))
    assert "START-UP  15.54 s of 16.00 s recorded: before the first CUDA call 15.00 s" in terminal.render(
        [overview(of)], Look(), None
    )
    assert "of the session" not in overview(of).answer


@pytest.mark.parametrize(
    ("tool", "wsl", "said"),
    [
        ("nsys", False, "The CUDA trace was on"),
        ("nsys", True, "In WSL2, nsys records the GPU's work only if"),
        ("torch.profiler", False, "Record it again with them on"),
    ],
)
def test_launches_without_device_rows(tool, wsl, said):
    of = of_tool([call("cudaLaunchKernel", 0, 10, correlation=1)], tool=tool, wsl=wsl)
    assert said in overview(of).answer
    assert "that trace on" not in overview(of).answer


# With what the GPU was busy, and what is said where nothing of it was recorded.


LAUNCHES = [call("cudaLaunchKernel", 10 * number, 10 * number + 5, correlation=number) for number in range(1, 100)]


def answer(*events, **options):
    return summarize(report(events, **options)).answer


# The GPU's side was not recorded


@pytest.mark.parametrize("kinds", [("api",), ("api", "kernel", "memcpy", "memset")], ids=["not at all", "nothing came"])
def test_launches_without_any_operation(kinds):
    said = answer(*LAUNCHES, kinds=kinds)
    assert said.startswith("99 launches were made, but no device activity was recorded: ")
    assert "No GPU did" not in said
    assert "Record it again" in said


def test_one_launch():
    assert answer(LAUNCHES[0]).startswith("1 launch was made, but no device activity was recorded")


def test_a_trace_of_the_old_profiler_has_no_device_activity():
    text = " ".join(run("summarize", "--full", REPORTS / "torch" / "autograd_profiler.json.gz").text.split())
    assert "52 launches were made, but no device activity was recorded" in text
    assert "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]" in text
    assert text.count("cannot tell") == 0
    assert "there is no table ledger, exposure, hot_kernels, copies or launch_summary." in text


@pytest.mark.parametrize(
    "events",
    [
        [],
        [call("cudaMalloc", 0, 10), call("cudaDeviceSynchronize", 20, 30)],
        [call("cudaStreamBeginCapture", 0, 5), LAUNCHES[0], call("cudaStreamEndCapture", 50, 60)],
    ],
    ids=["no call", "no launch", "captured into a graph that is never launched"],
)
def test_where_nothing_was_launched_no_gpu_did_anything(events):
    assert answer(*events).startswith("No GPU did anything in this report")


def test_instances_do_not_say_more():
    of = report([*LAUNCHES, nvtx("step", 0, 50), nvtx("step", 50, 90)], kinds=("api", "kernel", "memcpy", "memset"))
    found = compare([of.narrow(window=window) for window in of.windows("step")])
    assert found.answer == "step: the report holds nothing that a GPU did."


# What it was busy with


def busy(*work):
    return answer(call("cudaLaunchKernel", 0, 1, correlation=1), *work).split(";")[0]


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ([memcpy(10, 980), kernel(980, 1000)], "The GPU was busy 99.0 % of 1.000 µs (97.0 % only copying)"),
        ([memset(0, 600), kernel(600, 1000)], "busy 100.0 % of 1.000 µs (60.0 % only setting memory)."),
        ([memcpy(0, 300), memset(300, 500), kernel(500, 1000)], "(30.0 % only copying, 20.0 % only setting memory)"),
        ([kernel(0, 500, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL"), kernel(500, 1000)], "(50.0 % only commun"),
    ],
)
def test_it_is_not_just_busy_where_no_kernel_runs(work, said):
    assert said in busy(*work)


@pytest.mark.parametrize(
    "work",
    [[kernel(0, 1000)], [memcpy(0, 100), kernel(100, 1000)], [memcpy(0, 1000), kernel(0, 1000, stream=8)]],
    ids=["kernels alone", "a tenth", "copies beside kernels"],
)
def test_kernels_need_no_word(work):
    assert "only" not in busy(*work)
