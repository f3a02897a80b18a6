"""Reports in NVIDIA's own format, exported once through the nsys that is installed, into the user's cache.

An export is named for the report (its path, size, time of change and inode) and for the nsys that made it, so that it
is never out of date. It is written under another name and moved there when it is whole. Two processes that export the
same report at once each make one, and the later one stays.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.errors import ExportError, KanalyzeError, UnreadableReportError
from kanalyze.readers import nsys_program
from kanalyze.readers.nsys_report import shows_nsys
from kanalyze.readers.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from kanalyze.readers import Progress
    from kanalyze.readers.nsys_program import Starter

#: Folders of exports that were killed are removed when they are this old.
_FORGOTTEN_S: Final = 24 * 3600

_SCRATCH: Final = ".exporting-"


def exported(path: Path, progress: Progress, starter: Starter = nsys_program.start) -> SqliteFile:
    """The SQLite export of the report at `path`: the one beside it, or one from the cache, or made now.

    Args:
        path: A report in NVIDIA's own format.
        progress: Told how much of the export is done.
        starter: Starts nsys.

    Raises:
        ExportError: There is no nsys, it cannot export the report, or the export cannot be written.
        UnreadableReportError: The report changes while it is exported.
    """
    beside = _beside(path)
    if beside is not None:
        return beside
    cache, program = cache_folder(), nsys_program.find()
    name = _name(path)
    known = cache / f"{name}-{_fingerprint(program)}.sqlite" if program else None
    for candidate in [known] if known else sorted(cache.glob(f"{name}-*.sqlite")):
        found = _opened(candidate)
        if found is not None:
            return found
    if program is None or known is None:
        older = path.with_suffix(".sqlite")
        raise ExportError.without_nsys(path, older if older != path and _opened(older) else None)
    try:
        _export(path, known, program, progress, starter)
    except OSError as error:
        raise ExportError.unwritable(path, cache, error.strerror or str(error)) from error
    if _name(path) != name:
        raise UnreadableReportError.because(path, "it changed while it was exported")
    return SqliteFile(known)


def cache_folder() -> Path:
    """Where exports are kept: ``$XDG_CACHE_HOME/kanalyze``, or ``~/.cache/kanalyze``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "kanalyze"


def _beside(path: Path) -> SqliteFile | None:
    """The export with the report's name and the ending .sqlite, if it is newer and whole; nsys stats uses it too."""
    candidate = path.with_suffix(".sqlite")
    try:
        if candidate == path or candidate.stat().st_mtime_ns < path.stat().st_mtime_ns:
            return None
        if candidate.with_name(candidate.name + "-journal").exists():  # nsys is still writing it
            return None
    except OSError:
        return None
    return _opened(candidate)


def _opened(path: Path) -> SqliteFile | None:
    """The export at `path`; None where there is none, or it is not whole."""
    try:
        database = SqliteFile(path) if path.is_file() else None
    except KanalyzeError:
        return None
    return database if database is not None and shows_nsys(database.tables) else None


def _name(path: Path) -> str:
    """What tells a report, as it is now, from every other; the first part is the same whatever is in the file."""
    found, place = path.stat(), os.fsencode(path.resolve())
    state = f"{found.st_size} {found.st_mtime_ns} {found.st_ino}".encode()
    return f"{_digest(place)}-{_digest(state)}"


def _fingerprint(program: Path) -> str:
    """What tells a version of nsys from every other, without a run of it."""
    found = program.stat()
    return _digest(os.fsencode(program.resolve()) + f" {found.st_size} {found.st_mtime_ns}".encode())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _export(path: Path, target: Path, program: Path, progress: Progress, starter: Starter) -> None:
    """Make `target` of the report at `path`, and remove exports of what the report was before.

    Raises:
        OSError: The cache cannot be written, or the program not be started.
    """
    cache = target.parent
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    _tidy(cache)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=cache))
    try:
        made = scratch / "export.sqlite"
        what = f"exporting {path.name} with {program}"
        progress(what, 0.0)
        command = [str(program), "export", "--type=sqlite", f"--output={made}", str(path.absolute())]
        log = scratch / "said"
        try:
            status, said = nsys_program.run(command, log, lambda share: progress(what, share), starter)
        except OSError as error:
            if error.filename == str(log):
                raise
            raise ExportError.failed(path, str(program), 0, [error.strerror or str(error)]) from error
        if status or _opened(made) is None:
            raise ExportError.failed(path, f"nsys {nsys_program.version(program)}".strip(), status, said)
        made.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    progress(what, 1.0)
    place = target.name.partition("-")[0]
    for old in cache.glob(f"{place}-*.sqlite"):
        if old != target:
            old.unlink(missing_ok=True)


def _tidy(cache: Path) -> None:
    """Remove what exports left that were killed."""
    for scratch in cache.glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            if time.time() - scratch.stat().st_mtime > _FORGOTTEN_S:
                shutil.rmtree(scratch, ignore_errors=True)
