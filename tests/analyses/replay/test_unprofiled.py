"""The program without its profiler: which mark tells an iteration of a bare run, and a report at such times."""

import json
import os
import re
import shutil
from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given, strategies as st

import kanalyze
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.iterations.phases import steady_part
from kanalyze.analyses.ranges.captured import captured
from kanalyze.analyses.replay import _unprofiled
from kanalyze.analyses.replay._host_time import AS_RECORDED, BY_TOOL, UNCHANGED, HostTime, Unslowed, fitted
from kanalyze.analyses.replay._unprofiled import _mean
from kanalyze.analyses.replay._whatif import window_without
from kanalyze.errors import CannotTellError
from kanalyze.readers import read
from kanalyze.readers.capture.read_capture import bare_runs
from kanalyze.report import BareRun
from support.build import call, host, kernel, launched, nvtx, overhead, report
from support.command import ROOT, SAMPLES, run
from support.real_reports import real_report
from support.slow_replay import TURNS, simulated
from support.strategies import FEWER

pytestmark = pytest.mark.slow

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
    wanted = ("step", lengths[first:last])
    assert _unprofiled.lengths_of({**others, "step": starts}, "step", count, first, last) == wanted
    assert _unprofiled.lengths_of(others, "step", count, first, last) is None


@pytest.mark.parametrize(
    ("marks", "count", "first", "last", "surest"),
    [
        (["other", "Optimizer.step#SGD.step", "step"], 10, 0, 9, "step"),
        (["the outermost module's call", "Optimizer.step#SGD.step"], 10, 0, 9, "Optimizer.step#SGD.step"),
        (["other", "the outermost module's call"], 10, 0, 9, "the outermost module's call"),
        *((["step"], *few, None) for few in ((4, 0, 3), (6, 2, 2))),
    ],
)
def test_the_surest_mark_counts_and_few_iterations_tell_nothing(marks, count, first, last, surest):
    found = _unprofiled.lengths_of({name: list(range(count)) for name in marks}, "step", count, first, last)
    assert (found and found[0]) == surest


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
        return steady.rows.filter(name=steady.each).height, steady.ns / steady.number


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
    assert "Without nsys it took 1.000 s (by steps of the optimizer), longer than recorded." in answer


@pytest.mark.parametrize(
    ("lengths", "recorded", "mean"),
    [
        # a few that were held up make it no longer than nine of ten are
        ([10] * 11 + [90], [10] * 12, 10),
        ([10] * 8 + [14] * 2, [10] * 10, 10.8),
        ([10, 12] * 3, [10] * 6, 11),
        # those that are long in the recording, too, were not held up
        ([10] * 20 + [50, 90], [20] * 21 + [21], 10),
        ([10] * 20 + [50, 90], [20] * 21 + [190], (21 * 10 + 90) / 22),
        # as far as they are
        ([10] * 20 + [50, 9000], [20] * 21 + [190], (21 * 10 + 190) / 22),
    ],
)
def test_the_mean_leaves_out_what_held_a_step_up(lengths, recorded, mean):
    assert _mean(pl.Series(lengths), pl.Series(recorded)) == pytest.approx(mean)


def test_no_step_is_shorter_than_the_gpu_s_work_in_it(tmp_path):
    count, _ = steps()
    answer, bare = told(capture(tmp_path / "cap", bare=[1] * (count - 1)))
    assert bare["iteration"]["by_device"]
    assert bare["iteration"]["ns"] > 1
    assert re.search(
        r"While nsys recorded, it took [\d.]+ [mµ]s, up to [\d.]+ × as long: in a run without it the host is ahead",
        answer,
    )


@pytest.mark.parametrize(
    ("host", "rest", "part"),
    [
        ([0.5], 1.08, 0.5),
        ([0.3, 0.7], 1.08, 0.5),  # every second one does more
        ([0.5], 1.5, 1.15),  # the device does not limit the program
    ],
)
def test_until_much_is_queued_an_iteration_takes_the_host_its_own_time(host, rest, part):
    """Eight passes of the host alone, and the rest as long as the GPU works in them, or longer than that."""
    with read(CAPTURE) as report:
        steady = steady_part(report)
        busy_ns = _unprofiled.busy_ns(report, steady)
    count = steady.rows.filter(name=steady.each).height
    lengths = [int(busy_ns * (host[n % len(host)] if 20 <= n < 28 else rest)) for n in range(count - 1)]
    run = BareRun(1, None, {"Optimizer.step#Adam.step": list(accumulate(lengths, initial=5))})
    iteration = _unprofiled.iteration_of([run], None, steady, busy_ns)
    assert iteration.host_ns == pytest.approx(part * busy_ns, rel=0.04)


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
    [
        "{",
        '{"starts_ns": 3}',
        '{"starts_ns": {}, "batches": {"filled": [[5, [6]]]}}',
        '{"starts_ns": {"a": ["x", 1]}}',
        '{"starts_ns": {"a": [1e999, 1]}}',
        FIFO,
    ]
    + [f'{{"starts_ns": {{"a": [{number}]}}}}' for number in (-1, 10**20, "true", "1.5")],
)
def test_a_damaged_file_is_a_doubt(tmp_path, content):
    folder = capture(tmp_path / "cap")
    if content == FIFO:
        os.mkfifo(folder / "bare.json")
    else:
        (folder / "bare.json").write_text(content)
    with read(folder) as found:
        assert _unprofiled.runs_without(found, None, 0.0) == ((10**9,), None)
        assert any("runs without a profiler" in check for check in kanalyze.health(found).filter("doubt")["check"])


@pytest.mark.parametrize(
    ("noted", "line"), [("a.py:7", "a.py:7"), *((none, "") for none in ("a:7", "<input>:1", "a.py:7\nb", None, 3, {}))]
)
def test_a_line_of_another_form_is_no_profiler_s(tmp_path, noted, line):
    folder = capture(tmp_path / "cap")
    (folder / "bare.json").write_text(json.dumps({"starts_ns": {}, "profiler": noted}))
    with read(folder) as found:
        assert [run.profiler for run in found.bare().marked] == [line]


@pytest.mark.parametrize(
    ("duration", "marks"),
    [*((none, {}) for none in ("1e999", "-5", "1e30", '"x"', "null")), (10**9, {"the program's own profiler": [1]})],
)
def test_durations_that_are_none_and_a_program_that_profiles_itself_tell_nothing(tmp_path, duration, marks):
    folder = capture(tmp_path / "cap")
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"duration_ns": 1000000000}', f'"duration_ns": {duration}}}', 1))
    if marks:
        (folder / "bare.json").write_text(json.dumps({"starts_ns": marks}))
    with read(folder) as found:
        assert _unprofiled.runs_without(found, steady_part(found), 0.0) is None


def test_a_name_of_which_some_may_be_left_out_tells_nothing(tmp_path):
    folder = capture(tmp_path / "cap")
    (folder / "bare.json").write_text(json.dumps({"starts_ns": {"step": list(range(20_000)), "other": [1]}}))
    assert [list(one.starts_ns) for one in bare_runs(folder).marked] == [["other"]]


def test_of_a_report_that_is_in_no_capture_there_is_nothing():
    with read(CAPTURE / "nsys.sqlite") as report:
        assert _unprofiled.runs_without(report, steady_part(report), 0.0) is None
    assert "without_profiler" not in json.loads(run("summarize", CAPTURE / "nsys.sqlite", "--format", "json").text)


@pytest.mark.parametrize(
    ("mark", "recorded_ns", "by_device", "end"),
    [
        ("step", 200.0, False, ": recorded, 2.00 × as long."),
        ("step", 200.0, True, ": recorded, up to 2.00 × as long."),
        ("step", 105.0, False, ", about as long."),
        ("my \x1b[31mmark" + "x" * 100, 200.0, False, ": recorded, 2.00 × as long."),  # is cut and quoted
    ],
)
def test_what_is_said_of_the_recorded_one(mark, recorded_ns, by_device, end):
    iteration = _unprofiled.BareIteration(100.0, recorded_ns, (100.0,), 95.0, 110.0, mark, by_device=by_device)
    text = _unprofiled.bare_sentence(_unprofiled.Bare((1,), iteration), "nsys")
    assert ("\x1b" in text, len(text) < 160) == (False, True)
    assert text.endswith(f"){end}")


REPORTS = sorted([*SAMPLES.glob("*/nsys.sqlite"), *SAMPLES.glob("*/*.json.gz")])


def without(found, kept, reach_ns=10**9):
    return _unprofiled.unprofiled(found, Unslowed(*[HostTime(kept, reach_ns)] * 3))


def spans(found, kind):
    return found.kind(kind).select("event_id", "start_ns", "dur_ns").sort("event_id")


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 500)), min_size=1, max_size=12),
    st.floats(0.1, 1),
    st.integers(1, 400),
)
def test_of_one_thread_each_call_and_the_code_before_it_keep_their_part_within_reach(line, kept, reach_ns):
    """Walks the calls one by one; each half of a range in the code before a call reaches as far as half a call."""
    events, at = [], 1_000
    calls, ranges = [], []
    for gap, took in line:
        if gap > 2:
            ranges.append((at + 1, at + gap - 1))
        calls.append((at + gap, at + gap + took))
        at += gap + took
    events = [call("cudaFuncGetAttributes", *one, correlation=n) for n, one in enumerate(calls)]
    events += [nvtx("work", *one) for one in ranges]
    events.append(kernel(at + 10, at + 20, correlation=len(calls)))
    found = spans(without(report(events), kept, reach_ns), "api")

    def left(ns, number):
        return round(ns - min(ns, number * reach_ns) * (1 - kept))

    reached, expected = calls[0][0], []
    for number, (gap, took) in enumerate(line):
        reached += left(gap, 2 if gap > 2 else 1) if number else 0
        expected.append((reached, left(took, 1)))
        reached += expected[-1][1]
    rows = found.sort("start_ns", "event_id").select("start_ns", "dur_ns").rows()
    for row, want in zip(rows, expected, strict=True):
        assert row == pytest.approx(want, abs=2 * len(line))  # whole ns, of each call and of the code before it


@pytest.mark.parametrize(
    ("name", "left_ns"),
    [
        *((name, 500_000) for name in ("cuModuleLoadData", "cuModuleUnload", "cuLibraryLoadData", "hipModuleLoadData")),
        *((name, 950_000) for name in ("cudaMalloc_v3020", "cuModuleGetFunction", "cudaMemcpyAsync_v3020")),
    ],
)
def test_all_of_a_call_that_loads_code_is_near_and_of_others_what_is_within_reach(name, left_ns):
    """Calls of a millisecond, half of which is left within 100 µs."""
    events = [call(name, 0, 1_000_000), *launched(1_000_000, 1_000_010, kernel(1_000_020, 1_000_030))]
    assert spans(without(report(events), 0.5, 100_000), "api").row(0)[1:] == (0, left_ns)


@FEWER
@given(TURNS, st.floats(0.1, 1), st.floats(0.1, 1))
def test_the_less_is_left_of_the_host_the_earlier_all_is(turns, some, more):
    """Operations last as long as they did, start after their launch began, and no program ends later."""
    whole = simulated(turns).report
    before = spans(whole, "kernel")
    ends = []
    for kept in sorted([some, more]):
        found = without(whole, kept)
        work = spans(found, "kernel")
        assert work.get_column("dur_ns").equals(before.get_column("dur_ns"))
        launched = operations(found, "call_start").drop_nulls("call_start")
        assert launched.select((pl.col("start") >= pl.col("call_start")).all()).item()
        assert not found.kind("api").select((pl.col("dur_ns") < 0).any()).item()
        ends.append(max((start + took for _, start, took in work.rows()), default=0))
    assert ends[0] <= ends[1] <= max((start + took for _, start, took in before.rows()), default=0)


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: "-".join(path.parts[-2:]))
def test_where_all_is_left_reports_are_as_recorded(path):
    whole = real_report(path)
    if whole.kind("overhead").height:
        pytest.skip("what the profiler reports as its own work is gone")
    same = _unprofiled.unprofiled(whole, UNCHANGED)
    for kind in whole.kinds:
        assert spans(same, kind).equals(spans(whole, kind)), kind


def test_the_profiler_s_own_work_between_calls_is_gone():
    launches = [*launched(0, 10, kernel(12, 20)), *launched(500, 510, kernel(512, 520))]
    found = without(report([*launches, overhead("Buffer Flush", 100, 400)]), 0.5)
    assert found.kind("overhead").get_column("dur_ns").to_list() == [0]
    assert found.kind("api").get_column("start_ns").to_list() == [0, 5 + (490 - 300) / 2]


def test_samples_and_threads_without_calls_go_by_the_thread_with_calls():
    events = [event for at in (0, 100, 200) for event in launched(at, at + 50, kernel(at + 60, at + 70))]
    samples = [{"time_ns": at, "process_id": 1, "thread_id": 9, "cpu": 0, "stack_id": None} for at in (100, 125)]
    found = without(report([*events, host("osrt", "read", 100, 150, thread=9)], cpu_samples=samples), 0.5)
    assert found.kind("api").get_column("start_ns").to_list() == [0, 50, 100]
    assert spans(found, "osrt").row(0)[1:] == (50, 25)
    assert found.table("cpu_samples").get_column("time_ns").to_list() == [50, 62]


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0.05, 1.12))
def test_a_fit_takes_what_was_measured_where_any_host_does(device_ns, host_ns, part):
    """A window that takes the longer of its device and of what is left of its host."""

    def took(left):
        return max(device_ns, host_ns * left.kept)

    measured_ns = took(AS_RECORDED) * part
    found = fitted(took, measured_ns, 0.03)
    assert found.least.kept <= found.usual.kept <= found.most.kept <= (1 if part <= 1 else 1.12)
    if part > 1.03 and host_ns >= device_ns:  # the recording was quicker than the run without a profiler
        assert took(found.usual) == pytest.approx(measured_ns, rel=0.005)
    reachable = max(measured_ns, took(HostTime(0.1)))
    if part <= 1:
        assert took(found.usual) <= max(reachable * 1.004, measured_ns * 1.01)
        assert took(found.usual) >= min(reachable, took(AS_RECORDED)) * 0.99 - 1


def test_a_process_that_starts_slowly_under_the_profiler_says_nothing_of_the_code_between_calls():
    """Ten launches with 20 µs of the program before each, then 10 ms far from any call that take 1 ms without it."""
    line = [(60_000 * n + 20_000, 60_000 * n + 30_000) for n in range(10)] + [(10_620_000, 10_630_000)]
    events = [call("cudaLaunchKernel", *one, correlation=n) for n, one in enumerate(line)]
    events += [kernel(end + 2_000, end + 3_000, correlation=n) for n, (_, end) in enumerate(line)]
    took = window_without(report(events))
    usual = HostTime(0.7, 100_000)
    near_ns = took(usual._replace(far=0.0))
    found = fitted(took, near_ns + 1_000_000, 0.03, usual).usual
    assert (found.kept, found.reach_ns) == (usual.kept, usual.reach_ns)
    assert 0.01 < found.far < 0.2
    assert took(found) == pytest.approx(near_ns + 1_000_000, rel=0.02)
    assert fitted(took, near_ns + 1_000_000, 0.03).usual.kept < 0.2  # of no known tool all would be as much quicker


@pytest.mark.parametrize(("least", "kept"), [(0.1, [0.65, 0.572, 0.7]), (0.5, [0.6, 0.5, 0.7])])
def test_where_a_run_tells_nothing_of_the_host_the_estimate_holds_up_to_the_most_that_it_allows(least, kept):
    known = Unslowed(HostTime(0.6), HostTime(least), HostTime(0.7))
    source = object.__new__(_unprofiled.Moved)
    source.host = known
    found = _unprofiled.hosts_of(SimpleNamespace(source=source, meta=SimpleNamespace(tool="nsys")))
    assert [one.kept for one in found] == pytest.approx(kept)


@pytest.mark.parametrize(("longer", "kept"), [(1.05, 1.05), (1.3, BY_TOOL["nsys"].usual.kept)])
def test_a_run_that_took_much_longer_than_the_recording_tells_nothing_of_the_host(tmp_path, longer, kept):
    with kanalyze.read(slowed(tmp_path / "cap", int(991_878 * longer))) as found:
        assert _unprofiled.hosts_of(found).usual.kept == pytest.approx(kept, rel=0.05)


def test_a_run_that_took_longer_than_a_slower_host_explains_tells_nothing_of_the_host(tmp_path, monkeypatch):
    """The device limits the program: whatever the host takes, the window is as long."""
    with kanalyze.read(slowed(tmp_path / "cap", int(991_878 * 1.05))) as found:
        steady = steady_part(found)
        monkeypatch.setattr(
            "kanalyze.analyses.replay._whatif.window_without", lambda *_, **__: lambda _: float(steady.ns)
        )
        assert _unprofiled.hosts_of(found) == BY_TOOL["nsys"]


def slowed(folder, per_step_ns):
    """A copy of a capture with a run without the profiler, whose steps take so long."""
    return capture(folder, bare=[per_step_ns] * (steps()[0] - 1))


def test_a_page_is_of_the_steps_without_the_profiler_and_its_ledger_adds_up_to_them(tmp_path):
    folder = slowed(tmp_path / "cap", 600_000)
    page = json.loads(run("summarize", folder, "--format", "json").text)
    assert page["iterations"]["mean_ns"] == pytest.approx(600_000, rel=0.01)
    assert page["report"]["slower"] == pytest.approx(991_878 / 600_000, rel=0.001)
    assert sum(row["ns"] for row in page["ledger"]) == page["windows"][0]["window_ns"]
    assert "While nsys recorded, it took 991.9 µs, 1.65 × as long" in " ".join(page["answer"].split())
    assert "(1.65 × slower; corrected)" in run("summarize", folder).text


def test_every_table_can_be_made_of_a_report_without_its_profiler(tmp_path):
    with kanalyze.read(slowed(tmp_path / "cap", 600_000)) as found:
        corrected_report = kanalyze.without_profiler(found)
        ledger = kanalyze.ledger(corrected_report, window="steady")
        window = steady_part(corrected_report).window
        assert ledger.get_column("ns").sum() == window.end_ns - window.start_ns
        path = kanalyze.critical_path(corrected_report, window="steady")
        assert path.get_column("ns").sum() == window.end_ns - window.start_ns
        assert kanalyze.whatif(corrected_report, window="steady").now_ns == window.end_ns - window.start_ns
        # the GPU does what it did
        assert kanalyze.kernels(found).sort("name").equals(kanalyze.kernels(corrected_report).sort("name"))


def test_without_a_run_that_tells_it_there_is_no_report_without_the_profiler(tmp_path):
    with kanalyze.read(CAPTURE) as found, pytest.raises(CannotTellError, match="no run without one"):
        kanalyze.without_profiler(found)
    with kanalyze.read(slowed(tmp_path / "cap", 10**9)) as found:
        assert _unprofiled.corrected(found) is None  # it took no longer while recorded


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: "-".join(path.parts[-2:]))
def test_an_estimate_lies_between_what_the_gpu_does_and_what_was_recorded(path):
    whole = real_report(path)
    steady = steady_part(whole)
    if steady is None:
        pytest.skip("nothing repeats")
    found = _unprofiled.estimated(whole.narrow(window=steady.window), steady)
    assert found.least_ns <= found.usual_ns <= found.most_ns * 1.001
    assert found.most_ns <= 1.031 * 1.12 * steady.ns / steady.number  # hosts differ from run to run


@pytest.mark.parametrize(
    ("told", "low_ns", "high_ns"),
    [((100.0, 99.0, 101.0), 92, 108), ((100.0, 85.0, 115.0), 85, 115), ((100.0, 97.0, 130.0), 92, 130)],
)
def test_another_run_differs_by_what_hosts_do_and_at_least_by_what_gpus_do(told, low_ns, high_ns):
    found = _unprofiled.Estimate(*told)
    assert (found.low_ns, found.high_ns) == (pytest.approx(low_ns), pytest.approx(high_ns))


@pytest.mark.parametrize("name", ["decoder.sqlite", "native.sqlite"])
def test_what_runs_in_graphs_keeps_the_names_of_its_captures(name):
    whole = real_report(SAMPLES / "inside_graphs" / name)
    columns = ["path", "call", "how", "launched_in", "kernel", "count"]
    found, before = (captured(one).select(columns).sort(columns) for one in (without(whole, 0.5), whole))
    assert found.equals(before)


def test_other_reports_with_captures_stay_beside_it():
    whole = replace(report([*launched(0, 10, kernel(20, 30, correlation=1))]), captured_in=lambda: None)
    assert without(whole, 0.5).captured_in is whole.captured_in
