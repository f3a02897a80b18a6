"""What writes marks and what reads them agree: neither imports the other."""

import re
from pathlib import Path

from kanalyze.analyses.replay import _unprofiled
from kanalyze.collectors.in_workload import notes
from kanalyze.readers.capture import read_capture as bare_runs

LIBRARY = Path(notes.__file__).with_name("nvtx_marks.c").read_text()


def test_as_many_occurrences_are_kept_as_the_reader_thinks():
    assert bare_runs.KEPT == notes.EACH
    assert re.findall(r"enum \{ NAMES = (\d+), EACH = (\d+)", LIBRARY) == [(str(notes.NAMES), str(notes.EACH))]


def test_what_is_no_range_has_one_name():
    assert _unprofiled.OWN == notes.OWN
    assert notes.CALL in _unprofiled.OF_TORCH
