"""Parses protocol buffer messages without a schema, and encodes fields.

Source: the description of the wire format, https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

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


def number(key: int, value: int) -> bytes:
    """A field with a number that is not negative."""
    return _varint_of(key << 3 | _NUMBER) + _varint_of(value)


def sized(key: int, value: bytes | str) -> bytes:
    """A field with bytes, a text, or a message."""
    data = value.encode() if isinstance(value, str) else value
    return _varint_of(key << 3 | _BYTES) + _varint_of(len(data)) + data


def _varint_of(value: int) -> bytes:
    found = bytearray()
    while value >= _MORE:
        found.append(value & ~_MORE & 0xFF | _MORE)
        value >>= 7
    found.append(value)
    return bytes(found)
