"""Launches that run nothing because their thread captures a CUDA graph are as they should be; others are a doubt."""

from kanalyze.analyses.findings.health import health
from support.build import call, kernel, launched, report

BEGIN, END, LAUNCH = "cudaStreamBeginCapture_v10000", "cudaStreamEndCapture_v10000", "cudaLaunchKernel_v7000"


def told(*events):
    checks = health(report([*events])).select("check", "count", "ns", "doubt").rows()
    return [row for row in checks if row[0] in ("launches without an operation", "launches captured into graphs")]


def test_launches_of_the_thread_that_captures_are_told_apart():
    assert told(
        call(BEGIN, 0, 1, thread=1),
        call(LAUNCH, 10, 13, thread=1),  # captured
        call(LAUNCH, 20, 24, thread=2),  # lost: another thread
        call(END, 30, 31, thread=1),
        call(LAUNCH, 40, 45, thread=1),  # lost: the capture has ended
        *launched(50, 52, kernel(60, 70, correlation=7), LAUNCH, thread=1),
    ) == [("launches without an operation", 2, 9, True), ("launches captured into graphs", 1, 3, False)]


def test_a_report_that_lost_nothing():
    assert told(call(LAUNCH, 0, 2, correlation=7), kernel(5, 9, correlation=7)) == [
        ("launches without an operation", 0, 0, False),
        ("launches captured into graphs", 0, 0, False),
    ]
