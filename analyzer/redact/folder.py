"""Redaction of a capture folder: every file of a known kind; the others are left out and recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.errors import DamagedReportError, KanalyzeError, RedactError, UnknownFormatError, UnreadableReportError
from kanalyze.redact import documents, files
from kanalyze.redact.files import Kind, kind_of
from kanalyze.redact.rules.texts import Removed, Texts
from kanalyze.tools import EXPORT

if TYPE_CHECKING:
    from kanalyze.redact.rules.names import Names


MANIFEST: Final = "manifest.json"


def known_files(folder: Path, removed: Removed) -> dict[Path, Kind]:
    """The files of a folder that can be redacted, with their kinds; the others are recorded in `removed`.

    Raises:
        RedactError: It is an export of nsys in the form of a folder.
        UnknownFormatError: There is nothing to redact.
    """
    if not (folder / MANIFEST).exists() and (any(folder.glob("*.parquet")) or any(folder.glob("*.arrow"))):
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


def learn(folder: Path, kinds: dict[Path, Kind], names: Names, removed: Removed) -> dict[Path, Kind]:
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


def copy(folder: Path, kinds: dict[Path, Kind], target: Path | None, names: Names, removed: Removed) -> None:
    """Write the redacted files to the folder `target`; without a target, only count the removals.

    Raises:
        DamagedReportError: The structure of a file is invalid.
        OSError: The target cannot be written.
    """
    texts = Texts(names, removed)
    manifests = [path for path, kind in kinds.items() if path.name == MANIFEST and kind == "document"]
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
    (copied / MANIFEST).write_bytes(documents.encoded(made))
