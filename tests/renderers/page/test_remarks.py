"""Remarks, bars and figures of pages: the first page and its lines of code, a job's ranks, a noise floor."""

import re
from types import SimpleNamespace

import polars as pl
import pytest

from analyses.comparing.test_job import side
from kanalyze.analyses.comparing._comparison import noise_of
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.page.overview_page import overview
from kanalyze.renderers.formats import json, markdown, terminal
from kanalyze.renderers.page import Look, health_line, page_of_any
from kanalyze.renderers.page.comparison import noise_page
from kanalyze.renderers.page.job import _BAR, _bar, collective
from kanalyze.renderers.page.overview import _part, _per, families, points_remark, to_do
from kanalyze.window import PerIteration, Window
from support.build import US, call, in_line, kernel, nvtx, report


@pytest.mark.parametrize(
    ("each", "told"),
    [
        ("step", "GPU time of a step that it takes; → saved in all, by replay"),
        ("iteration", "GPU time of an iteration; → saved in all, by replay"),
        ("train_step_of_the_first_network", "GPU time that it takes; → saved in all, by replay"),
    ],
)
def test_times_of_findings_are_told_in_the_room_that_there_is(each, told):
    remark = points_remark(PerIteration(7, each), [SimpleNamespace(saved=saved) for saved in ("", "5 ns")])
    assert remark == told
    assert len(f"WHAT TO DO FIRST  {remark}") <= 80


@pytest.mark.parametrize(
    ("remedies", "told"),
    [
        ({"graph-candidate": "compile", "launch-bound": "compile", "tail": "batches"},
         [("graph-candidate", None), ("tail", None)]),
        # host time stands beside launches that the same remedy is for
        ({"launch-bound": "compile", "graph-candidate": "compile", "tail": "batches", "host-computes": "compile"},
         [("launch-bound", "host-computes"), ("tail", None)]),
        ({"host-computes": "compile", "launch-bound": "compile", "graph-candidate": "compile"},
         [("host-computes", "launch-bound")]),
    ],
)  # fmt: skip
def test_of_findings_with_the_same_remedy_the_first_is_a_thingto_do(remedies, told):
    found = [Finding(rule, 0, 5, "text", "remedy", "table", action=action) for rule, action in remedies.items()]
    assert [(one.rule, other and other.rule) for one, other in to_do(found)] == told


@pytest.mark.parametrize(
    ("name", "count", "told"),
    [
        ("other repetition", 38, "38 other repetitions"),
        ("first repetition", 1, "1 first repetition"),
        ("other repetition 2", 17, "17 × 'repetition 2'"),
        ("odd repetition 2", 3, "3 odd 'repetition 2'"),
        ("other train_step", 4, "4 × 'train_step'"),
        ("program", 2, "program"),
    ],
)
def test_iterations_outside_of_the_steady_part_are_counted(name, count, told):
    assert _part(name, count, "repetition") == told
    assert _part("other train_step", 4, "train_step") == "4 other 'train_step'"


@pytest.mark.parametrize(("each", "told"), [("train_step", "train_step"), ("a" * 25, "iteration"), (None, "iteration")])
def test_titles_have_no_name_that_would_not_fit(each, told):
    assert _per(Window(0, 9, count=3, each=each), 24).each == told


def test_of_what_a_tool_says_the_health_line_has_the_first_sentence():
    said = ["nsys: Tracing cuDNN 91.9 is not supported.Loading '/a/b.so' failed: no such file.", "launches without one"]
    health = pl.DataFrame({"check": said, "count": [2, 3], "doubt": [True, True]})
    assert health_line(health) == "health: 2 nsys: Tracing cuDNN 91.9 is not supported; 3 launches without one"


def test_whole_graphs_are_a_part_of_the_kernels_time():
    times = {"gemm": 3, "communication": 9, None: 1}
    table = pl.DataFrame({"family": [*times], "exclusive_ns": [*times.values()]})
    assert families(table) == "gemm 75 %, CUDA graphs 25 %"


COLLECTIVE = {"id": 3, "kind": "all_reduce", "bytes": 4_000, "group": "0", "class": "exposed", "lateness_ns": 600}


def test_bars_are_on_a_scale_from_the_first_arrival_to_the_last_end():
    """Whenever the collective began."""
    ranks = pl.DataFrame({"rank": [0, 1], "start_ns": [5_000, 5_600], "dur_ns": [1_000, 400], "wait_ns": [600, None]})
    rows = ranks.with_columns(last_rank=1, **{name: pl.lit(value) for name, value in COLLECTIVE.items()})
    title, head, first, second, legend, last = collective(rows, 80).splitlines()
    assert title == "collective 3: all_reduce of 4.000 kB in 0, exposed"
    assert head.split() == ["rank", "came", "waited"]
    assert first.split() == ["0", "+0", "ns", "600", "ns", "░" * 24 + "▓" * 16]
    assert second.split() == ["1", "+600", "ns", "0", "ns", "·" * 24 + "▓" * 16]
    assert legend == "· not there ░ waiting ▓ transfer, in 1.000 µs"
    assert last == "rank 1 came last, by 600 ns"
    assert all(max(map(len, collective(rows, width).splitlines())) <= width for width in (70, 200))


def test_a_bar_is_as_wide_as_its_rank_s_step_and_each_part_ends_where_the_sum_does():
    assert _bar({"kernel": 7, "waiting": 0, "transfer": 0, "rest": 0}, 7) == "█" * _BAR
    assert _bar({"kernel": 7, "waiting": 7}, 14) == "█" * (_BAR // 2) + "░" * (_BAR // 2)


def test_the_page_of_noise_says_how_far_two_runs_lie_apart():
    """By a ratio of 1.02 two runs are within 2 % of each other."""
    page = noise_page(noise_of(side([10_000, 10_050, 9_950, 10_030])), 10)
    _, kernels = page.sections
    told = [head.title for head in kernels.grid.heads]
    assert told == ["mean", "varies by", "two runs within", "2 % needs", "kernel"]
    assert {(row[1:4], row[4]) for row in kernels.grid.rows} == {(("0.4 %", "2.0 %", "3"), name) for name in "ab"}
    assert page.answer.startswith("Between 4 runs an iteration (")
    assert "Two single runs lie within 1.9 % of each other." in page.answer
    assert page.answer.endswith("1 %: 6, 2 %: 3, 5 %: 3.")


STEP = 2_000 * US


def looped(places, *, steps=10):
    """Steps of 2 ms with a kernel for each place (file, line, text), in which equal parts of the step lie."""
    events, lines, part = [], [], STEP // len(places)
    for step in range(steps):
        events.append(nvtx("step", step * STEP, (step + 1) * STEP - 10))
        for at, (file, number, text) in enumerate(places):
            start, key = step * STEP + at * part, step * len(places) + at + 1
            events.append(call("cudaLaunchKernel", start + 1 * US, start + 3 * US, correlation=key))
            events.append(kernel(start + 5 * US, start + 5 * US + part // 2, correlation=key))
            lines.append(in_line(start, start + part, number, text, file=file))
    return overview(report(events, source_lines=lines))


def section(found, top=None):
    return next((one for one in page_of_any(found, top).sections if one.title == "WHERE IN YOUR CODE"), None)


@pytest.mark.slow
def test_the_rows_sum_to_the_step():
    found = section(looped([(f"layers/model_{number}.py", number, f"x = {number}") for number in range(1, 9)]))
    rows = found.grid.rows
    assert found.remark == "5 of 8 lines; ms per step"
    assert rows[-1][-2:] == ("elsewhere", "")
    assert [head.title for head in found.grid.heads] == ["time", "host", "GPU work", "launch", "line", "source"]
    assert sum(round(1000 * float(row[0])) for row in rows) == 2_000
    for row in rows:
        assert abs(float(row[0]) - sum(map(float, row[1:-2]))) < 0.003


@pytest.mark.slow
def test_a_line_with_less_than_half_a_hundredth_has_no_row():
    shares = section(looped([("a.py", 1, "x"), *[("a.py", 2, "y")] * 220]))
    assert [row[-2] for row in shares.grid.rows] == ["a.py:2", "elsewhere"]


@pytest.mark.slow
def test_long_places_and_texts_fit_the_width():
    found = looped([("d/" * 90 + "m" * 200 + ".py", 123_456, "y = " * 60)] * 2)
    for width in (60, 160):
        text = terminal.render([found], Look(width), None)
        assert max(map(len, text.splitlines())) <= width
        assert "mmmmmmmmm.py:123456" in text


@pytest.mark.slow
def test_a_text_of_the_program_does_nothing_to_a_terminal_or_an_issue():
    found = looped([("e\x1b[2Jvil.py", 7, "\x1b]52;c;aGk=\x07 | <img src=x onerror=1> @all `x`"), ("b.py", 8, "")])
    pages = [terminal.render([found], Look(), None), markdown.render([found], None)]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "".join(pages))
    assert "<img" not in pages[1].replace("`<img", "")
    assert "\\u001b" in json.render([found])
    assert "\x1b" not in json.render([found])
