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
from typing import TYPE_CHECKING, Final

from kanalyze.errors import RedactError
from kanalyze.files.protobuf import fields
from kanalyze.redact.rules.assigned import values
from kanalyze.redact.rules.texts import ADDRESSES, PATH, ROOTS, WINDOWS_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kanalyze.files.protobuf import Field
    from kanalyze.redact.rules.names import Names
    from kanalyze.redact.rules.texts import Texts

    Place = tuple[int, ...]
    Leaf = tuple[Place, Field]


MAGIC: Final = b"NVR\0"
_ENTRIES_SIZE: Final = 5

#: Path of a text: header or entry, then the field numbers that lead to it.
_HEADER, _ENTRY = 0, 1
_SESSION, _PROCESS = (_HEADER, 3), (_HEADER, 6)
_TARGET, _HOST, _DEVICE, _VERSION, _COMMAND = 3, 4, 6, 8, 11
_NAME, _PROCESSOR, _ARCHITECTURE, _HOST_NAME, _ADDRESS = 1, 3, 4, 5, 7
_OF_PROCESS_HOST: Final = (*_PROCESS, 2)
_OF_PROCESS_PATH: Final = (*_PROCESS, 3)
_SOURCE_PATH: Final = (_ENTRY, 8, 1, 1)

#: Session fields that stay, except for patterns such as addresses.
_STAYS: Final = frozenset(
    (*_SESSION, system, fact) for system in (_TARGET, _HOST) for fact in (_NAME, _PROCESSOR, _ARCHITECTURE)
)
_STAYS_WITH_ALL_BELOW: Final = frozenset((*_SESSION, part) for part in (_DEVICE, _VERSION, _COMMAND))
_SYSTEMS: Final = ((*_SESSION, _TARGET), (*_SESSION, _HOST))
#: Fields that are messages, and fields that are texts, by path; needed where the bytes alone are ambiguous.
_MESSAGES: Final = frozenset(
    (
        *(_SESSION, _PROCESS, *_SYSTEMS, *((*system, _ADDRESS) for system in _SYSTEMS)),
        *((*_SESSION, *rest) for rest in ((_DEVICE,), (_DEVICE, 3), (_DEVICE, 3, 2), (_VERSION,))),
        *((_ENTRY, 8), (_ENTRY, 8, 1), (_ENTRY, 9), (_ENTRY, 9, 1)),
    )
)
_TEXTS: Final = frozenset(
    (
        *((*system, fact) for system in _SYSTEMS for fact in range(1, 6)),
        *((*system, _ADDRESS, 1) for system in _SYSTEMS),
        *((*_SESSION, *rest) for rest in ((_DEVICE, 2), (_DEVICE, 3, 1), (_VERSION, 1), (_VERSION, 2), (_COMMAND,))),
        *(_OF_PROCESS_HOST, _OF_PROCESS_PATH, _SOURCE_PATH, (_ENTRY, 8, 1, 2)),
        *((_ENTRY, 5), (_ENTRY, 6), (_ENTRY, 7)),
    )
)
_HERE: Final = (b"127.0.0.1", b"localhost", b"::1")

#: Shorter names and folders match numbers and code by chance.
_LONG_ENOUGH: Final = 6

_PART: Final = rb"[^\s\0-\x1f\x7f-\xff/\\\"'`<>|:;,*?()\[\]{}]"
_PATH_ANYWHERE: Final = re.compile(
    rb"(?<![\w./~-])/(?:" + "|".join(sorted(ROOTS)).encode() + rb")/(?:" + _PART + rb"+/)*"
)

#: Control characters allowed in a text.
_BLANKS: Final = frozenset("\n\t\r")


def learn(path: Path, names: Names) -> None:
    """Collect identifying names from the report at `path` into `names`.

    Raises:
        RedactError: It is not built as the reports that are known.
    """
    data = path.read_bytes()
    for place, field in _followed(path, data):
        text = _text_of(data[field.begin : field.end]) or ""
        names.text(text)
        if place[:2] == _SESSION and place[3:] == (_HOST_NAME,):
            names.host(text)
        elif place in (_OF_PROCESS_PATH, _SOURCE_PATH):
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
    work = _Mask(texts)
    for place, field in _followed(path, data):
        made[field.begin : field.end] = work.leaf(place, data[field.begin : field.end])
    whole = work.anywhere(bytes(made))
    if target is not None:
        target.write_bytes(whole)


class _Mask:
    """Overwrites texts in place, and counts them."""

    def __init__(self, texts: Texts) -> None:
        names = texts.names
        self._removed = texts.removed
        self._sought = [
            (what, sorted((name.encode() for name in wanted), key=len, reverse=True), around)
            for what, wanted, around in (
                ("texts that were asked for", names.secrets, False),
                ("host names", names.hosts, True),
                ("user names", names.users, True),
            )
        ]
        self._folders = sorted((folder.encode() for folder in names.folders), key=len, reverse=True)

    def leaf(self, place: tuple[int, ...], value: bytes) -> bytes:
        """Redacts one text or byte string, by its field path."""
        text = _text_of(value)
        if place[:2] == _SESSION and place not in _STAYS and place[:3] not in _STAYS_WITH_ALL_BELOW:
            return self._over("host names and addresses", value)
        if place == _OF_PROCESS_HOST and value not in _HERE:
            return self._over("host names and addresses", value)
        if text is None:
            return value
        return self._named(self._text(value), shortest=0)

    def anywhere(self, data: bytes) -> bytes:
        """Redacts all of a report as bytes, since code and tables contain paths and names that are no fields."""
        for folder in self._folders:
            if len(folder) >= _LONG_ENOUGH:
                data = self._sub("paths", re.compile(re.escape(folder) + rb"(?![\w.-])"), data)
        data = self._sub("paths", _PATH_ANYWHERE, data)
        return self._named(data, shortest=_LONG_ENOUGH)

    def _text(self, value: bytes) -> bytes:
        """Overwrites paths, secrets and addresses in a text."""
        made = bytearray(value)
        for begin, end in values(value.decode("latin-1")):
            made[begin:end] = self._over("secrets", value[begin:end])
        value = bytes(made)
        for pattern in (PATH, WINDOWS_PATH):
            value = self._sub("paths", _of_bytes(pattern), value, "folders")
        for what, pattern, _ in ADDRESSES:
            value = self._sub(what, _of_bytes(pattern), value)
        return value

    def _named(self, data: bytes, shortest: int) -> bytes:
        low = data.lower()
        for what, sought, alone in self._sought:
            for name in sought:
                if len(name) < shortest or name.lower() not in low:
                    continue
                before, after = (rb"(?<![A-Za-z0-9])", rb"(?![A-Za-z0-9])") if alone else (b"", b"")
                data = self._sub(what, re.compile(before + re.escape(name) + after, re.IGNORECASE), data)
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


def _followed(path: Path, data: bytes) -> Iterator[Leaf]:
    """All texts and byte strings of a report, with their field paths.

    Raises:
        RedactError: A length leads nowhere.
    """
    for part, begin, end in _parts(path, data):
        try:
            for place, field in _leaves(data, begin, end, (part,)):
                known = place in _TEXTS or place[:2] != _SESSION
                if not known and _text_of(data[field.begin : field.end]) is not None and _is_message(data, field):
                    raise ValueError  # noqa: TRY301 - it would be overwritten as a text, and may be a message
                yield place, field
        except (ValueError, IndexError) as error:
            raise _unknown(path) from error


def _parts(path: Path, data: bytes) -> Iterator[tuple[int, int, int]]:
    """The start and end of every header and entry of a report.

    Raises:
        RedactError: A length leads nowhere.
    """
    try:
        at = _length(data, 4) + 8
        while at < len(data):
            begin, at = at + 4, at + 4 + _length(data, at)
            yield _HEADER, begin, at
            end = at + sum(field.number for field in fields(data, begin, at) if field.key == _ENTRIES_SIZE)
            while at < end:
                begin, at = at + 4, at + 4 + _length(data, at)
                yield _ENTRY, begin, at
        if at != len(data):
            raise ValueError  # noqa: TRY301 - said in one place
    except (ValueError, IndexError) as error:
        raise _unknown(path) from error


def _unknown(path: Path) -> RedactError:
    found = "an Nsight Compute report that is not built as those known here"
    return RedactError.of(path, found, "Share its pages instead: `ncu --import REPORT --csv --page raw`.")


def _length(data: bytes, at: int) -> int:
    if at + 4 > len(data):
        raise ValueError
    return int.from_bytes(data[at : at + 4], "little")


def _leaves(data: bytes, at: int, end: int, above: Place) -> Iterator[Leaf]:
    """Texts and byte strings in a message and its nested messages, with their field paths.

    A field of an unknown path is text if it is valid text, else a message if it can be parsed as one.
    """
    for field in fields(data, at, end):
        if not field.sized or field.begin == field.end:
            continue
        place = (*above, field.key)
        if place in _MESSAGES:
            inner = _is_message(data, field)
        else:
            inner = place not in _TEXTS and _text_of(data[field.begin : field.end]) is None
            inner = inner and _is_message(data, field)
        if inner:
            yield from _leaves(data, field.begin, field.end, place)
        else:
            yield place, field


def _text_of(value: bytes) -> str | None:
    """`value` decoded as text; None if it is not text."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() or all(letter.isprintable() or letter in _BLANKS for letter in text) else None


def _is_message(data: bytes, field: Field) -> bool:
    """Whether a field's bytes can be parsed as a message."""
    try:
        for _ in fields(data, field.begin, field.end):
            pass
    except (ValueError, IndexError):
        return False
    return True
