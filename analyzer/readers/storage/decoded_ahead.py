"""Decodes the large tables of a database in another process while this one imports polars, on an idle processor.

The child decodes all integer columns of a table, into memory that both share. What it cannot decode, or has not decoded
when it ends, is not there, and is read as if there had been no child: errors come from one place.
docs/reading-sqlite.md has what it saves.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from contextlib import closing, contextmanager, suppress
from mmap import mmap
from threading import Lock
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

#: Most bytes of columns for each of the file, where a table of nsys takes two to three; and most tables.
_BYTES_EACH: Final = 4
_MOST_TABLES: Final = 16

_MAGIC: Final = b"SQLite format 3\0"

_STANDARD_STREAMS: Final = 3


class _Ahead:
    """The tables of one file that a child decodes."""

    def __init__(self, child: int, memory: mmap, told: IO[bytes]) -> None:
        """Tables in `memory`; of each of them `told` has a line as soon as it is there."""
        self._child, self._memory, self._told, self._lock = child, memory, told, Lock()
        self._tables: dict[str, tuple[int, dict[str, Place]]] = {}

    def frame(self, table: str, columns: Sequence[str]) -> pl.DataFrame | None:
        """Columns of a table, Int64; waits for it. None where the child cannot decode it, or they are others."""
        with self._lock:
            while table not in self._tables and (line := self._told.readline()).endswith(b"\n"):
                name, rows, places = json.loads(line)
                self._tables[name] = rows, places
        rows, places = self._tables.get(table, (0, {}))
        if not columns or not places.keys() >= {*columns}:
            return None
        from kanalyze.machinery.shared_columns import shared_frame  # noqa: PLC0415 - imports polars

        return shared_frame(self._memory, rows, {name: places[name] for name in columns})

    def close(self) -> None:
        """End the child; what it decoded stays."""
        self._told.close()
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)


#: What is decoded ahead, by file as it was when that began.
_ahead: dict[tuple[int, ...], _Ahead] = {}


@contextmanager
def decoding_ahead(path: Path, tables: tuple[str, ...]) -> Iterator[None]:
    """Decodes large tables of a file meanwhile, whose names begin so, if it is a database for which that saves time.

    Nothing happens where all processors are busy, where polars was imported before, which starts threads, and on other
    systems than Linux, whose libraries may not live through a fork. A file that cannot be read is the reader's to tell.
    """
    ahead = None
    if "polars" not in sys.modules and sys.platform == "linux" and _is_worth_it(path) and one_is_idle():
        with suppress(OSError):
            ahead = _begun(path, tables)
    try:
        yield
    finally:
        if ahead is not None:
            _ahead.clear()
            ahead.close()


def decoded(path: Path, table: str, columns: Sequence[str]) -> pl.DataFrame | None:
    """Integer columns of a table that was decoded ahead, Int64, in row order; None where they were not."""
    with suppress(OSError):
        if _ahead and (ahead := _ahead.get(_identity(path))):
            return ahead.frame(table, columns)
    return None


def _is_worth_it(path: Path) -> bool:
    """Whether the file at `path` is a database of such a size."""
    with suppress(OSError, ValueError):
        if path.is_file() and LEAST_BYTES <= path.stat().st_size <= _MOST_BYTES:
            with path.open("rb") as file:
                return file.read(len(_MAGIC)) == _MAGIC
    return False


def _identity(path: Path) -> tuple[int, ...]:
    """What tells a file from any other, and from what it was before somebody wrote to it."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _begun(path: Path, tables: tuple[str, ...]) -> _Ahead:
    """Forks the child that decodes tables of the file at `path`."""
    key = _identity(path)
    memory = mmap(-1, path.stat().st_size * _BYTES_EACH)
    source, target = os.pipe()
    child = os.fork()
    if not child:
        try:
            with _only_open(target) as told:
                _decode(path, tables, memory, told)
        finally:
            os._exit(0)  # whatever happened: nothing of the program may run twice
    os.close(target)
    _ahead[key] = _Ahead(child, memory, os.fdopen(source, "rb"))
    return _ahead[key]


def _only_open(target: int) -> IO[bytes]:
    """Lets go of all files but `target`: who reads what this program writes need not wait for the child."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(_STANDARD_STREAMS):
        os.dup2(nothing, stream)
    os.closerange(_STANDARD_STREAMS, target)
    os.closerange(target + 1, os.sysconf("SC_OPEN_MAX"))
    return os.fdopen(target, "wb")


def _decode(path: Path, names: tuple[str, ...], memory: mmap, told: IO[bytes]) -> None:
    """Decodes what is worth it into `memory`, and tells of each table as soon as it is there."""
    tables = sorted(_large_tables(path, names), reverse=True)[:_MOST_TABLES]
    if not tables:
        return
    with one_blas_thread(own_process=True):
        from kanalyze.readers.storage.sqlite_pages.shared_tables import decode_tables  # noqa: PLC0415 - imports numpy

    for table in decode_tables(path, [(name, columns) for _, name, columns in tables], memory):
        told.write(f"{json.dumps(table)}\n".encode())
        told.flush()


def _large_tables(path: Path, names: tuple[str, ...]) -> Iterator[tuple[int, str, list[str]]]:
    """Tables that are worth decoding by pages: about how many integers they hold, name, and columns of integers."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            if not name.startswith(names):
                continue
            quoted = '"' + name.replace('"', '""') + '"'
            with suppress(sqlite3.Error):  # one without row ids, or a damaged one
                last = database.execute(f"SELECT max(rowid) FROM {quoted}").fetchone()[0] or 0
                declared = database.execute(f"PRAGMA table_info({quoted})").fetchall()
                columns = [row[1] for row in declared if "INT" in row[2].upper()]
                if last > PAGES_ANYWAY_FROM_ROWS and columns:
                    yield last * len(columns), name, columns
