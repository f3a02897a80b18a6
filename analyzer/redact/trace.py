"""Redacts a torch.profiler trace (Chrome trace) as a stream: a trace may be larger than memory.

One regular expression skips all text known to be harmless, and stops at strings that need a check: those with
characters of paths and addresses, and those under unknown keys. Everything else, mostly numbers, is copied byte for
byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import BinaryIO, Final

from kanalyze.redact.texts import ALLOWED, Names, Texts

_PIECE: Final = 1 << 22

_SPACE: Final = rb"[ \t\r\n]*+"

#: Texts without any character of paths, addresses, ids or escapes; and numbers.
_PLAIN: Final = rb"(?:[\w<>(), \[\]*&{}#+;!?$'|^]++|::(?![0-9])|-(?=[0-9>\]]))*+|-?[0-9]+\.?[0-9]*+(?:e[-+]?[0-9]+)?"
_PLAIN_TEXT: Final = re.compile(_PLAIN, re.ASCII)

#: Keys whose texts are kept, once redacted, in the order of matching; keys whose value is a path, or names something;
#: and keys whose value is removed, with the kind it is counted as, as are texts of keys not listed in KEYS.
KEYS: Final = tuple(ALLOWED["trace"]["keys"])
PATHS: Final = frozenset(ALLOWED["trace"]["paths"])
NAMES: Final = frozenset(ALLOWED["trace"]["names"])
GONE: Final = ALLOWED["trace"]["gone"]


_UNKNOWN: Final = "texts under keys that are not known"


def _harmless(keys: Iterable[bytes], after: bytes) -> re.Pattern[bytes]:
    """A pattern of text that passes unchanged: all but strings, these keys, and plain strings followed by `after`."""
    listed = b"|".join(map(re.escape, keys))
    pattern = (
        rb'(?:[^"]++|"(?:' + _PLAIN + rb')"(?=' + _SPACE + rb"[" + after + rb'])|"(?:' + listed + rb')"(?=' + _SPACE
    )
    return re.compile(pattern + rb":))*+", re.ASCII)


_KNOWN: Final = frozenset(key.encode() for key in KEYS)

#: Where all keys are known, a plain string may be a key; looking each up would dominate the time.
_HARMLESS: Final = _harmless((key for key in _KNOWN if not _PLAIN_TEXT.fullmatch(key)), rb":,\]}")
_HARMLESS_AMONG_UNKNOWN: Final = _harmless((key.encode() for key in KEYS), rb",\]}")

_ANY_KEY: Final = re.compile(rb'"([^"\\]*+)"' + _SPACE + rb":")
_TEXT: Final = re.compile(rb'"((?:[^"\\]|\\.)*+)"(' + _SPACE + rb")([:,\]}]?)", re.DOTALL)
_KEY_BEFORE: Final = re.compile(rb'"([^"\\]*)"[ \t\r\n]*:[ \t\r\n]*\Z')

_LITERAL: Final = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
#: All up to a string that goes on in the next piece.
_WHOLE: Final = re.compile(rb'(?:[^"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_STRUCTURE: Final = re.compile(rb'[^"\[\]{}]++|[\[\]{}]')

_LOOK_BACK: Final = 512

#: Prefixes of keys and tokens made of letters alone, which would pass as harmless.
_SECRET_STARTS: Final = b"ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ hf_ akia asia npm_ aiza".split()

#: Keys that name a machine or user within a trace. Each starts with letters, which is fastest to find.
_HOST_NAME: Final = re.compile(rb'host_?name"\s*:\s*"([^"\\]+)"')
_HOMES: Final = tuple(
    re.compile(sign + rb'[^"\\/\s]+') for sign in (rb"home[\\/]+", rb"Users[\\/]+", rb"users[\\/]+", rb"torchinductor_")
)


def learn(source: BinaryIO, names: Names) -> None:
    """Collect identifying names from the trace into `names`."""
    before, waiting = b"", b""
    known: set[bytes] = {b""}
    while piece := source.read(_PIECE):
        text = before[-_LOOK_BACK:] + piece
        for name in _HOST_NAME.findall(text):
            names.host(name.decode(errors="replace"))
        for home in _HOMES:
            for found in {text[max(found.start() - 1, 0) : found.end()] for found in home.finditer(text)}:
                names.text(re.sub(r"[\\/]+", "/", found.decode(errors="replace")))
        waiting += piece
        literals = {*_LITERAL.findall(waiting)}
        for literal in literals - known:
            names.text(_decoded(literal))
        known, waiting = literals, waiting[_WHOLE.match(waiting).end() :]  # type: ignore[union-attr]  # it may be empty
        before = piece


def copy(source: BinaryIO, target: BinaryIO, texts: Texts) -> None:
    """Write the redacted trace to `target`; a truncated trace stays truncated."""
    work = _Trace(texts)
    while piece := source.read(_PIECE):
        target.write(work.more(piece, last=False))
    target.write(work.more(b"", last=True))


class _Trace:
    """State of a streaming redaction: input not yet written, and the position within a removed value."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._starts = (*_SECRET_STARTS, *(name.encode().lower() for name in texts.sought))
        self._waiting = b""
        self._before = b""
        self._harmless = _HARMLESS
        self._gone = ""  # the kind that texts of the value are counted as, if they are removed
        self._depth = 0  # nesting depth in such a value

    def more(self, piece: bytes, *, last: bool) -> bytes:
        """Consume `piece`; returns the output that is complete, with `last` all of it."""
        text, made, at = self._waiting + piece, [], 0
        self._harmless = _HARMLESS if _KNOWN.issuperset(_ANY_KEY.findall(text)) else _HARMLESS_AMONG_UNKNOWN
        while at < len(text):
            step = self._step(text, at, last=last)
            if step is None:
                break
            at, part = step
            made.append(part)
        self._waiting = text[at:]
        self._before = (self._before + text[:at])[-_LOOK_BACK:]
        piece = b"".join(made)
        low = piece.lower()
        return _TEXT.sub(self._named, piece) if any(start in low for start in self._starts) else piece

    def _named(self, found: re.Match[bytes]) -> bytes:
        """A string of a redacted piece without names and tokens that contain no suspicious character."""
        if found[3] == b":" and found[1] in _KNOWN:
            return found[0]
        text = _decoded(found[1])
        made = self._texts.names_and_secrets(text)
        return found[0] if made == text else _encoded(made) + found[2] + found[3]

    def _step(self, text: bytes, at: int, *, last: bool) -> tuple[int, bytes] | None:
        """Redacts one token at `at`: its end and its output. None if more input is needed."""
        if self._gone and text[at : at + 1] != b'"':
            return self._structure(text, at)
        run = None if self._gone else self._harmless.match(text, at)
        if run is not None and run.end() > at:
            return run.end(), run[0]
        found = _TEXT.match(text, at)
        if found is None or (not found[3] and not last and found.end() == len(text)):
            return None if not last else (len(text), b'"' if self._gone else self._rest(text[at:]))
        if found[3] == b":" and (self._depth or not self._gone):
            return self._key(found)
        made = b'""' if self._gone else self._quoted(self._rule(text, at), found[1])
        if self._gone:
            self._texts.removed.add(self._gone, bool(found[1]))
            self._gone = self._gone if self._depth else ""
        return found.end() - len(found[3]), made + found[2]

    def _rule(self, text: bytes, at: int) -> Callable[[str], str]:
        """The redaction rule for the text at `at`, by its key."""
        key = _KEY_BEFORE.search((self._before + text[max(at - _LOOK_BACK, 0) : at])[-_LOOK_BACK:])
        name = key[1].decode(errors="replace") if key else ""
        if name in PATHS:
            return self._texts.path
        return self._texts.name if name in NAMES else self._texts.free

    def _key(self, found: re.Match[bytes]) -> tuple[int, bytes]:
        """Redacts a key; the value of an unknown key is removed."""
        if found[1] not in _KNOWN and not self._gone:
            self._gone = GONE.get(_decoded(found[1]), _UNKNOWN)
        return found.end(), self._quoted(self._texts.free, found[1]) + found[2] + b":"

    def _structure(self, text: bytes, at: int) -> tuple[int, bytes]:
        """All but texts of a value that is removed: numbers and brackets stay, and its end is noticed."""
        part = next(_STRUCTURE.finditer(text, at))[0]
        if part in b"[{":
            self._depth, self._gone = self._depth + 1, _UNKNOWN
        elif part in b"]}":
            self._depth = max(self._depth - 1, 0)
        if not self._depth and not part.isspace():
            self._gone = ""
        return at + len(part), part

    def _rest(self, text: bytes) -> bytes:
        """The end of a trace truncated within a string."""
        made = self._texts.free(text[1:].decode("utf-8", "surrogateescape"))
        return text[:1] + made.encode("utf-8", "surrogateescape")

    def _quoted(self, rule: Callable[[str], str], raw: bytes) -> bytes:
        """Redacts a string literal; returned byte for byte if unchanged."""
        text = _decoded(raw)
        made = rule(text)
        return b'"' + raw + b'"' if made == text else _encoded(made)


def _encoded(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _decoded(raw: bytes) -> str:
    """Decodes a JSON string literal; unchanged if it is invalid."""
    text = raw.decode("utf-8", "surrogateescape")
    if "\\" not in text:
        return text
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text
