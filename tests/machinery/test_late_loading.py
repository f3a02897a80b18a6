"""Modules that load when they are first used."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.resources import files

import pytest

from kanalyze.machinery.late_loading import loading_late


@pytest.fixture
def made(tmp_path, monkeypatch):
    (tmp_path / "late_one.py").write_text("raise_nothing = 7\n")
    (tmp_path / "late_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("late_one", "late_broken"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("made")
def test_a_module_loads_when_it_is_first_used():
    before = sys.meta_path.copy()
    with loading_late("late_one"):
        late_one = import_module("late_one")
    assert sys.meta_path == before
    assert "raise_nothing" not in object.__getattribute__(late_one, "__dict__")
    assert late_one.raise_nothing == 7


@pytest.mark.usefixtures("made")
def test_what_is_wrong_with_it_is_told_then():
    with loading_late("late_broken"):
        late_broken = import_module("late_broken")
    with pytest.raises(ZeroDivisionError):
        late_broken.anything  # noqa: B018


@pytest.mark.usefixtures("made")
def test_other_modules_load_at_once():
    with loading_late("late_one"), pytest.raises(ZeroDivisionError):
        import_module("late_broken")
    with loading_late("nowhere_at_all"), pytest.raises(ModuleNotFoundError):
        import_module("nowhere_at_all")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that nobody may load, with a module and one that imports it."""
    folder = tmp_path / "late_package"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""What it is about."""\nnamed = 5\n')
    (folder / "inner.py").write_text("value = 3\n")
    (folder / "data.txt").write_text("data")
    (folder / "outer.py").write_text("from late_package import inner\nvalue = inner.value + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("late_package")]:
        sys.modules.pop(name)


def loaded(name):
    return "__builtins__" in object.__getattribute__(sys.modules[name], "__dict__")


@pytest.mark.usefixtures("package")
def test_a_module_leaves_the_package_around_it_unloaded_until_that_is_used():
    with loading_late("late_package"):
        outer = import_module("late_package.outer")
        package = import_module("late_package")
    assert (files(package) / "data.txt").read_text() == "data"
    assert not loaded("late_package.outer")
    assert outer.value == 4
    assert [loaded(f"late_package{name}") for name in (".outer", ".inner", "")] == [True, True, False]
    assert package.__doc__ == "What it is about."
    assert (package.named, loaded("late_package")) == (5, True)


@pytest.mark.usefixtures("package")
def test_it_loads_in_a_context():
    entered = []

    @contextmanager
    def within():
        entered.append("begin")
        yield
        entered.append("end")

    with loading_late("late_package", within=within):
        inner = import_module("late_package.inner")
    assert entered == []
    assert inner.value == 3
    assert entered == ["begin", "end"]
    with pytest.raises(AttributeError):
        _ = inner.nothing


@pytest.mark.usefixtures("made")
def test_it_loads_when_all_that_it_holds_is_asked_for():
    with loading_late("late_one"):
        late_one = import_module("late_one")
    assert vars(late_one)["raise_nothing"] == 7


@pytest.mark.usefixtures("made")
def test_threads_that_ask_at_once_get_all_of_it(tmp_path):
    (tmp_path / "late_one.py").write_text("import time\ntime.sleep(0.05)\nraise_nothing = 7\n")
    with loading_late("late_one"):
        late_one = import_module("late_one")
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(lambda _: late_one.raise_nothing, range(8))] == [7] * 8
