"""What .ci/versions.py reads from pyproject.toml."""

import runpy
from pathlib import Path

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
