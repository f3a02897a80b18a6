"""Redacts reports: removes what identifies a machine or its user, and nothing that an analysis needs.

Allowlisted data is copied and everything else left out: an unknown table, column, key or file is removed and reported.
docs/redact.md lists the rules for each kind of file.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from kanalyze import errors, files, machinery, tools
from kanalyze.redact import documents, ncu, nsys
from kanalyze.redact.names import Names, asked
from kanalyze.redact.texts import Removed, Texts

__all__ = ["Removed", "redact"]

_MANIFEST: Final = "manifest.json"

#: Where the copy goes if there is to be none.
_NOWHERE: Final = Path(os.devnull)


class _Kind(NamedTuple):
    """A kind of file: what its beginning matches, how names are learned from it, and how it is copied.

    Both raise DamagedReportError where its structure is invalid, UnknownFormatError where it is of another program, and
    RedactError where it is not built as known; where the copy goes nowhere, removals are only counted.
    """

    begins: re.Pattern[bytes]
    learn: Callable[[Path, Names], None]
    copy: Callable[[Path, Path, Texts], None]


#: Kinds of files by their content, in the order in which they are tried. Of JSON: lines and documents that kanalyze's
#: collectors write; a trace, whose events come first, or the properties that Kineto writes before them.
_LINES: Final = rb'\s*\{\s*"schema"\s*:\s*\d+\s*,\s*"process"\s*:\s*\d+\s*,\s*"exact"\s*:'
_DOCUMENT: Final = (
    rb'\s*\{(?:\s*"(?:schema"\s*:\s*\d|clock"\s*:\s*"(?:host|cuda events)")'
    rb'|(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*?"kind"\s*:\s*"kanalyze capture")'
)
_TRACE: Final = rb'\s*(?:\{(?s:.*?)"(?:traceEvents|schemaVersion|deviceProperties)"\s*:|\[\s*\{[^{}]*"ph"\s*:)'
_MANIFESTS: Final = _Kind(re.compile(_DOCUMENT), documents.learn_document, documents.copy_document)
_KINDS: Final = (
    _Kind(re.compile(rb"SQLite format 3\0"), nsys.learn, nsys.copy),
    _Kind(re.compile(rb"NVR\0"), ncu.learn, ncu.copy),
    _Kind(re.compile(_LINES), documents.learn_lines, documents.copy_lines),
    _MANIFESTS,
    _Kind(re.compile(_TRACE), documents.learn_trace, documents.copy_trace),
)

#: Text files of a capture, by suffix.
_TEXT: Final = _Kind(re.compile(rb"[^\0]*\Z"), documents.learn_text, documents.copy_text)
_TEXTS: Final = frozenset((".txt", ".log", ".ptx", ".py", ".cu", ".csv", ".md", ".out", ".err"))

#: Shorter names match numbers by chance.
_LONG_ENOUGH: Final = 6


def redact(
    report: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
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
        raise errors.ReportNotFoundError.at(path)
    if target is not None and os.path.lexists(target):
        raise errors.OutputError.exists(target)
    is_folder = path.is_dir()
    if target is not None and is_folder and target.absolute().resolve().is_relative_to(path.resolve()):
        raise errors.OutputError.because(target, "it is within the folder that is redacted")
    names.folder(path.absolute().parent)
    if is_folder:
        copy = partial(_copy_folder, path, _learn_folder(path, names, removed))
    else:
        kind = _kind_of(path)
        _learn(path, kind, names)
        copy = partial(_copy, path, kind)
    texts = Texts(names, removed)
    if target is None:
        copy(_NOWHERE, texts)
        return removed
    with errors.writable(target), machinery.unfinished(target.absolute(), folder=True) as place:
        draft = place if is_folder else place / target.name
        copy(draft, texts)
        _settle(draft, target)
    return removed


def _settle(draft: Path, target: Path) -> None:
    """Move what is finished to its final name, a file by a hard link where possible: that never overwrites."""
    try:
        os.link(draft, target)
    except FileExistsError as error:
        raise errors.OutputError.exists(target) from error
    except OSError:  # of a folder, or a file system without hard links
        if os.path.lexists(target):
            raise errors.OutputError.exists(target) from None
        draft.rename(target)


# One file


def _kind_of(path: Path) -> _Kind:
    """The kind of the file at `path`, by its content and not by its name.

    Raises RedactError if its format is known, but cannot be redacted; UnknownFormatError if its format is unknown.
    """
    if not path.is_file():
        raise errors.UnknownFormatError.of(path, "no file")
    head = documents.head(path, 1 << 16)
    if head.startswith(b"NVIDIA Tegra Profiler Report"):
        remedy = f"Export it, and redact the export: `{tools.EXPORT}`."
        raise errors.RedactError.of(path, "an Nsight Systems report in NVIDIA's own format", remedy)
    for kind in (*_KINDS, *([_TEXT] if path.suffix.lower() in _TEXTS else [])):
        if kind.begins.match(head):
            return kind
    remedy = "Give an nsys .sqlite, a torch trace (.json, .json.gz), a capture's folder, or a file of it."
    raise errors.UnknownFormatError.of(path, "a file that redaction does not know", remedy)


def _learn(path: Path, kind: _Kind, names: Names) -> None:
    """Collect identifying names from the file at `path` into `names`; UnreadableReportError if that cannot be read."""
    names.text(path.name)
    with files.readable(path):
        kind.learn(path, names)


def _copy(path: Path, kind: _Kind, target: Path, texts: Texts) -> None:
    """Write the redacted copy of the file at `path` to `target`.

    Raises RedactError if something that identifies would be left; OSError if the target cannot be written.
    """
    kind.copy(path, target, texts)
    if _survives(target, texts.names):
        remedy = (
            "Please report it. Until then, `--remove TEXT` takes out more, and a name that is none may be `--keep`."
        )
        raise errors.RedactError.of(path, "a report with a name in it that is left after redaction", remedy)


def _survives(path: Path, names: Names) -> bool:
    """Whether any name to be removed still occurs in the file's bytes: a final check."""
    sought = [os.fsencode(name.lower()) for name in names.hosts | names.users if len(name) >= _LONG_ENOUGH]
    asked_for = [os.fsencode(text.lower()) for text in names.secrets if len(text) >= _LONG_ENOUGH]
    alone = re.compile(rb"(?<![a-z0-9])(?:" + b"|".join(map(re.escape, sought)) + rb")(?![a-z0-9])")
    longest, before = max(map(len, (*sought, *asked_for)), default=0) + 2, b""
    with documents.opened(path) as file:
        for piece in documents.pieces(file):
            text = (before + piece).lower()
            are_names = any(name in text for name in sought) and alone.search(text) is not None
            if are_names or any(name in text for name in asked_for):
                return True
            before = piece[-longest:]
    return False


# A folder of captures


def _learn_folder(folder: Path, names: Names, removed: Removed) -> dict[Path, _Kind]:
    """Collect identifying names from all files of a known kind, and give these; others are left out.

    Raises RedactError if it is an export of nsys in the form of a folder; UnknownFormatError if there is nothing to
    redact; DamagedReportError if the structure of a file is invalid.
    """
    if not (folder / _MANIFEST).exists() and (any(folder.glob("*.parquet")) or any(folder.glob("*.arrow"))):
        remedy = f"Export the report as SQLite, and redact that: `{tools.EXPORT}`."
        raise errors.RedactError.of(folder, "an export of nsys as a folder of tables", remedy)
    kinds: dict[Path, _Kind] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()):
        try:
            if path.is_symlink():
                _leave_out(folder, path, removed, "a link, and what it points to may be anything")
            else:
                kinds[path] = _kind_of(path)
        except errors.RedactError as error:
            _leave_out(folder, path, removed, error)
        except errors.KanalyzeError:
            _leave_out(folder, path, removed, "a file that redaction does not know")
    if not kinds:
        raise errors.UnknownFormatError.of(
            folder, "a folder without a report that can be redacted", "Give a capture's folder."
        )
    for path in [*kinds]:
        try:
            _learn(path, kinds[path], names)
        except errors.RedactError as error:
            del kinds[path]
            _leave_out(folder, path, removed, error)
    return kinds


def _leave_out(folder: Path, path: Path, removed: Removed, why: object) -> None:
    removed.left_out[str(path.relative_to(folder))] = str(why).removeprefix(f"{path}: ").rstrip(".")


def _copy_folder(folder: Path, kinds: dict[Path, _Kind], target: Path, texts: Texts) -> None:
    """Write the redacted files to the folder `target`, the manifests last, as they list the others."""
    removed, is_counting = texts.removed, target == _NOWHERE
    manifests = [path for path, kind in kinds.items() if path.name == _MANIFEST and kind is _MANIFESTS]
    for path, kind in kinds.items():
        place = target if is_counting else _vacant(_inside(folder, path, target, texts))
        if is_counting or path not in manifests:
            try:
                _copy(path, kind, place, texts)
            except errors.RedactError as error:
                _leave_out(folder, path, removed, error)
                if not is_counting:
                    place.unlink(missing_ok=True)
    removed.left_out = {texts.free(name): texts.free(why) for name, why in removed.left_out.items()}
    for path in manifests if not is_counting else ():
        _copy_manifest(folder, path, target, texts)


def _inside(folder: Path, path: Path, target: Path, texts: Texts) -> Path:
    """The place of a file; its name may contain a user or host name and is redacted, too."""
    return target.joinpath(*(texts.name(part) for part in path.relative_to(folder).parts))


def _vacant(place: Path) -> Path:
    """`place`, or where two names become one the first free one beside it; its folder is made."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = (place.with_name(f"{number}-{place.name}") for number in itertools.count(2))
    return next(path for path in itertools.chain((place,), beside) if not path.exists())


def _copy_manifest(folder: Path, path: Path, target: Path, texts: Texts) -> None:
    """Write the manifest at `path`, of the folder or a capture in it, listing only files that exist in the copy."""
    content = documents.read(path)
    copied = _inside(folder, path.parent, target, texts)
    if isinstance(content, dict) and "files" in content:
        have = sorted(file for file in copied.rglob("*") if file.is_file())
        content["files"] = {str(file.relative_to(copied)): file.stat().st_size for file in have}
    manifest = documents.document(content, texts)
    if isinstance(manifest, dict):
        inside = path.parent.relative_to(folder)
        before = f"{texts.free(str(inside))}{os.sep}" if inside.parts else ""
        ours = {name: why for name, why in texts.removed.left_out.items() if name.startswith(before)}
        left_out = {name.removeprefix(before): why for name, why in ours.items()}
        manifest["redacted"] = {"removed": dict(texts.removed.counts), "left_out": left_out}
    documents.write(manifest, copied / _MANIFEST)
