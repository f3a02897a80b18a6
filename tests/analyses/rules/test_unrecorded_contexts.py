"""Contexts that were made outside of recorded calls: said once, and not as the program's own code."""

from pathlib import Path

import kanalyze
from kanalyze.analyses._walk import walked
from kanalyze.analyses.findings import ranked
from kanalyze.analyses.ledger import ledger
from kanalyze.analyses.rules import cold_start, host_phases
from kanalyze.analyses.summary import summarize
from kanalyze.report import Window
from support.build import call, kernel, nvtx, overhead, report

REPORTS = Path(__file__).parents[2] / "reports"

LAUNCH = "cudaLaunchKernel_v7000"


def launched(number, start, end):
    return [call(LAUNCH, start - 10, start, correlation=number), kernel(start, end, correlation=number)]


#: 590 ns without calls in which a context is made, and 90 ns of the program's own code; half of the first in a range.
EVENTS = [
    call("cudaGetDeviceCount", 0, 10),
    overhead("CUDA context created", 300, 301),
    call("cudaFree", 600, 610),
    nvtx("set {up}", 300, 700),
    *launched(1, 700, 800),
    *launched(2, 900, 1000),
]


def told(of, rule):
    return [found for module in (cold_start, host_phases) for found in module.find(of) if found.rule == rule]


def test_the_making_of_a_context_is_not_the_programs_own_code():
    (one,) = told(report(EVENTS), "host-computes")
    assert one.at_stake_ns == 80 + 90
    assert one.text.format(*one.names) == (
        "GPU 0 idle while the program runs its own code, in no CUDA call: 17.0 % of the window, besides 589 ns around "
        "the making of contexts. Most between cudaLaunchKernel and cudaLaunchKernel: 90 ns; in set {up}: 80 ns. The "
        "longest stretch is 90 ns, from 800 ns on."
    )


def test_the_context_is_said_with_the_calls_around_it():
    (one,) = told(report(EVENTS), "unrecorded-context")
    assert one.at_stake_ns == 589  # the profiler's own record of it is the profiler's time
    assert one.text == (
        "1 CUDA context was made outside of all recorded calls (at 300 ns, between cudaGetDeviceCount and cudaFree). "
        "Up to 589 ns of what counts as host is this."
    )


def test_nothing_is_left_of_the_programs_own_code():
    of = report([call("cudaGetDevice", 0, 1), overhead("CUDA context created", 300, 301), *launched(1, 700, 800)])
    assert told(of, "host-computes") == []
    assert walked(of)[0].unrecorded_ns == 688


def test_a_window_without_the_context_does_not_speak_of_it():
    of = report(EVENTS).narrow(window=Window(620, 1000))
    assert told(of, "unrecorded-context") == []
    (one,) = told(of, "host-computes")
    assert "besides" not in one.text


def test_the_headline_names_what_took_most():
    assert summarize(report(EVENTS)).answer == (
        "The GPU was busy 20.0 % of 1.000 µs; the largest part of the rest went to making contexts outside recorded "
        "calls (58.9 %). Without one-time costs and the profiler's overhead it would have been busy 48.8 %."
    )


def test_two_contexts_of_a_real_program():
    """Both were made before anything ran: the ledger counts 265 ms of them as host."""
    of = kanalyze.read(REPORTS / "two_gpus.sqlite")
    for device in (0, 1):
        mine = {one.rule: one for one in ranked(of) if one.device == device}
        assert "2 CUDA contexts were made" in mine["unrecorded-context"].text
        assert "at 477.1 ms" in mine["unrecorded-context"].text
        assert "at 638.1 ms" in mine["unrecorded-context"].text
        host = ledger(of).filter(device=device, bucket="host").get_column("ns").item()
        assert mine["host-computes"].at_stake_ns == host - mine["unrecorded-context"].at_stake_ns
        assert mine["host-computes"].at_stake_ns < 10_000_000
    assert summarize(of).answer.count("making contexts outside recorded calls (84.7 %)") == 2


def test_the_process_of_each_gpu_made_its_own():
    found = {one.device: one.text for one in ranked(kanalyze.read(REPORTS / "nccl.sqlite")) if "record" in one.rule}
    assert "1 CUDA context was made outside of all recorded calls (at 6.122 s" in found[0]
    assert "1 CUDA context was made outside of all recorded calls (at 6.107 s" in found[1]


def test_page_faults_of_the_host_are_said():
    (one,) = told(kanalyze.read(REPORTS / "thrash.sqlite"), "host-computes")
    assert one.text.endswith(" Part of it may be 241 page faults of the CPU on managed memory.")
