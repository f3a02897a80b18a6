"""GPUs that several processes share: what must raise it, what must not, and a loop over every instant."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.device._windows import shared_devices
from kanalyze.analyses.findings.rules.launches import shared_gpu
from kanalyze.window import Window
from support.build import call, graph, kernel, memcpy, report
from support.command import REPORTS, run

BEFORE = kernel(0, 10, process=1, name="gemm")
LONG = kernel(20, 60, process=1, name="gemm")
OTHERS = [kernel(30, 35, process=2, name="relu"), kernel(40, 45, process=2, name="relu")]


def test_a_kernel_that_holds_the_other_process_s():
    (found,) = shared_gpu(report([BEFORE, LONG, *OTHERS]))
    assert (found.rule, found.device, found.at_stake_ns) == ("shared-gpu", 0, 5)
    assert found.text == (
        "Processes 1 and 2 share GPU 0: for 10 ns kernels of more than one had begun and not ended, and the next was "
        "another's 1 time. {0} of process 1 takes up to 40 ns then, 10 ns else (median). Without MPS or MIG they run "
        "in turn, in time slices, and a kernel's duration holds the other's slices."
    )
    assert found.names == ("gemm",)
    assert "MPS" in found.remedy


def test_whole_graphs_count_as_kernels():
    assert shared_gpu(report([graph(0, 50, process=1), graph(20, 70, process=2)]))[0].at_stake_ns == 15


@pytest.mark.parametrize(
    "events",
    [
        [BEFORE, LONG],
        [LONG, kernel(30, 35, process=2, device=1)],
        [LONG, kernel(30, 35, process=1, stream=8)],
        [LONG, kernel(60, 70, process=2)],
        [LONG, memcpy(30, 40, process=2)],
        [LONG, kernel(30, 35, process=None)],
        [memcpy(0, 10, process=1), memcpy(20, 30, process=2), graph(5, 5, process=2)],
    ],
    ids=[
        "one process",
        "two GPUs",
        "two streams",
        "one after the other",
        "a copy",
        "a process that is not known",
        "no kernels",
    ],
)
def test_what_is_not_shared(events):
    assert shared_gpu(report(events)) == []
    assert [shared for shared in shared_devices(report(events)) if shared.together_ns] == []


def test_a_trace_numbers_the_gpus_of_each_process():
    of = report([LONG, *OTHERS])
    trace = replace(of, meta=replace(of.meta, tool="torch.profiler"))
    assert shared_gpu(trace) == []


def test_a_window_or_a_process_alone():
    of = report([BEFORE, LONG, *OTHERS])
    assert shared_gpu(of.narrow(window=Window(0, 34)))[0].at_stake_ns == 2
    assert shared_gpu(of.narrow(window=Window(50, 60))) == []
    assert shared_gpu(of.narrow(process=1)) == []


def launched(number, call_end, start, end, process):
    """A kernel, and the call that launched it."""
    return [
        call("cudaLaunchKernel", call_end - 1, call_end, correlation=number, process=process),
        kernel(start, end, correlation=number, process=process),
    ]


def test_work_that_waits_for_another_process_that_runs():
    """Process 2 could run from 15 on, and does from 50 on; then process 1 waits from 55 on."""
    events = [*launched(1, 10, 10, 45, 1), *launched(2, 15, 50, 90, 2), *launched(3, 55, 95, 99, 1)]
    (one,) = shared_gpu(report(events))
    assert one.at_stake_ns == (30 + 35) // 2
    assert one.text.startswith(
        "Processes 1 and 2 share GPU 0: for 65 ns what one had submitted waited while kernels of another ran, and the "
        "next was another's 2 times. Without MPS"
    )
    assert (one.headline, one.action[:26]) == ("2 processes take turns on GPU 0", "nvidia-cuda-mps-control -d")


def test_what_waits_for_its_own_process_does_not_count():
    """Process 2 runs on another stream until 50 itself."""
    events = [*launched(1, 10, 10, 45, 1), *launched(2, 15, 50, 90, 2), *launched(3, 5, 15, 50, 2)]
    assert shared_gpu(report(events))[0].at_stake_ns == (5 + 30) // 2  # until 15, and at once
    assert shared_gpu(report([*launched(1, 10, 10, 45, 1), *launched(2, 45, 50, 90, 2)])) == []


@pytest.mark.parametrize(("length", "apart", "raised"), [(90, 50, False), (90, 90, True), (2_000_000, 900_000, True)])
def test_short_kernels_that_meet_again_and_again_run_side_by_side(length, apart, raised):
    events = [
        kernel(number * apart, number * apart + length, process=1 + number % 2, stream=number % 3)
        for number in range(200)
    ]
    events += launched(999, 0, 10, 11, 2)
    assert bool(shared_gpu(report(events))) == raised


def health(events):
    table = kanalyze.health(report(events)).filter(check="shared use of a GPU")
    return table.select("count", "ns", "doubt").rows()


def test_health_counts_those_that_only_took_turns_too():
    turns = [kernel(10 * number, 10 * number + 5, process=1 + number % 2) for number in range(6)]
    assert shared_gpu(report(turns)) == []
    assert health(turns) == [(1, 0, True)]
    assert health([LONG, *OTHERS]) == [(1, 10, True)]
    assert health([BEFORE, kernel(10, 20, process=2)]) == [(0, 0, False)]
    assert health([BEFORE, LONG]) == []


KERNELS = st.tuples(st.integers(1, 3), st.sampled_from([0, 0, 1]), st.integers(0, 30), st.integers(0, 20))


def test_the_time_is_that_of_a_loop_over_every_instant():
    seen = Counter()

    @given(st.lists(KERNELS, min_size=4, max_size=10))
    def holds(rows):
        events = [kernel(at, at + took, process=process, device=device) for process, device, at, took in rows]
        found = {shared.device: shared for shared in shared_devices(report(events)) if shared.together_ns}
        for device in (0, 1):
            running = [
                {process for process, where, at, took in rows if where == device and at <= instant < at + took}
                for instant in range(60)
            ]
            together = [processes for processes in running if len(processes) > 1]
            seen.update(all=1, shared=bool(together))
            if together:
                assert found[device].together_ns == len(together)
                assert found[device].processes == sorted(set().union(*together))
            else:
                assert device not in found

    holds()
    assert seen["shared"] > 0.1 * seen["all"]


@pytest.mark.slow
def test_two_processes_of_a_real_report():
    text = " ".join(run("summarize", "--full", REPORTS / "two_processes.sqlite").text.split())
    assert "1 shared use of a GPU" in text
    assert "Processes 2276 and 2277 share GPU 0" in text
    assert "nvidia-cuda-mps-control" in text
    for name in ("visible_devices", "nccl"):
        assert "shared use" not in run("summarize", REPORTS / f"{name}.sqlite").text
