"""Reads a folder with reports of ncu, or pages that it printed of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze.readers.ncu.asked_launches import MANIFEST
from kanalyze.readers.ncu.runs import report_of, runs_in

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report


def accepts(path: Path, head: bytes) -> bool:
    """Whether `path` is a folder with such files, and no capture, of which nsys tells more."""
    del head
    return path.is_dir() and not (path / MANIFEST).is_file() and bool(runs_in(path))


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """The report of all runs in the folder, one after the other.

    Raises:
        ExportError: There is a report that nothing here can read.
        UnknownFormatError: A page has no kernels.
        DamagedReportError: The pages of a run are of different runs, or make no sense.
    """
    del cache  # as above
    return report_of(path, runs_in(path), progress)
