"""Reads ``.ncu-rep`` reports, CSV pages of ``ncu --csv``, also from a log with other output, and folders of either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.readers.ncu.asked_launches import MANIFEST
from kanalyze.readers.ncu.pages import content, looks_like_ncu
from kanalyze.readers.ncu.rep_blocks import MAGIC
from kanalyze.readers.ncu.runs import REPORT, Run, pages_of_report, report_of, report_of_page, runs_in

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report

#: Suffixes of reports, compressed ones among them, and of pages and logs; a page may have any name.
_REPORTS: Final = (REPORT, REPORT + "z")
_PAGES: Final = (".csv", ".log", ".txt")
_PAGE: Final = b'"ID","'


def accepts(path: Path, head: bytes) -> bool:
    """Whether the file is a report, a page or a log of ncu, or a folder of such that is no capture."""
    if path.is_dir():
        return not (path / MANIFEST).is_file() and bool(runs_in(path))
    if head.startswith((MAGIC, _PAGE)) or not head:
        return bool(head)
    return path.suffix in _REPORTS or (path.suffix in _PAGES and looks_like_ncu(content(path)))


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """Opens all runs in the folder at `path`, or the report or page there.

    Of a report that nothing here can read the pages beside it are opened; a page is joined with those of its run.

    Raises:
        ExportError: Neither the module nor a program is here to read a report with, or it cannot read this one.
        UnknownFormatError: ncu profiled nothing, or only the page of sources is there.
        DamagedReportError: The pages of a run are of different runs, or are invalid.
    """
    del cache  # reading it again is as fast as a cache
    if path.is_dir():
        return report_of(path, runs_in(path), progress)
    with path.open("rb") as file:
        is_report = path.suffix in _REPORTS or file.read(len(MAGIC)) == MAGIC
    return report_of(path, [Run(path, pages_of_report(path))], progress) if is_report else report_of_page(path)
