"""Allocation in the loop: found where memory is taken and given back between launches, and the device waits."""

import pytest

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.memory import allocation_in_loop
from kanalyze.window import Window
from support.build import call, kernel, report
from support.nsys_csv import report_of


def rounds(count, *, thread=1, free="cudaFree_v3020"):
    events = []
    for number in range(count):
        at, launch = 100 * number, number + 1
        events += [
            call("cudaMalloc_v3020", at, at + 10, thread=thread),
            call("cudaLaunchKernel", at + 20, at + 25, correlation=launch),
        ]
        events += [kernel(at + 25, at + 55, correlation=launch), call(free, at + 50, at + 60, thread=thread)]
    return events


def test_what_the_device_waited_for_in_such_calls():
    (finding,) = allocation_in_loop(report(rounds(10)))
    # rounds two to nine count, less the first of these; the kernel hides half of cudaFree
    assert finding.at_stake_ns == 7 * (10 + 5)
    assert finding.text == (
        "cudaMalloc and cudaFree are called over and over between launches: 14 calls in 7 rounds with 7 launches, "
        "140 ns of host time. The device waited 105 ns for them. More may follow: the host is spared "
        "the calls."
    )
    assert finding.table == "memory --by call"


def test_memory_that_stays_is_no_finding():
    assert allocation_in_loop(report([event for event in rounds(30) if event.name != "cudaFree_v3020"])) == []


def test_a_few_rounds_are_no_finding():
    assert allocation_in_loop(report(rounds(6))) == []


def test_calls_that_the_device_did_not_wait_for_are_no_finding():
    assert allocation_in_loop(report([*rounds(10), kernel(0, 1000)])) == []


def test_what_another_thread_does_meanwhile_is_not_at_stake():
    assert allocation_in_loop(report(rounds(10, thread=2))) == []


def test_a_window_cuts_what_is_at_stake():
    (finding,) = allocation_in_loop(report(rounds(10)).narrow(window=Window(305, 360)))
    assert finding.at_stake_ns == 5 + 5


def test_the_part_of_another_device_is_its_own():
    events = [*rounds(10), kernel(0, 1000, process=2, device=1)]
    assert [finding.device for finding in allocation_in_loop(report(events))] == [0]


@pytest.mark.parametrize(("name", "count"), [("memory", 1), ("findings", 0), ("findings_clean", 0), ("torch", 0)])
@pytest.mark.one_in(4)
def test_real_reports_that_have_it_and_that_have_not(name, count):
    assert sum(one.rule == "allocation-in-loop" for one in ranked(report_of(name))) == count


def in_steps(*calls, count=3):
    """Steps of 100, each of which makes `calls` (name, start, end) before it launches a kernel of PyTorch."""
    events = []
    for number in range(count):
        at = 100 * number
        events += [call(name, at + start, at + end) for name, start, end in calls]
        events.append(call("cudaLaunchKernel", at + 60, at + 70, correlation=number))
        events.append(kernel(at + 70, at + 100, correlation=number, name="void at::native::add()"))
    return report(events).narrow(window=Window(0, 100 * count, count=count, each="step"))


FREES = ("cudaFree_v3020", 0, 20), ("cudaFree_v3020", 20, 30), ("cudaMalloc_v3020", 30, 50)


def test_in_a_window_of_iterations_few_of_them_tell_what_recurs():
    (one,) = allocation_in_loop(in_steps(*FREES))
    assert one.at_stake_ns == 3 * 50
    assert one.text == (
        "cudaFree and cudaMalloc are called over and over between launches: 3 calls a step, 50 ns a step of host time. "
        "The device waited 50 ns a step for them. More may follow: the host is spared the calls."
    )
    assert "empty_cache() out of the loop" in one.remedy
    assert allocation_in_loop(in_steps(*FREES[1:], count=2)) == []


def test_memory_that_is_short_is_told_by_a_second_try():
    (one,) = allocation_in_loop(in_steps(("cudaMalloc_v3020", -5, 0), *FREES))
    assert "In 2 cases one to allocate was followed at once by some to free and another to allocate" in one.text
    assert "num_alloc_retries" in one.remedy
