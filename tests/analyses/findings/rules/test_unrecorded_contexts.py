"""Contexts that were made outside of recorded calls: said once, and not as the program's own code."""

from pathlib import Path

import pytest

from kanalyze import intervals
from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.waits import idle_after_reads
from kanalyze.analyses.idle._attribution import host_time
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.page.time_page import summarize
from kanalyze.window import Window
from support.build import call, host, kernel, nvtx, overhead, report
from support.real_reports import real_report

REPORTS = Path(__file__).parents[3] / "reports"

LAUNCH = "cudaLaunchKernel_v7000"


def launched(number, start, end):
    return [call(LAUNCH, start - 10, start, correlation=number), kernel(start, end, correlation=number)]


#: 590 ns without calls until a context is made, and 90 ns of the program's own code; before that 81 ns in a range.
EVENTS = [
    call("cudaGetDeviceCount", 0, 10),
    overhead("CUDA context created", 600, 601),
    call("cudaFree", 602, 610),
    nvtx("set {up}", 601, 700),
    *launched(1, 700, 800),
    *launched(2, 900, 1000),
]


def told(of, rule):
    return [found for found in ranked(of) if found.rule == rule]


def test_the_making_of_a_context_is_not_the_programs_own_code():
    (one,) = told(report(EVENTS), "host-computes")
    assert one.at_stake_ns == 1 + 80 + 90
    assert one.text.format(*one.names) == (
        "GPU 0 idle while the program runs its own code, in no CUDA call: 17.1 % of the window, besides 590 ns of "
        "which other findings tell. Most between launches: 90 ns; in set {up}: 81 ns. The "
        "longest stretch is 90 ns, from 800 ns on. More may follow: the host could run ahead."
    )


def test_the_context_is_said_with_the_calls_around_it():
    (one,) = told(report(EVENTS), "unrecorded-context")
    assert one.at_stake_ns == 590
    assert one.text == (
        "1 CUDA context was made outside of all recorded calls (at 600 ns, between cudaGetDeviceCount and cudaFree). "
        "Up to 590 ns of what counts as host is this."
    )


def test_nothing_is_left_of_the_programs_own_code():
    of = report([call("cudaGetDevice", 0, 1), overhead("CUDA context created", 689, 691), *launched(1, 701, 800)])
    assert told(of, "host-computes") == []
    assert intervals.length(host_time(of)[0].unrecorded) == 688


MS = 1_000_000


@pytest.mark.parametrize(
    ("seen", "since"),
    [
        ([], 10),
        ([nvtx("before", 0, 40 * MS)], 40 * MS),
        ([nvtx("around", 30 * MS, 900 * MS)], 30 * MS),
        ([nvtx("after", 200 * MS, 900 * MS)], 10),
        ([nvtx("of another thread", 0, 40 * MS, thread=2)], 10),
        ([overhead("dlopen(libcudnn.so.9)", 50 * MS, 60 * MS)], 60 * MS),
        ([overhead("dlopen(libcuda.so.1)", 50 * MS, 60 * MS)], 10),  # which the driver opens itself
        ([overhead("CUPTI Resource Management", 50 * MS, 60 * MS)], 10),  # nor is this the program's doing
        ([host("op", "aten::empty", 20 * MS, 800 * MS)], 20 * MS),
    ],
)
def test_a_context_is_made_up_to_the_profilers_word_and_not_to_the_next_call(seen, since):
    """1.5 s without a call, of which the first 113 ms are a context's: the rest is the program's own code."""
    made = 113 * MS
    mark = overhead("CUDA profiling data flush on context created", made, made + MS)
    events = [call("cudaGetDevice", 0, 10), mark, *launched(1, 1_500 * MS, 1_600 * MS), *seen]
    inside = sum(min(one.end, made) - one.start for one in seen if one.kind == "overhead" and since == 10)
    of = report(events)
    assert intervals.length(host_time(of)[0].unrecorded) == made - since - inside
    (one,) = told(of, "host-computes")
    assert one.at_stake_ns > 1_380 * MS


def test_a_window_without_the_context_does_not_speak_of_it():
    of = report(EVENTS).narrow(window=Window(620, 1000))
    assert told(of, "unrecorded-context") == []
    (one,) = told(of, "host-computes")
    assert "besides" not in one.text


def test_the_headline_names_what_took_most():
    assert summarize(report(EVENTS)).answer == (
        "The GPU was busy 20.0 % of 1.000 µs; the largest part of the rest went to the program's own code outside "
        "CUDA (76.1 %). At most 59.0 % went to making contexts outside recorded calls."
    )


def test_two_contexts_of_a_real_program():
    """Both were made before anything ran: the ledger counts 265 ms of them as host."""
    of = real_report(REPORTS / "two_gpus.sqlite")
    for device in (0, 1):
        mine = {one.rule: one for one in ranked(of) if one.device == device}
        assert "2 CUDA contexts were made" in mine["unrecorded-context"].text
        assert "at 477.1 ms" in mine["unrecorded-context"].text
        assert "at 638.1 ms" in mine["unrecorded-context"].text
        host = ledger(of).filter(device=device, bucket="host").get_column("ns").item()
        read = idle_after_reads(of)[device].filter(bucket="host")
        others = mine["unrecorded-context"].at_stake_ns + (read.get_column("end") - read.get_column("start")).sum()
        assert mine["host-computes"].at_stake_ns == host - others
        assert mine["host-computes"].at_stake_ns < 10_000_000
    assert summarize(of).answer.count("At most 84.6 % went to making contexts outside recorded calls") == 2


def test_the_process_of_each_gpu_made_its_own():
    found = {one.device: one.text for one in ranked(real_report(REPORTS / "nccl.sqlite")) if "record" in one.rule}
    assert "1 CUDA context was made outside of all recorded calls (at 6.122 s" in found[0]
    assert "1 CUDA context was made outside of all recorded calls (at 6.107 s" in found[1]


def test_page_faults_of_the_host_are_said():
    (one,) = told(real_report(REPORTS / "thrash.sqlite"), "host-computes")
    assert " Part of it may be 241 page faults of the CPU on managed memory. " in one.text
