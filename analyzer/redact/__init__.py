"""Redacts reports: removes what identifies a machine or its user, and nothing that an analysis needs.

Allowlisted data is copied and everything else left out: an unknown table, column, key or file is removed and reported.
docs/redact.md lists the rules for each kind of file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.errors import (
    DamagedReportError,
    KanalyzeError,
    OutputError,
    RedactError,
    ReportNotFoundError,
    UnknownFormatError,
    UnreadableReportError,
)
from kanalyze.machinery import unfinished
from kanalyze.redact import documents, files
from kanalyze.redact.texts import Names, Removed, Texts, asked
from kanalyze.tools import EXPORT

if TYPE_CHECKING:
    from os import PathLike


__all__ = ["Removed", "redact"]

_MANIFEST: Final = "manifest.json"


def redact(
    report: str | PathLike[str],
    out: str | PathLike[str] | None,
    *,
    keep: Iterable[str] = (),
    remove: Iterable[str] = (),
    source: bool = False,
) -> Removed:
    """Write a copy of a report without data that identifies its machine or user.

    Args:
        report: An nsys export (.sqlite), a trace of torch.profiler (.json, .json.gz), a .ncu-rep, a page of ncu (.csv),
            a manifest.json, or the folder of a capture.
        out: The path of the copy, which must not exist; written atomically. None only counts the removals.
        keep: Names and texts to keep, although they match a rule.
        remove: Further texts to remove wherever they occur, such as the name of a project.
        source: Whether what stands in the lines of the program stays, which a capture notes.

    Returns:
        Counts of removals by kind, and the files of a folder that were left out.

    Raises:
        ReportNotFoundError: There is no such report.
        UnknownFormatError: Its format is unknown.
        RedactError: Its format is known, but cannot be redacted reliably.
        DamagedReportError: Part of it is missing or invalid.
        OutputError: `out` exists already, or cannot be written.
    """
    path, target, removed = Path(report), None if out is None else Path(out), Removed()
    names = asked(keep, remove, source=source)
    if not path.exists():
        raise ReportNotFoundError.at(path)
    if target is not None and os.path.lexists(target):
        raise OutputError.exists(target)
    is_folder = path.is_dir()
    if target is not None and is_folder and target.absolute().resolve().is_relative_to(path.resolve()):
        raise OutputError.because(target, "it is within the folder that is redacted")
    names.folder(path.absolute().parent)
    if is_folder:
        copy = _Folder(path, names, removed).copy
    else:
        kind = files.kind_of(path)
        files.learn(path, kind, names)
        copy = partial(files.copy, path, kind)
    texts = Texts(names, removed)
    if target is None:
        copy(None, texts)
        return removed
    try:
        with unfinished(target.absolute(), folder=True) as place:
            made = place if is_folder else place / target.name
            copy(made, texts)
            _settle(made, target)
    except OSError as error:
        raise OutputError.because(target, error.strerror or str(error)) from error
    return removed


def _settle(made: Path, target: Path) -> None:
    """Move what is finished to its final name, a file by a hard link where possible: that never overwrites."""
    try:
        if made.is_dir():
            if os.path.lexists(target):
                raise OutputError.exists(target)
            made.rename(target)
        else:
            os.link(made, target)
    except FileExistsError as error:
        raise OutputError.exists(target) from error
    except OSError:
        if made.is_dir():
            raise
        made.rename(target)  # file systems without hard links


class _Folder:
    """A folder of captures: every file of a known kind; the others are left out and recorded."""

    def __init__(self, folder: Path, names: Names, removed: Removed) -> None:
        """Collect identifying names from all files that can be redacted.

        Raises:
            RedactError: It is an export of nsys in the form of a folder.
            UnknownFormatError: There is nothing to redact.
            DamagedReportError: The structure of a file is invalid.
        """
        self._folder, self._removed = folder, removed
        if not (folder / _MANIFEST).exists() and (any(folder.glob("*.parquet")) or any(folder.glob("*.arrow"))):
            remedy = f"Export the report as SQLite, and redact that: `{EXPORT}`."
            raise RedactError.of(folder, "an export of nsys as a folder of tables", remedy)
        kinds: dict[Path, files.Kind] = {}
        for path in _files(folder):
            if path.is_symlink():
                self._leave_out(path, "a link, and what it points to may be anything")
                continue
            try:
                kinds[path] = files.kind_of(path)
            except KanalyzeError as error:
                self._leave_out(
                    path, error if isinstance(error, RedactError) else "a file that redaction does not know"
                )
        if not kinds:
            found = "a folder without a report that can be redacted"
            raise UnknownFormatError.of(folder, found, "Give a capture's folder.")
        self._kinds: dict[Path, files.Kind] = {}
        for path, kind in kinds.items():
            try:
                files.learn(path, kind, names)
                self._kinds[path] = kind
            except RedactError as error:
                self._leave_out(path, error)

    def _leave_out(self, path: Path, why: object) -> None:
        reason = str(why).removeprefix(f"{path}: ").rstrip(".")
        self._removed.left_out[str(path.relative_to(self._folder))] = reason

    def copy(self, target: Path | None, texts: Texts) -> None:
        """Write the redacted files to the folder `target`; without a target, only count the removals.

        Raises:
            DamagedReportError: The structure of a file is invalid.
            OSError: The target cannot be written.
        """
        manifests = [path for path, kind in self._kinds.items() if path.name == _MANIFEST and kind == "document"]
        for path, kind in self._kinds.items():
            place = self._place(path, target, texts) if target is not None else None
            if path in manifests and target is not None:
                continue  # it lists the other files
            try:
                files.copy(path, kind, place, texts)
            except RedactError as error:
                self._leave_out(path, error)
                if place is not None:
                    place.unlink(missing_ok=True)
        left_out = self._removed.left_out
        self._removed.left_out = {texts.free(name): texts.free(why) for name, why in left_out.items()}
        if target is not None:
            for path in manifests:
                self._copy_manifest(path, target, texts)

    def _inside(self, path: Path, target: Path, texts: Texts) -> Path:
        """The place of a file; its name may contain a user or host name and is redacted, too."""
        return target.joinpath(*(texts.name(part) for part in path.relative_to(self._folder).parts))

    def _place(self, path: Path, target: Path, texts: Texts) -> Path:
        place = stem = self._inside(path, target, texts)
        place.parent.mkdir(parents=True, exist_ok=True)
        number = 1
        while place.exists():
            number += 1
            place = stem.with_name(f"{number}-{stem.name}")
        return place

    def _copy_manifest(self, path: Path, target: Path, texts: Texts) -> None:
        """Write the manifest at `path`, of the folder or a capture in it, listing only files that exist in the copy."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DamagedReportError.at(path, "its text", "it is no JSON") from error
        except OSError as error:
            raise UnreadableReportError.of(path, error) from error
        copied = self._inside(path.parent, target, texts)
        copied.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict) and "files" in content:
            have = sorted(file for file in copied.rglob("*") if file.is_file())
            content["files"] = {str(file.relative_to(copied)): file.stat().st_size for file in have}
        made = documents.document(content, texts)
        if isinstance(made, dict):
            inside = path.parent.relative_to(self._folder)
            before = f"{texts.free(str(inside))}{os.sep}" if inside.parts else ""
            ours = {name: why for name, why in texts.removed.left_out.items() if name.startswith(before)}
            left_out = {name.removeprefix(before): why for name, why in ours.items()}
            made["redacted"] = {"removed": dict(texts.removed.counts), "left_out": left_out}
        (copied / _MANIFEST).write_bytes(documents.encoded(made))


def _files(folder: Path) -> list[Path]:
    """All files below a folder, sorted; symbolic links are listed but not followed."""
    found: list[Path] = []
    for place, inner, names in os.walk(folder):
        found.extend(Path(place, name) for name in names)
        found.extend(path for name in inner if (path := Path(place, name)).is_symlink())
    return sorted(found)
