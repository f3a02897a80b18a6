"""Reads what ``nsys export --type=parquetdir`` and ``--type=arrowdir`` write: a folder with a file per table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze.errors import UnknownFormatError
from kanalyze.readers.nsys.report import report_of, shows_nsys
from kanalyze.readers.storage.table_folder import FORMS, TableFolder, tables_in

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report


def accepts(path: Path, head: bytes) -> bool:
    """Whether `path` is a folder with files of tables, or one such file (of whom, :func:`open_report` finds out)."""
    if path.is_dir():
        return any(tables_in(path, form) for form in FORMS)
    return any(path.suffix == form.suffix and head.startswith(form.magic) for form in FORMS)


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """The report in the folder at `path`, or in the one that the file at `path` lies in.

    Raises:
        UnknownFormatError: The tables are not nsys'.
        UnreadableReportError: The operating system does not let us list the folder.
    """
    del progress, cache  # opening takes no time
    folder = path if path.is_dir() else path.parent
    found = {form: tables_in(folder, form) for form in FORMS}
    for form, tables in found.items():
        if shows_nsys(frozenset(tables)):
            return report_of(TableFolder(folder, form))
    some = ", ".join(next(tables for tables in found.values() if tables)[:5])
    raise UnknownFormatError.of(path, f"tables that nsys did not write ({some})")
