"""A machine made of stand-ins: its own PATH, cache and folder; nothing of the real one is found."""

import os

import pytest

from kanalyze.collectors import process
from kanalyze.collectors.tools import machine
from kanalyze.collectors.tools.machine import Permission
from support.bare import leave_out_bare
from support.stand_ins import StandIns


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with a shell and nothing else; the folder of programs on its PATH, where stand-ins can be put."""
    folder = tmp_path / "bin"
    folder.mkdir()
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), "/usr/bin", "/bin"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(process, "installed", lambda *_: [])
    monkeypatch.setattr(machine, "has_device_files", lambda: False)
    for name in ("counters", "cpu_samples", "kernel_names"):
        monkeypatch.setattr(machine, name, lambda: Permission(ok=True, found="permitted"))
    monkeypatch.chdir(home)
    leave_out_bare(monkeypatch)
    return StandIns(folder)


@pytest.fixture
def stand_ins(bare):
    """A machine with one GPU, nsys, ncu and nvidia-smi."""
    return bare.all()
