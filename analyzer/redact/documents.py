"""Redacts files that are made of text: what kanalyze writes, traces of torch.profiler, logs, sources, pages of ncu.

What may be larger than memory is copied piece by piece. Of a trace (Chrome trace) one regular expression skips all text
known to be harmless, and stops at strings that need a check: those with characters of paths and addresses, and those
under unknown keys. Everything else, mostly numbers, is copied byte for byte. Files packed with gzip are unpacked, and a
copy is packed without the header's name and time.
"""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from kanalyze.errors import DamagedReportError, UnknownFormatError
from kanalyze.redact.names import ALLOWED, CLOSED, LONGEST_KEY, OPENED, Names, by_word, is_argument, is_secret, words
from kanalyze.redact.texts import Texts

_MAGIC: Final = b"\x1f\x8b"

#: What is raised where packed data are cut off or damaged.
_CUT: Final = (EOFError, zlib.error, gzip.BadGzipFile)


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Opens the file at `path`, unpacked if it is packed with gzip."""
    with path.open("rb") as file:
        is_packed = file.read(len(_MAGIC)) == _MAGIC
        file.seek(0)
        yield cast("BufferedReader", gzip.GzipFile(fileobj=file)) if is_packed else file


def pieces(source: BufferedReader) -> Iterator[bytes]:
    """The content of an opened file, as far as it can be unpacked; raises what then stopped it."""
    while piece := source.read1(1 << 22):
        yield piece


def head(path: Path, size: int) -> bytes:
    """The first `size` bytes of the content of the file at `path`; fewer where it is cut off."""
    with opened(path) as source, suppress(*_CUT):
        for piece in pieces(source):
            return piece[:size]
    return b""


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    with path.open("wb") as file:
        if path.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as packed:
            yield cast("BinaryIO", packed)


# Text, line by line

#: Longest line, in bytes; longer ones are split: a page of ncu has thousands of columns, but no field of a gigabyte.
_LONGEST: Final = 1 << 24

#: A quoted CSV cell; each is redacted on its own. In a row nothing else is quoted, and nothing stands beside quotes.
_CELL: Final = re.compile(r'"((?:[^"]|"")*)"')
_ROW: Final = re.compile(r'(?:"(?:[^"]|"")*+"|[\d.]*)(?:,(?:"(?:[^"]|"")*+"|[\d.]*))*+\s*')
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")

#: The column of ncu that has the host's name, and what the tool itself writes there in its place.
_HOST_COLUMN: Final = "Host Name"


def learn_text(path: Path, names: Names) -> None:
    """Collect identifying names from the text at `path` into `names`."""
    for block in _blocks(path):
        names.text(block)


def copy_text(path: Path, target: Path, texts: Texts) -> None:
    """Write the redacted lines of the text at `path` to `target`; of rows of a CSV file each quoted cell on its own."""

    def redacted(cell: re.Match[str]) -> str:
        return '"' + texts.free(cell[1].replace('""', '"')).replace('"', '""') + '"'

    host = -1
    with _written(target) as sink:
        for block in _blocks(path):
            # a private key goes from all its lines at once, before each is redacted on its own
            for line in _LINE.findall(texts.free(block) if "\n" in block[:-1] else block):
                result = line
                if path.suffix.lower() == ".csv" and '"' in line and _ROW.fullmatch(line):
                    cells = [*_CELL.finditer(line)]
                    header = [cell[1] for cell in cells]
                    if _HOST_COLUMN in header:
                        host = header.index(_HOST_COLUMN)
                    elif 0 <= host < len(cells) and cells[host][1] not in ("", "127.0.0.1", "localhost", "[host]"):
                        texts.removed.add("host names")
                        result = f'{line[: cells[host].start()]}"[host]"{line[cells[host].end() :]}'
                    result = _CELL.sub(redacted, result)
                else:
                    result = texts.free(line)
                sink.write(_raw(result))


def _blocks(path: Path) -> Iterator[str]:
    """Lines of a text, and those of a private key together."""
    try:
        with opened(path) as source:
            while line := source.readline(_LONGEST):
                block, missing, size = "", 0, 0
                while line:
                    text = _text(line)
                    block += text
                    missing += len(OPENED.findall(text)) - len(CLOSED.findall(text))
                    line = source.readline(_LONGEST) if missing > 0 and size < LONGEST_KEY else b""
                    size += len(line)
                yield block
    except _CUT as error:
        raise DamagedReportError.at(path, "its end", "the packed data end early") from error


# Traces

_SPACE: Final = rb"[ \t\r\n]*+"

#: Keys whose texts are kept, once redacted, in the order of matching; keys whose value is a path, or names something;
#: and keys whose value is removed, with the kind it is counted as, as are texts of keys not listed in KEYS.
KEYS: Final = tuple(ALLOWED["trace"]["keys"])
PATHS, NAMES = (frozenset(ALLOWED["trace"][names]) for names in ("paths", "names"))
GONE: Final = by_word(ALLOWED["trace"]["gone"])
_UNKNOWN: Final = "texts under keys that are not known"
_KNOWN: Final = frozenset(key.encode() for key in KEYS)

#: Texts without any character of paths, addresses, ids or escapes; and numbers.
_PLAIN: Final = rb"(?:[\w<>(), \[\]*&{}#+;!?$'|^]++|::(?![0-9])|-(?=[0-9>\]]))*+|-?[0-9]+\.?[0-9]*+(?:e[-+]?[0-9]+)?"

#: Text that passes unchanged: all but strings, plain strings that are no keys, and known keys.
_HARMLESS: Final = re.compile(
    rb'(?:[^"]++|"(?:%b)"(?=%b[,\]}])|"(?:%b)"(?=%b:))*+'
    % (_PLAIN, _SPACE, b"|".join(re.escape(key.encode()) for key in KEYS), _SPACE),
    re.ASCII,
)

_TEXT: Final = re.compile(rb'"((?:[^"\\]|\\.)*+)"(' + _SPACE + rb")([:,\]}]?)", re.DOTALL)
_KEY_BEFORE: Final = re.compile(rb'"([^"\\]*)"[ \t\r\n]*:[ \t\r\n]*\Z')
_LITERAL: Final = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
#: All up to a string that goes on in the next piece.
_WHOLE: Final = re.compile(rb'(?:[^"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_SIGN: Final = re.compile(rb'[\[\]{},"]')
_NESTING: Final = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}

_LOOK_BACK: Final = 512

#: Keys that name a machine within a trace. It starts with letters, which is fastest to find.
_HOST_NAME: Final = re.compile(rb'host_?name"\s*:\s*"([^"\\]+)"')


def learn_trace(path: Path, names: Names) -> None:
    """Collect identifying names from the trace at `path` into `names`."""
    before, waiting, learned = b"", b"", {b""}
    with opened(path) as source, suppress(*_CUT):
        for piece in pieces(source):
            for name in _HOST_NAME.findall(before[-_LOOK_BACK:] + piece):
                names.host(name.decode(errors="replace"))
            waiting += piece
            literals = {*_LITERAL.findall(waiting)}
            for literal in literals - learned:
                names.text(_decoded(literal))
            whole = _WHOLE.match(waiting)
            before, waiting, learned = piece, waiting[whole.end() if whole else 0 :], literals
    names.text(_decoded(waiting[1:]))


def copy_trace(path: Path, target: Path, texts: Texts) -> None:
    """Write the redacted trace to `target`; a truncated trace stays truncated."""
    work = Trace(texts)
    with opened(path) as source, _written(target) as sink:
        try:
            for piece in pieces(source):
                sink.write(work.more(piece))
        except _CUT:
            texts.removed.notes.append(f"{texts.name(path.name)} is cut off, as it was before")
        sink.write(work.more(b"", last=True))


class Trace:
    """State of a streaming redaction: input not yet written, and the position within a removed value."""

    def __init__(self, texts: Texts) -> None:
        """Redact by the rules of `texts`."""
        self._texts, names = texts, texts.names
        named = (name.encode().lower() for name in names.hosts | names.users | names.secrets)
        # of keys and tokens made of letters alone, which would pass as harmless
        self._starts = (*b"ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ hf_ akia asia npm_ aiza".split(), *named)
        self._waiting, self._before = b"", b""
        self._gone, self._depth = "", 0  # the kind that a removed value is counted as, and how deep in it we are

    def more(self, piece: bytes, *, last: bool = False) -> bytes:
        """Consume `piece`; returns the output that is complete, with `last` all of it."""
        text, parts, at = self._waiting + piece, [], 0
        while at < len(text):
            end = self._passed(text, at)
            parts.append(text[at:end])
            match = _TEXT.match(text, end)
            if match is None or (not match[3] and not last and match.end() == len(text)):
                at = end
                break
            at, string = self._string(match, text)
            parts.append(string)
        self._waiting = text[at:]
        if last and self._waiting:  # the end of a trace truncated within a string
            parts.append(b'"' if self._gone else b'"' + _raw(self._texts.free(_text(self._waiting[1:]))))
        self._before = (self._before + text[:at])[-_LOOK_BACK:]
        done = b"".join(parts)
        low = done.lower()
        return _TEXT.sub(self._without_names, done) if any(start in low for start in self._starts) else done

    def _passed(self, text: bytes, at: int) -> int:
        """How far `text` passes from `at` on; notices the end of a removed value."""
        while self._gone:
            sign = _SIGN.search(text, at)
            if sign is None or sign[0] == b'"':
                return sign.start() if sign else len(text)
            at = sign.end()
            self._depth += _NESTING.get(sign[0], 0)
            if self._depth <= 0:
                self._gone, self._depth = "", 0
            elif sign[0] in _NESTING:
                self._gone = _UNKNOWN
        run = _HARMLESS.match(text, at)
        return run.end() if run else at

    def _string(self, match: re.Match[bytes], text: bytes) -> tuple[int, bytes]:
        """Redacts a key or a text: its end, and what it becomes. Texts of the value of an unknown key are removed."""
        if match[3] == b":" and (self._depth or not self._gone):
            if match[1] not in _KNOWN and not self._gone:
                self._gone = GONE.get(_decoded(match[1]), _UNKNOWN)
            return match.end(), _quoted(self._texts.free, match[1]) + match[2] + b":"
        after = match.end() - len(match[3])
        if not self._gone:
            return after, _quoted(self._rule(text, match.start()), match[1]) + match[2]
        self._texts.removed.add(self._gone, bool(match[1]))
        self._gone = self._gone if self._depth else ""
        return after, b'""' + match[2]

    def _rule(self, text: bytes, at: int) -> Callable[[str], str]:
        """The redaction rule for the text at `at`, by its key."""
        key = _KEY_BEFORE.search((self._before + text[max(at - _LOOK_BACK, 0) : at])[-_LOOK_BACK:])
        name = key[1].decode(errors="replace") if key else ""
        if name in PATHS:
            return self._texts.path
        return self._texts.name if name in NAMES else self._texts.free

    def _without_names(self, match: re.Match[bytes]) -> bytes:
        """A string of what is done without names and tokens that contain no suspicious character."""
        if match[3] == b":" and match[1] in _KNOWN:
            return match[0]
        return _quoted(self._texts.names_and_secrets, match[1]) + match[2] + match[3]


def _quoted(rule: Callable[[str], str], raw: bytes) -> bytes:
    """Redacts a string literal; returned byte for byte if unchanged."""
    text = _decoded(raw)
    redacted = rule(text)
    return b'"' + raw + b'"' if redacted == text else _raw(json.dumps(redacted, ensure_ascii=False))


def _decoded(raw: bytes) -> str:
    """Decodes a JSON string literal; unchanged if it is invalid."""
    text = _text(raw)
    with suppress(ValueError):
        return str(json.loads(f'"{text}"', strict=False)) if "\\" in text else text
    return text


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# Documents that kanalyze writes: manifest, compiled kernels, results of the torch pass

#: Keys whose text stays, once redacted, and keys under which all keys do; keys whose value is removed, with its kind.
_KEYS, _OWN = (words(ALLOWED["documents"][names]) for names in ("keys", "own"))
_GONE: Final = by_word(ALLOWED["documents"]["gone"])

#: Which keys of which parts of a manifest hold names.
_LEARNED: Final = (("machine", "host", Names.host), ("workload", "cwd", Names.folder), ("git", "root", Names.folder))

#: The key of a build: a truncated digest.
_BUILD: Final = re.compile(r"[0-9a-f]{24}")

#: Environment variables that affect how a program runs, with values that are switches, numbers, versions or lists of
#: them: any other word may be a name or a secret, and a version of four numbers an IP address.
_VARIABLE: Final = re.compile(
    r"(?:CUDA|NCCL|TORCH|TRITON|PYTORCH|CUBLAS|CUDNN|NVIDIA|NVCC|OMP|MKL|OPENBLAS)_?\w*|\w*RANK|\w*WORLD_SIZE"
)
_SWITCH: Final = (
    r"[-+]?\d{1,19}(?:\.\d{1,9})?(?:[kKmMgG][bB]?)?|\d{1,4}(?:\.\d{1,4}){1,2}(?:-\d{1,3}|[af]|\+PTX)?|0x[0-9a-fA-F]{1,16}"
    rf"|(?i:{'|'.join(ALLOWED['documents']['environment']['switches'].split())})"
)
_VALUE: Final = re.compile(rf"(?:(?:{_SWITCH})(?:[,:;=]|$)){{0,64}}")


def learn_document(path: Path, names: Names) -> None:
    """Collect identifying names from the document at `path` into `names`."""
    content = read(path)
    parts = {key: part for key, part in content.items() if isinstance(part, dict)} if isinstance(content, dict) else {}
    for part, key, learned in _LEARNED:
        learned(names, parts.get(part, {}).get(key))
    for name, value in parts.get("environment", {}).items():
        names.variable(str(name), str(value))
    _learn(content, names)


def _learn(value: object, names: Names, key: str = "") -> None:
    """Collect names and secrets from all texts of a document, but for the keys of cached builds, which are digests."""
    if isinstance(value, dict):
        for name, item in value.items():
            names.text(str(name))
            _learn(item, names, str(name))
    elif isinstance(value, list):
        for before, item in zip(["", *value], value, strict=False):
            _learn(item, names, "secret" if is_argument(before, item) else "")
    elif isinstance(value, str) and not (key == "key" and _BUILD.fullmatch(value)):
        names.text(value)
        if is_secret(key):
            names.assigned(value)


def copy_document(path: Path, target: Path, texts: Texts) -> None:
    """Write the redacted copy of the document at `path` to `target`."""
    write(document(read(path), texts), target)


def write(content: object, target: Path) -> None:
    """Write a document to `target` as the collectors do."""
    target.write_bytes((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass"))


def document(value: object, texts: Texts, *, known: bool = True, all_below: bool = False) -> object:
    """Redacts a JSON value, of a known key or not; with `all_below` all keys within it count as known."""
    if isinstance(value, dict):
        return {texts.free(str(key)): _item(str(key), item, texts, (known, all_below)) for key, item in value.items()}
    if isinstance(value, list):  # in a command line, the argument of an option for secrets is a secret
        return [
            texts.secret() if is_argument(before, item) else document(item, texts, known=known, all_below=all_below)
            for before, item in zip(["", *value], value, strict=False)
        ]
    if isinstance(value, str):
        return texts.free(value) if known else texts.blank("values of unknown keys", value)
    return value


def _item(key: str, value: object, texts: Texts, place: tuple[bool, bool]) -> object:
    known, all_below = place
    if key in _GONE and not isinstance(value, dict | list):
        texts.removed.add(_GONE[key], bool(value))
        return None
    if key == "environment" and isinstance(value, dict):
        named = {name: str(item) for name, item in value.items() if _VARIABLE.fullmatch(name) and not is_secret(name)}
        kept = {name: item for name, item in named.items() if _VALUE.fullmatch(item)}
        texts.removed.add("variables of the environment", len(value) - len(kept))
        return {name: texts.free(item) for name, item in kept.items()}
    if isinstance(value, str) and value and is_secret(key) and key not in _KEYS:
        return texts.secret()
    own = all_below or key in _OWN
    return document(value, texts, known=own or (known and key in _KEYS), all_below=own)


def read(path: Path) -> object:
    """The document at `path`; UnknownFormatError if it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnknownFormatError.of(path, "JSON that cannot be read", "Copy the file again.") from error


# Lines of the program; what stands in them is the program itself: it goes, unless the user lets it stay

#: What is wrong with a file of lines that the collector did not write.
_WRONG: Final = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, EOFError, zlib.error)


def learn_lines(path: Path, names: Names) -> None:
    """Collect identifying names from the files and lines at `path` into `names`."""
    content = _lines(path)
    for text in (*content["files"], *(text for *_, text in content["places"])):
        names.text(text)


def copy_lines(path: Path, target: Path, texts: Texts) -> None:
    """Write the redacted copy of the lines at `path` to `target`."""
    content = _lines(path)
    content["files"] = [texts.path(file) for file in content["files"]]
    content["places"] = [
        (file, line, texts.name(function), texts.free(text) if texts.names.source else texts.blank("lines", text))
        for file, line, function, text in content["places"]
    ]
    target.write_bytes(gzip.compress(json.dumps(content).encode(), 6, mtime=0))


def _lines(path: Path) -> dict[str, Any]:
    """What the file is known to hold, and nothing else: numbers, names of files, and lines with their texts."""

    def numbers(part: dict[str, Any]) -> dict[str, list[int]]:
        return {name: [*map(int, part[name])] for name in ("times", "places")}

    try:
        packed = path.read_bytes()
        content = json.loads(gzip.decompress(packed) if packed.startswith(_MAGIC) else packed)
        return {
            "schema": int(content["schema"]),
            "process": int(content["process"]),
            "exact": bool(content["exact"]),
            "clocks": [(int(unix), int(own)) for unix, own in content["clocks"]],
            "files": [*map(str, content["files"])],
            "places": [(int(file), int(line), str(name), str(text)) for file, line, name, text in content["places"]],
            "threads": [
                {"id": int(thread["id"]), "lines": numbers(thread["lines"]), "loops": numbers(thread["loops"])}
                for thread in content["threads"]
            ],
        }
    except _WRONG as error:
        raise DamagedReportError.at(path, "the lines of the program", "not what the collector writes") from error
