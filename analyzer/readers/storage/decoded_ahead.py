"""Decodes the large tables of a database in another process while this one imports polars, on a second processor.

The child decodes all integer columns of a table, into memory that both share. Whatever goes wrong in it, the table is
not there, and is decoded as if there had been no child: errors come from one place. docs/reading-sqlite.md has what it
saves.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing, suppress
from mmap import mmap
from typing import IO, TYPE_CHECKING, Final

from kanalyze.machinery.memory import one_blas_thread
from kanalyze.machinery.processors import one_is_idle
from kanalyze.readers.storage.sqlite_pages import PAGES_ANYWAY_FROM_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import polars as pl

    from kanalyze.readers.storage.sqlite_pages.shared_tables import Place

#: Sizes of files for which it saves time: smaller ones have no table of that size, larger ones are decoded in threads.
LEAST_BYTES: Final = 1 << 20
_MOST_BYTES: Final = 1 << 26

#: Bytes of a number, and of shared memory for each byte of the file: there a number takes one at least, here eight and
#: a bit. A table that takes more has columns that most of its rows do not.
_NUMBER_BYTES: Final = 8
_BYTES_EACH: Final = 9

_MAGIC: Final = b"SQLite format 3\0"

_STANDARD_STREAMS: Final = 3


class _Ahead:
    """The tables of one file that a child decodes."""

    def __init__(self, memory: mmap, told: IO[bytes]) -> None:
        """Tables in `memory`; of each of them `told` has a line as soon as it is there."""
        self._memory, self._told = memory, told
        self._tables: dict[str, tuple[int, dict[str, Place]]] = {}

    def frame(self, table: str, columns: Sequence[str]) -> pl.DataFrame | None:
        """Columns of a table, Int64; waits for it. None where the child cannot decode it, or they are others."""
        while table not in self._tables and (line := self._told.readline()):
            name, rows, places = json.loads(line)
            self._tables[name] = rows, places
        rows, places = self._tables.get(table, (0, {}))
        if not columns or not places.keys() >= {*columns}:
            return None
        from kanalyze.machinery.shared_columns import shared_frame  # noqa: PLC0415 - imports polars

        return shared_frame(self._memory, rows, {name: places[name] for name in columns})


#: What is decoded ahead, by file as it was when that began.
_ahead: dict[tuple[int, ...], _Ahead] = {}


def decode_ahead(path: Path) -> None:
    """Begins to decode the large tables of the file at `path`, if it is a database for which that saves time.

    Nothing happens where all processors are busy, where polars was imported before, which starts threads, and on other
    systems than Linux, whose libraries may not live through a fork. A file that cannot be read is the reader's to tell.
    """
    if "polars" in sys.modules or sys.platform != "linux" or not one_is_idle():
        return
    with suppress(OSError, ValueError):
        size = path.stat().st_size
        if path.is_file() and LEAST_BYTES <= size <= _MOST_BYTES:
            with path.open("rb") as file:
                begin = file.read(len(_MAGIC))
            if begin == _MAGIC:
                _ahead[_identity(path)] = _begun(path, mmap(-1, size * _BYTES_EACH))


def decoded(path: Path, table: str, columns: Sequence[str]) -> pl.DataFrame | None:
    """Integer columns of a table that was decoded ahead, Int64, in row order; None where they were not."""
    with suppress(OSError):
        if _ahead and (ahead := _ahead.get(_identity(path))):
            return ahead.frame(table, columns)
    return None


def _identity(path: Path) -> tuple[int, ...]:
    """What tells a file from any other, and from what it was before somebody wrote to it."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _begun(path: Path, memory: mmap) -> _Ahead:
    """Forks the child that decodes the file at `path` into `memory`."""
    source, target = os.pipe()
    if not os.fork():
        try:
            _leave_standard_streams()
            os.close(source)
            with os.fdopen(target, "wb") as told:
                _decode(path, memory, told)
        finally:
            os._exit(0)  # whatever happened: nothing of the program may run twice
    os.close(target)
    return _Ahead(memory, os.fdopen(source, "rb"))


def _leave_standard_streams() -> None:
    """Closes what the child has of them: who reads what this program prints need not wait for the child."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(_STANDARD_STREAMS):
        os.dup2(nothing, stream)


def _decode(path: Path, memory: mmap, told: IO[bytes]) -> None:
    """Decodes what is worth it into `memory`, and tells of each table as soon as it is there."""
    tables = [(name, columns) for bytes_, name, columns in sorted(_tables(path), reverse=True) if bytes_ <= len(memory)]
    if not tables:
        return
    with one_blas_thread(own_process=True):
        from kanalyze.readers.storage.sqlite_pages.shared_tables import decode_tables  # noqa: PLC0415 - imports numpy

    for table in decode_tables(path, tables, memory):
        told.write(f"{json.dumps(table)}\n".encode())
        told.flush()


def _tables(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Tables that are worth decoding by pages: the bytes that their columns of integers take, name and columns."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            quoted = '"' + name.replace('"', '""') + '"'
            with suppress(sqlite3.Error):  # one without row ids, or a damaged one
                last = database.execute(f"SELECT max(rowid) FROM {quoted}").fetchone()[0] or 0
                declared = database.execute(f"PRAGMA table_info({quoted})").fetchall()
                columns = [row[1] for row in declared if "INT" in row[2].upper()]
                if last > PAGES_ANYWAY_FROM_ROWS and columns:
                    yield last * len(columns) * _NUMBER_BYTES, name, columns
