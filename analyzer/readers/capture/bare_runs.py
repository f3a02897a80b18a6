"""Reads the runs without a profiler in a capture: how long each took, and when its recurring parts began.

Files: ``bare.json``, ``bare-2.json``… as bare_run.py and nvtx_marks.c write them, and the pass ``bare`` of the
manifest.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from kanalyze.errors import DamagedReportError, KanalyzeError
from kanalyze.files.regular import open_regular, readable
from kanalyze.readers.ncu.asked_launches import MANIFEST
from kanalyze.report import BareRun, BareRuns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: So many occurrences of a name are kept at most; so much of a file is read, which no run fills.
KEPT: Final = 20_000
_LARGEST_BYTES: Final = 1 << 27

#: The file of a run, and of a rank of it.
_FILE: Final = re.compile(r"bare(?:-(?P<number>\d+))?(?:-rank(?P<rank>\d+))?\.json")


def bare_runs(folder: Path) -> BareRuns:
    """The runs without a profiler in the capture in `folder`; none without such a pass.

    Of those whose file is damaged there are no marks, but the reason.
    """
    if not (programs_ns := _durations_ns(folder)):
        return BareRuns()
    try:
        return BareRuns(programs_ns, tuple(_marked(folder)))
    except KanalyzeError as error:
        return BareRuns(programs_ns, damage=error)


def _marked(folder: Path) -> Iterator[BareRun]:
    """The runs of which there are marks, in order."""
    with readable(folder):
        named = [(path, found) for path in folder.iterdir() if (found := _FILE.fullmatch(path.name))]
    numbers = [(int(found["number"] or 1), int(found["rank"] or -1), path) for path, found in named]
    for number, rank, path in sorted(numbers):
        yield BareRun(number, None if rank < 0 else rank, _starts(path))


def _durations_ns(folder: Path) -> tuple[int, ...]:
    """How long each run of the program took, from start to end of the process, by the manifest."""
    try:
        with open_regular(folder / MANIFEST) as file:
            passes = json.loads(file.read())["passes"]
        steps = [step for one in passes if one["name"] == "bare" for step in one["steps"] if step["exit_status"] == 0]
        return tuple(_time_ns(step["duration_ns"]) for step in steps)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()


def _starts(path: Path) -> dict[str, list[int]]:
    """When occurrences began, by name; without names of which some may be left out."""
    with readable(path), open_regular(path) as file:
        text = file.read(_LARGEST_BYTES)
    try:
        starts: dict[str, Any] = json.loads(text.decode(errors="replace"))["starts_ns"]
        return {name: sorted(map(_time_ns, times)) for name, times in starts.items() if len(times) < KEPT}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedReportError.at(path, "the marks of a run without a profiler", "of another form") from error


def _time_ns(value: object) -> int:
    """A time in ns.

    Raises:
        ValueError: It is none.
    """
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError
    return value
