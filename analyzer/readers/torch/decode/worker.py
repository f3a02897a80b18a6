"""A process that decodes pieces of a trace: pieces come in on standard input, columns go out on standard output.

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

#: What stands before each message: its length.
LENGTH: Final = struct.Struct("<q")

#: What a message begins with: a piece that lies in the file, of which its beginning and end follow, or a piece itself.
PLACE: Final = b"@"
PIECE: Final = b"."
SPAN: Final = struct.Struct("<qq")


def main() -> None:
    """Decode what comes until nothing comes any more. The first argument is the file that places are in."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this ends it, by closing its input
    gc.disable()  # the columns hold no cycles, and there is nothing else
    with suppress(BrokenPipeError):
        _serve(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
    os._exit(0)  # there is nothing to tidy up, and who started this waits for its end


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
    """Read one message; None where there is none any more, or not all of it."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    size = LENGTH.unpack(head)[0]
    message = source.read(size)
    return message if len(message) == size else None
