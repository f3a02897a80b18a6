"""The benchmark as tasks for models: prompts that give nothing away, and recorded answers scored."""

import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "diagnosis"
sys.path.insert(0, str(FOLDER))

import agents  # noqa: E402 - the scripts lie side by side and are no package
import score  # noqa: E402 - as above
import truth  # noqa: E402 - as above

TIMES = {"fault": [10.0, 9.9, 10.1], "fixed": [4.0, 3.9, 4.1]}
FAULTY = 'CAUSE = "float64"\nALSO = ()\n\n\ndef step(i):\n    x = y.double()  # fault\n'
SAMPLES = Path(__file__).parents[2] / "sample_reports"


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
    """What the command prints of recorded answers by material and program."""
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


@pytest.mark.parametrize(
    "answer", ["", "no JSON", "{", '{"place": "program.py:3"}', '{"cause": 3}', "[1, {}]", "{" * 2000]
)
def test_an_answer_without_a_cause_is_unreadable_and_wrong_of_a_healthy_program_too(programs, answer):
    doubles, healthy, _ = programs
    got = agents.scored(doubles, answer, TIMES)
    assert (got.read, got.rank, got.first) == (False, None, "")
    assert score.totals([agents.scored(healthy, answer, TIMES)])["silent"] == (0, 1)


@pytest.mark.parametrize("gain", ["null", '"much"', "true", "NaN", "Infinity"])
def test_a_gain_that_is_no_number_is_none(programs, gain):
    got = agents.scored(programs[0], f'{{"cause": "float64", "place": 3, "gain_ms": {gain}}}', TIMES)
    assert (got.rank, got.told_ms, got.ratio, got.place) == (1, None, None, "")


def test_a_placebo_is_the_page_of_a_program_with_another_cause(programs, tmp_path):
    for one in programs:
        (tmp_path / "texts" / "text").mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / "text" / f"{one.name}.txt").write_text(f"page of a {one.cause or 'healthy'} program")
    said = [agents.material("placebo", one, programs, tmp_path, tmp_path / "texts") for one in programs]
    assert [text.split()[-2] for text in said] == ["healthy", "cpu-tensors", "float64"]
    assert agents.material("page", programs[0], programs, tmp_path, tmp_path / "texts").endswith("a float64 program")


def test_a_prompt_lists_every_cause_and_hides_the_name_of_the_program(programs):
    text = agents.prompt(programs[0], 10.0, "a {strange} page")
    assert all(f"\n- {name}: {sentence}\n" in text for name, (sentence, _) in truth.causes().items())
    assert "10 ms" in text
    assert "{strange}" in text
    assert "program.py:LINE" in text
    assert "doubles" not in text


@pytest.mark.slow
def test_a_command_gets_the_prompt_and_a_server_that_reads_the_capture_without_its_name(tmp_path):
    (tmp_path / "mlp_train.py").write_text(FAULTY)
    one = truth.program(tmp_path / "mlp_train.py")
    reads = """
import json, pathlib, sys
server = json.loads(pathlib.Path(sys.argv[1]).read_text())["mcpServers"]["kanalyze"]
capture = pathlib.Path(sys.argv[2])
texts = [file.read_bytes() for file in capture.rglob("*") if file.suffix in {".json", ".sqlite"}]
print(server["args"][:3], str(capture) in sys.stdin.read(), any(b"mlp_train.py" in text for text in texts))
"""
    said = agents.material("mcp", one, [one], SAMPLES, None)
    text = agents.prompt(one, 1.0, said)
    command = f"{sys.executable} -c '{reads}' {{mcp}} {{capture}}"
    assert agents.asked(command, one, SAMPLES, text) == "['-m', 'kanalyze', 'mcp'] True False\n"


def test_a_command_that_fails_ends_with_what_it_said(programs, tmp_path):
    with pytest.raises(SystemExit, match="exit status 3\nno key"):
        agents.asked(
            f"{sys.executable} -c 'import sys; print(\"no key\", file=sys.stderr); sys.exit(3)'",
            programs[0],
            tmp_path,
            "",
        )
