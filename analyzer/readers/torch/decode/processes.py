"""Decodes a trace in parallel worker processes; columns come back in file order.

Threads would not help, because of the interpreter lock. The processes are started as programs: not forked (polars'
threads would not survive) and not by :mod:`multiprocessing` (which runs the user's script again).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from threading import Condition, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from kanalyze.errors import DecoderEndedError
from kanalyze.machinery.processors import processors
from kanalyze.readers.torch.decode.columns import Decoder
from kanalyze.readers.torch.decode.repair import Part, columns_of, mended, part_of
from kanalyze.readers.torch.decode.text import PlainText
from kanalyze.readers.torch.decode.worker import PIECE, PLACE, SPAN, receive, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kanalyze.readers import Progress
    from kanalyze.readers.torch.decode.text import GzipText, Piece

#: Smaller files, compressed and plain, are decoded in this process: starting a worker costs as much as a few MiB.
SMALL_GZIP_BYTES: Final = 1 << 20
SMALL_PLAIN_BYTES: Final = 12 << 20

#: Pieces of a plain file queued per worker, so that it never idles. Of decompressed pieces it is one: a worker does
#: not read the next one while it writes its answer.
_AHEAD: Final = 2

#: Pieces decoded ahead of the next one in order; those that fail are kept until then.
_UNORDERED: Final = 64

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
from kanalyze.readers.torch.decode.worker import main
main()
"""


@contextmanager
def decoding(text: PlainText | GzipText) -> Iterator[Callable[[Progress], list[Part]]]:
    """Starts decoding, in worker processes if the trace is large; yields a function that waits for the result.

    That is every piece, in order; damaged ones as far as they can be recovered. The caller can do other work meanwhile,
    such as importing polars, which takes a tenth of a large trace's time.

    Raises:
        DecoderEndedError: A process that decoded was ended from outside; of the function that waits.
    """
    size = text.path.stat().st_size
    small = size < (SMALL_PLAIN_BYTES if isinstance(text, PlainText) else SMALL_GZIP_BYTES)
    workers = min(processors(), _MOST)
    read = _reader(text.path)

    def await_parts(progress: Progress) -> list[Part]:
        parts = _here(text, read) if pool is None else _in_processes(pool, text, read, progress)
        return list(mended(parts, read, text.around))

    pool = None if small or workers == 1 else _Pool(text, workers)
    try:
        yield await_parts
    finally:
        if pool is not None:
            pool.end()


def _here(text: PlainText | GzipText, read: Callable[[Piece], bytes]) -> Iterator[Part]:
    decoder = Decoder()
    for piece in text.pieces():
        yield _decoded(decoder, piece, read)


def _decoded(decoder: Decoder, piece: Piece, read: Callable[[Piece], bytes]) -> Part:
    return part_of(columns_of(decoder, read(piece)), decoder.texts.known, piece)


def _reader(path: Path) -> Callable[[Piece], bytes]:
    """A function that reads a piece of the file at `path`."""

    def read(piece: Piece) -> bytes:
        if isinstance(piece, bytes):
            return piece
        start, stop = piece
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            return file.read(stop - start)

    return read


def _in_processes(
    pool: _Pool, text: PlainText | GzipText, read: Callable[[Piece], bytes], progress: Progress
) -> Iterator[Part]:
    """Decodes in worker processes as :func:`_here` does; falls back to this process if none can be started."""
    decoder = Decoder()
    what, begun, told = f"reading {text.path.name}", monotonic(), False
    for part in pool.parts():
        if told or monotonic() - begun > _PATIENCE_S:
            progress(what, min(text.share, 0.99))
            told = True
        yield part if isinstance(part, Part) else _decoded(decoder, part, read)
    if told:
        progress(what, 1.0)


class _Pool:
    """Pool of worker processes that decode one trace, each fed by a thread."""

    def __init__(self, text: PlainText | GzipText, workers: int) -> None:
        """Start up to `workers` processes; none if programs cannot be started."""
        self._path = text.path
        self._ahead = _AHEAD if isinstance(text, PlainText) else 1
        self._pieces: Iterator[tuple[int, Piece]] = enumerate(text.pieces())
        self._taking = Lock()
        self._changed = Condition()
        self._found: dict[int, Part | Piece] = {}
        self._next = 0  # to be yielded in order
        self._failure: BaseException | None = None
        self._stopped = False
        self._processes: list[subprocess.Popen[bytes]] = []
        with suppress(OSError, ValueError):
            for _ in range(workers):
                self._processes.append(started(self._path))
        self._busy = len(self._processes)
        self._threads = [Thread(target=self._feed, args=(process,), daemon=True) for process in self._processes]
        for thread in self._threads:
            thread.start()

    def parts(self) -> Iterator[Part | Piece]:
        """The decoded pieces in order; undecoded pieces if no process could be started.

        Raises:
            DecoderEndedError: A process was ended from outside.
        """
        while (part := self._await()) is not None:
            yield part

    def end(self) -> None:
        """Terminate the workers at once."""
        self._stop()
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()
        self._failure = None  # its traceback refers to this object: the cycle would keep the trace open

    def _await(self) -> Part | Piece | None:
        """Wait for the next part in order; None after the last."""
        with self._changed:
            while self._next not in self._found and self._busy and self._failure is None:
                self._changed.wait()
            if self._failure is not None:
                raise self._failure
            part = self._found.pop(self._next, None)
            if part is None:  # no worker is left: the remaining pieces are returned undecoded
                given = next(self._pieces, None)
                part = None if given is None else given[1]
            self._next += 1
            self._changed.notify_all()
            return part

    def _stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _take(self, *, wait: bool) -> tuple[int, Piece] | None:
        """Take the next piece and its number; None at the end, or while too many wait for an earlier one."""
        with self._changed:
            while wait and not self._stopped and len(self._found) >= _UNORDERED:
                self._changed.wait()
            if self._stopped or len(self._found) >= _UNORDERED:
                return None
        with self._taking:
            return next(self._pieces, None)

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        """Feed one worker until no pieces are left."""
        try:
            try:
                self._exchange(process)
            finally:
                close(process)
        except BaseException as error:  # noqa: BLE001 - raised again where the parts are taken
            self._failure = self._failure or error
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _exchange(self, process: subprocess.Popen[bytes]) -> None:
        texts: list[str] = []
        waiting: deque[tuple[int, Piece]] = deque()
        answered = False
        while True:
            while len(waiting) < self._ahead and (given := self._take(wait=not waiting)) is not None:
                waiting.append(given)
                ask(process, given[1])
            if not waiting:
                return
            answer = answer_of(process)
            if self._stopped:
                return
            if answer is None:
                self._ended(process, waiting, answered=answered)
                return
            answered = True
            number, piece = waiting.popleft()
            columns, new = pickle.loads(answer)  # noqa: S301 - our own process wrote it
            texts += new
            self._put(number, part_of(columns, texts, piece))

    def _ended(self, process: subprocess.Popen[bytes], waiting: deque[tuple[int, Piece]], *, answered: bool) -> None:
        """Return the pieces `waiting` for a worker that failed to start.

        Raises:
            DecoderEndedError: The process worked, or was ended from outside.
        """
        status = process.wait()
        if answered or status < 0:
            raise DecoderEndedError.of(self._path, status)
        for number, piece in waiting:
            self._put(number, piece)

    def _put(self, number: int, part: Part | Piece) -> None:
        with self._changed:
            self._found[number] = part
            self._changed.notify_all()


def started(path: Path) -> subprocess.Popen[bytes]:
    """Start a worker for the file at `path`.

    Raises:
        OSError: No program can be started, or Python itself is not where it says.
        ValueError: It does not say where it is.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        raise ValueError
    parts = (__package__ or "").split(".")
    names = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    packages = {name: [str(place) for place in sys.modules[name].__path__] for name in names}
    program = _PROGRAM.format(path=str(Path(msgspec.__file__).parents[1]), packages=packages)
    command = [sys.executable, "-I", "-S", "-c", program, str(path)]
    environment = os.environ | _KEEPING
    return subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL, env=environment)  # noqa: S603 - ourselves


def close(process: subprocess.Popen[bytes]) -> None:
    """Close a worker's input and wait for its exit."""
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):  # it left input unread
            if pipe is not None:
                pipe.close()
    process.wait()


def ask(process: subprocess.Popen[bytes], piece: Piece) -> None:
    """Send a piece to a worker; if it has exited, this shows when the answer is read."""
    assert process.stdin is not None  # noqa: S101 - for the type checker: it is a pipe
    with suppress(BrokenPipeError):
        send(process.stdin, PIECE + piece if isinstance(piece, bytes) else PLACE + SPAN.pack(*piece))


def answer_of(process: subprocess.Popen[bytes]) -> bytes | None:
    """The worker's answer to its oldest piece; None if it has exited."""
    assert process.stdout is not None  # noqa: S101
    return receive(process.stdout)
