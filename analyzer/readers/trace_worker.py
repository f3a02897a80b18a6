"""A process that decodes pieces of a trace: pieces come in on standard input, columns go out on standard output.

Run by :mod:`kanalyze.readers.trace_pool`, never by hand.
"""

from __future__ import annotations

import gc
import os
import pickle
import struct
import sys
from typing import TYPE_CHECKING, Final

from msgspec import DecodeError

from kanalyze.readers.trace_decode import Columns, Decoder

if TYPE_CHECKING:
    from typing import BinaryIO

#: What stands before each message: its length.
LENGTH: Final = struct.Struct("<q")

#: What a message begins with: a piece that lies in the file, of which its beginning and end follow, or a piece itself.
PLACE: Final = b"@"
PIECE: Final = b"."
SPAN: Final = struct.Struct("<qq")


def main() -> None:
    """Decode what comes until nothing comes any more. The first argument is the file that places are in."""
    gc.disable()  # the columns hold no cycles, and there is nothing else
    decoder, told = Decoder(), 0
    source, target = sys.stdin.buffer, sys.stdout.buffer
    file = os.open(sys.argv[1], os.O_RDONLY)
    while (message := receive(source)) is not None:
        piece = message[1:]
        if message.startswith(PLACE):
            start, stop = SPAN.unpack(piece)
            piece = os.pread(file, stop - start, start)
        columns: Columns | None
        try:
            columns = decoder.columns(piece)
        except (DecodeError, UnicodeDecodeError):
            columns = None
        answer = pickle.dumps((columns, decoder.texts.known[told:]), protocol=pickle.HIGHEST_PROTOCOL)
        told = len(decoder.texts.known)
        send(target, answer)


def send(target: BinaryIO, message: bytes) -> None:
    """Write one message."""
    target.write(LENGTH.pack(len(message)))
    target.write(message)
    target.flush()


def receive(source: BinaryIO) -> bytes | None:
    """Read one message; None at the end."""
    head = source.read(LENGTH.size)
    return source.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


if __name__ == "__main__":
    main()
