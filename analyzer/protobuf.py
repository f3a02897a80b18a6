"""Parses protocol buffer messages without a schema.

Source: the description of the wire format, https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBER, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MORE: Final = 0x80


class Field(NamedTuple):
    """A field: number, start and end of its value, and whether it is length-delimited.

    A number has the value `number`; of others it is 0.
    """

    key: int
    begin: int
    end: int
    sized: bool
    number: int


def fields(data: bytes, at: int, end: int) -> Iterator[Field]:
    """Parses the fields of the message at `at`.

    Raises:
        ValueError: It is none.
        IndexError: It is longer than the data.
    """
    while at < end:
        key, at = _varint(data, at)
        kind, number = key & 7, 0
        if kind == _NUMBER:
            number, after = _varint(data, at)
        elif kind == _BYTES:
            size, at = _varint(data, at)
            after = at + size
        else:
            after = at + {_FIXED64: 8, _FIXED32: 4}[kind] if kind in (_FIXED64, _FIXED32) else end + 1
        if after > end or key >> 3 == 0:
            raise ValueError
        yield Field(key >> 3, at, after, kind == _BYTES, number)
        at = after


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & ~_MORE) << shift, shift + 7
        if byte < _MORE:
            return value, at
