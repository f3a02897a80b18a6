"""Redacts a .ncu-rep: every removed text is overwritten in place by one of the same length.

The format is NVIDIA's own: messages of protocol buffers, one after another, each with its length before it. As long as
no length changes, the file stays what it was. That the messages can be followed to the end shows that nothing in it is
packed in a way that would hide texts; a file that cannot be followed is refused.

Found in reports of Nsight Compute 2025.3. A block is a header, and as many bytes of entries as its field 5 says.
Field 3 of a header is the session: target and host system (3, 4: name, version, processor, architecture, host name,
network addresses in 7), devices (6), versions (8), command line (11). Field 6 is the process: id, host, path. Entries
are sources (8.1: path and text of a file; 4: the compiled code, with the same paths in its line tables) and results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.errors import RedactError
from kanalyze.files.protobuf import fields
from kanalyze.redact.assigned import values
from kanalyze.redact.texts import ADDRESSES, ALLOWED, PATH, ROOTS, WINDOWS_PATH, Names, Texts

if TYPE_CHECKING:
    Place = tuple[int, ...]


def _places(name: str) -> frozenset[Place]:
    """Paths of fields, which are in allowed.toml: 0 for a header or 1 for an entry, then the numbers of the fields."""
    return frozenset(tuple(map(int, place.split("."))) for place in ALLOWED["ncu"][name].split())


#: Fields of the session that stay, except for patterns such as addresses, and those with all below them; fields that
#: are messages, and fields that are texts, which is needed where the bytes alone are ambiguous; fields with a folder.
_STAYS: Final = _places("stays")
_STAYS_WITH_ALL_BELOW: Final = _places("stays_with_all_below")
_MESSAGES: Final = _places("messages")
_TEXTS: Final = _places("texts")
_FOLDERS: Final = _places("folders")

_HEADER, _ENTRY = 0, 1
_SESSION: Final = (_HEADER, 3)
_HOST_NAME: Final = 5
_OF_PROCESS_HOST: Final = (_HEADER, 6, 2)
_ENTRIES_SIZE: Final = 5

_HERE: Final = (b"127.0.0.1", b"localhost", b"::1")

#: Control characters that a text may have, for :meth:`str.translate` to leave out.
_BLANKS: Final = dict.fromkeys(map(ord, "\n\t\r"))

#: Shorter names and folders match numbers and code by chance.
_LONG_ENOUGH: Final = 6

_PART: Final = rb"[^\s\0-\x1f\x7f-\xff/\\\"'`<>|:;,*?()\[\]{}]"
_PATH_ANYWHERE: Final = re.compile(
    rb"(?<![\w./~-])/(?:" + "|".join(sorted(ROOTS)).encode() + rb")/(?:" + _PART + rb"+/)*"
)


def learn(path: Path, names: Names) -> None:
    """Collect identifying names from the report at `path` into `names`.

    Raises:
        RedactError: It is not built as the reports that are known.
    """
    data = path.read_bytes()
    for place, begin, end in _followed(path, data):
        text = _text_of(data[begin:end]) or ""
        names.text(text)
        if place[:2] == _SESSION and place[3:] == (_HOST_NAME,):
            names.host(text)
        elif place in _FOLDERS:
            names.folder(re.split(r"[\\/](?!.*[\\/])", text)[0])
    for found in _PATH_ANYWHERE.findall(data):
        names.text(found.decode(errors="replace"))


def copy(path: Path, target: Path | None, texts: Texts) -> None:
    """Write the redacted copy of the report at `path`, of its length, to `target`; without a target, only count.

    Raises:
        RedactError: It is not built as the reports that are known.
        OSError: The target cannot be written.
    """
    data = path.read_bytes()
    made = bytearray(data)
    mask = _Mask(texts)
    for place, begin, end in _followed(path, data):
        made[begin:end] = mask.leaf(place, data[begin:end])
    whole = mask.anywhere(bytes(made))
    if target is not None:
        target.write_bytes(whole)


class _Mask:
    """Overwrites texts in place, and counts them."""

    def __init__(self, texts: Texts) -> None:
        names = texts.names
        self._removed = texts.removed
        alone = rb"(?<![A-Za-z0-9])%b(?![A-Za-z0-9])"
        self._sought = [
            (what, name, re.compile(form.replace(b"%b", re.escape(name)), re.IGNORECASE))
            for what, wanted, form in (
                ("texts that were asked for", names.secrets, b"%b"),
                ("host names", names.hosts, alone),
                ("user names", names.users, alone),
            )
            for name in sorted((name.encode() for name in wanted), key=len, reverse=True)
        ]
        folders = sorted((folder.encode() for folder in names.folders), key=len, reverse=True)
        self._folders = [folder for folder in folders if len(folder) >= _LONG_ENOUGH]

    def leaf(self, place: Place, value: bytes) -> bytes:
        """Redacts one text or byte string, by its field path."""
        is_of_session = place[:2] == _SESSION and place not in _STAYS and place[:3] not in _STAYS_WITH_ALL_BELOW
        if is_of_session or (place == _OF_PROCESS_HOST and value not in _HERE):
            return self._over("host names and addresses", value)
        if _text_of(value) is None:
            return value
        made = bytearray(value)
        for begin, end in values(value.decode("latin-1")):
            made[begin:end] = self._over("secrets", value[begin:end])
        value = bytes(made)
        for pattern in (PATH, WINDOWS_PATH):
            value = self._sub("paths", _of_bytes(pattern), value, "folders")
        for what, pattern, _ in ADDRESSES:
            value = self._sub(what, _of_bytes(pattern), value)
        return self._named(value, shortest=0)

    def anywhere(self, data: bytes) -> bytes:
        """Redacts all of a report as bytes, since code and tables contain paths and names that are no fields."""
        for folder in self._folders:
            data = self._sub("paths", re.compile(re.escape(folder) + rb"(?![\w.-])"), data)
        data = self._sub("paths", _PATH_ANYWHERE, data)
        return self._named(data, shortest=_LONG_ENOUGH)

    def _named(self, data: bytes, shortest: int) -> bytes:
        low = data.lower()
        for what, name, pattern in self._sought:
            if len(name) >= shortest and name.lower() in low:
                data = self._sub(what, pattern, data)
        return data

    def _sub(self, what: str, pattern: re.Pattern[bytes], data: bytes, group: int | str = 0) -> bytes:
        made = bytearray(data)
        for found in pattern.finditer(data):
            begin, end = found.span(group)
            if end > begin:
                made[begin:end] = self._over(what, data[begin:end])
        return bytes(made)

    def _over(self, what: str, value: bytes) -> bytes:
        """A filler of the same length; folder separators and line ends stay."""
        made = re.sub(rb"[^/\\\n]", b"_", value)
        self._removed.add(what, made != value)
        return made


def _of_bytes(pattern: re.Pattern[str]) -> re.Pattern[bytes]:
    return re.compile(pattern.pattern.encode(), pattern.flags & ~re.UNICODE)


def _followed(path: Path, data: bytes) -> Iterator[tuple[Place, int, int]]:
    """All texts and byte strings of a report, with their field paths.

    Raises:
        RedactError: A length leads nowhere.
    """
    try:
        for part, begin, end in _parts(data):
            for place, at, after in _leaves(data, begin, end, (part,)):
                known = place in _TEXTS or place[:2] != _SESSION
                if not known and _text_of(data[at:after]) is not None and _is_message(data, at, after):
                    raise ValueError  # noqa: TRY301 - it would be overwritten as a text, and may be a message
                yield place, at, after
    except (ValueError, IndexError) as error:
        found = "an Nsight Compute report that is not built as those known here"
        remedy = "Share its pages instead: `ncu --import REPORT --csv --page raw`."
        raise RedactError.of(path, found, remedy) from error


def _parts(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The start and end of every header and entry of a report."""
    at = _length(data, 4) + 8
    while at < len(data):
        begin, at = at + 4, at + 4 + _length(data, at)
        yield _HEADER, begin, at
        end = at + sum(field.number for field in fields(data, begin, at) if field.key == _ENTRIES_SIZE)
        while at < end:
            begin, at = at + 4, at + 4 + _length(data, at)
            yield _ENTRY, begin, at
    if at != len(data):
        raise ValueError


def _length(data: bytes, at: int) -> int:
    if at + 4 > len(data):
        raise ValueError
    return int.from_bytes(data[at : at + 4], "little")


def _leaves(data: bytes, at: int, end: int, above: Place) -> Iterator[tuple[Place, int, int]]:
    """Texts and byte strings in a message and its nested messages, with their field paths.

    A field of an unknown path is text if it is valid text, else a message if it can be parsed as one.
    """
    for field in fields(data, at, end):
        if not field.sized or field.begin == field.end:
            continue
        place = (*above, field.key)
        is_text = place not in _MESSAGES and (place in _TEXTS or _text_of(data[field.begin : field.end]) is not None)
        if not is_text and _is_message(data, field.begin, field.end):
            yield from _leaves(data, field.begin, field.end, place)
        else:
            yield place, field.begin, field.end


def _text_of(value: bytes) -> str | None:
    """`value` decoded as text; None if it is not text."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text.translate(_BLANKS).isprintable() else None


def _is_message(data: bytes, begin: int, end: int) -> bool:
    """Whether bytes can be parsed as a message."""
    try:
        return all(True for _ in fields(data, begin, end))
    except (ValueError, IndexError):
        return False
