"""Reads reports in NVIDIA's own format, ``.nsys-rep`` and the older ``.qdrep``, through an export by nsys itself."""

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
    """Whether the file begins as such reports do; or is called so, and nsys may know what it is."""
    return head.startswith(_MAGIC) or (path.suffix in _SUFFIXES and bool(head) and not head.startswith(b"SQLite"))


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """The report at `path`, which the first time takes as long as its export does.

    Raises:
        ExportError: There is no nsys here, it cannot export the report, or the export cannot be written.
        UnreadableReportError: The report changes while it is exported.
    """
    database = exported(path, progress, cache=cache)
    report = report_of(database)
    return replace(report, meta=replace(report.meta, path=path, read_from=database.path))
