"""Readers: a file in, a :class:`kanalyze.report.Report` out. They know the tools' formats and no analysis.

A reader is a module of this package named ``read_<format>`` with two functions; adding the file adds the reader:

``accepts(path: Path, head: bytes) -> bool``
    Whether the file at `path`, whose first bytes are `head`, is in this format.
``open_report(path: Path) -> Report``
    The report; reads as little as it must, the tables follow on demand.
"""

from __future__ import annotations

import pkgutil
import shlex
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.errors import ReportNotFoundError, UnknownFormatError, UnreadableReportError

if TYPE_CHECKING:
    from os import PathLike

    from kanalyze.report import Report

_HEAD_BYTES: Final = 64

#: Formats that users hand us and that no reader takes, by how the file begins or what it is called.
_KNOWN_OTHERS: Final = (
    (".nsys-rep", b"", "an Nsight Systems report in NVIDIA's own format", "nsys export --type=sqlite {path}"),
    (".qdstrm", b"", "an unfinished Nsight Systems recording", "nsys export --type=sqlite {path}"),
)


def read(path: str | PathLike[str]) -> Report:
    """The report in the file at `path`, whatever tool wrote it.

    Raises:
        ReportNotFoundError: There is no such file.
        UnreadableReportError: The operating system does not let us read it.
        UnknownFormatError: It is not a report that kanalyze reads.
        DamagedReportError: It is one, but part of it is missing or makes no sense.
    """
    path = Path(path)
    head = _first_bytes(path)
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("read_"):
            reader = import_module(f"{__name__}.{module.name}")
            if reader.accepts(path, head):
                report: Report = reader.open_report(path)
                return report
    raise _unknown_format(path, head)


def _first_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise UnknownFormatError.of(path, "a directory")
        if path.exists() and not path.is_file():
            raise UnknownFormatError.of(path, "a pipe or a device")
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except FileNotFoundError as error:
        raise ReportNotFoundError.at(path) from error
    except OSError as error:
        raise UnreadableReportError.because(path, error.strerror or str(error)) from error


def _unknown_format(path: Path, head: bytes) -> UnknownFormatError:
    if not head:
        return UnknownFormatError.of(path, "an empty file")
    for suffix, magic, found, command in _KNOWN_OTHERS:
        if path.name.endswith(suffix) and head.startswith(magic):
            export = command.format(path=shlex.quote(str(path)))
            return UnknownFormatError.of(path, found, f"Export it first: `{export}`.")
    return UnknownFormatError.of(path, "a file in an unknown format")
