"""A connection to an SQLite file that is only read; of many files, those that were used last are open.

A notebook may hold a hundred reports, and a process may have few files open: so the connection that was not used for
the longest time is closed when another one opens, and opened again when its file is next asked.
"""

from __future__ import annotations

import os
import sqlite3
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from kanalyze.errors import ClosedReportError, DamagedReportError, UnreadableReportError
from kanalyze.readers.shared.regular_files import readable, regular

if TYPE_CHECKING:
    from pathlib import Path

#: How many files are open at once; to open one again takes 0.1 ms.
MOST_OPEN: Final = 8

#: The open connections, the one that was used last at the end; not more than the limit, unless all are in use.
_open: dict[SqliteConnection, None] = {}
_open_lock = Lock()


class SqliteConnection:
    """What asks the database at a path, from any thread; opens it when it is first asked."""

    def __init__(self, path: Path) -> None:
        """Be ready to read the database at `path`."""
        self._path = path
        self._lock = Lock()  # tables are read side by side, and not every SQLite was built for that
        self._connection: sqlite3.Connection | None = None
        self._seen: tuple[int, ...] | None = None
        self._closed = False

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows that `sql` gives.

        Raises:
            sqlite3.Error: It cannot be run, as the file is.
            DamagedReportError: The file is no database.
            UnreadableReportError: The file cannot be opened, or is another one than it was.
            ClosedReportError: The connection was closed.
        """
        with self._lock:
            if self._closed:
                raise ClosedReportError.of(self._path, sql)
            if self._connection is None:
                self._connection = self._connect()
            found = self._connection.execute(sql).fetchall()
        _used(self)
        return found

    def close(self) -> None:
        """Close the file for good."""
        with self._lock:
            self._closed = True
            self._let_go()
        with _open_lock:
            _open.pop(self, None)

    def rest(self) -> bool:
        """Close the file until it is asked again; whether that can be done at once."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._let_go()
        finally:
            self._lock.release()
        return True

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        log = self._path.with_name(self._path.name + "-wal")
        immutable = "" if log.exists() and log.stat().st_size else "&immutable=1"
        uri = f"file:{quote(os.fsencode(self._path.absolute()))}?mode=ro{immutable}"
        self._check_same()
        try:
            connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise UnreadableReportError.because(self._path, str(error)) from error
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        try:
            connection.execute("PRAGMA cell_size_check = ON")
        except sqlite3.Error as error:
            connection.close()
            raise DamagedReportError.at(self._path, "its header", str(error)) from error
        return connection

    def _check_same(self) -> None:
        """Refuse to go on in another file than the one that was read before."""
        with readable(self._path):
            found = regular(self._path).stat()
        seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if self._seen not in {None, seen}:
            raise UnreadableReportError.because(self._path, "it changed since it was first read")
        self._seen = seen


def _used(connection: SqliteConnection) -> None:
    """Count `connection` as the one that was used last, and close the one that was not used for longest."""
    with _open_lock:
        _open.pop(connection, None)
        _open[connection] = None
        for other in [*_open][: max(len(_open) - MOST_OPEN, 0)]:
            if other.rest():
                del _open[other]
