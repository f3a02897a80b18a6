"""Modules that load when they are first used."""

import sys
from importlib import import_module

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
