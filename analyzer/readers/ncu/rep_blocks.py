"""Checks whether an .ncu-rep file is complete, since NVIDIA's module silently gives kernels without metrics if not.

The file begins with ``NVR`` and a header; then come blocks, each a size, a head of that size and a payload, whose size
the head tells in its field 5. Heads are messages of protocol buffers; a payload is such messages, each behind its size.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kanalyze.files.protobuf import fields

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

MAGIC: Final = b"NVR\0"

_SIZE: Final = 4
_PAYLOAD: Final = 5

#: Upper bound of a block head; a larger one means an unknown layout.
_MOST: Final = 1 << 24
#: Sizes above this overflow to negative in the module.
_LARGEST: Final = (1 << 31) - 1


def is_cut(path: Path) -> bool:
    """Whether the file is truncated within a block; False for an unknown layout."""
    with suppress(IndexError, ValueError):
        return _is_cut(path)
    return False


def is_sound(path: Path) -> bool:
    """Whether the file is a valid sequence of blocks, or of an unknown layout.

    On an impossible block size the module would abort the whole process.
    """
    try:
        _is_cut(path)
    except _BlockError:
        return False
    except (IndexError, ValueError):
        return True
    return True


class _BlockError(ValueError):
    """A block that is invalid or of an impossible size."""


def _is_cut(path: Path) -> bool:
    """Whether the file is truncated within a block.

    Raises:
        _BlockError: It is no block behind the first one, or of an impossible size.
        ValueError, IndexError: There is no first one.
    """
    length = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return False
        head = _head(file, length)
        if head is not None and file.tell() < length:
            head = _pass_block(file, length)
        try:
            while head is not None and file.tell() < length:
                head = _pass_block(file, length)
        except (IndexError, ValueError) as error:
            raise _BlockError(file.tell()) from error
        return head is None or file.tell() > length


def _pass_block(file: BinaryIO, length: int) -> bytes | None:
    """Skip a block; returns its head, None if the file ends within it. Errors as in :func:`_is_cut`."""
    head = _head(file, length)
    size = 0 if head is None else _payload(head)
    if size > _LARGEST:
        raise _BlockError(size)
    _pass(file, file.tell() + size, length)
    return head


def _pass(file: BinaryIO, end: int, length: int) -> None:
    """Skip to the `end` of a payload of length-prefixed messages, or to the end of the file."""
    while file.tell() + _SIZE <= min(end, length):
        count = int.from_bytes(file.read(_SIZE), "little")
        if file.tell() + count > end:
            raise _BlockError(count)
        file.seek(count, 1)
    file.seek(end)


def _payload(head: bytes) -> int:
    """The payload size stored in a block head.

    Raises:
        ValueError, IndexError: It is none, or does not tell.
    """
    told = [field for field in fields(head, 0, len(head)) if field.key == _PAYLOAD]
    if len(told) != 1 or told[0].sized:
        raise ValueError(len(told))
    return told[0].number


def _head(file: BinaryIO, length: int) -> bytes | None:
    """Reads a length-prefixed block head; None if the file ends before it does.

    Raises:
        ValueError: It is no head.
    """
    size = file.read(_SIZE)
    count = int.from_bytes(size, "little")
    if count > _LARGEST:
        raise _BlockError(count)
    if count > _MOST:
        raise _BlockError(count) if count > length else ValueError(count)
    head = file.read(count)
    return head if len(size) == _SIZE and len(head) == count else None
