"""Waits for PyTorch's DataLoader: what raises them, which of both kinds, and that nothing else says the same."""

from dataclasses import replace
from itertools import chain

import polars as pl
import pytest

from kanalyze.analyses.findings.findings import findings, ranked
from kanalyze.analyses.findings.rules.host_computes import data_loading
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.window import Window
from support.build import call, host, kernel, nvtx, report

LAUNCH = "cudaLaunchKernel_v7000"
ALONE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
MS = 1_000_000


def step(number, *, name=ALONE, get=3, mark=nvtx, thread=1):
    """From its start on, `get` ms in the loader; 1 ms of other code, a launch of 1 ms, and a kernel of 4 ms."""
    start = 10 * MS * number
    launched = start + int((get + 1) * MS)
    return [
        mark(name, start, launched - MS, thread=thread),
        call(LAUNCH, launched, launched + MS, correlation=number),
        kernel(launched + MS, launched + 5 * MS, correlation=number),
    ]


def steps(**how):
    return list(chain.from_iterable(step(number, **how) for number in range(4)))


def op(name, start, end, **keys):
    return host("op", name, start, end, **keys)


def python(name, start, end, **keys):
    return host("python", name, start, end, **keys)


def per_step(events):
    """The report of two whole steps."""
    return report(events).narrow(window=Window(10 * MS, 30 * MS, count=2, each="step"))


def test_a_loader_without_workers():
    (one,) = data_loading(per_step(steps()))
    assert (one.rule, one.device, one.at_stake_ns, one.table, one.at_most) == (
        "data-loading",
        0,
        6 * MS,
        "culprits",
        False,
    )
    assert one.text == (
        "GPU 0 idles for 3.000 ms a step while the loop that launches its work reads batches itself: its DataLoader "
        "has no workers (1 batch a step, 3.000 ms in the median, the longest 3.000 ms)."
    )
    assert one.action == "DataLoader(…, num_workers=N, persistent_workers=True, pin_memory=True)"


def test_what_takes_the_time_in_the_loader_is_named():
    events = [*steps(), *(op("aten::stack", at * 10 * MS + MS, at * 10 * MS + 3 * MS) for at in range(4))]
    (one,) = data_loading(per_step(events))
    assert one.text.endswith("3.000 ms in the median, the longest 3.000 ms); in it most takes aten::stack 2.000 ms.")


def test_workers_that_do_not_keep_up():
    (one,) = data_loading(per_step(steps(name=WORKERS)))
    assert (one.at_stake_ns, one.headline) == (6 * MS, "The loop waits for DataLoader's workers")
    assert "waits in DataLoader for a batch of the loader's workers (1 batch a step," in one.text


@pytest.mark.parametrize(
    ("name", "mark", "headline"),
    [
        ("enumerate(DataLoader)#_StatefulSingleProcessDataLoaderIter.__next__", nvtx, "reads its batches itself"),
        (f"{WORKERS}, op_id = 17", nvtx, "DataLoader's workers"),
        (WORKERS, op, "DataLoader's workers"),
        ("torch/utils/data/dataloader.py(720): __next__", python, "reads its batches itself"),
        ("/opt/lib/python3.11/site-packages/torch/utils/data/dataloader.py(720): __next__", python, "itself"),
    ],
)
def test_it_is_told_by_ranges_operators_or_python_functions(name, mark, headline):
    (one,) = data_loading(report(steps(name=name, mark=mark)))
    assert headline in one.headline


def test_python_functions_tell_whether_there_are_workers():
    events = steps(name="torch/utils/data/dataloader.py(720): __next__", mark=python)
    (one,) = data_loading(report([*events, python("torch/utils/data/dataloader.py(1278): _try_get_data", 0, MS)]))
    assert one.headline == "The loop waits for DataLoader's workers"


@pytest.mark.parametrize(
    "how",
    [
        {"name": WORKERS, "get": 0.9},  # workers that keep up
        {"get": 0.2},
        {"name": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter"},
        {"name": "my/dataloader.py(3): __next__", "mark": python},
        {"thread": 2},  # a thread that the GPU does not wait for
    ],
)
def test_what_does_not_raise_it(how):
    assert data_loading(report(steps(**how))) == []


def test_time_in_which_the_device_works_does_not_count():
    busy = [call(LAUNCH, 0, 1, correlation=99), kernel(0, 40 * MS, stream=9, correlation=99)]
    assert data_loading(report([*steps(), *busy])) == []


def test_the_rest_of_the_host_time_is_said_apart():
    of = per_step(steps())
    (one,) = data_loading(of)
    (rest,) = (other for other in ranked(of) if other.rule == "host-computes")
    assert one.at_stake_ns + rest.at_stake_ns == ledger(of).filter(bucket="host").get_column("ns").item()
    assert rest.text.startswith(
        "GPU 0 idle while the program runs its own code, in no CUDA call: 2.000 ms a step, 20.0 % of it, besides "
        "3.000 ms of which other findings tell. Most between"
    )
    assert "DataLoader" not in rest.text.partition("Most")[2].partition(":")[0]


def test_findings_of_both_kinds_stand_side_by_side():
    events = [*steps(), *chain.from_iterable(step(number, name=WORKERS) for number in range(4, 8))]
    found = findings(report(events)).filter(pl.col("rule") == "data-loading")
    assert found.get_column("at_stake_ns").to_list() == [12 * MS, 9 * MS]  # the first wait is before all CUDA calls


def captured(trace):
    """The report of nsys of two steps, which has no ranges, with a trace of the same program beside it."""
    launches = list(chain.from_iterable(step(number)[1:] for number in range(4)))
    made = replace(report(launches), beside=lambda: report(trace, kinds=("op", "range")))
    return made.narrow(window=Window(10 * MS, 30 * MS, count=2, each="step"))


def test_the_trace_of_a_capture_tells_of_a_loader():
    # in the trace the same steps come later
    later = [replace(event, start=event.start + 7 * MS, end=event.end + 7 * MS) for event in steps()]
    (one,) = data_loading(captured(later))
    # from the launch before to the next one: 4 ms and 5 of waiting, 3 of them in the loader
    assert one.at_stake_ns == 6 * MS
    assert one.text.endswith("the longest 3.000 ms, by the trace of the same program).")
    assert data_loading(captured([event for event in later if event.kind != "range"])) == []


def test_a_trace_of_two_steps_tells_of_a_loader_in_all_of_them():
    def many(numbers, *, own=True):
        made = []
        for number in numbers:
            ids = range(10 * number, 10 * number + 10)
            for at, name in zip(ids, "abcdefghij", strict=True):
                start = at * MS
                made += [call(LAUNCH, start, start + MS // 10, correlation=at)]
                made += [kernel(start + MS // 10, start + MS // 5, correlation=at, name=name)]
            if not own:
                made += [nvtx(ALONE, 10 * number * MS + MS // 5, 10 * number * MS + MS * 9 // 10)]
        return made

    trace = report(many(range(2), own=False), kinds=("op", "range"))
    made = replace(report(many(range(40))), beside=lambda: trace)
    (one,) = data_loading(made.narrow(window=Window(50 * MS, 350 * MS, count=30, each="step")))
    assert one.at_stake_ns == 30 * 7 * MS // 10
    assert "(1 batch a step, 700.0 µs in the median" in one.text


def in_lines(get):
    """Stretches of the main thread: `get` ms in the line of the loop, and then in the next one."""
    place = {"process_id": 1, "thread_id": 1, "file": "train.py", "function": "main", "text": ""}
    sides = [
        (line, 10 * MS * number + int(start * MS), int((end - start) * MS))
        for number in range(4)
        for line, start, end in ((7, 0, get), (8, get, 10))
    ]
    return [{**place, "line": line, "start_ns": start, "dur_ns": dur} for line, start, dur in sides]


@pytest.mark.parametrize(("name", "action"), [(ALONE, "num_workers=N"), (WORKERS, "num_workers=more")])
def test_lines_in_which_the_trace_gets_batches_get_them_in_the_report_too(name, action):
    trace = report([*steps(name=name, get=1), op("aten::add", 0, 1)], source_lines=in_lines(1))
    launches = [one for one in steps(get=4) if one.kind != "range"]
    of = replace(report(launches, source_lines=in_lines(4)), beside=lambda: trace)
    (one,) = data_loading(of.narrow(window=Window(10 * MS, 30 * MS, count=2, each="step")))
    assert one.at_stake_ns == 8 * MS  # as long as the report was in that line, not the trace
    assert action in one.action


def test_batches_of_a_thread_without_a_number_are_in_no_line():
    trace = report([nvtx(ALONE, 0, MS, thread=None), op("aten::add", 0, 1)], source_lines=in_lines(1))
    launches = [one for one in steps() if one.kind != "range"]
    of = replace(report(launches, source_lines=in_lines(3)), beside=lambda: trace)
    assert data_loading(of.narrow(window=Window(10 * MS, 30 * MS, count=2, each="step"))) == []
