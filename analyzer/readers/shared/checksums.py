"""Checksums of cached files, to detect corruption.

They detect faults of disk or memory and interrupted writes, not tampering; that only the owner can write there is
checked in :mod:`kanalyze.readers.shared.user_cache`.
"""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from kanalyze.machinery.processors import workers

if TYPE_CHECKING:
    from pathlib import Path

#: Bytes hashed per thread and step.
_PART_BYTES: Final = 1 << 26
_READ_BYTES: Final = 1 << 20


def checksum(path: Path) -> str:
    """The checksum of a file as 32 hexadecimal digits, computed in parallel chunks.

    Raises:
        OSError: It cannot be read.
    """
    size = path.stat().st_size
    begins = range(0, size, _PART_BYTES)
    if len(begins) <= 1:
        sums = [_part(path, 0, size)]
    else:
        with ThreadPoolExecutor(min(workers(), len(begins))) as pool:
            sums = list(pool.map(lambda begin: _part(path, begin, min(_PART_BYTES, size - begin)), begins))
    every = b"".join(part.to_bytes(4, "little") for part in sums)
    return f"{zlib.crc32(every):08x}{zlib.adler32(every):08x}{size:016x}"


def _part(path: Path, begin: int, size: int) -> int:
    found = 0
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        while size > 0 and (data := file.read(min(_READ_BYTES, size))):
            found = zlib.crc32(data, found)
            size -= len(data)
    return found
