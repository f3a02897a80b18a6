"""The text of a Chrome trace: its events in pieces that can be decoded on their own, and what stands around them.

A trace is ``{…, "traceEvents": [ … ], …}`` or only the list. A piece ends between two events: where a bracket closes,
a comma follows, and then what the first event of the file begins with. That place is looked for, not parsed for; a
piece that cannot be decoded because of it is put together again with its neighbour by who decodes it.
"""

from __future__ import annotations

import json
import mmap
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kanalyze.errors import UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Text that is decoded together: enough that a piece costs little, few enough for little memory.
PIECE_BYTES: Final = 1 << 20

_GZIP: Final = b"\x1f\x8b"
_GZIP_BITS: Final = zlib.MAX_WBITS | 16

_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")

#: How the first event begins: its first key and, where that is the kind of event, what follows.
_OPENING: Final = re.compile(rb'\s*\{(\s*)"([^"\\]*)"')

#: Properties that are looked for where what stands around the events is damaged.
_NEEDED: Final = ("schemaVersion", "deviceProperties", "baseTimeNanoseconds", "distributedInfo")

#: What stands behind the events is no longer than this.
_LONGEST_TAIL: Final = 1 << 22

#: Reads objects that have control characters in their texts.
_LENIENT: Final = json.JSONDecoder(strict=False)

#: The first event begins within these.
_OPENING_BYTES: Final = 4096

#: So much is read of a compressed file at a time.
_READ_BYTES: Final = 1 << 20


@dataclass
class Around:
    """What stands around the events.

    Attributes:
        properties: The trace's own properties, such as deviceProperties and baseTimeNanoseconds.
        damage: What was found wrong with the text as a whole, a sentence each.
    """

    properties: dict[str, Any] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    def add_head(self, text: bytes) -> None:
        """Add the properties before the events: an object that ends with a comma, or a list's beginning."""
        inside = text.lstrip(b"\xef\xbb\xbf \t\r\n").removeprefix(b"{").strip(b", \t\r\n")
        self._add(inside, "before")

    def add_tail(self, text: bytes) -> None:
        """Add the properties after the events: what stands behind their list's end."""
        self._add(text.strip().removesuffix(b"}").strip(b", \t\r\n"), "after")

    def _add(self, inside: bytes, where: str) -> None:
        text = "{" + inside.decode("utf-8", "replace") + "}"
        try:
            found = _LENIENT.decode(text)
        except ValueError:
            found = {name: value for name in _NEEDED if (value := _value(text, name)) is not None}
            self.damage.append(f"the properties {where} the events cannot be read as they should")
        self.properties |= found


def _value(text: str, name: str) -> object:
    """The value of a property in a text that is no JSON as a whole; None where there is none."""
    found = re.search(f'"{name}"\\s*:\\s*', text)
    try:
        return _LENIENT.raw_decode(text, found.end())[0] if found else None
    except ValueError:
        return None


def split_tail(text: bytes, pattern: re.Pattern[bytes]) -> tuple[bytes, bytes | None]:
    """The events in the end of a trace, and what follows their list; None where the list has no end.

    What follows may hold lists of objects, too. So the last event is read, behind the last place where one ends.
    """
    first = max(0, len(text) - _LONGEST_TAIL)
    for found in (*reversed([match.end() for match in pattern.finditer(text, first)]), 0):
        end = _after_object(text, found)
        if end is not None:
            return text[:end], text[end:].lstrip()[1:]
        if len(text) - found > _LONGEST_TAIL // 8:
            break
    return text, None


def _after_object(text: bytes, at: int) -> int | None:
    """Where the one event behind `at` ends, if the list ends there; or where the list does, if it holds none."""
    rest = text[at:].decode("utf-8", "surrogateescape")
    begin = len(rest) - len(rest.lstrip(", \t\r\n"))
    try:
        end = begin if rest.startswith("]", begin) else _LENIENT.raw_decode(rest, begin)[1]
    except ValueError:
        return None
    if not rest[end:].lstrip().startswith("]"):
        return None
    return at + len(rest[:end].encode("utf-8", "surrogateescape"))


def between(opening: bytes) -> re.Pattern[bytes]:
    """What stands between two events, for a list that begins with `opening`: ends with the first one's bracket."""
    match = _OPENING.match(opening)
    if match is None:
        return re.compile(rb"\}(?=\s*,\s*\{)")
    space, key = match.groups()
    if b"\n" in space:  # no text of JSON has a line's end in it, and what is inside an event is indented further
        line = re.escape(b"\n" + opening[: match.start(1) - 1].rpartition(b"\n")[2])
        return re.compile(line + rb"\}(?=\s*," + line + rb"\{)")
    return re.compile(rb"\}(?=\s*,\s*\{\s*\"" + re.escape(key) + rb"\"\s*:)")


class PlainText:
    """A trace that is not compressed: its pieces are looked for where they lie, and not read."""

    def __init__(self, path: Path) -> None:
        """Find the events in the file at `path`.

        Raises:
            UnknownFormatError: It is JSON, but no trace.
        """
        self.path = path
        self.around = Around()
        with path.open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        head = _begin(self._text)
        if head is None:
            raise UnknownFormatError.no_trace(path)
        before, self._start = head
        self.around.add_head(self._text[:before])

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Where the pieces begin and end in the file."""
        at, size = self._start, len(self._text)
        pattern = between(self._text[at : at + _OPENING_BYTES])
        while size - at > PIECE_BYTES + _LONGEST_TAIL:
            cut = pattern.search(self._text, at + PIECE_BYTES)
            if cut is None:
                break
            yield at, cut.end()
            at = cut.end()
        for start, stop in last_pieces(self._text[at:], pattern, self.around):
            yield at + start, at + stop


class GzipText:
    """A compressed trace, read from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        """Find the events in the file at `path`.

        Raises:
            UnknownFormatError: It holds JSON, but no trace, or no text at all.
        """
        self.path = path
        self.around = Around()
        self._parts = _decompressed(path, self.around)
        self._text = b""
        while (head := _begin(self._text)) is None:
            part = next(self._parts, None)
            if part is None:
                raise UnknownFormatError.no_trace(path)
            self._text += part
        before, start = head
        self.around.add_head(self._text[:before])
        self._text = self._text[start:]

    def pieces(self) -> Iterator[bytes]:
        """The pieces themselves."""
        text = self._text + next(self._parts, b"")
        self._text = b""
        pattern = between(text[:_OPENING_BYTES])
        for part in self._parts:
            text += part
            while len(text) > PIECE_BYTES + _LONGEST_TAIL:
                cut = pattern.search(text, PIECE_BYTES)
                if cut is None:
                    break
                yield text[: cut.end()]
                text = text[cut.end() :]
        for start, stop in last_pieces(text, pattern, self.around):
            yield text[start:stop]


def open_text(path: Path) -> PlainText | GzipText:
    """The text of the trace at `path`, compressed or not.

    Raises:
        UnknownFormatError: It is no trace.
    """
    with path.open("rb") as file:
        compressed = file.read(len(_GZIP)) == _GZIP
    return GzipText(path) if compressed else PlainText(path)


def last_pieces(text: bytes, pattern: re.Pattern[bytes], around: Around) -> Iterator[tuple[int, int]]:
    """Where the pieces are in the end of a trace; what stands behind the events goes to `around`."""
    events, tail = split_tail(text, pattern)
    if tail is None:
        around.damage.append("the text ends before the list of events does")
    else:
        around.add_tail(tail)
    at = 0
    while len(events) - at > PIECE_BYTES and (cut := pattern.search(events, at + PIECE_BYTES)):
        yield at, cut.end()
        at = cut.end()
    yield at, len(events)


def _begin(text: bytes | mmap.mmap) -> tuple[int, int] | None:
    """Where what stands before the events ends, and where they begin."""
    bare = _LIST.match(text)
    if bare:
        return 0, bare.end()
    found = _EVENTS.search(text)
    return (found.start(), found.end()) if found else None


def _decompressed(path: Path, around: Around) -> Iterator[bytes]:
    """The text of a gzip file, part by part, as far as it can be read."""
    inflater, begun = zlib.decompressobj(wbits=_GZIP_BITS), False
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            while data:
                try:
                    part = inflater.decompress(data)
                except zlib.error as error:
                    around.damage.append(f"its compressed data is damaged before byte {file.tell():,} ({error})")
                    return
                begun, data = not inflater.eof, inflater.unused_data
                if inflater.eof:  # another member may follow, or zeros that fill a block
                    inflater, data = zlib.decompressobj(wbits=_GZIP_BITS), data.lstrip(b"\0")
                if part:
                    yield part
    if begun:
        around.damage.append("its compressed data ends early")
