"""Whether a file in ncu's own format is whole, which NVIDIA's module does not say: it gives kernels without metrics.

The file begins with ``NVR`` and a header; then come blocks, each a size, a head of that size and a payload, whose size
the head tells in its field 5. Heads are messages of protocol buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.protobuf import fields

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

MAGIC: Final = b"NVR\0"

_SIZE: Final = 4
_PAYLOAD: Final = 5

#: No head is as long; a file that says so is built in another way.
_MOST: Final = 1 << 24


def is_cut(path: Path) -> bool:
    """Whether the file ends within a block; not if it is built in a way that is not known here."""
    length = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return False
        try:
            head = _head(file)
            while head is not None and file.tell() < length:
                head = _head(file)
                file.seek(_payload(head or b""), 1)
        except (IndexError, ValueError):
            return False
        return head is None or file.tell() > length


def _payload(head: bytes) -> int:
    """The size of what follows a head; errors as :func:`kanalyze.protobuf.fields`."""
    return sum(field.number for field in fields(head, 0, len(head)) if field.key == _PAYLOAD)


def _head(file: BinaryIO) -> bytes | None:
    """What comes next, behind its size; None where the file ends before it does.

    Raises:
        ValueError: It is no head.
    """
    size = file.read(_SIZE)
    count = int.from_bytes(size, "little")
    if count > _MOST:
        raise ValueError(count)
    head = file.read(count)
    return head if len(size) == _SIZE and len(head) == count else None
