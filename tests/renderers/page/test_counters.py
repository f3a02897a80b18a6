"""The page of a report of ncu: whole, in every format, within its width."""

import json

import pytest

from kanalyze.analyses.page.time_page import summarize_counters
from kanalyze.renderers.formats import json as summary_json
from kanalyze.renderers.formats import markdown
from kanalyze.renderers.formats.terminal import render
from kanalyze.renderers.page import Look
from support.command import REPORTS, SAMPLES
from support.counters import measured
from support.real_reports import real_report

ADD = REPORTS / "ncu" / "add.details.csv"


def page(path, width=80, top=8):
    return render([summarize_counters(real_report(path))], Look(width), top)


def test_the_page_of_one_kernel(gold):
    gold(page(ADD), "summarize_ncu_add_80.txt")


def test_the_page_of_several_kernels(gold):
    gold(page(SAMPLES / "cdist" / "ncu.details.csv", top=2), "summarize_ncu_cdist_80.txt")


def test_the_page_for_issues(gold):
    found = summarize_counters(real_report(ADD))
    gold(markdown.render([found], 8), "summarize_ncu_add.md")


def test_json_holds_every_table():
    found = summarize_counters(real_report(ADD))
    told = json.loads(summary_json.render([found]))
    assert (told["answer"], told["report"]["tool"]) == (found.answer, "ncu")
    (kernel,) = told["kernels"]
    assert (kernel["verdict"], kernel["dur_ns"], kernel["family"]) == ("latency-bound", 5888, "other")
    assert {name: len(told[name]) for name in found.tables} == {name: one.height for name, one in found.tables.items()}


def test_launches_of_one_kernel_are_one_line():
    one = {"gpu__time_duration.sum": 10}
    found = summarize_counters(measured(one, {"gpu__time_duration.sum": 30}, one, names=["a", "b", "a"]))
    assert found.tables["groups"].rows() == [(1, 1, 30), (0, 2, 20)]
    assert found.answer.startswith("3 kernels, 2 different, 50 ns in all, each measured alone.")


def utilised(compute, memory, ns):
    """A kernel with these shares of the two peaks, in percent."""
    return {
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": compute,
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": memory,
        "gpu__time_duration.sum": ns,
    }


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ((10, 30, 20), "memory-bound 1 (30 ns), latency-bound 1 (20 ns), compute-bound 1 (10 ns)"),
        ((20, 20, 20), "compute-bound 1 (20 ns), latency-bound 1 (20 ns), memory-bound 1 (20 ns)"),
    ],
)
def test_what_holds_kernels_back_is_told_by_time_then_by_name(times, told):
    shares = [(80, 10), (10, 80), (10, 10)]
    kernels = [utilised(*share, ns) for share, ns in zip(shares, times, strict=True)]
    found = summarize_counters(measured(*kernels, names=["a", "b", "c"]))
    assert found.answer.endswith(f"By what holds them back: {told}.")
    by_time = sorted(range(3), key=lambda number: -times[number])  # of equal times the first comes first
    assert found.tables["groups"].rows() == [(number, 1, times[number]) for number in by_time]


MOVES = {
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 4.0,
    "smsp__warps_active.avg.per_cycle_active": 8.0,
    "smsp__warps_eligible.avg.per_cycle_active": 1.0,
}


def test_no_time_is_told_of_kernels_whose_duration_was_not_collected():
    found = measured(
        {"gpu__time_duration.sum": 5000, **MOVES}, {"launch__sm_count": 10}, names=["a", "b"], grids=[9, 1]
    )
    answer = summarize_counters(found).answer
    assert "too few blocks 1" in answer
    assert "0 ns" not in answer
