"""Walks texts in protocol buffer messages whose layout is only partly known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kanalyze.protobuf import fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kanalyze.protobuf import Field

    Place = tuple[int, ...]

#: Control characters allowed in a text.
_LAYOUT: Final = frozenset("\n\t\r")


@dataclass(frozen=True)
class Layout:
    """Known fields of a message, by field path; needed where the bytes alone are ambiguous.

    Attributes:
        messages: Fields that are messages.
        texts: Fields that are texts.
    """

    messages: frozenset[tuple[int, ...]]
    texts: frozenset[tuple[int, ...]]


def leaves(data: bytes, at: int, end: int, layout: Layout, above: tuple[int, ...]) -> Iterator[tuple[Place, Field]]:
    """Texts and byte strings in a message and its nested messages, with their field paths.

    A field that `layout` does not know is text if it is valid text, else a message if it can be parsed as one.
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
    """`value` decoded as text; None if it is not text."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() or all(letter.isprintable() or letter in _LAYOUT for letter in text) else None


def is_message(data: bytes, field: Field) -> bool:
    """Whether a field's bytes can be parsed as a message."""
    try:
        for _ in fields(data, field.begin, field.end):
            pass
    except (ValueError, IndexError):
        return False
    return True
