"""The line of the program that a finding's time comes from."""

import polars as pl
import pytest

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._telling import claimed, with_lines
from support.build import call, kernel, report

EVENTS = [
    call("cudaLaunchKernel", 0, 100, correlation=1),
    kernel(200, 600, correlation=1),
    call("cudaLaunchKernel", 700, 800, correlation=2),
    kernel(1_000, 1_600, correlation=2),
]
LINES = [(0, 300, "a.py", 1), (300, 5_000, "b.py", 2)]


def of_lines(lines=LINES):
    rows = [
        {"process_id": 1, "thread_id": 1, "start_ns": start, "dur_ns": end - start, "file": file, "line": number}
        | {"function": "f", "text": "{x}"}
        for start, end, file, number in lines
    ]
    return report(EVENTS, source_lines=rows)


def finding(*claims, where=""):
    spans = pl.DataFrame(claims, schema=["start", "end"], orient="row") if claims else None
    return Finding("rule", 0, 100, "Text.", "Remedy.", "code", where=where, claims=spans)


def place(found, of):
    (one,) = with_lines(of, [found])
    return one.place


@pytest.mark.parametrize(
    ("claims", "line"),
    [
        ([(200, 600)], "a.py:1"),  # its work was launched there
        ([(1_000, 1_600)], "b.py:2"),
        ([(200, 600), (1_100, 1_300)], "a.py:1"),  # most of it
        ([(200, 600), (200, 600), (1_000, 1_600)], "b.py:2"),  # claimed twice counts once
        ([(600, 700)], "b.py:2"),  # idle time
        ([], ""),
    ],
)
def test_a_finding_lies_in_the_line_with_most_of_its_time(claims, line):
    assert place(finding(*claims), of_lines()) == line


def test_where_no_line_has_half_of_it_none_is_told():
    lines = [(0, 50, "a.py", 1), (50, 650, "b.py", 2), (650, 750, "c.py", 3), (750, 5_000, "d.py", 4)]
    assert place(finding((200, 400), (600, 650), (1_000, 1_150)), of_lines(lines)) == "a.py:1"
    assert place(finding((200, 350), (600, 650), (1_000, 1_150)), of_lines(lines)) == ""


@pytest.mark.parametrize(("last", "lines"), [(44, "a.py:42-44"), (70, "")])
def test_a_few_lines_of_one_function_are_told_together(last, lines):
    """The work of launches in two lines, and time of the host between them, of which none is half."""
    told = [(0, 50, "a.py", 42), (50, 650, "a.py", 43), (650, 750, "a.py", last), (750, 5_000, "b.py", 9)]
    assert place(finding((200, 350), (600, 650), (1_000, 1_120)), of_lines(told)) == lines


def test_an_operator_is_told_with_its_line():
    assert place(finding((200, 600), where="aten::item"), of_lines()) == "aten::item in a.py:1"


@pytest.mark.parametrize("where", ["train.py:31", "aten::item in train.py(31): step"])
def test_a_line_that_a_rule_tells_stays(where):
    assert place(finding((200, 600), where=where), of_lines()) == where


def test_of_a_report_without_lines_there_is_none():
    assert place(finding((200, 600)), report(EVENTS)) == ""


def test_braces_in_the_name_of_a_file_are_no_place_for_a_name():
    assert place(finding((200, 600)), of_lines([(0, 5_000, "{0}.py", 1)])).format() == "{0}.py:1"


def test_what_is_claimed_is_cut_at_the_sides_of_the_claim():
    found = claimed(of_lines(), finding((150, 400)))
    assert found.group_by("part", maintain_order=True).agg(pl.col("ns").sum()).sort("part").rows() == [
        ("launch", 50),
        ("work", 200),
    ]


@pytest.mark.parametrize(("own_ns", "line"), [(400, "a.py:1"), (40, "b.py:2")])
def test_what_threads_without_lines_launch_counts_where_others_have_few(own_ns, line):
    """As autograd's thread does, whose time goes to the line that the main thread is in."""
    rows = [
        {"process_id": 1, "thread_id": 1, "start_ns": start, "dur_ns": 1_000, "file": file, "line": number}
        | {"function": "f", "text": ""}
        for start, file, number in ((0, "a.py", 1), (1_000, "b.py", 2))
    ]
    events = [
        call("cudaLaunchKernel", 0, 100, correlation=1),
        kernel(200, 200 + own_ns, correlation=1),
        call("cudaLaunchKernel", 1_000, 1_100, correlation=2, thread=2),
        kernel(1_200, 2_000, correlation=2),
    ]
    found = finding((200, 200 + own_ns), (1_200, 2_000))
    assert place(found, report(events, source_lines=rows)) == line
