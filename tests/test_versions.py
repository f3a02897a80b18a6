"""What .ci/versions.py reads from pyproject.toml."""

import runpy
from pathlib import Path

import pytest

VERSIONS = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "versions.py"))


def test_pythons_are_those_of_the_classifiers():
    listed = ["Typing :: Typed", "Programming Language :: Python :: 3.11", "Programming Language :: Python :: 3.14"]
    assert VERSIONS["pythons"]({"classifiers": [*listed, "Programming Language :: Python :: 3 :: Only"]}) == [
        "3.11",
        "3.14",
    ]


def test_lowest_versions_are_those_of_dependencies_and_extras():
    project = {
        "dependencies": ["click>=8.1"],
        "optional-dependencies": {"plot": ["matplotlib>=3.9.0"], "test": ["pytest>=8"]},
    }
    assert VERSIONS["lowest"](project, ["plot"]) == ["click==8.1", "matplotlib==3.9.0"]


@pytest.mark.parametrize("unclear", ["click", "click>=8,<9", "click==8.1", "click>8"])
def test_a_dependency_without_one_lowest_version_is_refused(unclear):
    with pytest.raises(ValueError, match=unclear):
        VERSIONS["lowest"]({"dependencies": [unclear], "optional-dependencies": {}}, [])
