"""Reads pages that ncu printed with ``--csv``, also in a log with its own lines and the program's around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.readers.ncu.pages import content, looks_like_ncu
from kanalyze.readers.ncu.runs import report_of_page

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report

#: What pages and logs are called; what begins as a page does may be called anything.
_SUFFIXES: Final = (".csv", ".log", ".txt")
_PAGE: Final = b'"ID","'


def accepts(path: Path, head: bytes) -> bool:
    """Whether the file has a page of ncu in it, or is a log of ncu."""
    if head.startswith(_PAGE):
        return True
    return path.suffix in _SUFFIXES and bool(head) and looks_like_ncu(content(path))


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """The report of the page at `path`, and of the other pages of that run beside it.

    Raises:
        UnknownFormatError: ncu profiled nothing, or only the page of sources is there.
        DamagedReportError: The page makes no sense.
    """
    del progress, cache  # takes no time
    return report_of_page(path)
