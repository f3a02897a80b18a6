"""Whether a file in ncu's own format is whole, which NVIDIA's module does not say: it gives kernels without metrics.

The file begins with ``NVR`` and a header; then come blocks, each a size, a head of that size and a payload, whose size
the head tells in its field 5. Heads are messages of protocol buffers; a payload is such messages, each behind its size.
"""

from __future__ import annotations

from contextlib import suppress
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
#: What is larger is negative to the module.
_LARGEST: Final = (1 << 31) - 1


def is_cut(path: Path) -> bool:
    """Whether the file ends within a block; not if it is built in a way that is not known here."""
    with suppress(IndexError, ValueError):
        return _is_cut(path)
    return False


def is_sound(path: Path) -> bool:
    """Whether the file is blocks up to its end, or built in a way that is not known here.

    The module ends the whole process where a block has a size that cannot be.
    """
    try:
        _is_cut(path)
    except _BlockError:
        return False
    except (IndexError, ValueError):
        return True
    return True


class _BlockError(ValueError):
    """What follows a block is none, or one of a size that no block has."""


def _is_cut(path: Path) -> bool:
    """Whether the file ends within a block.

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
    """Go behind a block; its head, None where the file ends within that. Errors as above."""
    head = _head(file, length)
    size = 0 if head is None else _payload(head)
    if size > _LARGEST:
        raise _BlockError(size)
    _pass(file, file.tell() + size, length)
    return head


def _pass(file: BinaryIO, end: int, length: int) -> None:
    """Go to the `end` of a payload: messages, each behind its size; also where the file ends before that."""
    while file.tell() + _SIZE <= min(end, length):
        count = int.from_bytes(file.read(_SIZE), "little")
        if file.tell() + count > end:
            raise _BlockError(count)
        file.seek(count, 1)
    file.seek(end)


def _payload(head: bytes) -> int:
    """The size of what follows a head.

    Raises:
        ValueError, IndexError: It is none, or does not tell.
    """
    told = [field for field in fields(head, 0, len(head)) if field.key == _PAYLOAD]
    if len(told) != 1 or told[0].sized:
        raise ValueError(len(told))
    return told[0].number


def _head(file: BinaryIO, length: int) -> bytes | None:
    """What comes next, behind its size; None where the file ends before it does.

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
