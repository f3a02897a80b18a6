"""Whether a processor is idle is what Linux counts, and no where it does not."""

from pathlib import Path

import pytest

from kanalyze.machinery import processors


@pytest.mark.parametrize(
    ("told", "idle"),
    [
        ("0.0 0.0 0.0 1/80 7", True),
        ("9.0 9.0 9.0 2/80 7", False),
        ("0.0 0.0 0.0 17/80 7", False),
        ("", False),
        ("a b c d", False),
    ],
)
def test_one_of_two_is_idle_while_one_process_runs(monkeypatch, told, idle):
    monkeypatch.setattr(processors, "processors", lambda: 2)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: told)
    assert processors.one_is_idle() is idle


def test_where_nothing_is_counted_none_is_idle(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert not processors.one_is_idle()


def test_one_processor_is_this_process_own(monkeypatch):
    monkeypatch.setattr(processors, "processors", lambda: 1)
    assert not processors.one_is_idle()
