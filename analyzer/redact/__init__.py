"""Redacts reports: removes what identifies a machine or its user, and nothing that an analysis needs.

Allowlisted data is copied and everything else left out: an unknown table, column, key or file is removed and reported.
docs/redact.md lists the rules for each kind of file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from kanalyze.errors import OutputError, ReportNotFoundError
from kanalyze.machinery.unfinished import unfinished
from kanalyze.redact import files
from kanalyze.redact import folder as folders
from kanalyze.redact.files import kind_of
from kanalyze.redact.rules.names import asked
from kanalyze.redact.rules.texts import Removed, Texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

    from kanalyze.redact.rules.names import Names

    #: Writes the copy to a path, or for None only counts what is removed.
    Copy = Callable[[Path | None], None]

__all__ = ["Removed", "redact"]


def redact(
    report: str | PathLike[str],
    out: str | PathLike[str] | None,
    *,
    keep: Iterable[str] = (),
    remove: Iterable[str] = (),
) -> Removed:
    """Write a copy of a report without data that identifies its machine or user.

    Args:
        report: An nsys export (.sqlite), a trace of torch.profiler (.json, .json.gz), a .ncu-rep, a page of ncu (.csv),
            a manifest.json, or the folder of a capture.
        out: The path of the copy, which must not exist; written atomically. None only counts the removals.
        keep: Names and texts to keep, although they match a rule.
        remove: Further texts to remove wherever they occur, such as the name of a project.

    Returns:
        Counts of removals by kind, and the files of a folder that were left out.

    Raises:
        ReportNotFoundError: There is no such report.
        UnknownFormatError: Its format is unknown.
        RedactError: Its format is known, but cannot be redacted reliably.
        DamagedReportError: Part of it is missing or invalid.
        OutputError: `out` exists already, or cannot be written.
    """
    source, target, names, removed = Path(report), None if out is None else Path(out), asked(keep, remove), Removed()
    if not source.exists():
        raise ReportNotFoundError.at(source)
    if target is not None:
        _check(source, target)
    names.folder(source.absolute().parent)
    copy = (_of_folder if source.is_dir() else _of_file)(source, names, removed)
    if target is None:
        copy(None)
    else:
        _write(target, copy, folder=source.is_dir())
    return removed


def _check(source: Path, target: Path) -> None:
    if os.path.lexists(target):
        raise OutputError.exists(target)
    if source.is_dir() and target.absolute().resolve().is_relative_to(source.resolve()):
        raise OutputError.because(target, "it is within the folder that is redacted")


def _of_file(source: Path, names: Names, removed: Removed) -> Copy:
    kind = kind_of(source)
    files.learn(source, kind, names)
    texts = Texts(names, removed)
    return lambda made: files.copy(source, kind, made, texts)


def _of_folder(source: Path, names: Names, removed: Removed) -> Copy:
    kinds = folders.learn(source, folders.known_files(source, removed), names, removed)
    return lambda made: folders.copy(source, kinds, made, names, removed)


def _write(target: Path, copy: Copy, *, folder: bool) -> None:
    """Write a copy beside `target`, and move it there when it is whole."""
    try:
        with unfinished(target.absolute(), folder=True) as place:
            made = place if folder else place / target.name
            copy(made)
            if folder and os.path.lexists(target):
                raise OutputError.exists(target)
            made.rename(target) if folder else _settle(made, target)
    except OSError as error:
        raise OutputError.because(target, error.strerror or str(error)) from error


def _settle(made: Path, target: Path) -> None:
    """Move the finished file to its final name, by a hard link where possible: unlike a rename, it never overwrites."""
    try:
        os.link(made, target)
    except FileExistsError as error:
        raise OutputError.exists(target) from error
    except OSError:  # file systems without hard links
        made.rename(target)
