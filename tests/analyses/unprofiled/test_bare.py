"""An iteration without a profiler: which mark tells it, how long it takes, and what the page says."""

import json
import os
import re
import shutil
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.iterations._steady import steady_part
from kanalyze.analyses.unprofiled._correction import Bare, BareIteration, bare_sentence, lengths_of, without_profiler
from kanalyze.readers import read
from kanalyze.readers.capture.program import bare_runs
from support.command import ROOT, run

FIFO = "a pipe in place of the file"
CAPTURE = ROOT / "sample_reports" / "mlp_train"


@given(st.lists(st.integers(1, 10**9), min_size=5, max_size=40), st.integers(0, 10**12), st.data())
def test_of_marks_that_are_as_many_the_lengths_are_those_from_one_to_the_next(lengths, began, data):
    """Whatever other marks there are."""
    count = len(lengths) + 1
    starts = list(accumulate(lengths, initial=began))
    first = data.draw(st.integers(0, count - 2))
    last = data.draw(st.integers(first + 1, count - 1))
    others = {"Optimizer.step#A": starts[:3], "the outermost module's call": [*starts, *starts], "as many": starts}
    assert lengths_of({**others, "step": starts}, "step", count, first, last) == ("step", lengths[first:last])
    assert lengths_of(others, "step", count, first, last) is None


@pytest.mark.parametrize(
    ("marks", "surest"),
    [
        (["other", "Optimizer.step#SGD.step", "step"], "step"),
        (["the outermost module's call", "Optimizer.step#SGD.step"], "Optimizer.step#SGD.step"),
        (["other", "the outermost module's call"], "the outermost module's call"),
    ],
)
def test_the_surest_mark_counts(marks, surest):
    found = lengths_of({name: list(range(10)) for name in marks}, "step", 10, 0, 9)
    assert found is not None
    assert found[0] == surest


@pytest.mark.parametrize(("count", "first", "last"), [(4, 0, 3), (6, 2, 2)])
def test_few_iterations_tell_nothing(count, first, last):
    assert lengths_of({"step": list(range(count))}, "step", count, first, last) is None


def capture(folder, **runs):
    """A copy of a capture with runs without a profiler, by name, each the lengths of its steps."""
    shutil.copytree(CAPTURE, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    steps = [{"name": name, "command": [], "exit_status": 0, "duration_ns": 10**9} for name in runs or {"bare": 0}]
    manifest["passes"].insert(0, {"name": "bare", "status": "done", "steps": steps})
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for name, lengths in runs.items():
        told = {"schema": 1, "starts_ns": {"Optimizer.step#Adam.step": list(accumulate(lengths, initial=5))}}
        (folder / f"{name.replace('_', '-')}.json").write_text(json.dumps(told))
    return folder


def steps():
    """Iterations of the sample, their mean as recorded and the time that the GPU is busy in one, ns."""
    with read(CAPTURE) as report:
        steady = steady_part(report)
        count = steady.rows.filter(name=steady.each).height
        return count, steady.ns / steady.number


def told(folder):
    page = run("summarize", folder, "--format", "json")
    assert page.error == ""
    content = json.loads(page.text)
    return re.sub(r"\s+", " ", content["answer"]), content["without_profiler"]


def test_the_page_of_a_capture_says_how_long_a_step_takes_without(tmp_path):
    count, recorded_ns = steps()
    answer, bare = told(capture(tmp_path / "cap", bare=[10**9] * (count - 1)))
    iteration = bare["iteration"]
    assert (iteration["ns"], iteration["low_ns"], iteration["high_ns"]) == (1e9, 1e9, 1e9)
    assert iteration["recorded_ns"] == pytest.approx(recorded_ns)
    assert not iteration["by_device"]
    assert "Without nsys it took 1.000 s (by steps of the optimizer), longer than recorded: its runs vary." in answer


def test_no_step_is_shorter_than_the_gpu_s_work_in_it(tmp_path):
    count, _ = steps()
    answer, bare = told(capture(tmp_path / "cap", bare=[1] * (count - 1)))
    assert bare["iteration"]["by_device"]
    assert bare["iteration"]["ns"] > 1
    assert re.search(
        r"While nsys recorded, it took [\d.]+ [mµ]s, up to [\d.]+ × as long: in a run without it the host is ahead",
        answer,
    )


def test_runs_that_vary_say_so(tmp_path):
    count, _ = steps()
    answer, bare = told(capture(tmp_path / "cap", bare=[10**9] * (count - 1), bare_2=[2 * 10**9] * (count - 1)))
    assert bare["iteration"]["runs_ns"] == [1e9, 2e9]
    assert "its 2 runs vary by 66.7 %" in answer


def test_without_marks_the_whole_program_is_told(tmp_path):
    answer, bare = told(capture(tmp_path / "cap"))
    assert bare == {"programs_ns": [10**9], "iteration": None}
    assert "Without a profiler the program took 1.000 s from start to end." in answer


@pytest.mark.parametrize(
    "content",
    ["{", '{"starts_ns": 3}', '{"starts_ns": {"a": ["x", 1]}}', '{"starts_ns": {"a": [1e999, 1]}}', FIFO]
    + [f'{{"starts_ns": {{"a": [{number}]}}}}' for number in (-1, 10**20, "true", "1.5")],
)
def test_a_damaged_file_is_a_doubt_and_the_page_goes_on(tmp_path, content):
    folder = capture(tmp_path / "cap")
    if content == FIFO:
        os.mkfifo(folder / "bare.json")
    else:
        (folder / "bare.json").write_text(content)
    page = json.loads(run("summarize", folder, "--format", "json").text)
    assert "Without a profiler the program took 1.000 s" in page["answer"]
    assert any("runs without a profiler" in one["check"] for one in page["health"])


@pytest.mark.parametrize("duration", ["1e999", "-5", "1e30", '"x"', "null"])
def test_durations_that_are_none_tell_nothing(tmp_path, duration):
    folder = capture(tmp_path / "cap")
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"duration_ns": 1000000000}', f'"duration_ns": {duration}}}', 1))
    assert "without_profiler" not in json.loads(run("summarize", folder, "--format", "json").text)


def test_a_program_that_profiles_itself_tells_nothing(tmp_path):
    folder = capture(tmp_path / "cap")
    (folder / "bare.json").write_text(json.dumps({"starts_ns": {"the program's own profiler": [1]}}))
    assert "without_profiler" not in json.loads(run("summarize", folder, "--format", "json").text)


def test_a_name_of_which_some_may_be_left_out_tells_nothing(tmp_path):
    folder = capture(tmp_path / "cap")
    (folder / "bare.json").write_text(json.dumps({"starts_ns": {"step": list(range(20_000)), "other": [1]}}))
    assert [list(one.starts_ns) for one in bare_runs(folder).marked] == [["other"]]


def test_of_a_report_that_is_in_no_capture_there_is_nothing():
    with read(CAPTURE / "nsys.sqlite") as report:
        assert without_profiler(report, steady_part(report), 0.0) is None
    assert "without_profiler" not in json.loads(run("summarize", CAPTURE / "nsys.sqlite", "--format", "json").text)


def test_a_mark_s_name_is_cut_and_quoted():
    iteration = BareIteration(100.0, 200.0, (100.0,), 90.0, 110.0, "my \x1b[31mmark" + "x" * 100, by_device=False)
    text = bare_sentence(Bare((1,), iteration), "nsys")
    assert "\x1b" not in text
    assert len(text) < 160
    assert text.endswith("): recorded, 2.00 × as long.")


@pytest.mark.parametrize(
    ("recorded_ns", "by_device", "end"),
    [
        (200.0, False, ": recorded, 2.00 × as long."),
        (200.0, True, ": recorded, up to 2.00 × as long."),
        (105.0, False, ", about as long."),
        (80.0, False, ", longer than recorded: its runs vary."),
    ],
)
def test_what_is_said_of_the_recorded_one(recorded_ns, by_device, end):
    iteration = BareIteration(100.0, recorded_ns, (100.0,), 95.0, 110.0, "step", by_device=by_device)
    assert bare_sentence(Bare((1,), iteration), "nsys").endswith(f"){end}")
