"""Unpacks archives of reports: zip, tar (plain, gz, bz2, xz, zst), and single files compressed with zst, xz or bz2.

They are told by content. What they hold lies in a temporary folder until the program ends (:func:`remove_unpacked`).
Nothing is written outside of it, links are refused, and so is what grows far beyond a report's size.
"""

from __future__ import annotations

import atexit
import io
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from kanalyze.errors import DamagedReportError, UnknownFormatError, UnreadableReportError

_ZIP: Final = b"PK\x03\x04"
GZIP: Final = b"\x1f\x8b"
_ZST: Final = b"\x28\xb5\x2f\xfd"

#: How compressed files begin, and the module whose `open` reads them, imported for such files only.
_MODULES: Final = {GZIP: "gzip", b"BZh": "bz2", b"\xfd7zXZ": "lzma", _ZST: "pyarrow"}

#: Where a tar says that it is one.
_TAR: Final = (257, b"ustar")

#: Most bytes that an archive may hold: this many, or so many times its own size; and most files.
_LEAST_BYTES: Final = 1 << 30
_RATIO: Final = 100
_MOST_FILES: Final = 10_000

_HEAD_BYTES: Final = 1 << 16
_PART_BYTES: Final = 1 << 20
_REMEDY: Final = "Unpack it yourself, and give the report in it."

#: Unpacked archives of this process: by path and state the report, and the folders to remove at the end.
_UNPACKED: Final[dict[tuple[str, int, int], Path]] = {}
_FOLDERS: Final[list[tuple[int, Path]]] = []


def unpacked(path: Path) -> Path:
    """The report in the archive at `path`; `path` itself if it is no archive.

    Raises:
        UnknownFormatError: It holds links, paths outside of it, or too much.
        DamagedReportError: It is damaged, or encrypted.
    """
    try:
        if not os.path.isfile(path):  # noqa: PTH113 - never raises
            return path
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        state = path.stat()
    except OSError:  # which reading it says
        return path
    magic = next((magic for magic in _MODULES if head.startswith(magic)), b"")
    if not (head.startswith(_ZIP) or _is_tar(head) or magic) or (
        magic == GZIP and not _is_tar(inflated(head, _HEAD_BYTES))
    ):
        return path
    key = (os.path.abspath(path), state.st_mtime_ns, state.st_size)  # noqa: PTH100 - as the user names it
    if key not in _UNPACKED:
        _UNPACKED[key] = _unpack(path, magic)
    return _UNPACKED[key]


def remove_unpacked() -> None:
    """Removes what this process has unpacked."""
    for process, folder in _FOLDERS:
        if process == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)
    _FOLDERS.clear()
    _UNPACKED.clear()


atexit.register(remove_unpacked)


def _is_tar(head: bytes) -> bool:
    return head[_TAR[0] :].startswith(_TAR[1])


def inflated(head: bytes, most: int) -> bytes:
    """What the first bytes of a gzip file hold, of it `most` bytes; nothing if they are damaged."""
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(head, most)
    except zlib.error:  # a damaged trace is read as far as it goes
        return b""


def _unpack(path: Path, magic: bytes) -> Path:
    import lzma  # noqa: PLC0415 - for such files only, as those below
    import tarfile  # noqa: PLC0415
    import zipfile  # noqa: PLC0415

    damages = (zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, RuntimeError, OSError)
    folder = Path(tempfile.mkdtemp(prefix="kanalyze-"))
    _FOLDERS.append((os.getpid(), folder))
    try:
        return _written(path, magic, folder / path.name)
    except damages as error:
        if isinstance(error, OSError) and error.errno is not None:  # no decompressor's
            raise UnreadableReportError.of(path, error) from error
        raise DamagedReportError.at(path, "its compressed data", str(error)) from error


def _written(path: Path, magic: bytes, folder: Path) -> Path:
    """The report in an archive, written into a folder."""
    most = left = max(_LEAST_BYTES, _RATIO * path.stat().st_size)
    for count, (name, content) in enumerate(_files(path, magic)):
        place = PurePosixPath(name.replace("\\", "/"))
        if place.is_absolute() or ".." in place.parts or ":" in place.parts[0] or "\0" in name:
            raise UnknownFormatError.of(path, f"an archive with a path that leaves it ({name})", _REMEDY)
        if content is None:
            raise UnknownFormatError.of(path, f"an archive with a link or device in it ({name})", _REMEDY)
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        with content, (folder / place).open("wb") as file:
            while part := content.read(_PART_BYTES):
                left -= len(part)
                if left < 0 or count >= _MOST_FILES:
                    held = f"an archive that holds more than {most:,} bytes or {_MOST_FILES:,} files"
                    raise UnknownFormatError.of(path, held, _REMEDY)
                file.write(part)
    found = [*folder.iterdir()] if folder.exists() else []
    if not found:
        raise UnknownFormatError.of(path, "an archive without a file in it", _REMEDY)
    return found[0] if len(found) == 1 else folder


def _files(path: Path, magic: bytes) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Name and content of each file in the archive; links and devices have none."""
    import tarfile  # noqa: PLC0415 - for such files only, as the one below
    import zipfile  # noqa: PLC0415

    module: Any = import_module(_MODULES.get(magic, "io"))
    opened = module.input_stream(str(path), compression="zstd") if magic == _ZST else module.open(path, "rb")
    with io.BufferedReader(opened, _HEAD_BYTES) as stream:
        if _is_tar(stream.peek()):
            with tarfile.open(fileobj=stream, mode="r|") as members:
                for member in members:
                    if not member.isdir():
                        yield member.name, members.extractfile(member) if member.isreg() else None
        elif magic:
            yield path.stem, stream
        else:
            with zipfile.ZipFile(stream) as archive:
                for info in archive.infolist():
                    if not info.is_dir():
                        yield info.filename, None if stat.S_ISLNK(info.external_attr >> 16) else archive.open(info)
