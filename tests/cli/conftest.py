"""A machine of stand-ins for the tools, on which commands run as a user calls them."""

import os

import pytest

from support.bare import leave_out_bare
from support.stand_ins import PROGRAM, StandIns


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of stand-ins; the tests run in its home."""
    folder, home = tmp_path / "bin", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), "/usr/bin", "/bin"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(home)
    leave_out_bare(monkeypatch)
    stand_ins = StandIns(folder).all()
    stand_ins.write("program", PROGRAM)
    return stand_ins
