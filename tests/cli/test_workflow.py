"""The workflow in docs/comparing.md: its steps do what they say, as GitHub runs them, with reports of the samples."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from support.command import ROOT, SAMPLES, ended, environment, run

pytestmark = pytest.mark.slow

#: The page, in which a step is `run:` with one line.
PAGE = (ROOT / "docs/comparing.md").read_text()
(WORKFLOW,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
STEPS = re.findall(r"^ +- run: (.+)$", WORKFLOW, flags=re.MULTILINE)


def report(name):
    return SAMPLES / name / "nsys.sqlite"


def checkout(machine, base, runs=4):
    """A repository with the program and a baseline of some runs."""
    machine.write("kanalyze", f'#!/bin/sh\nexec "{sys.executable}" -m kanalyze "$@"\n')
    machine.write("python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    Path("train.py").write_text("print('check: ok')\n")
    Path("summary.md").write_text("")
    copied(base, "runs", runs)
    Path("benchmarks").mkdir()
    assert run("compare", "--save", "benchmarks/base.kz", "runs").status == 0


def copied(name, folder, runs):
    Path(folder).mkdir()
    for number in range(runs):
        shutil.copy(report(name), f"{folder}/{number}.sqlite")


def step(line):
    """What a step ends with: GitHub writes it to a file, and says where the page of the summary is."""
    Path("step.sh").write_text(f"{line}\n")
    environs = environment() | {"GITHUB_STEP_SUMMARY": str(Path("summary.md").absolute())}
    return ended(["/bin/bash", "-e", "step.sh"], env=environs)


def assert_ends_with(line, status, gate):
    done = step(line)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    page = Path("summary.md").read_text().splitlines()
    assert page[0] == "### `kanalyze compare`"
    assert len(page) < 40
    assert any(line.startswith(f"**Gate** {gate}") for line in page), page


def test_the_steps_end_with_the_gate_and_leave_its_page(machine):
    """On a machine whose nsys records another program than that of the baseline."""
    checkout(machine, "launch_bound_plain")
    machine.write("pip", '#!/bin/sh\necho "pip $*" >> "$(dirname "$0")/installed"\n')
    shutil.copy(report("launch_bound_graph"), machine.folder / "export.sqlite")
    *before, last = STEPS
    for line in before:
        done = step(line)
        assert done.returncode == 0, done.stderr
    assert (machine.folder / "installed").read_text() == "pip install kanalyze\n"
    assert len([words for words in machine.called("nsys") if words[0] == "profile"]) == 4
    assert_ends_with(last, 0, "held: step as recorded −87.7 %")


@pytest.mark.parametrize(
    ("base", "status", "gate"),
    [
        ("launch_bound_graph", 1, "failed: step as recorded +712.5 %"),
        ("mlp_train", 3, "cannot judge: step"),  # the baseline has another number of steps
    ],
)
def test_the_last_step_fails_where_the_gate_does(machine, base, status, gate):
    checkout(machine, base, runs=2)
    copied("launch_bound_plain", "new", runs=2)
    assert_ends_with(STEPS[-1], status, gate)


def test_one_run_a_side_is_judged_by_what_runs_of_one_program_differ():
    two = ("compare", report("launch_bound_plain"), report("launch_bound_graph"))
    assert "These two runs differ" in run(*two).text
    judged = " ".join(run(*two, "--floor", SAMPLES / "loop_base.kz").text.split())
    assert "A step is 8.13 × faster (7.70 to 8.58, 1 run a side, by 5 and 4 of it)" in judged
    assert f" --floor {SAMPLES / 'loop_base.kz'} --format markdown" in judged
    noise = json.loads(run("compare", "--noise", SAMPLES / "loop_base.kz", "--format", "json").text)
    assert (noise["runs"], round(noise["step"], 5), noise["repeats"]["2%"]) == (4, 0.01985, 3)
