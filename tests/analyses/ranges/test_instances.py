"""All instances of a range beside each other: a ledger each, the spread over them, and the odd ones out.

Each process is compared with itself, on the devices that it used.
"""

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.ranges._instances import INSTANCES, SPREAD, compare
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.renderers.page.time import instances_page
from kanalyze.window import Window
from support.build import call, kernel, nvtx, report
from support.command import REPORTS, run
from support.real_reports import real_report
from support.strategies import EVENTS, FEWER

NCCL = REPORTS / "nccl.sqlite"


def compared(events, window="step", **where):
    of = report(events).narrow(**where)
    return compare([of.narrow(window=one) for one in of.windows(window)])


def steps(*lengths):
    """Steps of 10 ns of kernel and the rest host, one after the other, launched before all of them."""
    events, at = [call("cudaLaunchKernel", 0, 1, correlation=1)], 10
    for length in lengths:
        events += [nvtx("step", at, at + length), kernel(at, at + 10, correlation=1)]
        at += length
    return events


def test_each_instance_has_its_own_ledger():
    found = compared([*steps(20, 30), kernel(500, 510, device=1)])  # a device that did nothing meanwhile is left out
    rows = found.instances.select("device", "instance", "start_ns", "dur_ns", "kernel_ns", "queued_ns", "odd", "cause")
    assert rows.rows() == [(0, 1, 10, 20, 10, 10, False, None), (0, 2, 30, 30, 10, 0, False, None)]
    assert found.scope.window == Window(10, 60, "step#*")
    alone = compared(steps(20))
    assert (alone.name, alone.instances.select("instance", "odd", "dur_ns").rows()) == ("step", [(1, False, 20)])


@pytest.mark.parametrize(
    ("lengths", "kernels", "total"),
    [
        ((20, 30, 70), (10.0, 10, 10, 0.0, 30, 0.25), (30.0, 20, 70, 120, 1.0)),
        ((20, 21, 20, 19, 90, 20), (10.0, 10, 10, 0.0, 50, 0.5), (20.0, 19, 21, 100, 1.0)),  # without the odd one
    ],
)
def test_the_spread_over_all(lengths, kernels, total):
    spread = compared(steps(*lengths)).spread
    columns = ("median_ns", "min_ns", "max_ns", "total_ns", "share")
    (row,) = spread.filter(bucket="kernel").select(*columns[:3], "stddev_ns", *columns[3:]).rows()
    assert row == kernels
    assert spread.filter(bucket="total").select(columns).rows() == [total]


@pytest.mark.parametrize(
    ("lengths", "odd", "said"),
    [
        ((20, 21, 20, 19, 90, 20), [5], " from 19 ns to 21 ns without the odd ones: #5 takes 4.50 × that (queued)."),
        ((60, 61, 60, 59, 12, 60), [5], "#5 takes 0.20 × that (queued)"),  # by what it lacks
        # of equally odd ones the first are named
        (
            [90 if number % 5 == 4 else 20 for number in range(59)],
            [*range(5, 60, 5)],
            "#5 takes 4.50 × that (queued), #10 takes 4.50 × that (queued), #15",
        ),
        *((few, [], "") for few in ((20, 90), (20, 20, 90), (20, 20, 20, 21, 22))),
    ],
)
def test_the_odd_ones_are_named_with_their_bucket(lengths, odd, said):
    found = compared(steps(*lengths))
    causes = [(number, "queued") for number in odd]
    assert found.instances.filter("odd").select("instance", "cause").rows() == causes
    assert found.answer.startswith(f"{len(lengths)} instances of step: ")
    assert said in found.answer


@pytest.mark.slow
@FEWER
@given(EVENTS)
def test_an_instance_equals_the_ledger_of_its_window(events):
    ranges = [nvtx("step", start, start + length) for start, length in ((0, 7), (7, 13), (15, 30))]
    of = report([*events, kernel(0, 1), *ranges])
    windows = of.windows("step")
    found = compare([of.narrow(window=window) for window in windows])
    assert INSTANCES.check(found.instances).height % len(windows) == 0
    SPREAD.check(found.spread)
    sums = found.instances.select(pl.sum_horizontal(f"{bucket}_ns" for bucket in BUCKETS)).to_series()
    assert sums.equals(found.instances.get_column("dur_ns"), check_names=False)
    for number, window in enumerate(windows, 1):
        buckets = ledger(of, window=window).group_by("device", "bucket").agg(pl.col("ns").sum())
        for device, bucket, ns in buckets.iter_rows():
            here = found.instances.filter((pl.col("instance") == number) & (pl.col("device") == device))
            assert here.get_column(f"{bucket}_ns").to_list() in ([], [ns])


# Several processes


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


TWO = [*rank(1, 0, [10, 10, 10, 10, 50]), *rank(2, 1, [100, 100, 100, 100, 100], at=3)]
PROFILED = [
    event
    for process, device in ((1, 0), (2, 1))
    for number in range(3)
    for event in rank(process, device, [10 * process], at=100 * number, name=f"ProfilerStep#{number}")
]


@pytest.mark.parametrize(
    ("events", "window", "totals", "answer"),
    [
        (TWO, "step", [(1, 0, 40), (2, 1, 500)], "Process 1: 5 instances of step: 10 ns in the median"),
        # two processes on one device are two sections
        ([*rank(1, 0, [10, 10]), *rank(2, 0, [100, 100], at=40)], "step", [(1, 0, 20), (2, 0, 200)], "Process 1: 2"),
        (PROFILED, "steps", [(1, 0, 30), (2, 1, 60)], "Process 1: 3 steps: 10 ns in the median"),
    ],
)
def test_each_process_is_compared_with_itself_on_its_own_device(events, window, totals, answer):
    found = compared(events, window)
    assert found.spread.filter(bucket="total").select("process_id", "device", "total_ns").rows() == totals
    assert found.answer.startswith(answer)
    assert " Process 2: " in found.answer


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
    second = of.window("step#2")
    assert (second.name, second.end_ns - second.start_ns) == ("step#2", length)
    assert compared(TWO, device=device).instances.get_column("process_id").unique().to_list() == [process]
    idle = report([nvtx("step", 0, 10), nvtx("step", 10, 20), kernel(0, 5, device=device, process=2)])
    assert len(idle.narrow(device=device).windows("step")) == 2  # none of a process that used it


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(2, 40), min_size=1, max_size=6), min_size=1, max_size=4), st.data())
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
    for where, ranks in (((), {(1866, 0), (1867, 1)}), (("--device", "1"), {(1867, 1)})):
        told = json.loads(run("summarize", NCCL, "--window", "overlapped#*", *where, "--format", "json").text)
        assert {(row["process_id"], row["device"]) for row in told["instances"]} == ranks
    third = kanalyze.ledger(real_report(NCCL), window="overlapped#3", device=1)
    assert third.get_column("ns").sum() == told["instances"][2]["dur_ns"]
