"""As much of protocol buffers as it takes to find texts in messages whose layout is known in part only.

Source: the description of the wire format, https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    Place = tuple[int, ...]

_NUMBER, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MORE: Final = 0x80

#: Control characters that a text may have.
_LAYOUT: Final = frozenset("\n\t\r")


class Field(NamedTuple):
    """A field of a message: its number, where its value begins and ends, and whether that has a length of its own.

    A number has the value `number`; of others it is 0.
    """

    key: int
    begin: int
    end: int
    sized: bool
    number: int


def fields(data: bytes, at: int, end: int) -> Iterator[Field]:
    """The fields of the message at `at`.

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


@dataclass(frozen=True)
class Layout:
    """What is known of a message's fields, each by the numbers that lead to it: bytes alone do not always tell.

    Attributes:
        messages: Those that are messages.
        texts: Those that are texts.
    """

    messages: frozenset[tuple[int, ...]]
    texts: frozenset[tuple[int, ...]]


def leaves(data: bytes, at: int, end: int, layout: Layout, above: tuple[int, ...]) -> Iterator[tuple[Place, Field]]:
    """The texts and other bytes in the message at `at` and those within it, with the numbers that lead to each.

    What `layout` does not know is a text if it can be one, else a message if it can be one.
    """
    for field in fields(data, at, end):
        if not field.sized or field.begin == field.end:
            continue
        place = (*above, field.key)
        if place in layout.messages:
            inner = is_message(data, field)
        else:
            inner = place not in layout.texts and text_of(data[field.begin : field.end]) is None
            inner = inner and is_message(data, field)
        if inner:
            yield from leaves(data, field.begin, field.end, layout, place)
        else:
            yield place, field


def text_of(value: bytes) -> str | None:
    """The text that `value` is; None where it is none."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() or all(letter.isprintable() or letter in _LAYOUT for letter in text) else None


def is_message(data: bytes, field: Field) -> bool:
    """Whether the bytes of a field can be a message."""
    try:
        for _ in fields(data, field.begin, field.end):
            pass
    except (ValueError, IndexError):
        return False
    return True


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & ~_MORE) << shift, shift + 7
        if byte < _MORE:
            return value, at
