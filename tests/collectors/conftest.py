"""A machine made of stand-ins: its own PATH, cache and folder; nothing of the real one is found."""

from pathlib import Path

import pytest

from kanalyze.collectors import process
from kanalyze.collectors.tools import machine
from kanalyze.collectors.tools.machine import Permission
from support.stand_ins import PROGRAM, machine_in


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with a shell and nothing else; the folder of programs on its PATH, where stand-ins can be put."""
    monkeypatch.setattr(process, "installed", lambda *_: [])
    monkeypatch.setattr(machine, "has_device_files", lambda: False)
    for name in ("counters", "cpu_samples", "kernel_names"):
        monkeypatch.setattr(machine, name, lambda: Permission(ok=True, found="permitted"))
    return machine_in(tmp_path, monkeypatch)


@pytest.fixture
def stand_ins(bare):
    """A machine with one GPU, nsys, ncu and nvidia-smi."""
    return bare.all()


@pytest.fixture
def program(stand_ins):
    """A program whose name has a space, and that prints its check."""
    return stand_ins.write("my program", PROGRAM)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A process that does not end when asked is ended after a moment."""
    monkeypatch.setattr(process, "_GRACE_S", 0.3)


@pytest.fixture
def script(stand_ins):
    """A script (of the shell, as its Python is a stand-in), and a Python that has torch."""
    path = Path("train.py")
    path.write_text("echo 'check: ok'\n")
    return path.absolute(), stand_ins.make("python3")
