"""Decodes a trace on all processors: pieces go to processes of their own, columns come back in order.

Python decodes on one processor at a time, whatever its threads do. The processes are started as programs, not forked
(polars' threads would not survive that) and not by :mod:`multiprocessing` (which runs the user's script again).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from subprocess import PIPE
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import DecodeError

from kanalyze.readers.trace_decode import Decoder
from kanalyze.readers.trace_text import PlainText
from kanalyze.readers.trace_worker import PIECE, PLACE, SPAN, receive, send

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kanalyze.readers import Progress
    from kanalyze.readers.trace_decode import Columns
    from kanalyze.readers.trace_text import GzipText

    Piece = bytes | tuple[int, int]

#: Compressed and plain files smaller than this are decoded here: starting a process takes as long as a few MiB.
_SMALL_GZIP_BYTES: Final = 1 << 20
_SMALL_PLAIN_BYTES: Final = 12 << 20

#: Places of pieces that a process has before it at once, so that it need not wait for the next. Of pieces themselves it
#: is one: the process reads no second one while it writes what it made of the first.
_AHEAD: Final = 2

_MOST: Final = 8


#: Damaged pieces beside each other that are looked at together.
_TOGETHER: Final = 16


class Part(NamedTuple):
    """The columns of one piece.

    Attributes:
        columns: The columns; None where the piece cannot be decoded as it is.
        texts: What the codes in them stand for; grows while the trace is read.
        piece: The piece, where it cannot be decoded.
    """

    columns: Columns | None
    texts: list[str]
    piece: Piece


def decoded(text: PlainText | GzipText, progress: Progress) -> list[Part]:
    """The columns of every piece of a trace, in order; of what cannot be decoded those of what can be read."""
    size = text.path.stat().st_size
    small = size < (_SMALL_PLAIN_BYTES if isinstance(text, PlainText) else _SMALL_GZIP_BYTES)
    workers = min(os.cpu_count() or 1, _MOST)
    alone = small or workers == 1 or not sys.executable
    return _mended(text, _here(text) if alone else _Pool(text, workers, progress).run())


def _here(text: PlainText | GzipText) -> list[Part]:
    decoder, found = Decoder(), []
    for piece in text.pieces():
        columns = _columns(decoder, _bytes(text.path, piece))
        found.append(Part(columns, decoder.texts.known, piece if columns is None else b""))
    return found


def _columns(decoder: Decoder, piece: bytes) -> Columns | None:
    try:
        return decoder.columns(piece)
    except (DecodeError, UnicodeDecodeError):
        return None


def _bytes(path: Path, piece: Piece) -> bytes:
    if isinstance(piece, bytes):
        return piece
    start, stop = piece
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        return file.read(stop - start)


def _mended(text: PlainText | GzipText, parts: Iterable[Part]) -> list[Part]:
    """All `parts`, those that could not be decoded put together with their neighbours, or salvaged."""
    found: list[Part] = []
    broken: list[bytes] = []
    decoder = Decoder()
    for part in [*parts, None]:
        if broken and (part is None or part.columns is not None or len(broken) == _TOGETHER):
            joined = b"".join(broken)
            broken.clear()
            columns = _columns(decoder, joined) or decoder.salvaged(joined)
            found.append(Part(columns, decoder.texts.known, b""))
        if part is not None and part.columns is None:
            broken.append(_bytes(text.path, part.piece))
        elif part is not None:
            found.append(part)
    return found


class _Pool:
    """Processes that decode the pieces of one trace, each fed by a thread."""

    def __init__(self, text: PlainText | GzipText, workers: int, progress: Progress) -> None:
        """`workers` processes, none of them started yet."""
        self._text = text
        self._pieces = enumerate(text.pieces())
        self._workers = workers
        self._progress = progress
        self._lock = Lock()
        self._found: dict[int, Part] = {}
        self._failed: list[BaseException] = []

    def run(self) -> list[Part]:
        """Decode all pieces."""
        threads = [Thread(target=self._feed, daemon=True) for _ in range(self._workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed:
            raise self._failed[0]
        return [self._found[number] for number in sorted(self._found)]

    def _next(self) -> tuple[int, Piece] | None:
        with self._lock:
            return next(self._pieces, None)

    def _feed(self) -> None:
        """Keep one process busy until there are no pieces left."""
        try:
            with subprocess.Popen(_command(self._text.path), stdin=PIPE, stdout=PIPE) as process:  # noqa: S603 - ours
                self._exchange(process)
        except BaseException as error:  # noqa: BLE001 - raised again where the pool was started
            self._failed.append(error)

    def _exchange(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None  # noqa: S101 - for the type checker: both are pipes
        assert process.stdout is not None  # noqa: S101
        texts: list[str] = []
        waiting: deque[tuple[int, Piece]] = deque()
        ahead = _AHEAD if isinstance(self._text, PlainText) else 1
        while True:
            while len(waiting) < ahead and not self._failed and (given := self._next()) is not None:
                waiting.append(given)
                piece = given[1]
                send(process.stdin, PIECE + piece if isinstance(piece, bytes) else PLACE + SPAN.pack(*piece))
            if not waiting:
                break
            number, piece = waiting.popleft()
            answer = receive(process.stdout)
            if answer is None:
                raise RuntimeError(f"a process that decodes {self._text.path} ended")
            columns, new = pickle.loads(answer)  # noqa: S301 - our own process wrote it
            texts += new
            self._found[number] = Part(columns, texts, piece if columns is None else b"")
        process.stdin.close()


def _command(path: Path) -> list[str]:
    """What starts a worker: with the modules that this process finds, and nothing that a user's site would add."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from kanalyze.readers.trace_worker import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, str(path)]
