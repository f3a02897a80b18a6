"""Readers: a file in, a :class:`kanalyze.report.Report` out. They know the tools' formats and no analysis.

Each subpackage belongs to a tool, or is shared by several. A reader is a module named ``read_<format>`` in it, with two
functions; adding the file adds the reader:

``accepts(path: Path, head: bytes) -> bool``
    Whether the file at `path`, with the first bytes `head`, is in this format; for a folder `head` is empty.
``open_report(path: Path, progress: Progress, *, cache: bool) -> Report``
    Opens the report; tables are read on demand. A slow opening reports progress, and may store its result in the
    user's cache, or load it from there if `cache` allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze import outlets
from kanalyze.errors import KanalyzeError, ReportNotFoundError, UnknownFormatError
from kanalyze.readers.shared.archives import unpacked
from kanalyze.readers.shared.other_programs import refuse_other_programs
from kanalyze.regular_files import readable
from kanalyze.rooms import modules

if TYPE_CHECKING:
    from os import PathLike

    from kanalyze.report import Report

#: Told what is being done, and which share of it is done.
Progress = Callable[[str, float], object]

_HEAD_BYTES: Final = 64

_UNFINISHED: Final = ".qdstrm"


def read(path: str | PathLike[str], progress: Progress | None = None, *, cache: bool = True) -> Report:
    """The report in the file or folder at `path`, whatever tool wrote it.

    Args:
        path: A file or folder written by a tool.
        progress: Called during slow steps with a description and the share done: the export of a report in NVIDIA's own
            format, or decoding of a large trace.
        cache: Whether cached results of an earlier opening may be used.

    Raises:
        ReportNotFoundError: There is no such file.
        UnreadableReportError: The operating system refuses to read it.
        UnknownFormatError: It is not a report that kanalyze reads.
        DamagedReportError: Part of it is missing or invalid.
        ExportError: It is in NVIDIA's own format, and cannot be exported here.
    """
    given = Path(path)
    said = progress or (lambda *_: None)
    head = _first_bytes(given)
    path = unpacked(given)
    head = head if path == given else _first_bytes(path)
    with readable(path):
        if head:
            refuse_other_programs(path)
        name = _reader(path, head)
        if name is not None:
            report: Report = import_module(name).open_report(path, said, cache=cache and path == given)
            return report if path == given else replace(report, meta=replace(report.meta, path=given))
    raise _unknown_format(path, head)


def accepted(path: Path) -> bool:
    """Whether a reader opens the file or folder at `path`, by its first bytes; damage shows when it is read."""
    return room_at(path) is not None


def room_at(path: Path) -> str | None:
    """The room of the reader that opens the file or folder at `path`: ``nsys``, ``torch``, ``ncu`` or ``capture``.

    None where no reader does, judged by the first bytes; damage shows when it is read.
    """
    try:
        path = unpacked(path)
        head = _first_bytes(path)
    except KanalyzeError:
        return None
    with readable(path):
        name = _reader(path, head)
    return name and name.split(".")[-2]


def _reader(path: Path, head: bytes) -> str | None:
    """The reader module that opens the file or folder at `path`, which begins with `head`."""
    return next((name for name in _readers(path) if import_module(name).accepts(path, head)), None)


def _readers(path: Path) -> list[str]:
    """The reader modules to try, in order: first the one for the file's suffix, so that others are not imported."""
    found = (
        (f"{room}_{name.removeprefix('read_')}", module)
        for room, name, module in modules(__name__, __path__)
        if name.startswith("read_")
    )
    ending = path.suffix.removeprefix(".").replace("-", "_")
    return [module for _, module in sorted(found, key=lambda one: not one[0].endswith(ending))]


def _first_bytes(path: Path) -> bytes:
    with readable(path):
        try:
            if path.is_dir():
                return b""
            if path.exists() and not path.is_file():
                raise UnknownFormatError.of(path, "a pipe or a device")
            with path.open("rb") as file:
                return file.read(_HEAD_BYTES)
        except FileNotFoundError as error:
            raise ReportNotFoundError.at(path) from error


def _unknown_format(path: Path, head: bytes) -> UnknownFormatError:
    if path.is_dir():
        if import_module("kanalyze.reduction_files").reductions_at(path):  # with polars, for mistakes only
            remedy = f"See it with `{outlets.command('kanalyze', 'ranks', path)}`, or give the reports themselves."
            return UnknownFormatError.of(path, "what `kanalyze reduce` left", remedy)
        return UnknownFormatError.of(path, "a folder without tables")
    if not head:
        return UnknownFormatError.of(path, "an empty file")
    if path.suffix == _UNFINISHED:
        remedy = f"Finish it with `{outlets.command('QdstrmImporter', '-i', path)}`, which comes with Nsight Systems."
        return UnknownFormatError.of(path, "an unfinished Nsight Systems recording", remedy)
    if path.suffix == import_module("kanalyze.digest").SUFFIX:  # as above
        remedy = f"Compare a run with it: `{outlets.command('kanalyze', 'compare', path)} REPORT`."
        return UnknownFormatError.of(path, "a baseline, which has figures of a run and no events", remedy)
    return UnknownFormatError.of(path, "a file in an unknown format")
