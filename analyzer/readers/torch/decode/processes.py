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
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib import import_module
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from subprocess import PIPE
from time import monotonic
from typing import IO, TYPE_CHECKING, Final, cast

import msgspec

from kanalyze.errors import DecoderEndedError
from kanalyze.machinery import processors
from kanalyze.readers.torch.decode.columns import Decoder, receive, send
from kanalyze.readers.torch.decode.text import Part, TraceText, mended

if TYPE_CHECKING:
    from kanalyze.readers import Progress

#: Smaller files, compressed and plain, are decoded in this process: starting a worker costs as much as a few MiB.
SMALL_GZIP_BYTES: Final = 1 << 20
SMALL_PLAIN_BYTES: Final = 12 << 20

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
from kanalyze.readers.torch.decode.columns import main
main()
"""


def decoded(text: TraceText, progress: Progress) -> list[Part]:
    """Every piece of a trace, in order, decoded in worker processes if it is large; damaged ones as far as possible.

    Raises:
        DecoderEndedError: A process that decoded was ended from outside.
    """
    small = text.path.stat().st_size < (SMALL_GZIP_BYTES if text.compressed else SMALL_PLAIN_BYTES)
    workers = min(processors(), _MOST)
    if small or workers == 1:
        decoder = Decoder()
        pieces = (Part.of(decoder.columns(piece), decoder.texts.known, piece) for piece in text.pieces())
        return list(mended(pieces, text.around))
    pool = _Pool(text, workers)
    try:
        pool.read_ahead()
        import_module("kanalyze.readers.torch.frames")  # and polars, meanwhile: a tenth of the time of a large trace
        return list(mended(pool.parts(progress), text.around))
    finally:
        pool.end()


class Worker:
    """A process that decodes pieces, one at a time.

    Attributes:
        process: The process.
        texts: The texts that it has interned so far, by code.
        answered: Whether it has decoded a piece.
    """

    def __init__(self) -> None:
        """Start the process.

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
        command = [sys.executable, "-I", "-S", "-c", program]
        self.process = subprocess.Popen(  # noqa: S603 - ourselves
            command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | _KEEPING,
            pipesize=_PIPE_BYTES,
        )
        self.texts: list[str] = []
        self.answered = False

    def answer(self, piece: bytes) -> bytes | None:
        """Have a piece decoded: its columns, pickled; None if the process has exited."""
        with suppress(BrokenPipeError):  # it has exited, which shows when the answer is read
            send(cast("IO[bytes]", self.process.stdin), piece)
        texts, columns = (receive(cast("IO[bytes]", self.process.stdout)) for _ in range(2))
        if texts is None or columns is None:
            return None
        self.texts += pickle.loads(texts)  # noqa: S301 - our own process wrote it
        self.answered = True
        return columns

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
        for piece in islice(self._pieces, _AHEAD - len(self._waiting)):
            self._waiting.append(self._threads.submit(self._decoded, piece))

    def parts(self, progress: Progress) -> Iterator[Part]:
        """The decoded pieces in order, decoded in this process where no other could be started.

        Raises:
            DecoderEndedError: A process was ended from outside.
        """
        decoder, what, begun, told = Decoder(), f"reading {self._text.path.name}", monotonic(), False
        while self._waiting:
            part = self._waiting.popleft().result()
            self.read_ahead()
            if told or monotonic() - begun > _PATIENCE_S:
                progress(what, min(self._text.share, 0.99))
                told = True
            yield part if isinstance(part, Part) else Part.of(decoder.columns(part), decoder.texts.known, part)
        if told:
            progress(what, 1.0)

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
                if answered or status < 0:
                    raise DecoderEndedError.of(self._text.path, status)
                return piece
        finally:
            self._free.put(worker)
        return Part.of(pickle.loads(columns), texts, piece)  # noqa: S301 - our own process wrote it
