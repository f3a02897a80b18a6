"""Ranges of one name in several processes: each process is compared with itself, on the devices that it used."""

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.ranges._instances import compare
from kanalyze.renderers.page.time import instances_page
from support.build import call, kernel, nvtx, report
from support.command import REPORTS, run
from support.real_reports import real_report

NCCL = REPORTS / "nccl.sqlite"


def rank(process, device, lengths, *, at=0, name="step"):
    """Steps of these lengths one after the other, each with a kernel of half of it."""
    events = []
    for number, length in enumerate(lengths):
        ids = {"process": process, "correlation": 100 * process + number}
        events += [
            nvtx(name, at, at + length, process=process, thread=process),
            call("cudaLaunchKernel", at, at + 1, thread=process, **ids),
            kernel(at + 1, at + 1 + length // 2, device=device, **ids),
        ]
        at += length
    return events


def compared(events, window="step", **where):
    of = report(events).narrow(**where)
    return compare([of.narrow(window=one) for one in of.windows(window)])


TWO = [*rank(1, 0, [10, 10, 10, 10, 50]), *rank(2, 1, [100, 100, 100, 100, 100], at=3)]


def test_each_process_is_compared_with_itself_on_its_own_device():
    found = compared(TWO)
    assert found.instances.select("process_id", "device").unique().sort("process_id").rows() == [(1, 0), (2, 1)]
    totals = found.spread.filter(bucket="total").select("process_id", "device", "median_ns", "total_ns").rows()
    assert totals == [(1, 0, 10.0, 40), (2, 1, 100.0, 500)]  # without the odd one
    assert found.instances.filter("odd").select("process_id", "dur_ns").rows() == [(1, 50)]
    assert found.answer.startswith("Process 1: 5 instances of step: 10 ns in the median")
    assert "Process 2: 5 instances of step: 100 ns in the median" in found.answer


def test_the_page_says_whose_they_are():
    page = instances_page(compared(TWO), 8)
    assert [section.remark for section in page.sections if section.title == "WHERE THE TIME WENT"] == [
        "GPU 0, process 1, 4 usual instances",
        "GPU 1, process 2, 5 instances",
    ]
    alone = instances_page(compared(TWO, process=2), 8)
    assert alone.sections[0].remark == "GPU 1, 5 instances"
    assert alone.more.endswith("--window 'step#1' --process 2")


@pytest.mark.parametrize(("device", "process", "length"), [(0, 1, 10), (1, 2, 100)])
def test_a_device_means_the_ranges_of_the_processes_that_used_it(device, process, length):
    of = report(TWO).narrow(device=device)
    assert [window.process for window in of.windows("step#*")] == [process] * 5
    assert of.window("step#2").name == "step#2"
    assert of.window("step#2").end_ns - of.window("step#2").start_ns == length
    assert compared(TWO, device=device).instances.get_column("process_id").unique().to_list() == [process]


def test_a_device_that_nobody_used_leaves_all_ranges():
    idle = report([nvtx("step", 0, 10), nvtx("step", 10, 20), kernel(0, 5, device=1, process=2)])
    assert len(idle.narrow(device=1).windows("step")) == 2


def test_two_processes_on_one_device_are_two_sections():
    found = compared([*rank(1, 0, [10, 10]), *rank(2, 0, [100, 100], at=40)])
    assert found.spread.filter(bucket="total").select("process_id", "device", "total_ns").rows() == [
        (1, 0, 20),
        (2, 0, 200),
    ]


def test_steps_of_a_profiler_too():
    events = [
        event
        for process, device in ((1, 0), (2, 1))
        for number in range(3)
        for event in rank(process, device, [10 * process], at=100 * number, name=f"ProfilerStep#{number}")
    ]
    found = compared(events, "steps")
    assert found.spread.filter(bucket="total").select("process_id", "device", "total_ns").rows() == [
        (1, 0, 30),
        (2, 1, 60),
    ]
    assert found.answer.startswith("Process 1: 3 steps: 10 ns in the median")
    assert [window.name for window in report(events).narrow(device=1).windows("steps")] == [
        "step:0",
        "step:1",
        "step:2",
    ]


LENGTHS = st.lists(st.integers(2, 40), min_size=1, max_size=6)


@pytest.mark.slow
@given(st.lists(LENGTHS, min_size=1, max_size=4), st.data())
def test_every_process_has_the_figures_that_it_has_alone(ranks, data):
    devices = [data.draw(st.integers(0, 2)) for _ in ranks]
    events = [event for number, lengths in enumerate(ranks) for event in rank(number + 1, devices[number], lengths)]
    found = compared(events)
    assert found.spread.height > 0
    for number, lengths in enumerate(ranks):
        here = found.instances.filter(process_id=number + 1)
        assert here.get_column("device").unique().to_list() == [devices[number]]
        assert here.sort("start_ns", "instance").get_column("dur_ns").to_list() == lengths
        usual = here.filter(~pl.col("odd")).get_column("dur_ns")
        (total,) = found.spread.filter(pl.col("process_id") == number + 1, bucket="total").to_dicts()
        assert (total["total_ns"], total["median_ns"]) == (usual.sum(), usual.median())


def test_ranks_of_a_real_report():
    text = run("summarize", NCCL, "--window", "overlapped#*").text
    assert text.count("GPU 0, process 1866") == text.count("GPU 1, process 1867") == 1
    found = json.loads(run("summarize", NCCL, "--window", "overlapped#*", "--format", "json").text)
    assert {(row["process_id"], row["device"]) for row in found["instances"]} == {(1866, 0), (1867, 1)}
    one = json.loads(run("summarize", NCCL, "--window", "overlapped#*", "--device", "1", "--format", "json").text)
    assert {(row["process_id"], row["device"]) for row in one["instances"]} == {(1867, 1)}
    third = kanalyze.ledger(real_report(NCCL), window="overlapped#3", device=1)
    assert third.get_column("ns").sum() == one["instances"][2]["dur_ns"]
