"""What is installed is what is in the folders, and importing it costs no more than it must."""

import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

import kanalyze
from kanalyze import analyses
from kanalyze.collectors.workload import references
from support.command import ROOT, ended

SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]

#: What takes long to import, or belongs to a user's program and not to ours.
HEAVY = ("altair", "dask", "numpy", "pandas", "pyarrow", "scipy", "torch", "triton")

#: The reference workloads are shipped as data, and are not to be imported: most of them need torch.
DATA = "kanalyze.kernels"


def packages(name, folder):
    """The packages in a folder that holds the package `name`: every folder with Python files in it."""
    inside = {file.parent for file in folder.rglob("*.py")}
    return {".".join((name, *path.relative_to(folder).parts)): path for path in sorted(inside)}


def every_package():
    roots = sorted(SETUP["package-dir"].items())
    return {name: path for root, folder in roots for name, path in packages(root, ROOT / folder).items()}


def every_module():
    """All modules by their full names, packages included."""
    return sorted(
        name if file.stem == "__init__" else f"{name}.{file.stem}"
        for name, folder in every_package().items()
        for file in folder.glob("*.py")
        if name != DATA
    )


def fresh(code, *arguments):
    """Run `code` in an interpreter of its own, outside the checkout, where a warning is an error."""
    return ended([sys.executable, "-W", "error", "-c", code, *arguments], cwd="/", env=None)


def test_every_folder_with_modules_is_in_the_list():
    assert SETUP["packages"] == sorted(every_package())


def test_every_package_has_an_init_that_says_what_it_is():
    for name, folder in every_package().items():
        if name == DATA:
            assert not (folder / "__init__.py").exists()
            continue
        assert (folder / "__init__.py").exists(), name
        assert importlib.import_module(name).__doc__, name


def test_every_file_of_the_reference_workloads_is_installed():
    there = {file.name for file in (ROOT / "kernels").iterdir() if file.is_file()}
    installed = {file.name for file in Path(references()[0].path).parent.iterdir() if file.is_file()}
    assert there == installed


def test_every_file_of_data_in_a_package_is_installed():
    """A file beside the modules of a package that no pattern matches would be missing in the wheel."""
    for name, folder in every_package().items():
        data = {file for file in folder.iterdir() if file.is_file() and file.suffix not in (".py", ".pyc")}
        listed = SETUP["package-data"].get(name, [])
        lacking = {file.name for file in data if not any(file.match(pattern) for pattern in listed)}
        assert lacking == (set() if name != DATA else lacking), name


def test_every_module_is_installed():
    missing = [name for name in every_module() if importlib.util.find_spec(name) is None]
    assert missing == [], "run `make links`"


def test_every_table_has_tests_in_its_room():
    lacking = []
    for table, module in analyses.homes().items():
        room = ROOT / "tests" / "analyses" / module.removeprefix(f"{analyses.__name__}.").partition(".")[0]
        texts = (file.read_text(encoding="utf-8") for file in room.glob("test_*.py"))
        if not any(re.search(rf"\b{table}\(", text) for text in texts):
            lacking.append(table)
    assert len(analyses.homes()) > 1
    assert lacking == []


def test_every_table_is_listed_where_type_checkers_look():
    rooms = {module.rpartition(".")[0] for module in analyses.homes().values()}
    every = [name for name in every_module() if name.rpartition(".")[0] in rooms and "._" not in name]
    declared = {
        table: module
        for module in every
        for table in analyses.declarations(module)
        if callable(getattr(importlib.import_module(module), table, None))
    }
    assert declared == analyses.homes()


def test_every_public_name_exists():
    assert [name for name in kanalyze.__all__ if not hasattr(kanalyze, name)] == []
    assert kanalyze.__all__ == sorted(kanalyze.__all__)


def test_type_checkers_see_every_public_name():
    code = (ROOT / "analyzer" / "__init__.py").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\b(\w+) as \1\b", code)) == kanalyze.__all__


@pytest.mark.parametrize("module", ["kanalyze", "kanalyze.cli", "kanalyze.cli.summarize", "kanalyze.collectors"])
def test_importing_leaves_heavy_packages_alone(module):
    found = fresh(f"import sys, {module}; print(*sorted(set({HEAVY}) & set(sys.modules)))")
    assert (found.returncode, found.stdout.split(), found.stderr) == (0, [], "")


#: Imports each module that it is given in a fork that has nothing of kanalyze, and says which of them fail.
ALONE = """
import importlib, os, sys
import numpy, polars
for module in sys.argv[1:]:
    sys.stdout.flush()
    if not (child := os.fork()):
        importlib.import_module(module)
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(module)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("first", range(4))
def test_every_module_imports_alone(first):
    """Of 285 modules most of the time would go into importing polars anew."""
    modules = every_module()[first::4]
    assert len(modules) > 50
    found = fresh(ALONE, *modules)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
