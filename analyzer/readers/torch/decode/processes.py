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
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from threading import Condition, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from kanalyze.errors import DecoderEndedError
from kanalyze.processors import processors
from kanalyze.readers.torch.decode.columns import Decoder
from kanalyze.readers.torch.decode.repair import Part, columns_of, mended, part_of
from kanalyze.readers.torch.decode.text import PlainText
from kanalyze.readers.torch.decode.worker import PIECE, PLACE, SPAN, receive, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kanalyze.readers import Progress
    from kanalyze.readers.torch.decode.text import GzipText, Piece

#: Compressed and plain files smaller than this are decoded here: starting a process takes as long as a few MiB.
SMALL_GZIP_BYTES: Final = 1 << 20
SMALL_PLAIN_BYTES: Final = 12 << 20

#: Places of pieces that a process has before it at once, so that it need not wait for the next. Of pieces themselves it
#: is one: the process reads no second one while it writes what it made of the first.
_AHEAD: Final = 2

#: Pieces that are decoded while the one before them is waited for; those that cannot be are kept until then.
_UNORDERED: Final = 64

_MOST: Final = 8

#: How far it is, is told where it takes longer than this.
_PATIENCE_S: Final = 1.0

#: A process keeps the memory of a piece for the next one; glibc would give it back each time, and ask for it again.
_KEEPING: Final = {"MALLOC_TRIM_THRESHOLD_": str(1 << 28), "MALLOC_MMAP_THRESHOLD_": str(1 << 28)}

#: What a process is told to run. It finds our modules where they are, under no other name, without running what
#: :mod:`kanalyze` runs when it is imported, and before anything else that may be called like them.
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


def decoded(text: PlainText | GzipText, progress: Progress) -> list[Part]:
    """The columns of every piece of a trace, in order; of what cannot be decoded those of what can be read.

    Raises:
        DecoderEndedError: A process that decoded was ended from outside.
    """
    with decoding(text) as await_parts:
        return await_parts(progress)


@contextmanager
def decoding(text: PlainText | GzipText) -> Iterator[Callable[[Progress], list[Part]]]:
    """Begin to decode a trace, in processes if it is worth while; gives what waits for the end as :func:`decoded` does.

    Something else can be done meanwhile, as importing polars, which takes a tenth of a large trace's time.
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
    """What gives the text of a piece of the file at `path`."""

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
    """What :func:`_here` gives, from processes; those that cannot be started are done without."""
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
    """Processes that decode the pieces of one trace, each fed by a thread."""

    def __init__(self, text: PlainText | GzipText, workers: int) -> None:
        """Start up to `workers` processes, which begin at once: none where no program can be started."""
        self._path = text.path
        self._ahead = _AHEAD if isinstance(text, PlainText) else 1
        self._pieces: Iterator[tuple[int, Piece]] = enumerate(text.pieces())
        self._taking = Lock()
        self._changed = Condition()
        self._found: dict[int, Part | Piece] = {}
        self._next = 0  # to be given out in order
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
        """What was made of each piece, in order; pieces themselves where no process could be started.

        Raises:
            DecoderEndedError: A process was ended from outside.
        """
        while (part := self._await()) is not None:
            yield part

    def end(self) -> None:
        """End the processes, whatever they have left to do."""
        self._stop()
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()
        self._failure = None  # whose traceback holds this: the trace would stay open until such a circle is found

    def _await(self) -> Part | Piece | None:
        """What comes next; None after the last."""
        with self._changed:
            while self._next not in self._found and self._busy and self._failure is None:
                self._changed.wait()
            if self._failure is not None:
                raise self._failure
            part = self._found.pop(self._next, None)
            if part is None:  # no process is left, and the pieces that none took remain
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
        """The next piece and its number; None where there is none, or where too many wait for an earlier one."""
        with self._changed:
            while wait and not self._stopped and len(self._found) >= _UNORDERED:
                self._changed.wait()
            if self._stopped or len(self._found) >= _UNORDERED:
                return None
        with self._taking:
            return next(self._pieces, None)

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        """Keep one process busy until there are no pieces left."""
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
        """Give back what is `waiting` for a process that never got to work.

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
    """A process that decodes pieces of the file at `path`.

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
    """Let a process end, which it does when nothing comes any more, and wait for that."""
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):  # there was something that it did not read
            if pipe is not None:
                pipe.close()
    process.wait()


def ask(process: subprocess.Popen[bytes], piece: Piece) -> None:
    """Hand a piece to a process; one that has ended shows when its answer is awaited."""
    assert process.stdin is not None  # noqa: S101 - for the type checker: it is a pipe
    with suppress(BrokenPipeError):
        send(process.stdin, PIECE + piece if isinstance(piece, bytes) else PLACE + SPAN.pack(*piece))


def answer_of(process: subprocess.Popen[bytes]) -> bytes | None:
    """What a process made of the piece that it was handed first; None where it has ended."""
    assert process.stdout is not None  # noqa: S101
    return receive(process.stdout)
