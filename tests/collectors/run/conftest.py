"""A program and a script to collect, and processes that are ended quickly."""

from pathlib import Path

import pytest

from kanalyze.collectors import process
from support.stand_ins import PROGRAM


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
