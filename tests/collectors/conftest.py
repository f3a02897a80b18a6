"""A machine made of stand-ins: its own PATH, cache and folder; nothing of the real one is found."""

import pytest

from kanalyze.collectors import process
from kanalyze.collectors.tools import machine
from kanalyze.collectors.tools.machine import Permission
from support.stand_ins import machine_in


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
