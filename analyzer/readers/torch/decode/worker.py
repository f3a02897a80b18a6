"""Worker process that decodes pieces of a trace: pieces on standard input, texts and columns on standard output.

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
from typing import IO, Final

from kanalyze.readers.torch.decode.columns import Decoder

#: Message header: length.
LENGTH: Final = struct.Struct("<q")


def main() -> None:
    """Decode pieces until end of input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent interrupts this worker by closing its input
    gc.disable()  # garbage collection is useless: columns hold no cycles
    decoder, told = Decoder(), 0
    with suppress(BrokenPipeError):
        while (piece := receive(sys.stdin.buffer)) is not None:
            columns = decoder.columns(piece)
            for answer in (decoder.texts.known[told:], columns):
                send(sys.stdout.buffer, pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))
            told = len(decoder.texts.known)
    os._exit(0)  # nothing to clean up at exit, and the parent waits for it


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
