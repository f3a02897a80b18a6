"""Splits a Chrome trace into pieces of whole events, and parses the properties around the event list.

A trace is ``{…, "traceEvents": [ … ], …}`` or only the list. A piece ends between two events: where a bracket closes,
a comma follows, and then what the first event of the file begins with. That place is looked for, not parsed for; pieces
that cannot be decoded because of it are put together again (:func:`mended`). The list of events may also end earlier
than assumed, and events are recovered from damaged pieces.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from itertools import accumulate, islice
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import IO, Any, Final, NamedTuple, cast

import msgspec

from kanalyze import errors, files, readers
from kanalyze.machinery import processors
from kanalyze.readers.torch.columns import Columns, Decoder, repaired, send

#: Bytes per piece: large enough to amortise the cost per piece, small enough for memory.
PIECE_BYTES: Final = 1 << 20
#: Longest event, and longest header before the events, in bytes.
LONGEST_BYTES: Final = 1 << 26

_GZIP_BITS: Final = zlib.MAX_WBITS | 16
#: What some programs begin a text with.
MARK: Final = b"\xef\xbb\xbf"
_BLANK, _PADDING = ", \t\r\n", b"\0 \t\r\n"
_JSON: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
_LIST: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
#: Separator of two events in any style; also matches between objects of a list inside an event.
_BETWEEN: Final = re.compile(rb"\}(?=\s*,\s*\{)")
#: Start of the first event: its first key and, if that is the phase, its value.
_OPENING: Final = re.compile(rb'\s*\{(\s*)"([^"\\]*)"')
#: Properties looked for one by one where the text around the events is damaged.
_NEEDED: Final = ("schemaVersion", "deviceProperties", "baseTimeNanoseconds", "distributedInfo")
#: Bytes per read.
_READ_BYTES: Final = 1 << 20
#: Search window for a separator, in bytes, and its overlap with the next window.
_LOOK_BYTES, _AGAIN_BYTES = 1 << 16, 1 << 12
#: Most candidates for the last event, and the bytes at the end in which they are searched.
_LAST, _LAST_BYTES = 3, 1 << 16
#: JSON decoder that accepts control characters in strings; numbers stay text.
_LENIENT: Final = json.JSONDecoder(strict=False)
_SHALLOW: Final = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)


def _properties(inside: bytes) -> dict[str, Any] | None:
    """Parses the inside of an object, with stray commas at its ends; None if invalid."""
    text = b"{" + inside.strip(b", \t\r\n") + b"}"
    # until 2026 Kineto wrote the quotes in metadata as /", where JSON has \"
    mends: tuple[Callable[[bytes], bytes], ...] = (
        *(bytes, lambda text: repaired(text)[0], lambda text: text.replace(b'/"', b'\\"')),
    )
    for mend in mends:
        with suppress(ValueError, RecursionError):
            properties: dict[str, Any] = _LENIENT.decode(mend(text).decode("utf-8", "replace"))
            return properties
    return None


def _value(text: str, name: str) -> object:
    """The value of one property in a text that is not valid JSON as a whole; None if absent."""
    match = re.search(f'"{name}"\\s*:\\s*', text)
    with suppress(ValueError, RecursionError):
        return _LENIENT.raw_decode(text, match.end())[0] if match else None
    return None


def _inside(tail: bytes) -> bytes:
    return tail.rstrip(_PADDING).removesuffix(b"}")


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


class TraceText:
    """The text of a trace, compressed or not, read once from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        """Find the events in the file at `path`; UnknownFormatError if it holds no trace, or no text at all."""
        self.path = path
        self.bare = False  # whether the file is only a list
        #: The text after the assumed end of the list; None if no end was found. It may be the end of another list if
        #: the last piece was not cut between two events.
        self.tail = cast("bytes | None", None)
        self.properties: dict[str, Any] = {}  # the trace's own, such as deviceProperties, complete after the last piece
        self.damage: list[str] = []  # problems of the text as a whole, a sentence each
        with files.open_regular(path) as file:
            self.compressed = file.read(len(readers.GZIP)) == readers.GZIP
        self._bytes, self._bytes_read = max(1, path.stat().st_size), 0
        self._parts = self._decompressed() if self.compressed else self._read()
        self._text, self._at = bytearray(), 0
        self._start = self._begin()

    @property
    def share(self) -> float:
        """The share of the file that was read."""
        return min(1.0, self._bytes_read / self._bytes)

    def pieces(self) -> Iterator[bytes]:
        """The text of each piece; single use. Parses the properties after the events."""
        at, pattern = self._start, between(self.beginning(4096))
        while (end := self._cut(at, pattern)) is not None:
            piece = self._look(at, end - at)
            del self._text[: end - self._at]
            self._at = at = end
            yield piece
        events, self.tail = split_tail(self._look(at, LONGEST_BYTES), pattern)
        yield events

    def beginning(self, size: int) -> bytes:
        """The text of the first events, before any piece is taken."""
        return self._look(self._start, size)

    def add(self, text: bytes, where: str) -> None:
        """Parse the properties before or after the events."""
        inside = _inside(text) if where == "after" else text.removeprefix(MARK).lstrip().removeprefix(b"{")
        properties = _properties(inside)
        if properties is None:
            read = inside.decode("utf-8", "replace")
            properties = {name: value for name in _NEEDED if (value := _value(read, name)) is not None}
            self.damage.append(f"unreadable properties {where} the events")
        self.properties |= properties

    def _begin(self) -> int:
        """The offset of the first event; parses the properties before it."""
        text = self._look(0, _READ_BYTES)
        if _JSON.match(text) is None:
            what = "compressed data that is no JSON" if text else "nothing that can be read"
            raise errors.UnknownFormatError.of(self.path, what)
        bare = _LIST.match(text)
        if bare:
            self.bare = True
            return bare.end()
        at = 0
        while (match := _EVENTS.search(text, at)) is None:
            # the key may straddle the end of the window
            at, size = max(0, len(text) - _AGAIN_BYTES), len(text)
            text = self._look(0, min(4 * size, LONGEST_BYTES))
            if len(text) == size:
                raise errors.UnknownFormatError.no_trace(self.path)
        self.add(text[: match.start()], "before")
        return match.end()

    def _cut(self, at: int, pattern: re.Pattern[bytes]) -> int | None:
        """The end of the piece that starts at `at`; None if it is the last one."""
        begin = at + PIECE_BYTES
        for boundary, far in ((pattern, begin + 4 * PIECE_BYTES), (_BETWEEN, at + LONGEST_BYTES)):
            for place in range(begin, far, _LOOK_BYTES):
                text = self._look(place, _LOOK_BYTES + _AGAIN_BYTES)
                match = boundary.search(text)
                if match is not None:
                    return place + match.end()
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
                    self.damage.append(f"damage in the compressed data {where}")
                    yield from _until_error(saved, data)
                    return
                begun, data = not inflater.eof, inflater.unconsumed_tail or inflater.unused_data
                if inflater.eof:  # another gzip member may follow, or zero padding
                    inflater, data = zlib.decompressobj(wbits=_GZIP_BITS), data.lstrip(b"\0")
                if part:
                    # a file of 2 MB may decompress to gigabytes of blanks, and long ones are as good as one
                    yield part[:1] if part.isspace() and len(part) >= 1 << 16 else part
        while part := inflater.decompress(inflater.unconsumed_tail, _READ_BYTES) if begun else b"":
            yield part
        if begun and not inflater.eof:
            self.damage.append("early end of the compressed data")


def is_trace(path: Path) -> bool:
    """Whether a file begins as a trace does: an object with trace events, or a list that has some or is damaged."""
    with suppress(errors.UnknownFormatError):
        text = TraceText(path)
        return not text.bare or b'"ph"' in text.beginning(_READ_BYTES) or bool(text.damage)
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

    The text after the list may contain lists of objects, too, so the last event is parsed to find the list's end. It
    may begin with another key than the first event: the names of threads, where a program wrote the trace anew.
    """
    begin = max(0, len(text) - _LAST_BYTES)
    ends = [match.end() for style in (_BETWEEN, pattern) for match in [*style.finditer(text, begin)][-_LAST:]]
    for at in [*reversed(ends), 0]:
        end = _after_object(text, at)
        if end is not None and _properties(_inside(tail := text[end:].lstrip()[1:])) is not None:
            return text[:end], tail
    return text, None


def _after_object(text: bytes, at: int) -> int | None:
    """The end of the event at `at` if it is the list's last; or the end of an empty list."""
    rest = text[at:].decode("utf-8", "surrogateescape")
    begin = len(rest) - len(rest.lstrip(_BLANK))
    try:
        event, end = (None, begin) if rest.startswith("]", begin) else _SHALLOW.raw_decode(rest, begin)
    except (ValueError, RecursionError):
        return None
    if end > begin and not (isinstance(event, dict) and "ph" in event):  # of another list, behind that of events
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
    """Decoding result of one piece."""

    columns: Columns | None  # the columns; None if the piece could not be decoded
    texts: list[str]  # the interned texts by code; grows while the trace is read
    piece: bytes = b""  # the undecodable piece, or one without any event, which a repair may need; else empty

    @classmethod
    def of(cls, columns: Columns | None, texts: list[str], piece: bytes) -> Part:
        """The result for a `piece`."""
        return cls(columns, texts, piece if columns is None or columns.hollow else b"")

    @classmethod
    def by(cls, decoder: Decoder, piece: bytes) -> Part:
        """The result of a decoder in this process."""
        return cls.of(decoder.columns(piece), decoder.texts.known, piece)


def mended(parts: Iterable[Part], trace: TraceText) -> Iterator[Part]:
    """Replaces undecodable parts: joined with their neighbours, or salvaged; all parts stay in order.

    After the last one `trace` holds everything around the events.
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
    run, cut = _ended(run, trace)
    yield from _whole(decoder, run, cut=cut)
    if trace.tail is None:
        trace.damage.append("missing end of the list of events")
    else:
        trace.add(trace.tail, "after")


def _ended(run: list[bytes], trace: TraceText) -> tuple[list[bytes], bool]:
    """The undecodable last pieces of a file, cut at the end of the list; and whether they were cut."""
    text = b"".join(run)
    if trace.tail is not None:
        text += b"]" + trace.tail
    # behind the list stand properties, intact or damaged, but no event
    behind = ((at, text[at + 1 :]) for at in (list_ends(text) if run else ()))
    end = next((at for at, tail in behind if b'"ph"' not in tail or _properties(_inside(tail)) is not None), None)
    if end is None:
        return run, False
    trace.tail = text[end + 1 :]
    begins = accumulate(map(len, run), initial=0)
    return [piece[: end - begin] for piece, begin in zip(run, begins, strict=False) if begin < end], True


def _whole(decoder: Decoder, run: Sequence[bytes], *, cut: bool = False) -> Iterator[Part]:
    """Decodes adjacent undecodable pieces as one text, a single one only if it was `cut`; else salvages all."""
    if run:
        text = b"".join(run)
        columns = decoder.columns(text) if cut or len(run) > 1 else None
        yield Part(columns or decoder.salvaged(text), decoder.texts.known)


def list_ends(text: bytes) -> Iterator[int]:
    """Where brackets close that none opened in the text of a list; the first ones, and the first behind all events."""
    depth, number, last, before = 0, 0, text.rfind(b'"ph"'), 0
    for match in _TOKEN.finditer(text):
        at, token = match.start(), match[0]
        if token[0] in b"[{":
            depth += len(token)
        elif token[0] in b"]}":
            if depth < len(token) and (number < _ENDS or before < last < at):
                yield at + depth
                number, before = number + 1, at + depth
            depth = max(0, depth - len(token))


#: Smaller files, compressed and plain, are decoded in this process: starting a worker costs as much as a few MiB.
SMALL_GZIP_BYTES, SMALL_PLAIN_BYTES = 1 << 20, 12 << 20
#: Pieces that are read and decoded ahead of the next one in order; those that fail are kept until then.
_AHEAD: Final = 32
#: Room in the pipes to a worker, for a whole piece: no more than Linux lets any program have.
_PIPE_BYTES: Final = 1 << 20
#: Threads per worker, so that one gives it the next piece while another takes its answer apart.
_THREADS: Final = 2

_MOST: Final = 8
#: Seconds before progress is reported.
_PATIENCE_S: Final = 1.0
#: glibc settings of a worker: keep freed memory for the next piece instead of returning it to the system.
_KEEPING: Final = {"MALLOC_TRIM_THRESHOLD_": str(1 << 28), "MALLOC_MMAP_THRESHOLD_": str(1 << 28)}

#: The worker's start-up code: imports our modules from their own folders, without running :mod:`kanalyze`'s
#: ``__init__``, and regardless of other modules with the same names. An import by name starts within 6 % of the same
#: time (0.094 s), but finds only what is installed, not what the parent runs.
_PROGRAM: Final = """
import sys
from types import ModuleType
sys.path.append({path!r})
for name, places in {packages!r}.items():
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = places
from kanalyze.readers.torch.columns import main
main()
"""


def decoded(text: TraceText, progress: readers.Progress) -> list[Part]:
    """Every piece of a trace, in order, decoded in worker processes if it is large; damaged ones as far as possible.

    Raises DecoderEndedError if a process that decoded was ended from outside.
    """
    small = text.path.stat().st_size < (SMALL_GZIP_BYTES if text.compressed else SMALL_PLAIN_BYTES)
    workers = min(processors(), _MOST)
    if small or workers == 1:
        return list(mended(map(partial(Part.by, Decoder()), text.pieces()), text))
    pool = _Pool(text, workers)
    try:
        pool.read_ahead()
        import_module("kanalyze.readers.torch.frames")  # and polars, meanwhile: a tenth of the time of a large trace
        return list(mended(pool.parts(progress), text))
    finally:
        pool.end()


class Worker:
    """A process that decodes pieces, one at a time."""

    def __init__(self) -> None:
        """Start the process.

        Raises OSError if no program can be started, or Python itself is not where it says; ValueError if it does not
        say where it is.
        """
        if not sys.executable or getattr(sys, "frozen", False):
            raise ValueError
        parts = (__package__ or "").split(".")
        names = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
        packages = {name: [str(place) for place in sys.modules[name].__path__] for name in names}
        program = _PROGRAM.format(path=str(Path(msgspec.__file__).parents[1]), packages=packages)
        command = [sys.executable, "-I", "-S", "-c", program]
        self.process = subprocess.Popen(  # noqa: S603 - ourselves
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | _KEEPING,
            pipesize=_PIPE_BYTES,
        )
        self.texts: list[str] = []  # that it has interned so far, by code
        self.answered = False  # whether it has decoded a piece

    def answer(self, piece: bytes) -> bytes | None:
        """Have a piece decoded: its columns, pickled; None if the process has exited."""
        try:
            send(cast("IO[bytes]", self.process.stdin), piece)
            texts, columns = pickle.load(cast("IO[bytes]", self.process.stdout))  # noqa: S301 - our own process wrote it
        except (BrokenPipeError, EOFError, pickle.UnpicklingError):
            return None
        self.texts += texts
        self.answered = True
        pickled: bytes = columns
        return pickled

    def close(self) -> None:
        """Close the pipes of the process, and wait for its exit."""
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):  # it left input unread
                cast("IO[bytes]", pipe).close()
        self.process.wait()


class _Pool:
    """Worker processes that decode one trace."""

    def __init__(self, text: TraceText, workers: int) -> None:
        """Start up to `workers` processes; none if programs cannot be started."""
        self._text, self._pieces = text, text.pieces()
        self._workers: list[Worker] = []
        with suppress(OSError, ValueError):
            for _ in range(workers):
                self._workers.append(Worker())
        #: Workers that wait for a piece; None stands for one that could not start.
        self._free: SimpleQueue[Worker | None] = SimpleQueue()
        for number in range(max(1, len(self._workers))):
            self._free.put(self._workers[number] if self._workers else None)
        self._threads = ThreadPoolExecutor(_THREADS * workers)
        self._waiting: deque[Future[Part | bytes]] = deque()

    def read_ahead(self) -> None:
        """Give the workers pieces, up to so many that are ahead of the next part."""
        some = islice(self._pieces, _AHEAD - len(self._waiting))
        self._waiting += (self._threads.submit(self._decoded, piece) for piece in some)

    def parts(self, progress: readers.Progress) -> Iterator[Part]:
        """The decoded pieces in order, decoded in this process where no other could be started.

        Raises DecoderEndedError if a process was ended from outside.
        """
        decoder, what, begun = Decoder(), f"reading {self._text.path.name}", monotonic()
        while self._waiting:
            part = self._waiting.popleft().result()
            self.read_ahead()
            if monotonic() - begun > _PATIENCE_S:
                progress(what, min(self._text.share, 0.99) if self._waiting else 1.0)
            yield part if isinstance(part, Part) else Part.by(decoder, part)

    def end(self) -> None:
        """Terminate the workers at once."""
        self._waiting.clear()
        for worker in self._workers:
            worker.process.kill()
        self._threads.shutdown(cancel_futures=True)
        with ExitStack() as closing:
            for worker in self._workers:
                closing.callback(worker.close)

    def _decoded(self, piece: bytes) -> Part | bytes:
        """A piece decoded by the next free worker; the piece itself if that could not start."""
        worker = self._free.get()
        try:
            if worker is None:
                return piece
            columns, texts = worker.answer(piece), worker.texts
            if columns is None:
                status, answered = worker.process.wait(), worker.answered
                worker = None
                if status == -signal.SIGINT:  # Ctrl-C, before the worker could leave that to this process
                    raise KeyboardInterrupt
                if answered or status < 0:
                    raise errors.DecoderEndedError.of(self._text.path, status)
                return piece
        finally:
            self._free.put(worker)
        return Part.of(pickle.loads(columns), texts, piece)  # noqa: S301 - our own process wrote it
