"""The user's cache of exports and decoded traces, keyed by the state of the source file.

A key consists of the file's path and state (size, modification times, inode), so that entries are never stale:
replacing the file, or only resetting its times, invalidates them. Entries are written under a temporary name, moved
when complete, and verified by checksum; a corrupt entry is made again.

A folder that is a symbolic link, is owned by somebody else, or is writable by others is not used.
"""

import errno
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from kanalyze.files import digest
from kanalyze.machinery import remove_forgotten, unfinished

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Size limit of the cache; above it, the least recently used entries are evicted.
MOST_BYTES: Final = 8 << 30
#: Name patterns that count towards the limit; compiled workloads share the folder and manage their own.
_OURS: Final = re.compile(r"\.trace\d+$|\.sqlite$")
#: Prefix of temporary folders.
_SCRATCH: Final = ".exporting-"


def name_of(path: Path) -> str:
    """The cache key of a file in its current state; its first part depends on the path only."""
    status, place = path.stat(), os.fsencode(path.resolve())
    state = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}".encode()
    return f"{digest(place)}-{digest(state)}"


def trusted(place: Path) -> bool:
    """Whether `place`, in a trusted folder, can only have been written by the user; OSError if there is nothing."""
    status = place.lstat()
    if stat.S_ISLNK(status.st_mode):
        return False
    own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _make(cache: Path) -> None:
    """Create the cache folder; raises OSError if it cannot be made, or is not the user's alone."""
    if not os.path.lexists(cache):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    if cache.is_symlink():
        raise PermissionError(errno.EPERM, "it is a link", str(cache))
    if not cache.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(cache))
    if not trusted(cache):
        raise PermissionError(errno.EPERM, "somebody else owns it, or may write to it", str(cache))


def kept(cache: Path, pattern: str) -> list[Path]:
    """The trusted entries with names of a `pattern` and their checksum, ``KEY.CHECKSUM.suffix``; they count as used."""
    places = []
    for place in sorted(cache.glob(pattern)):
        with suppress(OSError):
            if trusted(cache) and trusted(place) and place.suffixes[:1] == [f".{checksum(place)}"]:
                os.utime(place)
                places.append(place)
    return places


@contextmanager
def alone(cache: Path) -> Iterator[None]:
    """Hold the lock on `cache` for eviction and moves, where the system has file locks."""
    with ExitStack() as at_end:
        if fcntl is not None:
            with suppress(OSError):
                number = os.open(cache, os.O_RDONLY)
                at_end.callback(os.close, number)
                fcntl.flock(number, fcntl.LOCK_EX)
        yield


def entries(cache: Path) -> list[tuple[int, Path, int]]:
    """When each entry was last used (ns), its place and its bytes; also of what is written at the moment."""
    rows = list[tuple[int, Path, int]]()
    for place in cache.iterdir() if cache.is_dir() else ():
        if place.name.startswith(_SCRATCH) or _OURS.search(place.name):
            with suppress(OSError):
                files = place.rglob("*") if place.is_dir() and not place.is_symlink() else [place]
                rows.append((place.lstat().st_mtime_ns, place, sum(file.lstat().st_size for file in files)))
    return rows


def make_room(cache: Path, replaced: str, most: int = MOST_BYTES) -> bool:
    """Evict old entries until the cache is below its limit; returns whether there is room.

    Entries whose name begins with `replaced` and a dash are removed in any case: they were made from an earlier state
    of the same file. Entries that other processes write at the moment count, and stay. To be called :func:`alone`.
    """
    every = sorted(entries(cache), reverse=True)
    known = [(place, size) for _, place, size in every if not place.name.startswith(_SCRATCH)]
    written = sum(size for _, _, size in every) - sum(size for _, size in known)
    for place, size in known:
        if written + size > most or place.name.startswith(f"{replaced}-"):
            shutil.rmtree(place, ignore_errors=True)
            with suppress(OSError):  # a file
                place.unlink()
        else:
            written += size
    return written <= most


@contextmanager
def scratch(cache: Path) -> Iterator[Path]:
    """A temporary folder in `cache`, removed afterwards; also removes leftovers of killed programs.

    Raises OSError if the cache cannot be written, or is not the user's alone.
    """
    _make(cache)
    remove_forgotten(cache, _SCRATCH)
    with unfinished(cache / _SCRATCH.removeprefix("."), folder=True) as folder:
        yield folder


def checksum(path: Path) -> str:
    """The checksum of a file or of those in a folder, against faults of disks and interrupted writes, no tampering.

    It has 32 hexadecimal digits. Raises OSError if something cannot be read.
    """
    size, crc, adler = 0, 0, 1
    for place in sorted(path.iterdir()) if path.is_dir() else [path]:
        with place.open("rb", buffering=0) as file:
            while data := file.read(1 << 20):
                size, crc, adler = size + len(data), zlib.crc32(data, crc), zlib.adler32(data, adler)
    return f"{crc:08x}{adler:08x}{size:016x}"
