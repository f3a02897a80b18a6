"""The Makefile, the workflow and the issue form call what there is."""

import re
import runpy
import shutil
import subprocess

import pytest
from hypothesis import settings

from kanalyze.cli import kanalyze as command_line
from support.command import ROOT
from support.shares import some

CI = (ROOT / ".ci/run").read_text()
WORKFLOWS = ROOT / ".github/workflows"
WORKFLOW = (WORKFLOWS / "ci.yml").read_text()
TARGETS = re.search(r"^\.PHONY: help (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()


def recipe(target):
    """What `make` would run for a target, with the tools on the path."""
    make = shutil.which("make")
    if not make:
        pytest.skip("no make here")
    command = [make, "--dry-run", "--no-print-directory", target, "BIN="]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()  # noqa: S603


def test_make_check_runs_the_linters_of_ci_as_ci_does():
    for command in recipe("check"):
        assert f".venv/bin/{command}" in CI


def test_make_test_runs_what_the_second_command_of_the_readme_runs():
    (command,) = recipe("test")
    assert f".venv/bin/{command}\n" in (ROOT / "README.md").read_text()


def test_slow_tests_draw_more_examples_than_quick_ones():
    profile = re.search(
        r"^\.venv/bin/pytest .*-m 'slow or hypothesis' --hypothesis-profile=(\w+)$", CI, flags=re.MULTILINE
    )
    assert settings.get_profile(profile[1]).max_examples >= 2 * settings.get_profile("quick").max_examples


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_runs_files_that_exist_and_is_described(target):
    for path in re.findall(r"(?<!\S)(?:tests|benchmarks|\.ci)/[\w/.]+", "\n".join(recipe(target))):
        assert (ROOT / path).exists(), path
    assert f"| `make {target}` |" in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_workflow_runs_ci_with_pinned_actions_and_every_python_of_the_classifiers():
    assert re.search(r"^ +- run: \.ci/run$", WORKFLOW, flags=re.MULTILINE)
    uses = [
        action for path in some(WORKFLOWS.iterdir()) for action in some(re.findall(r"uses: (\S+)", path.read_text()))
    ]
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action) for action in uses)
    pythons = re.findall(r"^ +(3\.\d+)$", WORKFLOW, flags=re.MULTILINE)
    classified = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert sorted(pythons) == sorted(classified)
    assert pythons[-1] == classified[0]  # `python` is the oldest, which README.md's commands name


def test_the_issue_form_asks_for_doctor_and_a_redacted_report():
    named = set(re.findall(r"`kanalyze ([a-z]+)", (ROOT / ".github/ISSUE_TEMPLATE/report.yml").read_text()))
    assert {"doctor", "redact"} <= named
    assert named <= set(command_line.list_commands(None))


VERSIONS = runpy.run_path(str(ROOT / ".ci" / "versions.py"))


def test_pythons_are_those_of_the_classifiers():
    listed = ["Typing :: Typed", "Programming Language :: Python :: 3.11", "Programming Language :: Python :: 3.14"]
    found = VERSIONS["pythons"]({"classifiers": [*listed, "Programming Language :: Python :: 3 :: Only"]})
    assert found == ["3.11", "3.14"]


def test_lowest_versions_are_those_of_dependencies_and_extras():
    extras = {"plot": ["matplotlib>=3.9.0"], "test": ["pytest>=8"]}
    project = {"dependencies": ["click>=8.1"], "optional-dependencies": extras}
    assert VERSIONS["lowest"](project, ["plot"]) == ["click==8.1", "matplotlib==3.9.0"]
