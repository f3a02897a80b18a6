"""Reads the runs without a profiler in a capture: how long each took, and when its recurring parts began.

Files: ``bare.json``, ``bare-2.json``… as bare_run.py and nvtx_marks.c write them, and the pass ``bare`` of the
manifest.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from kanalyze.errors import DamagedReportError
from kanalyze.files.regular import open_regular, readable
from kanalyze.readers.ncu.asked_launches import MANIFEST
from kanalyze.report import BareRun, BareRuns

if TYPE_CHECKING:
    from pathlib import Path

#: The file of a run, and of a rank of it.
_FILE: Final = re.compile(r"bare(?:-(?P<number>\d+))?(?:-rank(?P<rank>\d+))?\.json")


def bare_runs(folder: Path) -> BareRuns:
    """The runs without a profiler in the capture in `folder`; none without such a pass.

    Raises:
        DamagedReportError: A file is not what the collector writes.
    """
    if not (programs_ns := _durations_ns(folder)):
        return BareRuns()
    with readable(folder):
        named = [(path, found) for path in folder.iterdir() if (found := _FILE.fullmatch(path.name))]
    numbers = [(int(found["number"] or 1), found["rank"], path) for path, found in named]
    runs = [
        BareRun(number, None if rank is None else int(rank), _starts(path))
        for number, rank, path in sorted(numbers, key=lambda one: (one[0], int(one[1] or 0)))
    ]
    return BareRuns(programs_ns, tuple(runs))


def _durations_ns(folder: Path) -> tuple[int, ...]:
    """How long each run of the program took, from start to end of the process, by the manifest."""
    try:
        with open_regular(folder / MANIFEST) as file:
            passes = json.loads(file.read())["passes"]
        steps = [step for one in passes if one["name"] == "bare" and one["status"] == "done" for step in one["steps"]]
        return tuple(int(step["duration_ns"]) for step in steps)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()


def _starts(path: Path) -> dict[str, list[int]]:
    """When occurrences began, by name."""
    with open_regular(path) as file:
        text = file.read()
    try:
        marks: dict[str, Any] = json.loads(text.decode(errors="replace"))["marks"]
        return {str(name): sorted(int(ns) for ns in spans[::2]) for name, spans in marks.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise DamagedReportError.at(
            path, "the marks of a run without a profiler", "not what is written there"
        ) from error
