"""Finds the runs at a path: those of a capture, of a folder of reports, or of one side of an interleaved collection."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze.readers import read, room_at
from kanalyze.readers.capture import read_capture
from kanalyze.readers.capture.read_capture import traces_in
from kanalyze.readers.capture.reports import SAMPLES, Way, reports_in_folder, trace_of, ways
from kanalyze.readers.ncu.asked_launches import MANIFEST
from kanalyze.readers.shared.archives import unpacked
from kanalyze.regular_files import open_regular
from kanalyze.tools import NAMES
from kanalyze.turns import SIDES, Turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report

#: In order of what their runs tell of time; the last one is of what no reader opens.
_TOOLS: Final = (*NAMES, "")

#: The folder of a repetition of the torch pass in a capture.
_REPEATED: Final = re.compile(r"torch-(\d+)")


class Run(NamedTuple):
    """A report of one run of a program, unopened.

    Attributes:
        tool: ``nsys``, ``torch`` or ``ncu``; empty where no reader opens the file.
        number: The number among the runs under that tool, from 1; traces of the ranks or cycles of one run share it.
        file: The file or folder that is read.
        turn: The place in an interleaved collection.
        opened: Opens the report, with its turn in the metadata; raises as :func:`kanalyze.readers.read` does.
    """

    tool: str
    number: int
    file: Path
    turn: Turn | None
    opened: Callable[[], Report]


class _Found(NamedTuple):
    """A report, what identifies its run, and the turn of that."""

    way: Way
    run: Path
    turn: Turn | None = None


def runs_of(path: Path, progress: Progress | None = None, *, cache: bool = True) -> list[Run]:
    """The runs at `path`: first those of nsys, then of torch, then of ncu; each in order of time, as far as names tell.

    Of a capture these are the repetitions of each tool's pass, of a folder of reports all reports in it, of any other
    path that report alone. None is opened: what is missing or damaged is an error of :attr:`Run.opened`.
    """
    found = [one for report in reports_in_folder(path) or [path] for one in _found(report, progress, cache=cache)]
    numbers: dict[str, dict[Path, int]] = {tool: {} for tool in _TOOLS}
    runs = []
    for way, run, turn in sorted(found, key=lambda one: _TOOLS.index(one.way.tool)):
        number = numbers[way.tool].setdefault(run, len(numbers[way.tool]) + 1)
        runs.append(Run(way.tool, number, way.file, turn, partial(_opened, way, turn)))
    return runs


def sides_in(path: Path) -> tuple[Path, Path] | None:
    """The captures ``base`` and ``new`` in the folder that ``collect --against`` wrote; None for any other path."""
    base, new = (unpacked(path) / side for side in SIDES)
    return (base, new) if all(read_capture.accepts(side, b"") for side in (base, new)) else None


def _opened(way: Way, turn: Turn | None) -> Report:
    report = way.opened()
    return replace(report, meta=replace(report.meta, turn=turn))


def _found(path: Path, progress: Progress | None, *, cache: bool) -> list[_Found]:
    """The reports at a path that is no folder of reports."""
    path, room = unpacked(path), room_at(path)
    if room == "capture" and (inside := _in_capture(path, progress, cache=cache)):
        return inside
    return [_Found(Way(room if room in _TOOLS else "", path, partial(read, path, progress, cache=cache)), path)]


def _in_capture(folder: Path, progress: Progress | None, *, cache: bool) -> list[_Found]:
    """The reports of a capture, with those of every repetition."""
    turns = _turns(folder)
    found = []
    for way in (one for one in ways(folder, progress, cache=cache, runs=True) if one.tool != SAMPLES):
        name = way.file.stem if way.tool == "nsys" else way.tool
        found.append(_Found(way, folder / name, turns.get(name)))
    for repeated in _repeated(folder):
        for trace in traces_in(repeated):
            way = Way("torch", trace, partial(trace_of, folder, trace, progress, cache=cache))
            found.append(_Found(way, repeated, turns.get(repeated.name)))
    return found


def _repeated(folder: Path) -> list[Path]:
    """The folders of further repetitions of the torch pass, in order."""
    named = {int(name[1]): path for path in folder.iterdir() if (name := _REPEATED.fullmatch(path.name))}
    return [path for _, path in sorted(named.items()) if path.is_dir()]


def _turns(folder: Path) -> dict[str, Turn]:
    """The turn of each run of a capture, by the name of its files; empty where it was not interleaved with another."""
    try:
        with open_regular(folder / MANIFEST) as file:
            told = json.loads(file.read())["against"]
        collection, side, turns = told["collection"], told["side"], told["turns"].items()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    if side not in SIDES or not isinstance(collection, str):
        return {}
    return {name: Turn(collection, side, turn) for name, turn in turns if type(turn) is int}
