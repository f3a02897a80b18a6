"""Reads ``.ncu-rep`` reports of Nsight Compute, through NVIDIA's module or an installed ncu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.readers.ncu.rep_blocks import MAGIC
from kanalyze.readers.ncu.runs import REPORT, Run, pages_of_report, report_of

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report

#: The suffix of compressed reports.
_SUFFIXES: Final = (REPORT, REPORT + "z")


def accepts(path: Path, head: bytes) -> bool:
    """Whether the file has the magic bytes or the suffix of an ncu report."""
    return head.startswith(MAGIC) or (path.suffix in _SUFFIXES and bool(head))


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """Opens the report at `path`; falls back to CSV pages beside it where nothing can read the report itself.

    Raises:
        ExportError: Neither the module nor a program is here to read it with, or it cannot read this report; and no
            page is beside it.
    """
    del cache  # reading it again is as fast as a cache
    return report_of(path, [Run(path, pages_of_report(path))], progress)
