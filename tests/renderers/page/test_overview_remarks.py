"""Remarks beside the titles of the first page, and the findings under them."""

from types import SimpleNamespace

import polars as pl
import pytest

from kanalyze.analyses.findings.rules import Finding
from kanalyze.renderers.page import health_line
from kanalyze.renderers.page.overview import _families, _part, _per, _point, _points_remark, _to_do
from kanalyze.window import PerIteration, Window


@pytest.mark.parametrize(
    ("each", "told"),
    [
        ("step", "GPU time of a step that it takes; → saved in all, by replay"),
        ("iteration", "GPU time of an iteration; → saved in all, by replay"),
        ("train_step_of_the_first_network", "GPU time that it takes; → saved in all, by replay"),
    ],
)
def test_times_of_findings_are_told_in_the_room_that_there_is(each, told):
    remark = _points_remark(PerIteration(7, each), [SimpleNamespace(saved=saved) for saved in ("", "5 ns")])
    assert remark == told
    assert len(f"WHAT TO DO FIRST  {remark}") <= 80


def test_of_findings_with_the_same_remedy_the_first_is_a_thing_to_do():
    remedies = {"graph-candidate": "compile", "launch-bound": "compile", "tail": "batches"}
    assert _rules(remedies) == [("graph-candidate", None), ("tail", None)]


def test_host_time_stands_beside_launches_that_the_same_remedy_is_for():
    remedies = {"launch-bound": "compile", "graph-candidate": "compile", "tail": "batches", "host-computes": "compile"}
    assert _rules(remedies) == [("launch-bound", "host-computes"), ("tail", None)]
    remedies = {"host-computes": "compile", "launch-bound": "compile", "graph-candidate": "compile"}
    assert _rules(remedies) == [("host-computes", "launch-bound")]


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


def test_what_the_one_beside_saves_is_what_the_action_saves():
    one = Finding("host-computes", 0, 5, "text", "remedy", "table")
    other = one._replace(rule="launch-bound", replayed_ns=7)
    assert _point(one, PerIteration(None, ""), other).saved == "7 ns"
    assert _point(other, PerIteration(None, ""), one).saved == "7 ns"


def _rules(remedies):
    found = [Finding(rule, 0, 5, "text", "remedy", "table", action=action) for rule, action in remedies.items()]
    return [(one.rule, other and other.rule) for one, other in _to_do(found)]


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
    assert _families(table) == "gemm 75 %, CUDA graphs 25 %"
