"""Pages with counters: of a report of ncu, and of several tools, whose figures are the same in every format."""

import json
import re
from dataclasses import replace
from functools import cache

import polars as pl
import pytest

import kanalyze
from kanalyze import outlets, units
from kanalyze.analyses.page.time_page import summarize_counters, summarize_together
from kanalyze.renderers.formats import json as summary_json, markdown
from kanalyze.renderers.formats.terminal import render
from kanalyze.renderers.page import Look, page_of_any
from support.command import REPORTS, SAMPLES
from support.counters import measured
from support.real_reports import real_report

ADD = REPORTS / "ncu" / "add.details.csv"


@pytest.mark.parametrize(("path", "top"), [(ADD, 8), (SAMPLES / "cdist" / "ncu.details.csv", 2)])
def test_pages_look_as_they_should(gold, path, top):
    found = [summarize_counters(real_report(path))]
    name = "add" if path == ADD else "cdist"
    gold(render(found, Look(80), top), f"summarize_ncu_{name}_80.txt")
    if path == ADD:
        gold(markdown.render(found, top), "summarize_ncu_add.md")


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


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ((10, 30, 20), "memory-bound 1 (30 ns), latency-bound 1 (20 ns), compute-bound 1 (10 ns)"),
        ((20, 20, 20), "compute-bound 1 (20 ns), latency-bound 1 (20 ns), memory-bound 1 (20 ns)"),
    ],
)
def test_what_holds_kernels_back_is_told_by_time_then_by_name(times, told):
    """Kernels of 80 % and 10 % of the two peaks, the other way round, and of 10 % of both."""
    kernels = [
        {"gpu__time_duration.sum": ns, "sm__throughput.avg.pct_of_peak_sustained_elapsed": compute,
         "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": memory}
        for ns, (compute, memory) in zip(times, [(80, 10), (10, 80), (10, 10)], strict=True)
    ]  # fmt: skip
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


TOP = 8
LARGER = ("launch_bound_graph", "mlp_train")


@cache
def reports(name):
    return kanalyze.read_all(SAMPLES / name)


@cache
def joint(name):
    (found,) = summarize_together(*reports(name))
    assert found.joined is not None
    return found


@pytest.fixture(params=("add", "cdist", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGER)))
def name(request):
    return request.param


@pytest.fixture
def page(name):
    return page_of_any(joint(name), TOP)


def squeezed(text):
    """Words alone: without layout and what a format needs for itself."""
    return re.sub(r"[\s`|*]+", " ", text.replace("\\|", "|"))


@cache
def told(name):
    return json.loads(summary_json.render([joint(name)]), parse_constant=pytest.fail)


@pytest.mark.slow
def test_json_is_the_object_of_the_time_with_the_tables_of_all(name):
    found, (base, *others) = told(name), reports(name)
    alone = json.loads(summary_json.render([kanalyze.summarize(base)]))
    more = {"joined_with", "joined_reports", "joined", "gains"}
    assert {key: value for key, value in found.items() if key not in more} == alone
    assert found.keys() - alone.keys() == more
    assert found["joined"] == kanalyze.joined(*reports(name)).to_dicts()
    assert found["gains"] == kanalyze.gains(*reports(name)).to_dicts()
    assert found["joined_with"] == [str(one.meta.path) for one in others]
    assert [one["tool"] for one in found["joined_reports"]] == [one.meta.tool for one in others]
    assert found["joined_reports"][0].keys() == found["report"].keys()


@pytest.mark.one_in(2)
def test_figures_on_the_page_are_those_of_the_json(name, page):
    timed = [row for row in told(name)["joined"] if row["count"] is not None][:TOP]
    (section,) = [one for one in page.sections if one.title == "KERNELS"]
    cells = [dict(zip((head.title for head in section.grid.heads), row, strict=True)) for row in section.grid.rows]
    assert [(cell["time"], cell["window"], cell["count"], cell["kernel"]) for cell in cells] == [
        (units.time(row["exclusive_ns"]), units.percent(row["window_share"]), units.count(row["count"]), row["name"])
        for row in timed
    ]
    assert [cell["match"] for cell in cells] == [row["ncu_match"] for row in timed]
    shares = {"compute": "compute_share", "memory": "memory_share", "of roof": "roof_share"}
    for head, column in shares.items():
        assert [cell[head] for cell in cells] == [
            "-" if row[column] is None else units.percent(row[column]) for row in timed
        ]
    if "operator" in cells[0]:
        assert [cell["operator"] for cell in cells] == [row["operator"] or "-" for row in timed]


@pytest.mark.slow
def test_advice_is_shown_as_far_as_it_gains():
    found = joint("cdist")
    assert found.gains is not None
    own = found.gains.head(1)
    for best, told in ((0.01, 1), (0.0099, 0)):
        gains = pl.concat([own.with_columns(gain_share=pl.lit(share)) for share in (best, 0.001)])
        sections = page_of_any(replace(found, gains=gains), TOP).sections
        assert [len(one.grid.rows) for one in sections if one.title == "ADVICE"] == [1] * told


def test_markdown_says_all_that_the_page_says(name, page):
    words = squeezed(markdown.render([joint(name)], TOP))
    texts = [*page.heading, page.answer, *(outlets.markdown(point.action) for point in page.points)]
    texts += [text for one in page.sections for text in (one.foot, one.plain_title)]
    assert [text for text in texts if squeezed(text).strip() not in words] == []
