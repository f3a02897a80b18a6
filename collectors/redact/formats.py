"""What a file is, by what is in it and not by its name, as far as redaction knows it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

from kanalyze.collectors.redact.packed import opened
from kanalyze.errors import RedactError, ReportNotFoundError, UnknownFormatError

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["nsys", "trace", "document", "ncu", "csv", "text"]

_HEAD: Final = 1 << 16
_SQLITE: Final = b"SQLite format 3\0"
_NCU: Final = b"NVR\0"
_NSYS: Final = b"NVIDIA Tegra Profiler Report"

#: A trace, or the beginning of one: its events, or what kineto writes before them.
_TRACE: Final = re.compile(
    rb'\s*(?:\{.*?"(?:traceEvents|schemaVersion|deviceProperties)"\s*:|\[\s*\{[^{}]*"ph"\s*:)', re.DOTALL
)
#: What kanalyze's collectors write begins so; a manifest says what it is, after what was built.
_DOCUMENT: Final = re.compile(
    rb'\s*\{(?:\s*"(?:schema"\s*:\s*\d|clock"\s*:\s*"(?:host|cuda events)")'
    rb'|(?:[^{}]|\{[^{}]*\})*?"kind"\s*:\s*"kanalyze capture")'
)

#: Files of lines that a capture has, by ending.
_LINES: Final = frozenset((".txt", ".log", ".ptx", ".py", ".cu", ".csv", ".md", ".out", ".err"))

_NO_EXPORT: Final = "Export it, and redact the export: `nsys export --type=sqlite REPORT`."


def kind_of(path: Path) -> Kind:
    """What the file at `path` is.

    Raises:
        ReportNotFoundError: There is none.
        RedactError: It is known, but nothing can be taken out of it.
        UnknownFormatError: It is none that is known.
    """
    if not path.exists():
        raise ReportNotFoundError.at(path)
    if not path.is_file():
        raise UnknownFormatError.of(path, "no file")
    head = _head(path)
    if head.startswith(_NSYS):
        raise RedactError.of(path, "an Nsight Systems report in NVIDIA's own format", _NO_EXPORT)
    if head.startswith(_SQLITE):
        return "nsys"
    if head.startswith(_NCU):
        return "ncu"
    if head.lstrip()[:1] in (b"{", b"["):
        if _DOCUMENT.match(head):
            return "document"
        if _TRACE.match(head):
            return "trace"
    if path.suffix.lower() in _LINES and b"\0" not in head:
        return "csv" if path.suffix.lower() == ".csv" else "text"
    remedy = "Give an nsys .sqlite, a torch trace (.json, .json.gz), a capture's folder, or a file of it."
    raise UnknownFormatError.of(path, "a file that redaction does not know", remedy)


def _head(path: Path) -> bytes:
    with opened(path) as file:
        return file.read(_HEAD)
