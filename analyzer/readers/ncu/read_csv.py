"""Reads CSV pages of ``ncu --csv``, also from a log with other output around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.readers.ncu.pages import content, looks_like_ncu
from kanalyze.readers.ncu.runs import report_of_page

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report

#: File suffixes of pages and logs; a file that begins with a page header may have any name.
_SUFFIXES: Final = (".csv", ".log", ".txt")
_PAGE: Final = b'"ID","'


def accepts(path: Path, head: bytes) -> bool:
    """Whether the file is a page or a log of ncu."""
    if head.startswith(_PAGE):
        return True
    return path.suffix in _SUFFIXES and bool(head) and looks_like_ncu(content(path))


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """Opens the page at `path`, joined with the other pages of that run beside it.

    Raises:
        UnknownFormatError: ncu profiled nothing, or only the page of sources is there.
        DamagedReportError: The page is invalid.
    """
    del progress, cache  # takes no time
    return report_of_page(path)
