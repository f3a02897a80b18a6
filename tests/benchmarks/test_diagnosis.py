"""The benchmark of programs with known faults: what these say, the scorer, tasks for models, captures, the scores."""

import ast
import io
import json
import re
import runpy
import sys
import tarfile
import tokenize
from functools import partial
from pathlib import Path

import agents
import pytest
import score
import store
import truth

import tools
from kanalyze.renderers.tables import descriptions as explanations
from support.command import ROOT, SAMPLES, run

FOLDER = ROOT / "benchmarks" / "diagnosis"

#: Causes that no finding names yet.
UNNAMED = {
    *("anomaly-detection", "boolean-masks", "cpu-operators", "cpu-tensors", "downloads", "float64", "gathers"),
    *("growing-copies", "host-grid-loop", "large-logits", "large-upload", "layout-copies", "no-donation", "not-jitted"),
    *("recompilation", "recomputation", "repeated-work", "rnn-cells", "scatter-atomics", "small-batches"),
    "uncoalesced",
}

each = pytest.mark.parametrize("file", sorted((FOLDER / "programs").glob("[!_]*.py")), ids=lambda file: file.stem)


def comments(text):
    return {
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
    }


@each
def test_a_program_says_what_it_does_and_which_lines_are_its_faults(file):
    text = file.read_text()
    tree = ast.parse(text)
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    values = {node.targets[0].id: node.value for node in assigned if isinstance(node.targets[0], ast.Name)}
    named = {name: ast.literal_eval(values[name]) for name in ("CAUSE", "ALSO")}
    assert "\n" not in ast.get_docstring(tree)
    assert {cause for cause in (named["CAUSE"], *named["ALSO"]) if cause} <= UNNAMED.union(explanations.names())
    assert ("# fault" in comments(text)) == bool(named["CAUSE"])
    assert ("# also" in comments(text)) == bool(named["ALSO"])
    (build,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "build")
    assert [argument.arg for argument in build.args.args] == ["fixed"]
    assert "\n    run(build" in text


PYTHON = """CAUSE = "cpu-tensors"
ALSO = ("blocking-read",)


def attention(x):
    mask = torch.full(x.shape, 1.0)
    return mask.to(x.device)  # fault


def step(i):
    loss = attention(i)
    print(loss.item())  # also
"""

CUDA = """// CAUSE: host-grid-loop
// ALSO: allocation-in-loop, uncoalesced
__global__ void rows(float *x) {
    x[0] = 1;
}

int main() {
    for (;;) rows<<<1, 1>>>(x); // fault
}
"""

TIMES = {"fault": [10.0, 9.9, 10.1], "fixed": [4.0, 3.9, 4.1]}


def program(tmp_path, name="masks.py", text=PYTHON):
    (tmp_path / name).write_text(text)
    return truth.program(tmp_path / name)


def finding(rule, replayed=None, at_stake=0, **more):
    bounds = {"replayed_ns": replayed, "replayed_low_ns": replayed, "replayed_high_ns": replayed}
    return {"rule": rule, "at_stake_ns": at_stake, "headline": "", "action": "", "where": None} | bounds | more


def page(*findings, count=10, mean_ns=10_000_000):
    return {"iterations": {"steady_count": count, "mean_ns": mean_ns}, "findings": list(findings)}


def test_a_program_has_its_causes_its_lines_and_the_functions_around_them(tmp_path):
    one = program(tmp_path)
    assert (one.cause, one.also, one.lines) == ("cpu-tensors", ("blocking-read",), (7,))
    assert one.functions == (("attention", 5, 7),)
    other = program(tmp_path, "rows.cu", CUDA)
    assert (other.cause, other.also, other.lines) == ("host-grid-loop", ("allocation-in-loop", "uncoalesced"), (8,))
    assert other.functions == ()  # each program has a main


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("makes a mask at program.py:7", "line"),
        ("program.py(9): attention", "line"),
        ("program.py:2-5", "line"),
        ("program.py:2-4", ""),
        ("program.py:11", ""),
        ("step (program.py)", ""),
        ("attention (program.py)", "function"),
        ("program.py:1", ""),
        ("other.py:7", ""),
        ("attention takes 3 ms", ""),
    ],
)
def test_a_place_is_right_within_two_lines_or_in_the_same_function(tmp_path, text, right):
    assert program(tmp_path).place_right(text) == right


def test_a_score_has_rank_place_and_ratio(tmp_path):
    told = page(
        finding("graph-candidate", replayed=70_000_000),
        finding("graph-candidate", replayed=1),
        finding("cpu-tensors", replayed=54_000_000, where="program.py:6"),
        finding("blocking-read", at_stake=1_000_000),
    )
    got = score.scored(program(tmp_path), score.in_steps(told, score.page_claims(told), 10.0)[0], TIMES, 12.0)
    assert (got.first, got.rank, got.also_rank, got.place) == ("graph-candidate", 2, 3, "line")
    assert (got.measured_ms, got.ratio) == (6.0, pytest.approx(0.9))
    assert got.of_step == pytest.approx(0.9 * TIMES["fault"][0] / 12)  # as recorded, a step took 12 ms
    sums = score.totals([got])
    assert (sums["first"], sums["among_three"], sums["gain"], sums["interval"]) == ((0, 1), (1, 1), (1, 1), (0, 1))
    assert "| masks | cpu-tensors | graph-candidate | 2 | line | 5.4 (5.4 to 5.4) | 6 | 0.90 |" in score.table([got])


FAULTY = 'CAUSE = "float64"\nALSO = ()\n\n\ndef step(i):\n    x = y.double()  # fault\n'


@pytest.fixture
def programs(tmp_path):
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, cause in (("doubles", "float64"), ("healthy_one", ""), ("masks", "cpu-tensors")):
        (folder / f"{name}.py").write_text(FAULTY.replace("float64", cause))
        (tmp_path / "captures" / name).mkdir(parents=True)
    (tmp_path / "measured.json").write_text(json.dumps(dict.fromkeys(("doubles", "healthy_one", "masks"), TIMES)))
    return truth.programs_in(folder, tmp_path / "captures")


def answered(tmp_path, monkeypatch, capsys, **answers):
    for kind, those in answers.items():
        (tmp_path / "answers" / kind).mkdir(parents=True)
        for name, text in those.items():
            (tmp_path / "answers" / kind / f"{name}.txt").write_text(text)
    folders = [tmp_path / "captures", "--answers", tmp_path / "answers", "--programs", tmp_path / "programs"]
    chosen = [word for kind in answers for word in ("--material", kind)]
    command = ["agents.py", *folders, "--measured", tmp_path / "measured.json", *chosen]
    monkeypatch.setattr(sys, "argv", [str(word) for word in command])
    agents.main()
    return capsys.readouterr().out


@pytest.mark.usefixtures("programs")
def test_recorded_answers_are_scored_beside_those_of_a_placebo(tmp_path, monkeypatch, capsys):
    right = '{"cause": "float64", "place": "program.py:5", "gain_ms": 6.3}'
    printed = answered(
        tmp_path,
        monkeypatch,
        capsys,
        page={
            "doubles": f"I looked at {{the}} page.\n```json\n{right}\n```",
            "healthy_one": '{"cause": "none", "place": null, "gain_ms": 0}',
            "masks": "{'cause': cpu-tensors}",
        },
        placebo={"doubles": right, "healthy_one": right, "masks": right},
    )
    assert "| doubles | float64 | float64 | 1 | line | 6.3 (6.3 to 6.3) | 6 | 1.05 |" in printed
    assert "| captures that it reads |  | 66.7 % of 3 | 100.0 % of 3 |" in printed
    assert "| cause named first | ≥ 90 % | 50.0 % of 2 | 50.0 % of 2 |" in printed
    assert "| healthy programs of which no cause is named |  | 100.0 % of 1 | 0.0 % of 1 |" in printed
    assert "| largest claim on a healthy program | < 2 % | 0.0 % | 63.0 % |" in printed


CAPTURES = FOLDER / "captures"

#: What was reached on the stored captures; the bars are in score.py. What gets better is to be written here, and of
#: programs that were unseen until they were stored, what they made worse: three of them place, gains and interval.
#: Half of the host's time to be left near events, which a long program bore out, took one of 119 out of 15 %, and
#: brought one into its interval.
REACHED = {
    "first": 0.99, "among_three": 0.99, "place": 0.92, "gain": 0.66, "of_step": 0.80, "interval_of_step": 0.87,
    "silent": 1.0,
}  # fmt: skip
LARGEST_CLAIM = 0.02


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_causes_places_and_gains_are_as_right_as_they_were(monkeypatch):
    """By the command in this process, which saves as many starts of Python as there are captures."""
    page_of = {"kanalyze": lambda capture: run("summarize", capture, "--format", "json").text}
    monkeypatch.setattr(tools, "TEXTS", page_of)
    programs = truth.programs_in(FOLDER / "programs", CAPTURES)
    measured = json.loads((FOLDER / "measured.json").read_text())
    said_of = partial(tools.answer, captures=CAPTURES, texts=None)
    scores = score.scores_of("kanalyze", programs, measured, said_of, 1)
    sums = score.totals(scores)
    assert sums["read"] == (len(scores), len(scores))
    shares = {key: sums[key][0] / sums[key][1] for key in REACHED}
    assert {key: share for key, share in shares.items() if share < REACHED[key]} == {}, score.table(scores)
    assert sums["healthy"] < LARGEST_CLAIM, score.table(scores)


def test_every_stored_capture_has_a_program_and_its_times():
    names = {file.name.removesuffix(".tar.xz") for file in CAPTURES.glob("*.tar.xz")}
    assert len(names) >= 40
    assert names <= {one.name for one in truth.programs_in(FOLDER / "programs", CAPTURES)}
    assert names <= json.loads((FOLDER / "measured.json").read_text()).keys()


@pytest.mark.slow
def test_a_stored_capture_is_smaller_and_says_the_same(tmp_path):
    said = store.store(SAMPLES / "streams", tmp_path, keep=0.5, small_mb=0.01, largest_mb=1)
    with tarfile.open(tmp_path / "streams.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert re.fullmatch(r"streams: 0\.\d\d MB, stored 0\.\d\d MB, cut", said)
    assert store.first_rules(tmp_path / "streams") == store.first_rules(SAMPLES / "streams")
    assert "left out" in store.store(SAMPLES / "streams", tmp_path, keep=0.5, small_mb=1, largest_mb=0.001)
    assert not (tmp_path / "streams.tar.xz").exists()


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TABLE = runpy.run_path(str(BENCHMARKS / "unprofiled_table.py"))


def row(own, alone, *, at_least=False, recorded=12.0):
    return TABLE["Row"]("name", "nsys", own, at_least, alone, recorded, 1.0, 9.0, 10.0, 11.0)


@pytest.mark.parametrize(
    ("one", "true", "sure", "holds"),
    [
        (row(10, 10.5), 10, True, True),
        (row(10, 12), 10, False, True),
        (row(14, 14), 14, False, False),  # the recording was quicker
        (row(8, 10, at_least=True), 10, True, True),
        (row(8, None, at_least=True), None, False, False),
        (row(12, None), 12, True, False),
    ],
)
def test_what_a_step_takes_is_what_its_own_run_says_or_the_time_alone(one, true, sure, holds):
    assert (one.true, one.sure, one.holds, one.width) == (true, sure, holds, 0.1)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["cupy_ptychography", "text_writer", "sentence_encoder", "answers"])
def test_an_estimate_holds_what_the_step_takes_without_the_profiler(name):
    """Loads of modules, host code far from events, operators between calls, and a GPU that is the limit."""
    alone = 1.314 if name == "answers" else None
    found = TABLE["rows_at"](BENCHMARKS / f"diagnosis/captures/{name}.tar.xz", alone)
    assert found
    assert all(one.holds and one.width < 0.151 for one in found), found
