"""Splits a Chrome trace into pieces of whole events, and parses the properties around the event list.

A trace is ``{…, "traceEvents": [ … ], …}`` or only the list. A piece ends between two events: where a bracket closes,
a comma follows, and then what the first event of the file begins with. That place is looked for, not parsed for; pieces
that cannot be decoded because of it are put together again (:func:`mended`). The list of events may also end earlier
than assumed, and events are recovered from damaged pieces.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from kanalyze.errors import UnknownFormatError
from kanalyze.files.regular import open_regular
from kanalyze.readers.torch.decode.columns import Columns, Decoder
from kanalyze.readers.torch.decode.old_forms import repaired

#: Bytes per piece: large enough to amortise the cost per piece, small enough for memory.
PIECE_BYTES: Final = 1 << 20

#: Longest event, and longest header before the events, in bytes.
LONGEST_BYTES: Final = 1 << 26

_GZIP: Final = b"\x1f\x8b"
_GZIP_BITS: Final = zlib.MAX_WBITS | 16

_MARK: Final = b"\xef\xbb\xbf"
_BLANK: Final = ", \t\r\n"
_PADDING: Final = b"\0 \t\r\n"
_JSON: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
_LIST: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')

#: Separator of two events in any style; also matches between objects of a list inside an event.
_BETWEEN: Final = re.compile(rb"\}(?=\s*,\s*\{)")

#: Start of the first event: its first key and, if that is the phase, its value.
_OPENING: Final = re.compile(rb'\s*\{(\s*)"([^"\\]*)"')
_OPENING_BYTES: Final = 4096

#: Properties looked for one by one where the text around the events is damaged.
_NEEDED: Final = ("schemaVersion", "deviceProperties", "baseTimeNanoseconds", "distributedInfo")

#: Bytes per read.
_READ_BYTES: Final = 1 << 20

#: Search window for a separator, in bytes, and its overlap with the next window.
_LOOK_BYTES: Final = 1 << 16
_AGAIN_BYTES: Final = 1 << 12

#: Most candidates for the last event, and the bytes at the end in which they are searched.
_LAST: Final = 3
_LAST_BYTES: Final = 1 << 16

#: JSON decoder that accepts control characters in strings; numbers stay text.
_LENIENT: Final = json.JSONDecoder(strict=False)
_SHALLOW: Final = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)


@dataclass
class Around:
    """Content of the file other than the events.

    Attributes:
        bare: Whether the file is only a list.
        tail: The text after the assumed end of the list; None if no end was found. It may be the end of another list if
            the last piece was not cut between two events.
        properties: The trace's own properties, such as deviceProperties and baseTimeNanoseconds.
        damage: Problems of the text as a whole, a sentence each.
    """

    bare: bool = False
    tail: bytes | None = None
    properties: dict[str, Any] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    def add(self, text: bytes, where: str) -> None:
        """Parse the properties before or after the events."""
        inside = text.removeprefix(_MARK).lstrip().removeprefix(b"{")
        if where == "after":
            inside = text.rstrip(_PADDING).removesuffix(b"}")
        found = _properties(inside)
        if found is None:
            read = inside.decode("utf-8", "replace")
            found = {name: value for name in _NEEDED if (value := _value(read, name)) is not None}
            self.damage.append(f"unreadable properties {where} the events")
        self.properties |= found


def _properties(inside: bytes) -> dict[str, Any] | None:
    """Parses the inside of an object, with stray commas at its ends; None if invalid."""
    text = b"{" + inside.strip(b", \t\r\n") + b"}"
    # until 2026 Kineto wrote the quotes in metadata as /", where JSON has \"
    mends: tuple[Callable[[], bytes], ...] = (
        *(lambda: text, lambda: repaired(text)[0], lambda: text.replace(b'/"', b'\\"')),
    )
    for better in mends:
        with suppress(ValueError, RecursionError):
            found: dict[str, Any] = _LENIENT.decode(better().decode("utf-8", "replace"))
            return found
    return None


def _value(text: str, name: str) -> object:
    """The value of one property in a text that is not valid JSON as a whole; None if absent."""
    found = re.search(f'"{name}"\\s*:\\s*', text)
    with suppress(ValueError, RecursionError):
        return _LENIENT.raw_decode(text, found.end())[0] if found else None
    return None


def is_tail(text: bytes) -> bool:
    """Whether `text` can follow the event list: properties, intact or damaged, but no event."""
    return b'"ph"' not in text or _is_whole_tail(text)


def _is_whole_tail(text: bytes) -> bool:
    return _properties(text.rstrip(_PADDING).removesuffix(b"}")) is not None


def between(opening: bytes) -> re.Pattern[bytes]:
    """The regular expression between two events, up to the next one's bracket, for a list beginning with `opening`."""
    match = _OPENING.match(opening)
    if match is None:
        return _BETWEEN
    space, key = match.groups()
    if b"\n" in space:  # valid JSON strings have no line end, and objects inside an event are indented further
        line = re.escape(opening[: match.start(1) - 1].rpartition(b"\n")[2])
        return re.compile(rb"\n" + line + rb"\}(?=\s*,\s*\n" + line + rb"\{)")
    return re.compile(rb"\}(?=\s*,\s*\{\s*\"" + re.escape(key) + rb"\"\s*:)")


#: Chunks of decompressed blanks at least this long are shortened to one.
_BLANKS: Final = 1 << 16


class TraceText:
    """The text of a trace, compressed or not, read once from its beginning to its end.

    Attributes:
        path: The file.
        compressed: Whether it is compressed by gzip.
        around: What stands around the events, complete after the last piece.
    """

    def __init__(self, path: Path) -> None:
        """Find the events in the file at `path`.

        Raises:
            UnknownFormatError: It holds no trace, or no text at all.
        """
        self.path = path
        self.around = Around()
        with open_regular(path) as file:
            self.compressed = file.read(len(_GZIP)) == _GZIP
        self._bytes, self._bytes_read = max(1, path.stat().st_size), 0
        self._parts = self._decompressed() if self.compressed else self._read()
        self._text, self._at = bytearray(), 0
        self._start = self._begin()

    @property
    def share(self) -> float:
        """The share of the file that was read."""
        return min(1.0, self._bytes_read / self._bytes)

    @property
    def is_trace(self) -> bool:
        """Whether it is an object with trace events, or a list whose beginning has some or is damaged."""
        return not self.around.bare or b'"ph"' in self._look(self._start, _READ_BYTES) or bool(self.around.damage)

    def pieces(self) -> Iterator[bytes]:
        """The text of each piece; single use. Parses the properties after the events."""
        at, pattern = self._start, between(self._look(self._start, _OPENING_BYTES))
        while (end := self._cut(at, pattern)) is not None:
            piece = self._look(at, end - at)
            del self._text[: end - self._at]
            self._at = at = end
            yield piece
        events, self.around.tail = split_tail(self._look(at, LONGEST_BYTES), pattern)
        yield events

    def _begin(self) -> int:
        """The offset of the first event; parses the properties before it."""
        text = self._look(0, _READ_BYTES)
        if _JSON.match(text) is None:
            what = "compressed data that is no JSON" if text else "nothing that can be read"
            raise UnknownFormatError.of(self.path, what)
        bare = _LIST.match(text)
        if bare:
            self.around.bare = True
            return bare.end()
        at = 0
        while (found := _EVENTS.search(text, at)) is None:
            # the key may straddle the end of the window
            at, size = max(0, len(text) - _AGAIN_BYTES), len(text)
            text = self._look(0, min(4 * size, LONGEST_BYTES))
            if len(text) == size:
                raise UnknownFormatError.no_trace(self.path)
        self.around.add(text[: found.start()], "before")
        return found.end()

    def _cut(self, at: int, pattern: re.Pattern[bytes]) -> int | None:
        """The end of the piece that starts at `at`; None if it is the last one."""
        begin = at + PIECE_BYTES
        for known, far in ((pattern, begin + 4 * PIECE_BYTES), (_BETWEEN, at + LONGEST_BYTES)):
            for place in range(begin, far, _LOOK_BYTES):
                text = self._look(place, _LOOK_BYTES + _AGAIN_BYTES)
                found = known.search(text)
                if found is not None:
                    return place + found.end()
                if len(text) < _LOOK_BYTES + _AGAIN_BYTES:
                    break
        return at + LONGEST_BYTES if self._look(at + LONGEST_BYTES, 1) else None

    def _look(self, start: int, size: int) -> bytes:
        """The text at an offset that is not consumed yet, reading as needed; shorter where the file ends."""
        begin = start - self._at
        missing = begin + size - len(self._text)
        while missing > 0 and (part := next(self._parts, None)) is not None:
            self._text += part  # extended in place, without copying what is there
            missing -= len(part)
        with memoryview(self._text) as text:
            return bytes(text[begin : begin + size])

    def _read(self) -> Iterator[bytes]:
        """The file in chunks."""
        with self.path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                self._bytes_read = file.tell()
                yield data

    def _decompressed(self) -> Iterator[bytes]:
        """Decompresses the file in chunks, as far as it is intact."""
        inflater, begun = zlib.decompressobj(wbits=_GZIP_BITS), False
        for chunk in self._read():
            data = chunk
            while data:
                saved = inflater.copy()
                try:
                    part = inflater.decompress(data, _READ_BYTES)
                except zlib.error as error:
                    where = f"before byte {self._bytes_read:,} ({error})"
                    self.around.damage.append(f"damage in the compressed data {where}")
                    yield from _until_error(saved, data)
                    return
                begun, data = not inflater.eof, inflater.unconsumed_tail or inflater.unused_data
                if inflater.eof:  # another gzip member may follow, or zero padding
                    inflater, data = zlib.decompressobj(wbits=_GZIP_BITS), data.lstrip(b"\0")
                if part:
                    # a file of 2 MB may decompress to gigabytes of blanks
                    yield part[:1] if part.isspace() and len(part) >= _BLANKS else part
        while part := inflater.decompress(inflater.unconsumed_tail, _READ_BYTES) if begun else b"":
            yield part
        if begun and not inflater.eof:
            self.around.damage.append("early end of the compressed data")


def is_trace(path: Path) -> bool:
    """Whether a file begins as a trace does: as an object with trace events, or as a list of such."""
    try:
        return TraceText(path).is_trace
    except UnknownFormatError:
        return False


def _until_error(inflater: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Decompresses up to the damaged place, almost to the byte."""
    for step in (4096, 64, 1):
        for at in range(0, len(data), step):
            saved = inflater.copy()
            try:
                yield inflater.decompress(data[at : at + step])
            except zlib.error:
                inflater, data = saved, data[at : at + step]
                break


def split_tail(text: bytes, pattern: re.Pattern[bytes]) -> tuple[bytes, bytes | None]:
    """Splits the end of a trace into events and what follows their list; None if its end is not found.

    The text after the list may contain lists of objects, too, so the last event is parsed to find the list's end.
    """
    ends = [match.end() for match in pattern.finditer(text, max(0, len(text) - _LAST_BYTES))]
    for at in [*reversed(ends[-_LAST:]), 0]:
        end = _after_object(text, at)
        if end is not None and _is_whole_tail(tail := text[end:].lstrip()[1:]):
            return text[:end], tail
    return text, None


def _after_object(text: bytes, at: int) -> int | None:
    """The end of the event at `at` if it is the list's last; or the end of an empty list."""
    rest = text[at:].decode("utf-8", "surrogateescape")
    begin = len(rest) - len(rest.lstrip(_BLANK))
    try:
        end = begin if rest.startswith("]", begin) else _SHALLOW.raw_decode(rest, begin)[1]
    except (ValueError, RecursionError):
        return None
    behind = rest[end:].lstrip(_BLANK)
    before = rest[: len(rest) - len(behind)]
    return at + len(before.encode("utf-8", "surrogateescape")) if behind.startswith("]") else None


# Repairs pieces that fail to decode: joins pieces cut within an event, recovers events from damaged ones.
#
# A cut between events is found by a pattern, and may actually lie in a list inside an event, or in its text. Then
# neither adjacent piece is valid.

#: Tokens for tracking nesting depth: strings, possibly unterminated, and brackets.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]++|[\]}]++', re.DOTALL)

#: Most candidates examined for the end of the list while events seem to follow.
_ENDS: Final = 3


class Part(NamedTuple):
    """Decoding result of one piece.

    Attributes:
        columns: The columns; None if the piece could not be decoded.
        texts: The interned texts by code; grows while the trace is read.
        piece: The undecodable piece, or one without any event, which a repair may need; else empty.
    """

    columns: Columns | None
    texts: list[str]
    piece: bytes = b""

    @classmethod
    def of(cls, columns: Columns | None, texts: list[str], piece: bytes) -> Part:
        """The result for a `piece`."""
        return cls(columns, texts, piece if columns is None or columns.hollow else b"")


def mended(parts: Iterable[Part], around: Around) -> Iterator[Part]:
    """Replaces undecodable parts: joined with their neighbours, or salvaged; all parts stay in order.

    After the last one `around` holds everything around the events.
    """
    decoder, run, size = Decoder(), list[bytes](), 0
    for part in parts:
        if part.columns is not None and not (run and part.columns.hollow):
            yield from _whole(decoder, run)
            yield part
        else:
            run.append(part.piece)
            size += len(part.piece)
            if size < LONGEST_BYTES:
                continue
            yield from _whole(decoder, run)
        run, size = [], 0
    run, cut = _ended(run, around)
    yield from _whole(decoder, run, cut=cut)
    if around.tail is None:
        around.damage.append("missing end of the list of events")
    else:
        around.add(around.tail, "after")


def _ended(run: list[bytes], around: Around) -> tuple[list[bytes], bool]:
    """The undecodable last pieces of a file, cut at the end of the list; and whether they were cut."""
    text = b"".join(run)
    if around.tail is not None:
        text += b"]" + around.tail
    end = next((at for at in outline(text, ())[1] if is_tail(text[at + 1 :])), None) if run else None
    if end is None:
        return run, False
    around.tail = text[end + 1 :]
    begins = accumulate(map(len, run), initial=0)
    return [piece[: end - begin] for piece, begin in zip(run, begins, strict=False) if begin < end], True


def _whole(decoder: Decoder, run: Sequence[bytes], *, cut: bool = False) -> Iterator[Part]:
    """Decodes adjacent undecodable pieces as one text, unless they were `cut` meanwhile.

    In damaged text, brackets and quotes do not show reliably where events begin, so everything between decodable pieces
    is salvaged.
    """
    if not run:
        return
    text, places = b"".join(run), list(accumulate(map(len, run)))
    tried = set() if cut else set(pairwise([0, *places]))
    damaged = b""
    for span in pairwise([0, *outline(text, places)[0]]):
        piece = text[slice(*span)]
        columns = None if span in tried else decoder.columns(piece)
        if columns is None:
            damaged += piece
            continue
        yield from _salvaged(decoder, damaged)
        yield Part(columns, decoder.texts.known)
        damaged = b""
    yield from _salvaged(decoder, damaged)


def _salvaged(decoder: Decoder, text: bytes) -> Iterator[Part]:
    if text:
        yield Part(decoder.salvaged(text), decoder.texts.known)


def outline(text: bytes, places: Sequence[int]) -> tuple[list[int], list[int]]:
    """The structure of a list's text: where it can be split, and where the list may end.

    Returns:
        Of the `places` those between two of the list's values, and the last one; and where a bracket closes that none
        opened, but of these only the first ones, and the first behind all events.
    """
    between: list[int] = []
    ends: list[int] = []
    depth, waiting, last = 0, deque(places), text.rfind(b'"ph"')
    for found in _TOKEN.finditer(text):
        at, token = found.start(), found[0]
        while waiting and waiting[0] <= at:
            place = waiting.popleft()
            if depth == 0:
                between.append(place)
        if token.startswith(b'"'):
            while waiting and waiting[0] < found.end():
                waiting.popleft()
        elif token[0] in b"[{":
            depth += len(token)
        else:
            if depth < len(token) and (len(ends) < _ENDS or ends[-1] < last < at):
                ends.append(at + depth)
            depth = max(0, depth - len(token))
    return [*(place for place in between if place < len(text)), len(text)], ends
