"""Reads ``.nsys-rep`` and older ``.qdrep`` reports, through an export by nsys."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kanalyze.readers.nsys.export import exported
from kanalyze.readers.nsys.report import report_of

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report

_MAGIC: Final = b"NVIDIA Tegra Profiler Report"
_SUFFIXES: Final = (".nsys-rep", ".qdrep")


def accepts(path: Path, head: bytes) -> bool:
    """Whether the file has the magic bytes or the suffix of an nsys report."""
    return head.startswith(_MAGIC) or (path.suffix in _SUFFIXES and bool(head) and not head.startswith(b"SQLite"))


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """Opens the report at `path`; the first time takes as long as its export.

    Raises:
        ExportError: There is no nsys here, it cannot export the report, or the export cannot be written.
        UnreadableReportError: The report changes while it is exported.
    """
    database = exported(path, progress, cache=cache)
    report = report_of(database)
    return replace(report, meta=replace(report.meta, path=path, read_from=database.path))
