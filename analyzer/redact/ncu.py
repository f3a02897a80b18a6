"""Redacts a .ncu-rep: every removed text is overwritten in place by one of the same length.

The format is NVIDIA's own: messages of protocol buffers, one after another, each with its length before it. As long as
no length changes, the file stays what it was. That the messages can be followed to the end shows that nothing in it is
packed in a way that would hide texts; a file that cannot be followed is refused.

Found in reports of Nsight Compute 2025.3. A block is a header, and as many bytes of entries as its field 5 says.
Field 3 of a header is the session: target and host system (3, 4: name, version, processor, architecture, host name,
network addresses in 7), devices (6), versions (8), command line (11). Field 6 is the process: id, host, path. Entries
are sources (8.1: path and text of a file; 4: the compiled code, with the same paths in its line tables) and results.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from kanalyze.errors import RedactError
from kanalyze.files import fields
from kanalyze.redact.names import ALLOWED, Names, values
from kanalyze.redact.texts import ADDRESSES, PATH, ROOTS, WINDOWS_PATH, Rule, Texts, rule_of, rules_of

#: Paths of fields: 0 for a header or 1 for an entry, then the numbers of the fields. Those of the session that stay but
#: for patterns such as addresses, and those with all below them; fields that are messages, and fields that are texts,
#: which is needed where the bytes alone are ambiguous; fields with a folder.
_FIELDS: Final = {
    name: {tuple(map(int, place.split("."))) for place in places.split()} for name, places in ALLOWED["ncu"].items()
}
_MESSAGES, _TEXTS = _FIELDS["messages"], _FIELDS["texts"]

_HEADER, _ENTRY = 0, 1
_SESSION, _OF_PROCESS_HOST = (_HEADER, 3), (_HEADER, 6, 2)
_HOST_NAME, _ENTRIES_SIZE = 5, 5

_HERE: Final = (b"127.0.0.1", b"localhost", b"::1")

#: Control characters that a text may have, for :meth:`str.translate` to leave out.
_BLANKS: Final = dict.fromkeys(map(ord, "\n\t\r"))

#: Shorter names and folders match numbers and code by chance.
_LONG_ENOUGH: Final = 6

_PART: Final = rb"[^\s\0-\x1f\x7f-\xff/\\\"'`<>|:;,*?()\[\]{}]"
_PATH_ANYWHERE: Final = re.compile(
    rb"(?<![\w./~-])/(?:" + "|".join(sorted(ROOTS)).encode() + rb")/(?:" + _PART + rb"+/)*"
)

#: What identifies by its form in a text.
_OF_FORM: Final = (("paths", PATH, ""), ("paths", WINDOWS_PATH, ""), *ADDRESSES)


def learn(path: Path, names: Names) -> None:
    """Collect identifying names from the report at `path` into `names`."""
    data = path.read_bytes()
    for place, begin, end in _followed(path, data):
        text = _text_of(data[begin:end]) or ""
        names.text(text)
        if place[:2] == _SESSION and place[3:] == (_HOST_NAME,):
            names.host(text)
        elif place in _FIELDS["folders"]:
            names.folder(re.split(r"[\\/](?!.*[\\/])", text)[0])
    for raw in _PATH_ANYWHERE.findall(data):
        names.text(raw.decode(errors="replace"))


def copy(path: Path, target: Path, texts: Texts) -> None:
    """Write the redacted copy of the report at `path`, of its length, to `target`."""
    data = path.read_bytes()
    masked = bytearray(data)
    mask = _Mask(texts)
    for place, begin, end in _followed(path, data):
        masked[begin:end] = mask.leaf(place, data[begin:end])
    target.write_bytes(mask.over(mask.anywhere, bytes(masked)))


class _Mask:
    """Overwrites texts in place, and counts them; `anywhere` are the rules for all bytes of a report."""

    def __init__(self, texts: Texts) -> None:
        self._removed = texts.removed
        self._rules = _of_bytes([*_OF_FORM, *rules_of(texts.names)])
        folders = rule_of("paths", texts.names.folders, ("", r"(?![\w.-])"), "", _LONG_ENOUGH)
        # code and tables contain paths and names that are no fields
        named = _of_bytes(rules_of(texts.names, least=_LONG_ENOUGH))
        self.anywhere = [*_of_bytes(folders), ("paths", _PATH_ANYWHERE), *named]

    def leaf(self, place: tuple[int, ...], value: bytes) -> bytes:
        """Redacts one text or byte string, by its field path."""
        stays = place in _FIELDS["stays"] or place[:3] in _FIELDS["stays_with_all_below"]
        if (place[:2] == _SESSION and not stays) or (place == _OF_PROCESS_HOST and value not in _HERE):
            return self._filled("host names and addresses", value)
        if _text_of(value) is None:
            return value
        return self.over(self._rules, self._masked("secrets", value, values(value.decode("latin-1"))))

    def over(self, rules: list[tuple[str, re.Pattern[bytes]]], data: bytes) -> bytes:
        """Overwrites what the rules find: of a path its folders."""
        for what, pattern in rules:
            part = "folders" if "folders" in pattern.groupindex else 0
            data = self._masked(what, data, [match.span(part) for match in pattern.finditer(data)])
        return data

    def _masked(self, what: str, data: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
        """Overwrites some spans."""
        masked = bytearray(data)
        for begin, end in spans:
            masked[begin:end] = self._filled(what, data[begin:end])
        return bytes(masked)

    def _filled(self, what: str, value: bytes) -> bytes:
        """A filler of the same length; folder separators and line ends stay."""
        filler = re.sub(rb"[^/\\\n]", b"_", value)
        self._removed.add(what, filler != value)
        return filler


def _of_bytes(rules: Iterable[Rule]) -> list[tuple[str, re.Pattern[bytes]]]:
    return [(what, re.compile(rule.pattern.encode(), rule.flags & ~re.UNICODE)) for what, rule, _ in rules]


def _followed(path: Path, data: bytes) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """All texts and byte strings of a report, with their field paths; RedactError if a length leads nowhere."""
    try:
        for part, begin, end in _parts(data):
            for place, at, after in _leaves(data, begin, end, (part,)):
                known = place in _TEXTS or place[:2] != _SESSION
                if not known and _text_of(data[at:after]) is not None and _is_message(data, at, after):
                    raise ValueError  # noqa: TRY301 - it would be overwritten as a text, and may be a message
                yield place, at, after
    except (ValueError, IndexError) as error:
        problem = "an Nsight Compute report that is not built as those known here"
        remedy = "Share its pages instead: `ncu --import REPORT --csv --page raw`."
        raise RedactError.of(path, problem, remedy) from error


def _parts(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The start and end of every header and entry of a report."""
    at, entries_end = _length(data, 4) + 8, 0
    while at < len(data):
        begin, at = at + 4, at + 4 + _length(data, at)
        is_entry = begin - 4 < entries_end
        if not is_entry:
            entries_end = at + sum(field.number for field in fields(data, begin, at) if field.key == _ENTRIES_SIZE)
        yield _ENTRY if is_entry else _HEADER, begin, at
    if at != len(data):
        raise ValueError


def _length(data: bytes, at: int) -> int:
    if at + 4 > len(data):
        raise ValueError
    return int.from_bytes(data[at : at + 4], "little")


def _leaves(data: bytes, at: int, end: int, above: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int, int]]:
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
    with suppress(UnicodeDecodeError):
        text = value.decode()
        return text if text.translate(_BLANKS).isprintable() else None
    return None


def _is_message(data: bytes, begin: int, end: int) -> bool:
    """Whether bytes can be parsed as a message."""
    with suppress(ValueError, IndexError):
        return all(True for _ in fields(data, begin, end))
    return False
