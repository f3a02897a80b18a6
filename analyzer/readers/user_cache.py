"""The user's cache: what takes long to make of a report, kept under a name that no other state of the file has.

A name is made of the file's path and of its state (size, times of change and inode), so that what is kept is never out
of date: who puts another file in its place, or only sets its times back, finds nothing here. Things are written under
another name and moved when they are whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Folders of programs that were killed while they wrote are removed when they are this old.
_FORGOTTEN_S: Final = 24 * 3600

#: What the name of a folder begins with while it is written.
_SCRATCH: Final = ".exporting-"


def cache_folder() -> Path:
    """Where things are kept: ``$XDG_CACHE_HOME/kanalyze``, or ``~/.cache/kanalyze``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "kanalyze"


def name_of(path: Path) -> str:
    """What tells a file, as it is now, from every other; the first part is the same whatever is in the file."""
    found, place = path.stat(), os.fsencode(path.resolve())
    state = f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}".encode()
    return f"{digest(place)}-{digest(state)}"


def digest(data: bytes) -> str:
    """A short name for some bytes."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


@contextmanager
def scratch(cache: Path) -> Iterator[Path]:
    """A folder in the `cache` to write in, which is gone afterwards; what others left that were killed is, too.

    Raises:
        OSError: The cache cannot be written.
    """
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in cache.glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _FORGOTTEN_S:
                shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
