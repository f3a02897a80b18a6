"""What a finding in a report is made of: lines, kernels and waits in the time that it claims."""

import polars as pl
import pytest

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.page.overview_page import _of, evidence
from kanalyze.errors import UnknownNameError
from support.build import call, kernel, report

EVENTS = [
    call("cudaLaunchKernel", 0, 100, correlation=1),
    kernel(200, 600, name="first", correlation=1),
    call("cudaStreamSynchronize", 400, 800),
    call("cudaLaunchKernel", 900, 1_000, correlation=2),
    kernel(1_100, 1_600, name="second", correlation=2),
]
LINES = [
    {"process_id": 1, "thread_id": 1, "start_ns": start, "dur_ns": end - start, "file": "a.py", "line": number}
    | {"function": "f", "text": f"line {number}"}
    for start, end, number in ((0, 300, 1), (300, 850, 2), (850, 2_000, 3))
]


def made_of(*claims, names=()):
    spans = pl.DataFrame(claims, schema=["start", "end"], orient="row") if claims else None
    found = Finding("rule", 0, 100, "Text.", "Remedy.", "gaps", names=names, claims=spans)
    return _of(report(EVENTS, source_lines=LINES), found)


def test_its_time_is_told_by_line_kernel_and_wait():
    found = made_of((400, 900))
    assert found.lines.rows() == [("a.py:2", "line 2", 250), ("a.py:1", "line 1", 200), ("a.py:3", "line 3", 50)]
    assert found.kernels.rows() == [("first", 1, 200)]
    assert found.waits.rows() == [
        ("sync", "cudaStreamSynchronize", 1, 200),
        ("host", "between cudaStreamSynchronize and cudaLaunchKernel", 1, 100),
    ]


def test_what_is_claimed_twice_counts_once():
    assert made_of((400, 900), (500, 700)).lines.equals(made_of((400, 900)).lines)


def test_without_a_claim_there_are_the_kernels_that_it_names():
    found = made_of(names=("second",))
    assert found.kernels.rows() == [("second", 1, 500)]
    assert found.lines.is_empty()
    assert found.waits.is_empty()


def test_a_report_without_the_finding_says_which_it_has():
    with pytest.raises(UnknownNameError, match="no finding of made by hand called 'tail'"):
        evidence(report(EVENTS), "tail")
