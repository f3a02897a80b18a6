"""Reads a folder of ncu reports or of CSV pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze.readers.ncu.asked_launches import MANIFEST
from kanalyze.readers.ncu.runs import report_of, runs_in

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report


def accepts(path: Path, head: bytes) -> bool:
    """Whether `path` is a folder of ncu files and not a capture, which the capture reader opens."""
    del head
    return path.is_dir() and not (path / MANIFEST).is_file() and bool(runs_in(path))


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """Opens all ncu runs in the folder as one report.

    Raises:
        ExportError: There is a report that nothing here can read.
        UnknownFormatError: A page has no kernels.
        DamagedReportError: The pages of a run are of different runs, or are invalid.
    """
    del cache  # as above
    return report_of(path, runs_in(path), progress)
