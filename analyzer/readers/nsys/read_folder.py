"""Reads folders of Parquet or Arrow files, one per table: ``nsys export --type=parquetdir`` or ``arrowdir``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze.errors import UnknownFormatError
from kanalyze.readers.nsys.report import report_of, shows_nsys
from kanalyze.readers.storage.table_folder import FORMS, TableFolder, tables_in
from kanalyze.reduction.files import is_reduction

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.report import Report


def accepts(path: Path, head: bytes) -> bool:
    """Whether `path` is a folder of table files, or one such file (:func:`open_report` checks that they are nsys')."""
    if path.is_dir():
        return any(tables_in(path, form) for form in FORMS) and not is_reduction(path)
    return any(path.suffix == form.suffix and head.startswith(form.magic) for form in FORMS)


def open_report(path: Path, progress: Progress, *, cache: bool) -> Report:
    """Opens the folder at `path`, or the folder of the file at `path`.

    Raises:
        UnknownFormatError: The tables are not an nsys export.
        UnreadableReportError: The operating system refuses to list the folder.
    """
    del progress, cache  # opening is instant
    folder = path if path.is_dir() else path.parent
    found = {form: tables_in(folder, form) for form in FORMS}
    for form, tables in found.items():
        if shows_nsys(frozenset(tables)):
            return report_of(TableFolder(folder, form))
    some = ", ".join(next(tables for tables in found.values() if tables)[:5])
    raise UnknownFormatError.of(path, f"tables that nsys did not write ({some})")
