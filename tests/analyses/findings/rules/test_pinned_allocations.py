"""Pinning of memory: what the device waits for it, and that neither loops nor contexts are counted."""

import pytest

from kanalyze.analyses.findings.findings import findings
from kanalyze.analyses.findings.rules.memory import pinned_allocation
from kanalyze.analyses.idle.ledger import ledger
from support.build import call, kernel, report
from support.command import REPORTS
from support.real_reports import real_report

LAUNCH = "cudaLaunchKernel_v7000"


def launched(number, at):
    return [call(LAUNCH, at, at + 10, correlation=number), kernel(at + 10, at + 30, correlation=number)]


def test_the_device_waits_for_it():
    events = [
        *launched(1, 0),
        call("cudaHostAlloc_v3020", 20, 80),
        call("cudaHostRegister_v4000", 80, 90),
        *launched(2, 95),
    ]
    of = report(events)
    (one,) = pinned_allocation(of)
    assert (one.rule, one.device, one.at_stake_ns, one.table) == ("pinned-allocation", 0, 60, "memory --by call")
    assert one.text == (
        "GPU 0 waits 60 ns for 2 calls to pin memory of the host, not in a loop (cudaHostAlloc, cudaHostRegister). It "
        "takes time for each page."
    )
    assert one.at_stake_ns == ledger(of).filter(bucket="allocation").get_column("ns").sum()


@pytest.mark.parametrize("name", ["cudaMalloc_v3020", "cudaFreeHost_v3020", "cudaHostGetDevicePointer_v3020"])
def test_other_calls_do_not_count(name):
    assert pinned_allocation(report([*launched(1, 0), call(name, 30, 80), *launched(2, 95)])) == []


def test_in_a_loop_it_is_another_finding():
    events = [*launched(99, 0)]
    for number in range(8):
        at = 100 + 100 * number
        events += [call("cudaHostAlloc_v3020", at, at + 30), *launched(number, at + 40)]
        events.append(call("cudaFreeHost_v3020", at + 80, at + 90))
    rules = findings(report(events)).get_column("rule").to_list()
    assert "allocation-in-loop" in rules
    stakes = [one.at_stake_ns for one in pinned_allocation(report(events))]
    assert stakes == [3 * 30]  # the first of them are needed, and the last round has no end


def test_a_thread_that_the_device_does_not_wait_for():
    assert pinned_allocation(report([*launched(1, 0), call("cudaHostAlloc", 30, 80, thread=2), *launched(2, 95)])) == []


def test_of_a_real_call_that_makes_the_context_the_rest_counts():
    of = real_report(REPORTS / "findings.sqlite")
    held = ledger(of).filter(bucket="allocation").get_column("ns").sum()
    assert all(0 < one.at_stake_ns <= held for one in pinned_allocation(of))
