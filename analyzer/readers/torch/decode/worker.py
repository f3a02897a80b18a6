"""Worker process that decodes pieces of a trace: pieces on standard input, columns on standard output.

Run by :mod:`kanalyze.readers.torch.decode.processes`, never by hand.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import DecodeError

from kanalyze.readers.torch.decode.columns import Columns, Decoder

if TYPE_CHECKING:
    from typing import IO

#: Message header: length.
LENGTH: Final = struct.Struct("<q")

#: Message types: a range of the file (start and end), or the text of a piece.
PLACE: Final = b"@"
PIECE: Final = b"."
SPAN: Final = struct.Struct("<qq")


def main() -> None:
    """Decode pieces until end of input; the first argument is the file to which ranges refer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent interrupts this worker by closing its input
    gc.disable()  # garbage collection is useless: columns hold no cycles
    with suppress(BrokenPipeError):
        _serve(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
    os._exit(0)  # nothing to clean up at exit, and the parent waits for it


def _serve(path: Path, source: IO[bytes], target: IO[bytes]) -> None:
    decoder, told = Decoder(), 0
    with path.open("rb", buffering=0) as file:
        while (message := receive(source)) is not None:
            piece = message[1:]
            if message.startswith(PLACE):
                start, stop = SPAN.unpack(piece)
                file.seek(start)
                piece = file.read(stop - start)
            columns: Columns | None
            try:
                columns = decoder.columns(piece)
            except (DecodeError, UnicodeDecodeError, RecursionError):
                columns = None
            answer = pickle.dumps((columns, decoder.texts.known[told:]), protocol=pickle.HIGHEST_PROTOCOL)
            told = len(decoder.texts.known)
            send(target, answer)


def send(target: IO[bytes], message: bytes) -> None:
    """Write one message.

    Raises:
        BrokenPipeError: Nobody reads any more.
    """
    target.write(LENGTH.pack(len(message)))
    target.write(message)
    target.flush()


def receive(source: IO[bytes]) -> bytes | None:
    """Read one message; None at end of input or if truncated."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    size = LENGTH.unpack(head)[0]
    message = source.read(size)
    return message if len(message) == size else None
