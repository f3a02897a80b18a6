"""All instances of a range beside each other, and steps of a profiler: a ledger each, spread, warm-up and odd ones."""

from statistics import median

import polars as pl
import pytest
from hypothesis import example, given, strategies as st

from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.ranges.instances import STEPS_TABLE, compare, far_from_others, in_words, steps
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.renderers.page.time import instances_page
from kanalyze.window import Window
from support.build import call, host, kernel, launched, nvtx, report
from support.slow_model import SlowModel
from support.steps import in_turn
from support.strategies import EVENTS, few_given


def compared(events, window="step", **where):
    of = report(events).narrow(**where)
    return compare([of.narrow(window=one) for one in of.windows(window)])


def one_after_the_other(*lengths):
    """Steps of 10 ns of kernel and the rest host, one after the other, launched before all of them."""
    ranges = in_turn(lengths, lambda at, *_: [kernel(at, at + 10, correlation=1)], start=10)
    return [call("cudaLaunchKernel", 0, 1, correlation=1), *ranges]


def test_each_instance_has_its_own_ledger():
    # a device that did nothing meanwhile is left out
    found = compared([*one_after_the_other(20, 30), kernel(500, 510, device=1)])
    rows = found.instances.select("device", "instance", "start_ns", "dur_ns", "kernel_ns", "queued_ns", "odd", "cause")
    assert rows.rows() == [(0, 1, 10, 20, 10, 10, False, None), (0, 2, 30, 30, 10, 0, False, None)]
    assert found.scope.window == Window(10, 60, "step#*")
    alone = compared(one_after_the_other(20))
    assert (alone.name, alone.instances.select("instance", "odd", "dur_ns").rows()) == ("step", [(1, False, 20)])


@pytest.mark.parametrize(
    ("lengths", "kernels", "total"),
    [
        ((20, 30, 70), (10.0, 10, 10, 0.0, 30, 0.25), (30.0, 20, 70, 120, 1.0)),
        ((20, 21, 20, 19, 90, 20), (10.0, 10, 10, 0.0, 50, 0.5), (20.0, 19, 21, 100, 1.0)),  # without the odd one
    ],
)
def test_the_spread_over_all(lengths, kernels, total):
    spread = compared(one_after_the_other(*lengths)).spread
    columns = ("median_ns", "min_ns", "max_ns", "total_ns", "share")
    (row,) = spread.filter(bucket="kernel").select(*columns[:3], "stddev_ns", *columns[3:]).rows()
    assert row == kernels
    assert spread.filter(bucket="total").select(columns).rows() == [total]


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


@pytest.mark.slow
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
    shown = [section.remark for section in page.sections if section.title == "WHERE THE TIME WENT"]
    assert shown == ["GPU 0, process 1, 4 usual instances", "GPU 1, process 2, 5 instances"]
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


def step(number, start, end, **keys):
    return nvtx(f"ProfilerStep#{number}", start, end, **keys)


def ran(number, at, runs, length):
    """A launch of 1 ns, and its kernel."""
    return [call("cudaLaunchKernel", at, at + 1, correlation=number), kernel(runs, runs + length, correlation=number)]


TWO_PROCESSES = [
    *(step(1, 0, 50), step(1, 10, 60, process=2)),
    *ran(1, 5, 10, 10),
    *launched(20, 21, kernel(30, 40, process=2, device=1, correlation=1), process=2),
]


def rows(of, *columns, **where):
    return steps(of, **where).select(columns).rows()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("events", "columns", "where", "expected"),
    [
        # each has its own ledger
        (
            [step(3, 0, 100), *ran(1, 10, 11, 20), step(4, 100, 150), *ran(2, 120, 121, 10)],
            ("step", "device", "start_ns", "dur_ns", "kernel_ns", "launch_ns", "host_ns", "busy_share", "idle_in"),
            {},
            [(3, 0, 0, 100, 20, 1, 79, 0.2, "host"), (4, 0, 100, 50, 10, 1, 39, 0.2, "host")],
        ),
        # work that runs on after its step is in the ledger of the next
        (
            [step(1, 0, 50), *ran(1, 10, 40, 60), *ran(2, 12, 90, 20), step(2, 50, 130)],
            ("step", "kernel_ns", "operations", "gpu_start_ns", "gpu_end_ns", "gpu_busy_ns", "late_ns"),
            {},
            [(1, 10, 2, 40, 110, 70, 60), (2, 60, 0, None, None, None, None)],
        ),
        # steps of several processes and devices
        (TWO_PROCESSES, ("process_id", "device", "kernel_ns"), {}, [(1, 0, 10), (2, 1, 10)]),
        (TWO_PROCESSES, ("process_id",), {"device": 1}, [(2,)]),
        (TWO_PROCESSES, ("process_id",), {"device": 0, "process": 2}, []),
        # those that overlap the window count whole
        (
            [*(step(number, 100 * number, 100 * number + 100) for number in range(4)), *ran(1, 110, 111, 5)],
            ("step", "dur_ns"),
            {"window": Window(150, 250)},
            [(1, 100), (2, 100)],
        ),
        # before torch 1.11 a step is an operator
        ([host("op", "ProfilerStep#5", 0, 50), *ran(1, 5, 10, 10)], ("step", "kernel_ns"), {}, [(5, 10)]),
    ],
)
def test_what_a_step_has(events, columns, where, expected):
    assert rows(report(events), *columns, **where) == expected


def test_a_step_without_a_gpu_has_only_its_length_and_of_no_steps_nothing_is_told():
    of = report([step(1, 0, 50), host("op", "aten::mm", 0, 10)], kinds=["range"])
    columns = ("dur_ns", "operations", "device", "busy_ns", "host_ns")
    assert rows(of, *columns) == [(50, 0, None, None, None)]
    assert in_words(STEPS_TABLE.empty()) == ""


def training(*lengths, first=(), at=0):
    """Steps of these lengths, each with a launch and a kernel at its end; `first` is what else the first one does."""
    events = list(first)
    for number, length in enumerate(lengths):
        events += [step(number, at, at + length), *ran(number + 1, at + length - 20, at + length - 19, 15)]
        at += length
    return report(events)


@given(st.lists(st.tuples(st.sampled_from([90, 99, 100, 100, 101, 110, 130]), st.booleans()), min_size=1, max_size=9))
@example([(100, True)] * 7 + [(110, True), (111, True)])
@example([(100, True)] * 3 + [(200, True)])
@example([(100, True)] * 2 + [(200, True), (200, False)])
def test_what_is_far_from_others_is_so_by_their_median_and_spread(rows):
    others = [value for value, usual in rows if usual]
    middle = median(others) if others else 0
    spread = median(abs(value - middle) for value in others) if others else 0
    away = [abs(value - middle) for value, _ in rows]
    far = [len(others) >= 4 and one > 3 * 1.4826 * spread and one > 0.1 * middle for one in away]
    table = pl.DataFrame(rows, ["value", "usual"], orient="row")
    told = table.select(far_from_others(pl.col("value"), pl.col("usual"), 0.1).fill_null(value=False)).to_series()
    assert told.to_list() == far


def test_an_odd_step_is_named_with_its_bucket():
    of = training(100, 102, 100, 500, 98, 100)
    assert rows(of, "step", "odd", "cause", "warm_up") == [
        *((number, number == 3, "host" if number == 3 else None, False) for number in range(6))
    ]
    assert in_words(steps(of)) == (
        "6 steps: 100 ns in the median, from 98 ns to 102 ns without the odd ones: step:3 takes 5.00 × that (host)."
    )


def test_a_first_step_that_loads_warms_up():
    of = training(500, 100, 100, 102, 98, first=[call("cuModuleLoadData", 10, 400)])
    found = steps(of).select("step", "warm_up", "evidence", "odd")
    assert found.row(0) == (0, True, "400 ns longer than later steps, of which loading 390 ns", False)
    assert found.slice(1).select("warm_up", "evidence", "odd").unique().rows() == [(False, None, False)]
    assert in_words(steps(of)) == (
        "4 steps: 100 ns in the median, from 98 ns to 102 ns. Left out as warm-up: step:0 (400 ns longer than later "
        "steps, of which loading 390 ns)."
    )


def test_a_first_step_that_compiles_warms_up():
    compiling = host("op", "_compile.compile_inner (dynamo_timed)", 10, 380)
    expected = [(True, "400 ns longer than later steps, of which compiling 370 ns"), (False, None)]
    assert rows(training(500, 100, first=[compiling]), "warm_up", "evidence") == expected


@pytest.mark.parametrize(
    ("lengths", "first"),
    [
        ((500, 100, 100, 100), ()),  # longer, for no reason that is paid once
        ((105, 100, 100, 100), (call("cudaMalloc", 10, 60),)),  # not much longer
        ((100, 500, 100, 100), (call("cuModuleLoadData", 110, 500),)),  # not the first
    ],
)
def test_others_do_not_warm_up(lengths, first):
    assert not steps(training(*lengths, first=first)).get_column("warm_up").any()


def test_work_that_runs_on_is_told():
    events = [step(1, 0, 100), step(2, 100, 200), *ran(1, 10, 20, 300), *ran(2, 110, 320, 300)]
    assert in_words(steps(report(events))).endswith(
        "Their work on the GPU goes on for 260 ns after they end; a step keeps it busy for 300 ns."
    )


def test_steps_compare_as_instances_do():
    of = training(500, 100, 100, 102, 98, first=[call("cuModuleLoadData", 10, 400)])
    found = compare([of.narrow(window=window) for window in of.windows("steps")])
    assert (found.name, found.scope.window) == ("steps", Window(0, 900, "steps"))
    assert found.answer == in_words(steps(of))
    columns = ("window", "dur_ns", "warm_up", "odd", *(f"{bucket}_ns" for bucket in BUCKETS))
    own = steps(of).select(pl.format("step:{}", "step").alias("window"), *columns[1:])
    assert found.instances.select(columns).equals(own.select(columns))
    total = found.spread.filter(pl.col("bucket") == "total")
    assert total.select("median_ns", "total_ns").row(0) == (100.0, 400)  # without the step that warms up


@few_given(EVENTS, st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_a_step_equals_the_ledger_of_its_window_and_what_was_launched_in_it(events, lengths):
    starts = [sum(lengths[:place]) for place in range(len(lengths))]
    marks = [
        step(number, start, start + length) for number, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]
    of = report([*marks, *events])
    for row in steps(of).filter(pl.col("device").is_not_null()).iter_rows(named=True):
        own = ledger(of, window=f"step:{row['step']}").filter(pl.col("device") == row["device"])
        sums = dict(own.group_by(pl.col("bucket").cast(pl.String)).agg(pl.col("ns").sum()).rows())
        assert {name: row[f"{name}_ns"] for name in BUCKETS} == {name: sums.get(name, 0) for name in BUCKETS}
        work = of_step(events, row)
        covered = {at for event in work for at in range(event.start, event.end)}
        assert row["operations"] == len(work)
        assert (row["gpu_busy_ns"] or 0) == len(covered)
        assert (row["late_ns"] or 0) == sum(at >= row["start_ns"] + row["dur_ns"] for at in covered)


def of_step(events, row):
    """The operations on the step's device that its process launched in it."""
    model, until = SlowModel(events), row["start_ns"] + row["dur_ns"]
    own = [
        one for one in model.operations if (one.event.device, one.event.process) == (row["device"], row["process_id"])
    ]
    launches = [(one.event, model.launch_of(one)) for one in own]
    return [event for event, launch in launches if launch is not None and row["start_ns"] <= launch.start < until]
