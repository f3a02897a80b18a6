"""Windows of ranges that have no duration."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from support.command import run

REPORT = Path(__file__).parents[1] / "reports" / "nvtx.sqlite"


@pytest.fixture
def report(tmp_path):
    """A report in which two of the steps and all of the siblings have no duration."""
    copy = tmp_path / REPORT.name
    shutil.copyfile(REPORT, copy)
    connection = sqlite3.connect(copy)
    with connection:
        first = "SELECT rowid FROM NVTX_EVENTS WHERE text = 'step' ORDER BY start LIMIT 2"
        connection.execute(f"UPDATE NVTX_EVENTS SET end = start WHERE rowid IN ({first}) OR text = 'sibling'")
    connection.close()
    return copy


def test_what_is_left_out_is_said(report):
    result = run("summarize", report, "--window", "step#*")
    assert result.status == 0
    assert result.error == "kanalyze: --window 'step#*': left out 2 ranges without duration.\n"
    assert "18 instances of step" in result.text
