"""Events and their side table, decoded in one pass where the side table is asked for first."""

import pytest

import kanalyze
from kanalyze.errors import DamagedReportError
from kanalyze.readers.storage.sqlite_file import SqliteFile
from support.command import REPORTS
from support.exports import altered

TORCH = REPORTS / "torch.sqlite"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
PAIRS = [("kernel_config", "kernel"), ("copy_detail", "memcpy"), ("copy_detail", "memset"), ("sync_detail", "sync")]


@pytest.fixture
def passes(monkeypatch):
    """The tables that are gone through, each time."""
    found, integers = [], SqliteFile.integers

    def counted(self, table, columns, transform):
        found.append(table)
        return integers(self, table, columns, transform)

    monkeypatch.setattr(SqliteFile, "integers", counted)
    return found


@pytest.mark.parametrize(("side", "kind"), PAIRS)
def test_both_are_the_same_whichever_is_asked_for_first(side, kind, passes):
    one, other = kanalyze.read(TORCH, cache=False), kanalyze.read(TORCH, cache=False)
    table, events = one.table(side), one.kind(kind)
    together = len(passes)
    assert events.height
    assert other.kind(kind).equals(events, null_equal=True)
    assert other.table(side).equals(table, null_equal=True)
    assert len(passes) - together == together + 1


def test_what_cannot_be_read_of_one_does_not_spoil_the_other(tmp_path):
    path = altered(tmp_path, TORCH, f"UPDATE {KERNEL} SET gridX = 'wide' WHERE rowid = 3")
    report = kanalyze.read(path, cache=False)
    with pytest.raises(DamagedReportError):
        report.table("kernel_config")
    assert report.kind("kernel").height == kanalyze.read(TORCH, cache=False).kind("kernel").height
