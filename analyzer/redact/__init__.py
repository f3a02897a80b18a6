"""Redacts reports: removes what identifies a machine or its user, and nothing that an analysis needs.

Allowlisted data is copied and everything else left out: an unknown table, column, key or file is removed and reported.
docs/redact.md lists the rules for each kind of file.
"""

from __future__ import annotations

import json
import os
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
from kanalyze.machinery.unfinished import unfinished
from kanalyze.redact import documents, files
from kanalyze.redact.files import Kind, kind_of
from kanalyze.redact.rules.names import asked
from kanalyze.redact.rules.texts import Removed, Texts
from kanalyze.tools import EXPORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

    from kanalyze.redact.rules.names import Names

    #: Writes the copy to a path, or for None only counts what is removed.
    Copy = Callable[[Path | None], None]

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
    if target is not None:
        _check(path, target)
    names.folder(path.absolute().parent)
    copy = (_of_folder if path.is_dir() else _of_file)(path, names, removed)
    if target is None:
        copy(None)
    else:
        _write(target, copy, folder=path.is_dir())
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
    kinds = _learn_folder(source, _known_files(source, removed), names, removed)
    return lambda made: _copy_folder(source, kinds, made, Texts(names, removed))


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


# Folders of captures: every file of a known kind; the others are left out and recorded.


def _known_files(folder: Path, removed: Removed) -> dict[Path, Kind]:
    """The files of a folder that can be redacted, with their kinds; the others are recorded in `removed`.

    Raises:
        RedactError: It is an export of nsys in the form of a folder.
        UnknownFormatError: There is nothing to redact.
    """
    if not (folder / _MANIFEST).exists() and (any(folder.glob("*.parquet")) or any(folder.glob("*.arrow"))):
        remedy = f"Export the report as SQLite, and redact that: `{EXPORT}`."
        raise RedactError.of(folder, "an export of nsys as a folder of tables", remedy)
    kinds: dict[Path, Kind] = {}
    for path in _files(folder):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            removed.left_out[name] = "a link, and what it points to may be anything"
            continue
        try:
            kinds[path] = kind_of(path)
        except RedactError as error:
            removed.left_out[name] = _reason(error, path)
        except KanalyzeError:
            removed.left_out[name] = "a file that redaction does not know"
    if not kinds:
        raise UnknownFormatError.of(
            folder, "a folder without a report that can be redacted", "Give a capture's folder."
        )
    return kinds


def _learn_folder(folder: Path, kinds: dict[Path, Kind], names: Names, removed: Removed) -> dict[Path, Kind]:
    """Collect identifying names from all files; returns those of `kinds` that could be read.

    Raises:
        DamagedReportError: The structure of a file is invalid.
    """
    found = {}
    for path, kind in kinds.items():
        try:
            files.learn(path, kind, names)
            found[path] = kind
        except RedactError as error:
            removed.left_out[str(path.relative_to(folder))] = _reason(error, path)
    return found


def _reason(error: RedactError, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ").rstrip(".")


def _copy_folder(folder: Path, kinds: dict[Path, Kind], target: Path | None, texts: Texts) -> None:
    """Write the redacted files to the folder `target`; without a target, only count the removals.

    Raises:
        DamagedReportError: The structure of a file is invalid.
        OSError: The target cannot be written.
    """
    removed = texts.removed
    manifests = [path for path, kind in kinds.items() if path.name == _MANIFEST and kind == "document"]
    for path, kind in kinds.items():
        place = _place(folder, path, target, texts)
        if path in manifests and target is not None:
            continue  # it lists the other files
        try:
            files.copy(path, kind, place, texts)
        except RedactError as error:
            removed.left_out[str(path.relative_to(folder))] = _reason(error, path)
            if place is not None:
                place.unlink(missing_ok=True)
    removed.left_out = {texts.free(name): texts.free(why) for name, why in removed.left_out.items()}
    if target is not None:
        for path in manifests:
            _copy_manifest(path, folder, target, texts)


def _files(folder: Path) -> list[Path]:
    """All files below a folder, sorted; symbolic links are listed but not followed."""
    found: list[Path] = []
    for place, inner, names in os.walk(folder):
        found.extend(Path(place, name) for name in names)
        found.extend(path for name in inner if (path := Path(place, name)).is_symlink())
    return sorted(found)


def _place(folder: Path, path: Path, target: Path | None, texts: Texts) -> Path | None:
    """The target path of a file; its name may contain a user or host name and is redacted, too."""
    if target is None:
        return None
    place = target.joinpath(*(texts.name(part) for part in path.relative_to(folder).parts))
    place.parent.mkdir(parents=True, exist_ok=True)
    stem, number = place, 1
    while place.exists():
        number += 1
        place = stem.with_name(f"{number}-{stem.name}")
    return place


def _copy_manifest(path: Path, folder: Path, target: Path, texts: Texts) -> None:
    """Write the manifest at `path`, of `folder` or a capture in it, listing only files that exist in the copy."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedReportError.at(path, "its text", "it is no JSON") from error
    except OSError as error:
        raise UnreadableReportError.of(path, error) from error
    inside = path.parent.relative_to(folder)
    copied = target.joinpath(*(texts.name(part) for part in inside.parts))
    copied.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict) and "files" in content:
        have = sorted(file for file in copied.rglob("*") if file.is_file())
        content["files"] = {str(file.relative_to(copied)): file.stat().st_size for file in have}
    made = documents.document(content, texts)
    if isinstance(made, dict):
        before = f"{texts.free(str(inside))}{os.sep}" if inside.parts else ""
        ours = {name: why for name, why in texts.removed.left_out.items() if name.startswith(before)}
        left_out = {name.removeprefix(before): why for name, why in ours.items()}
        made["redacted"] = {"removed": dict(texts.removed.counts), "left_out": left_out}
    (copied / _MANIFEST).write_bytes(documents.encoded(made))
