"""Reads SQLite exports (``nsys export --type=sqlite``); for the tables see :mod:`kanalyze.readers.nsys.report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.errors import UnknownFormatError
from kanalyze.readers.nsys.report import report_of, shows_nsys
from kanalyze.readers.storage.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report

_MAGIC: Final = b"SQLite format 3\0"


def accepts(path: Path, head: bytes) -> bool:
    """Whether the file is an SQLite database (:func:`open_report` checks that it is nsys')."""
    del path
    return head.startswith(_MAGIC)


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """Opens the nsys export at `path`.

    Raises:
        UnknownFormatError: The database is not an nsys export.
        DamagedReportError: The file is truncated, or its list of tables cannot be read.
    """
    del progress, cache  # opening is instant
    database = SqliteFile(path)
    if not shows_nsys(database.tables):
        some = ", ".join(sorted(database.tables)[:5]) or "none"
        raise UnknownFormatError.of(path, f"an SQLite database that nsys did not write (tables: {some})")
    return report_of(database)
