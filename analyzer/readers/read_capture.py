"""Reads the folder that ``kanalyze collect`` wrote: its nsys report, and what belongs to that.

docs/collect.md has what is in such a folder.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kanalyze.errors import UnknownFormatError
from kanalyze.readers.capture_manifest import MANIFEST
from kanalyze.readers.capture_tables import CaptureTables
from kanalyze.readers.ncu_runs import report_of as report_of_ncu
from kanalyze.readers.ncu_runs import runs_in
from kanalyze.readers.nsys_report import report_of
from kanalyze.readers.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report


def accepts(path: Path, head: bytes) -> bool:
    """Whether `path` is a folder with a manifest."""
    del head
    return path.is_dir() and (path / MANIFEST).is_file()


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """The report of the capture in the folder `path`; the first one, where the nsys pass ran several times.

    Of a capture without the nsys pass, that of ncu.

    Raises:
        UnknownFormatError: The capture has no nsys report, and none of ncu.
        DamagedReportError: The report is cut short, or its list of tables cannot be read.
    """
    del cache  # opening takes no time
    found = reports_in(path)
    counters = runs_in(path, "ncu")
    if not found and counters:
        return report_of_ncu(path, counters, progress)
    if not found:
        remedy = "Collect it again with the nsys pass; `kanalyze doctor` says what is missing for that."
        raise UnknownFormatError.of(path, "a capture without a report of nsys", remedy)
    report = report_of(SqliteFile(found[0]))
    source = CaptureTables(path, report.source)
    return replace(report, meta=replace(report.meta, path=path, read_from=found[0]), source=source)


def reports_in(folder: Path) -> list[Path]:
    """The nsys reports of a capture: one for each run of the nsys pass, in their order."""
    return sorted(folder.glob("nsys*.sqlite"), key=lambda path: (len(path.name), path.name))
