"""Exports .nsys-rep reports to SQLite with the installed nsys, into the user's cache.

An export is keyed by the state of the report (:mod:`kanalyze.readers.shared.user_cache`) and by the nsys that made it,
so that it is never stale, and by its own checksum. Two processes that export the same report at once each make one, and
the later one stays.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kanalyze.errors import ExportError, KanalyzeError, UnreadableReportError
from kanalyze.readers.nsys import program as nsys_program
from kanalyze.readers.nsys.report import shows_nsys
from kanalyze.readers.shared.user_cache import alone, cache_folder, checksum, digest, kept, make_room, name_of, scratch
from kanalyze.readers.storage.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.readers.nsys.program import Starter


def exported(
    path: Path, progress: Progress, starter: Starter = nsys_program.start, *, cache: bool = True
) -> SqliteFile:
    """The SQLite export of the report at `path`: a newer one beside it, else a cached one, else a new one.

    Args:
        path: A report in NVIDIA's own format.
        progress: Receives the share of the export that is done.
        starter: Starts nsys.
        cache: Whether a cached export may be used.

    Raises:
        ExportError: There is no nsys, it cannot export the report, or the export cannot be written.
        UnreadableReportError: The report changes while it is exported.
    """
    beside = _beside(path) if cache else None
    if beside is not None:
        return beside
    folder, program = cache_folder(), nsys_program.find()
    name = name_of(path)
    known = f"{name}-{_fingerprint(program)}" if program else None
    made = sorted(folder.glob(f"{known or f'{name}-*'}.*.sqlite"))
    for candidate in made if cache else []:
        found = _kept(candidate)
        if found is not None:
            return found
    if program is None or known is None:
        older = path.with_suffix(".sqlite")
        raise ExportError.without_nsys(path, older if older != path and _opened(older) else None)
    try:
        made_now = _export(path, known, program, progress, starter)
    except OSError as error:
        raise ExportError.unwritable(path, folder, error.strerror or str(error)) from error
    if name_of(path) != name:
        raise UnreadableReportError.because(path, "it changed while it was exported")
    return SqliteFile(made_now)


def _beside(path: Path) -> SqliteFile | None:
    """The sibling export with suffix .sqlite, if newer than the report and complete; `nsys stats` writes it too."""
    candidate = path.with_suffix(".sqlite")
    try:
        if candidate == path or candidate.stat().st_mtime_ns < path.stat().st_mtime_ns:
            return None
        if candidate.with_name(candidate.name + "-journal").exists():  # nsys is still writing it
            return None
    except OSError:
        return None
    return _opened(candidate)


def _kept(path: Path) -> SqliteFile | None:
    """The cached export at `path`; None if missing or if its checksum does not match."""
    try:
        if not kept(path) or not path.is_file() or path.suffixes[:1] != [f".{checksum(path)}"]:
            return None
        os.utime(path)
    except OSError:
        return None
    return _opened(path)


def _opened(path: Path) -> SqliteFile | None:
    """Opens the export at `path`; None if missing or incomplete."""
    try:
        database = SqliteFile(path) if path.is_file() else None
    except KanalyzeError:
        return None
    return database if database is not None and shows_nsys(database.tables) else None


def _fingerprint(program: Path) -> str:
    """A fingerprint of the nsys version, without running it."""
    found = program.stat()
    return digest(os.fsencode(program.resolve()) + f" {found.st_size} {found.st_mtime_ns}".encode())


def _export(path: Path, name: str, program: Path, progress: Progress, starter: Starter) -> Path:
    """Export the report at `path` under `name`, and remove cached exports of earlier states of the report.

    Raises:
        OSError: The cache cannot be written, or the program not be started.
    """
    cache = cache_folder()
    with scratch(cache) as folder:
        made = folder / "export.sqlite"
        what = f"exporting {path.name} with {program}"
        progress(what, 0.0)
        flags = ("--type=sqlite", "--include-blobs=true", f"--output={made}")
        command = [str(program), "export", *flags, str(path.absolute())]
        log = folder / "said"
        try:
            status, said = nsys_program.run(command, log, lambda share: progress(what, share), starter)
        except OSError as error:
            if error.filename == str(log):
                raise
            raise ExportError.failed(path, str(program), 0, [error.strerror or str(error)]) from error
        if status or _opened(made) is None:
            raise ExportError.failed(path, f"nsys {nsys_program.version(program)}".strip(), status, said)
        made.chmod(0o600)
        target = cache / f"{name}.{checksum(made)}.sqlite"
        with alone(cache):
            make_room(cache, name.partition("-")[0])
            made.replace(target)
    progress(what, 1.0)
    return target
