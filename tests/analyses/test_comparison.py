"""The line that compares reports."""

from dataclasses import replace
from pathlib import Path

from kanalyze.analyses.comparison import comparison
from kanalyze.analyses.summary import summarize
from support.build import call, kernel, report


def page(name, *events):
    found = summarize(report(events))
    return replace(found, meta=replace(found.meta, path=Path(name)))


LAUNCH = call("cudaLaunchKernel", 0, 10, correlation=1)
SHORT = page("short.sqlite", LAUNCH, kernel(20, 100, correlation=1))
LONG = page("long.sqlite", LAUNCH, kernel(20, 200, correlation=1), kernel(250, 300, correlation=1))


def test_one_report_is_not_compared():
    assert comparison([SHORT]) == comparison([]) == ""


def test_how_long_and_where_it_differs():
    assert comparison([SHORT, LONG]) == (
        "long.sqlite: 300 ns of GPU window, 3.00 × as long as short.sqlite (100 ns); kernel +150 ns, queued +50 ns."
    )


def test_a_shorter_one():
    assert comparison([LONG, SHORT]).startswith("short.sqlite: 100 ns of GPU window, 3.00 × shorter than long.sqlite")


def test_each_is_compared_with_the_first():
    same = "short.sqlite: 100 ns of GPU window, 1.00 × as long as short.sqlite (100 ns); "
    assert comparison([SHORT, SHORT, LONG]) == (f"{same}no bucket differs by 1 % or more. {comparison([SHORT, LONG])}")


def test_nothing_to_compare_with():
    idle = page("idle.sqlite", LAUNCH)
    assert comparison([SHORT, idle]) == (
        "idle.sqlite cannot be compared with short.sqlite: no GPU did anything in idle.sqlite."
    )
