"""Reads reports in the own format of Nsight Compute, ``.ncu-rep``, through NVIDIA's module or an installed ncu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.readers.ncu.rep_blocks import MAGIC
from kanalyze.readers.ncu.runs import REPORT, Run, pages_of_report, report_of

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report

#: With a z where it is compressed.
_SUFFIXES: Final = (REPORT, REPORT + "z")


def accepts(path: Path, head: bytes) -> bool:
    """Whether the file begins as such reports do; or is called so, and the module may know what it is."""
    return head.startswith(MAGIC) or (path.suffix in _SUFFIXES and bool(head))


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """The report at `path`, whole; its pages beside it, where nothing can read the report itself.

    Raises:
        ExportError: Neither the module nor a program is here to read it with, or it cannot read this report; and no
            page is beside it.
    """
    del cache  # to read it again is as quick
    return report_of(path, [Run(path, pages_of_report(path))], progress)
