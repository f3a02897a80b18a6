"""The first sentence of the page: with what the GPU was busy, and what is said where nothing of it was recorded."""

import pytest

from kanalyze.analyses.page.time_page import summarize
from kanalyze.analyses.ranges._instances import compare
from support.build import call, kernel, memcpy, memset, nvtx, report
from support.command import REPORTS, run

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
