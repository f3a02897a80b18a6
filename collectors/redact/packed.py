"""Files that may be packed with gzip: read with what is left of a damaged one, written without a name or a time."""

from __future__ import annotations

import gzip
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAGIC: Final = b"\x1f\x8b"
_PACKED_BYTES: Final = 1 << 18
_WINDOW: Final = 31  # zlib's word for gzip


class Unpacked:
    """The content of a gzip file, up to where it is cut off or damaged.

    Attributes:
        whole: Whether all of it could be unpacked so far.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Unpack `file`."""
        self._file = file
        self._inner = zlib.decompressobj(_WINDOW)
        self._ready = bytearray()
        self.whole = True

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer at the end."""
        while len(self._ready) < size and self._more():
            pass
        return self._taken(size)

    def readline(self, size: int) -> bytes:
        """The next line, or `size` bytes of it."""
        while (end := self._ready.find(b"\n", 0, size)) < 0 and len(self._ready) < size and self._more():
            pass
        return self._taken(end + 1 if end >= 0 else size)

    def _taken(self, size: int) -> bytes:
        part = bytes(self._ready[:size])
        del self._ready[:size]
        return part

    def _more(self) -> bool:
        if self._inner.eof:
            rest = self._inner.unused_data or self._file.read(_PACKED_BYTES)
            if not rest.startswith(_MAGIC):
                return False
            self._inner = zlib.decompressobj(_WINDOW)
        else:
            rest = self._file.read(_PACKED_BYTES)
        try:
            self._ready += self._inner.decompress(rest)
        except zlib.error:
            rest = b""
        self.whole = bool(rest)
        return self.whole


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The content of the file at `path`, unpacked if it is packed; of that only `read` and `readline` can be used."""
    with path.open("rb") as file:
        packed = file.read(len(_MAGIC)) == _MAGIC
        file.seek(0)
        yield cast("BinaryIO", Unpacked(file)) if packed else file


@contextmanager
def written(path: Path, *, packed: bool) -> Iterator[BinaryIO]:
    """A new file at `path`. What gzip would say of its name and time is left out."""
    with path.open("wb") as file:
        if not packed:
            yield file
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as inner:
            yield cast("BinaryIO", inner)
