"""Files as they lie on a disk, and formats that several rooms read: SQLite, protocol buffers, payloads of NVTX."""

import errno
import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from kanalyze.errors import DamagedReportError, UnreadableReportError

# Regular files: who opens a pipe that nobody writes to waits for ever.


def regular(path: Path) -> Path:
    """Returns `path` if it is a regular file; UnreadableReportError if there is something else, or nothing."""
    with readable(path):
        mode = os.stat(path).st_mode  # noqa: PTH116 - Path.stat of some versions raises what is no OSError
    if not stat.S_ISREG(mode):
        reason = "it is a folder" if stat.S_ISDIR(mode) else "it is a pipe or a device"
        raise UnreadableReportError.because(path, reason)
    return path


def open_regular(path: Path) -> BinaryIO:
    """Opens a file to be read; OSError if there is something else, or nothing, or the system refuses it."""
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")  # a pipe would wait for a writer
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is a pipe or a device")
    return file


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Convert OSError in the block into errors of the report at `path`.

    Raises UnreadableReportError if it refused something.
    """
    try:
        yield
    except OSError as error:
        raise UnreadableReportError.of(path, error) from error
    except UnicodeEncodeError as error:
        raise UnreadableReportError.because(path, "no file has such a name") from error
    except ValueError as error:
        if "null byte" not in str(error):
            raise
        raise UnreadableReportError.because(path, "no path has a null byte in it") from error


def cache_folder() -> Path:
    """The user's cache folder: ``$XDG_CACHE_HOME/kanalyze``, or ``~/.cache/kanalyze``."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "kanalyze"


def digest(data: bytes) -> str:
    """A short hash of `data`."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


# SQLite databases: https://sqlite.org/fileformat.html, section 1.3.

_HEADER_BYTES: Final = 100


def quoted(name: str) -> str:
    """`name` quoted as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def database_uri(path: Path) -> str:
    """The address of a database that is only read, and without locks unless there is a log beside it."""
    log = path.with_name(path.name + "-wal")
    immutable = "" if log.exists() and log.stat().st_size else "&immutable=1"
    return f"file:{quote(os.fsencode(path.absolute()))}?mode=ro{immutable}"


def page_bytes(path: Path) -> int:
    """The size of a database's pages.

    Raises DamagedReportError if the file is shorter than its header says; UnreadableReportError if there is no file, or
    the operating system refuses to read it.
    """
    with readable(path), regular(path).open("rb") as file:
        head = file.read(_HEADER_BYTES)
    if len(head) < _HEADER_BYTES:
        raise DamagedReportError.at(path, "its header", f"the file ends after {len(head)} bytes")
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    pages, valid, size = int.from_bytes(head[28:32], "big"), head[24:28] == head[92:96], path.stat().st_size
    if valid and size < pages * page:
        what = f"the file ends after {size:,} of {pages * page:,} bytes"
        raise DamagedReportError.at(path, f"page {size // page + 1} of {pages}", what)
    return page


# Messages of protocol buffers, without a schema: https://protobuf.dev/programming-guides/encoding/.

_NUMBER, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MORE: Final = 0x80


class Field(NamedTuple):
    """A field: number, start and end of its value, and whether it is length-delimited.

    A number has the value `number`; of others it is 0.
    """

    key: int
    begin: int
    end: int
    sized: bool
    number: int


def fields(data: bytes, at: int, end: int) -> Iterator[Field]:
    """Parses the fields of the message at `at`.

    Raises ValueError if it is none; IndexError if it is longer than the data.
    """
    while at < end:
        key, at = _varint(data, at)
        kind, number = key & 7, 0
        if kind == _NUMBER:
            number, after = _varint(data, at)
        elif kind == _BYTES:
            size, at = _varint(data, at)
            after = at + size
        else:
            after = at + {_FIXED64: 8, _FIXED32: 4}[kind] if kind in (_FIXED64, _FIXED32) else end + 1
        if after > end or key >> 3 == 0:
            raise ValueError
        yield Field(key >> 3, at, after, kind == _BYTES, number)
        at = after


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & ~_MORE) << shift, shift + 7
        if byte < _MORE:
            return value, at


def number(key: int, value: int) -> bytes:
    """A field with a number that is not negative."""
    return _varint_of(key << 3 | _NUMBER) + _varint_of(value)


def sized(key: int, value: bytes | str) -> bytes:
    """A field with bytes, a text, or a message."""
    data = value.encode() if isinstance(value, str) else value
    return _varint_of(key << 3 | _BYTES) + _varint_of(len(data)) + data


def _varint_of(value: int) -> bytes:
    encoded = bytearray()
    while value >= _MORE:
        encoded.append(value & ~_MORE & 0xFF | _MORE)
        value >>= 7
    return bytes([*encoded, value])


# Payloads of NVTX, of which nsys' stacks of Python, as marks of domains of its own. Facts: docs/formats.md.

#: Domains of Python stacks, by whether they are taken at regular intervals.
DOMAINS: Final = {"Python Periodic Sampling": True, "Python Backtrace on CUDA": False}
#: Event types of NVTX: a mark, and a domain's name.
MARK, DOMAIN = 34, 75
#: A payload's header (count, schema, size, offset), that of a stack (thread state id, state, frames), and a frame of it
#: (StringIds of function and file, line).
_HEADER, _STACK = struct.Struct("<4Q"), struct.Struct("<QiI")
_FRAME: Final = struct.Struct("<QQI4x")

Frame: TypeAlias = tuple[int, int, int]


class Payload(NamedTuple):
    """Payloads of NVTX: their number, the id of the first one's schema, and its bytes."""

    number: int
    schema: int
    data: bytes

    @classmethod
    def of(cls, blob: object) -> "Payload | None":
        """The payloads in what a database has; None where it is none."""
        data = blob.encode() if isinstance(blob, str) else blob
        if not isinstance(data, bytes) or len(data) < _HEADER.size:
            return None
        count, schema, size, begin = _HEADER.unpack_from(data)
        return cls(count, schema, data[begin : begin + size]) if begin + size <= len(data) else None


class PythonStack(NamedTuple):
    """A stack of Python functions."""

    payloads: int  # how many there are, as its header says
    schema: int  # id of the payload's schema
    state: int  # nsys' number for the thread's state
    frames: tuple[Frame, ...]  # StringIds of function and file, and the line; innermost first

    @classmethod
    def of(cls, blob: object) -> "PythonStack | None":
        """The stack in a payload, bytes or text; None for what is none."""
        payload = Payload.of(blob)
        if payload is None or len(payload.data) < _STACK.size:
            return None
        _, state, count = _STACK.unpack_from(payload.data)
        end = _STACK.size + count * _FRAME.size
        if end > len(payload.data):
            return None
        return cls(payload.number, payload.schema, state, tuple(_FRAME.iter_unpack(payload.data[_STACK.size : end])))

    def packed(self) -> bytes:
        """Its payload and nothing else: fillers, which hold memory of the program, are 0."""
        size = _STACK.size + len(self.frames) * _FRAME.size
        head = _HEADER.pack(self.payloads, self.schema, size, _HEADER.size)
        stack = _STACK.pack(0, self.state, len(self.frames))
        return head + stack + b"".join(_FRAME.pack(*frame) for frame in self.frames)
