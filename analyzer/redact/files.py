"""Redaction of a single file of any kind: collects identifying names, writes the redacted copy."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, cast

from kanalyze.errors import (
    DamagedReportError,
    RedactError,
    ReportNotFoundError,
    UnknownFormatError,
    UnreadableReportError,
)
from kanalyze.redact import documents
from kanalyze.redact import ncu as ncu_report
from kanalyze.redact import nsys as nsys_sqlite
from kanalyze.redact import trace as torch_trace
from kanalyze.redact.assigned import CLOSED, LONGEST_KEY, OPENED
from kanalyze.tools import EXPORT

if TYPE_CHECKING:
    from kanalyze.redact.texts import Names, Texts

#: How names are learned from kinds of files that are read as a whole, and how these are copied; others are streams.
_WHOLE: Final = {
    "sqlite": (nsys_sqlite.learn, nsys_sqlite.copy),
    "ncu-rep": (ncu_report.learn, ncu_report.copy),
    "document": (documents.learn, documents.copy),
    "lines": (documents.learn_lines, documents.copy_lines),
}

_PIECE: Final = 1 << 22

#: Shorter names match numbers by chance.
_LONG_ENOUGH: Final = 6


def learn(path: Path, kind: Kind, names: Names) -> None:
    """Collect identifying names from the file at `path` into `names`.

    Raises:
        UnknownFormatError: It is a database that nsys did not write.
        DamagedReportError: Its structure is invalid.
        UnreadableReportError: The operating system refuses to read it.
    """
    names.text(path.name)
    try:
        if kind in _WHOLE:
            _WHOLE[kind][0](path, names)
            return
        with opened(path) as source:
            if kind == "trace":
                torch_trace.learn(source, names)
                return
            for block in _blocks(source):
                names.text(block)
    except OSError as error:
        raise UnreadableReportError.of(path, error) from error


def copy(path: Path, kind: Kind, target: Path | None, texts: Texts) -> None:
    """Write the redacted copy of the file at `path` to `target`; without a target, only count the removals.

    Raises:
        RedactError: Something that identifies would be left.
        OSError: The target cannot be written.
    """
    if kind in _WHOLE:
        _WHOLE[kind][1](path, target, texts)
    else:
        _copy_stream(path, kind, target or Path(os.devnull), texts)
    if target is not None and _survives(target, texts.names):
        remedy = (
            "Please report it. Until then, `--remove TEXT` takes out more, and a name that is none may be `--keep`."
        )
        raise RedactError.of(path, "a report with a name in it that is left after redaction", remedy)


def _copy_stream(path: Path, kind: Kind, target: Path, texts: Texts) -> None:
    with opened(path) as source:
        with written(target, packed=target.suffix == ".gz") as sink:
            if kind == "trace":
                torch_trace.copy(source, sink, texts)
            else:
                _copy_lines(source, sink, texts, cells=kind == "csv")
        if isinstance(source, Unpacked) and not source.whole:
            if kind != "trace":
                raise DamagedReportError.at(path, "its end", "the packed data end early")
            texts.removed.notes.append(f"{texts.name(path.name)} is cut off, as it was before")


def _survives(path: Path, names: Names) -> bool:
    """Whether any name to be removed still occurs in the file's bytes: a final check."""
    sought = [os.fsencode(name.lower()) for name in names.hosts | names.users if len(name) >= _LONG_ENOUGH]
    asked = [os.fsencode(text.lower()) for text in names.secrets if len(text) >= _LONG_ENOUGH]
    if not sought and not asked:
        return False
    longest = max(map(len, (*sought, *asked))) + 2
    with opened(path) as file:
        before = b""
        while piece := file.read(_PIECE):
            text = (before + piece).lower()
            if any(name in text for name in asked) or any(_alone(name, text) for name in sought if name in text):
                return True
            before = piece[-longest:]
    return False


def _alone(name: bytes, text: bytes) -> bool:
    return re.search(rb"(?<![a-z0-9])" + re.escape(name) + rb"(?![a-z0-9])", text) is not None


# Detects the kind of a file by its content, not by its name.

Kind = Literal["sqlite", "trace", "document", "lines", "ncu-rep", "csv", "text"]

_HEAD: Final = 1 << 16
_SQLITE: Final = b"SQLite format 3\0"
_NCU: Final = b"NVR\0"
_NSYS: Final = b"NVIDIA Tegra Profiler Report"

#: Beginnings of JSON, in the order in which they are tried: of lines and documents that kanalyze's collectors write, of
#: a trace, whose events come first, or the properties that Kineto writes before them.
_FORMS: Final[dict[Kind, re.Pattern[bytes]]] = {
    "lines": re.compile(rb'\s*\{\s*"schema"\s*:\s*\d+\s*,\s*"process"\s*:\s*\d+\s*,\s*"exact"\s*:'),
    "document": re.compile(
        rb'\s*\{(?:\s*"(?:schema"\s*:\s*\d|clock"\s*:\s*"(?:host|cuda events)")'
        rb'|(?:[^{}]|\{[^{}]*\})*?"kind"\s*:\s*"kanalyze capture")'
    ),
    "trace": re.compile(
        rb'\s*(?:\{.*?"(?:traceEvents|schemaVersion|deviceProperties)"\s*:|\[\s*\{[^{}]*"ph"\s*:)', re.DOTALL
    ),
}

#: Text files of a capture, by suffix.
_LINES: Final = frozenset((".txt", ".log", ".ptx", ".py", ".cu", ".csv", ".md", ".out", ".err"))

_NO_EXPORT: Final = f"Export it, and redact the export: `{EXPORT}`."


def kind_of(path: Path) -> Kind:
    """The kind of the file at `path`.

    Raises:
        ReportNotFoundError: It does not exist.
        RedactError: Its format is known, but cannot be redacted.
        UnknownFormatError: Its format is unknown.
    """
    if not path.exists():
        raise ReportNotFoundError.at(path)
    if not path.is_file():
        raise UnknownFormatError.of(path, "no file")
    with opened(path) as file:
        head = file.read(_HEAD)
    if head.startswith(_NSYS):
        raise RedactError.of(path, "an Nsight Systems report in NVIDIA's own format", _NO_EXPORT)
    if head.startswith(_SQLITE):
        return "sqlite"
    if head.startswith(_NCU):
        return "ncu-rep"
    if head.lstrip()[:1] in (b"{", b"["):
        kind = next((kind for kind, form in _FORMS.items() if form.match(head)), None)
        if kind is not None:
            return kind
    if path.suffix.lower() in _LINES and b"\0" not in head:
        return "csv" if path.suffix.lower() == ".csv" else "text"
    remedy = "Give an nsys .sqlite, a torch trace (.json, .json.gz), a capture's folder, or a file of it."
    raise UnknownFormatError.of(path, "a file that redaction does not know", remedy)


# Transparent gzip: reads truncated files as far as possible, writes no file name and no time stamp.

_MAGIC: Final = b"\x1f\x8b"
_PACKED_BYTES: Final = 1 << 18
_WINDOW: Final = 31  # zlib's wbits for gzip


class Unpacked:
    """Content of a gzip file, up to where it is truncated or damaged.

    Attributes:
        whole: Whether everything so far could be decompressed.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Decompress `file`."""
        self._file = file
        self._inner = zlib.decompressobj(_WINDOW)
        self._ready = bytearray()
        self.whole = True

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer at the end."""
        while len(self._ready) < size and self._more():
            pass
        return self._taken(size)

    def readline(self, size: int) -> bytes:
        """The next line, or `size` bytes of it."""
        while (end := self._ready.find(b"\n", 0, size)) < 0 and len(self._ready) < size and self._more():
            pass
        return self._taken(end + 1 if end >= 0 else size)

    def _taken(self, size: int) -> bytes:
        part = bytes(self._ready[:size])
        del self._ready[:size]
        return part

    def _more(self) -> bool:
        if self._inner.eof:
            rest = self._inner.unused_data or self._file.read(_PACKED_BYTES)
            if not rest.startswith(_MAGIC):
                return False
            self._inner = zlib.decompressobj(_WINDOW)
        else:
            rest = self._file.read(_PACKED_BYTES)
        try:
            self._ready += self._inner.decompress(rest)
        except zlib.error:
            rest = b""
        self.whole = bool(rest)
        return self.whole


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Opens the file at `path`, decompressed if it is gzip; supports only `read` and `readline`."""
    with path.open("rb") as file:
        packed = file.read(len(_MAGIC)) == _MAGIC
        file.seek(0)
        yield cast("BinaryIO", Unpacked(file)) if packed else file


@contextmanager
def written(path: Path, *, packed: bool) -> Iterator[BinaryIO]:
    """Creates a file at `path`; with `packed` as gzip, without the header's file name and time stamp."""
    with path.open("wb") as file:
        if not packed:
            yield file
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as inner:
            yield cast("BinaryIO", inner)


# Text files, line by line: CSV pages of ncu, logs, PTX, source, output of torch.

#: Longest line, in bytes; longer ones are split: a page of ncu has thousands of columns, but no field of a gigabyte.
_LONGEST: Final = 1 << 24

#: A quoted CSV cell; each is redacted on its own. In a row nothing else is quoted, and nothing stands beside quotes.
_CELL: Final = re.compile(r'"((?:[^"]|"")*)"')
_ROW: Final = re.compile(r'(?:"(?:[^"]|"")*+"|[\d.]*)(?:,(?:"(?:[^"]|"")*+"|[\d.]*))*+\s*')
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")

_HOST_COLUMN: Final = "Host Name"


def _copy_lines(source: BinaryIO, target: BinaryIO, texts: Texts, *, cells: bool = False) -> None:
    """Write the redacted lines of `source` to `target`; with `cells` each quoted cell on its own."""

    def redacted(cell: re.Match[str]) -> str:
        return '"' + texts.free(cell[1].replace('""', '"')).replace('"', '""') + '"'

    host = -1
    for block in _blocks(source):
        # a private key goes from all its lines at once, before each is redacted on its own
        for line in _LINE.findall(texts.free(block) if "\n" in block[:-1] else block):
            if cells and '"' in line and _ROW.fullmatch(line):
                values = _CELL.findall(line)
                host = values.index(_HOST_COLUMN) if _HOST_COLUMN in values else host
                has_host = 0 <= host < len(values) and _HOST_COLUMN not in values
                made = _CELL.sub(redacted, _without_host(line, host, texts) if has_host else line)
            else:
                made = texts.free(line)
            target.write(made.encode("utf-8", "surrogateescape"))


def _blocks(source: BinaryIO) -> Iterator[str]:
    """Lines of `source`, and those of a private key together."""
    while line := source.readline(_LONGEST):
        block, missing, size = "", 0, 0
        while line:
            text = line.decode("utf-8", "surrogateescape")
            block += text
            missing += len(OPENED.findall(text)) - len(CLOSED.findall(text))
            line = source.readline(_LONGEST) if missing > 0 and size < LONGEST_KEY else b""
            size += len(line)
        yield block


def _without_host(line: str, column: int, texts: Texts) -> str:
    """A CSV row of ncu with the host name in `column` replaced, unless it is the tool's own placeholder."""
    cell = [*_CELL.finditer(line)][column]
    if cell[1] in ("", "127.0.0.1", "localhost", "[host]"):
        return line
    texts.removed.add("host names")
    return f'{line[: cell.start()]}"[host]"{line[cell.end() :]}'
