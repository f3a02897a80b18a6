"""A machine of stand-ins for the tools, on which commands run as a user calls them."""

import pytest

from support.stand_ins import PROGRAM, machine_in


@pytest.fixture
def machine(tmp_path, monkeypatch):
    stand_ins = machine_in(tmp_path, monkeypatch).all()
    stand_ins.write("program", PROGRAM)
    return stand_ins
