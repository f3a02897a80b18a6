"""Columnar access to an SQLite file: its schema, and integer columns of a table as polars frames.

Small tables are read row by row with :mod:`sqlite3`; large ones are decoded page by page
(:mod:`kanalyze.readers.storage.sqlite_pages`), without which reports of gigabytes would take minutes.
docs/reading-sqlite.md has the measurements behind that choice.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from weakref import finalize

import polars as pl

from kanalyze.errors import ClosedReportError, DamagedReportError, UnreadableReportError
from kanalyze.files.regular import readable, regular
from kanalyze.machinery.memory import one_blas_thread
from kanalyze.readers.storage import sqlite_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from polars.datatypes import DataType, DataTypeClass


_HEADER_BYTES: Final = 100


class SqliteFile:
    """A database opened read-only, without locks; closed at the latest when garbage-collected.

    Raises:
        DamagedReportError: From every method: the file is truncated, or a page is invalid.
        UnreadableReportError: There is no file, or the operating system refuses to read it.
        ClosedReportError: From every method that reads, after :meth:`close`.
    """

    def __init__(self, path: Path) -> None:
        """Open the database at `path` and read its list of tables."""
        self.path = path
        self._check_length()
        self._connection = SqliteConnection(path)
        self._closed = finalize(self, self._connection.close)
        self._columns: dict[str, tuple[str, ...]] = {}
        self.rows_read: dict[str, int] = {}
        self._checked: set[str] = set()
        rows = self.query("SELECT name FROM sqlite_schema WHERE type = 'table'", where="the list of tables")
        self.tables = frozenset(str(row[0]) for row in rows)

    def close(self) -> None:
        """Close the file; later reads raise ClosedReportError."""
        self._closed()

    def query(self, sql: str, where: str) -> list[tuple[Any, ...]]:
        """All rows of a query; `where` names the part of the file in errors."""
        try:
            return self._connection.rows(sql)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise DamagedReportError.at(self.path, where, str(error)) from error

    def damaged(self, table: str, what: str) -> DamagedReportError:
        """An error for a corrupt table of this file."""
        return DamagedReportError.at(self.path, f"table {table}", what)

    def columns(self, table: str) -> tuple[str, ...]:
        """Column names of the table; empty if there is no such table."""
        if table not in self._columns:
            found = self.query(f"PRAGMA table_info({quoted(table)})", where=f"table {table}")
            self._columns[table] = tuple(str(row[1]) for row in found)
        return self._columns[table]

    def last_row(self, table: str) -> int:
        """The highest row id, which equals the row count unless rows were lost; 0 if there is no table."""
        if table not in self.tables:
            return 0
        return int(self.query(f"SELECT max(rowid) FROM {quoted(table)}", where=f"table {table}")[0][0] or 0)

    def row_span(self, table: str) -> int:
        """The number of row ids from the first row, or from 1 if lower, to the last row."""
        if table not in self.tables:
            return 0
        # min and max alone use the index; together, SQLite scans all rows
        ends = (f"(SELECT {which}(rowid) FROM {quoted(table)})" for which in ("min", "max"))
        first, last = self.query(f"SELECT {', '.join(ends)}", where=f"table {table}")[0]
        return 0 if last is None else int(last) - min(int(first), 1) + 1

    def row_count(self, table: str) -> int:
        """The row count, cached or counted; 0 if there is no table."""
        if table not in self.rows_read and table in self.tables:
            counted = self.query(f"SELECT count(*) FROM {quoted(table)}", where=f"table {table}")
            self.rows_read[table] = int(counted[0][0])
        return self.rows_read.get(table, 0)

    def rows(self, table: str, columns: Sequence[str], only: tuple[str, int] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a table, in row order; a missing column is NULL, a missing table empty.

        With `only`, those in which a column has a value.
        """
        if table not in self.tables:
            return []
        self._check(table)
        have = self.columns(table)
        listed = ", ".join(quoted(name) if name in have else "NULL" for name in columns)
        if only is not None and only[0] not in have:
            return []
        chosen = "" if only is None else f" WHERE {quoted(only[0])} = {only[1]}"
        return self.query(f"SELECT {listed} FROM {quoted(table)}{chosen}", where=f"table {table}")

    def _check(self, table: str) -> None:
        """Run SQLite's integrity check on a table, once, to find pages that are used twice or misplaced.

        SQLite itself skips such pages silently: some rows would appear twice and others not at all. The check takes a
        twentieth of the time of reading the table. Decoding by pages checks more.
        """
        if table in self._checked:
            return
        said = self.query(f"PRAGMA quick_check({quoted(table)})", where=f"table {table}")
        wrong = [line for (text,) in said for line in str(text).splitlines() if not line.startswith("***")]
        if wrong not in ([], ["ok"]):
            raise self.damaged(table, wrong[0])
        self._checked.add(table)

    def integers(
        self, table: str, columns: Sequence[str], transform: Callable[[pl.DataFrame], pl.DataFrame]
    ) -> pl.DataFrame:
        """Integer columns of a table, in row order, mapped by `transform`.

        `transform` gets a part of the table with Int64 columns (null where the row or the whole table lacks a
        value) and gives the part of the result; it works on rows alone, since the parts are cut anywhere.

        Raises:
            DamagedReportError: Also when a column holds anything but integers and NULL.
        """
        heights: list[int] = []

        def counted(raw: pl.DataFrame) -> pl.DataFrame:
            heights.append(raw.height)
            return transform(raw)

        frame = self._decoded(table, columns, counted)
        if frame is None:
            heights.clear()
            frame = counted(self.frame(table, dict.fromkeys(columns, pl.Int64)))
        self.rows_read[table] = sum(heights)
        return frame

    def _decoded(
        self, table: str, columns: Sequence[str], transform: Callable[[pl.DataFrame], pl.DataFrame]
    ) -> pl.DataFrame | None:
        """As :meth:`integers`, decoded by pages; None where the table is small, or only SQLite can read it."""
        rows = self.last_row(table)
        if rows <= min(sqlite_pages.PAGES_ANYWAY_FROM_ROWS, sqlite_pages.PAGES_FROM_ROWS):
            return None
        if self._largest_rows <= sqlite_pages.PAGES_FROM_ROWS:
            return None
        have = [name for name in columns if name in self.columns(table)]
        missing = [pl.lit(None, dtype=pl.Int64).alias(name) for name in columns if name not in have]

        def completed(raw: pl.DataFrame) -> pl.DataFrame:
            return transform(raw.with_columns(missing))

        with one_blas_thread():
            from kanalyze.readers.storage.sqlite_pages.table_scan import read_blocks  # noqa: PLC0415 - imports numpy, for large files only

        return read_blocks(self.path, table, have, completed)

    @cached_property
    def _largest_rows(self) -> int:
        """The highest row id of any table; a table without row ids has none, and a damaged one says so when read."""
        found = [0]
        for table in self.tables:
            with suppress(DamagedReportError):
                found.append(self.last_row(table))
        return max(found)

    def texts(self, table: str, column: str) -> pl.Series:
        """A text column as String, in row order; null for a missing value or column."""
        values = [row[0] for row in self.rows(table, (column,))]
        return pl.Series(column, values, dtype=pl.String, strict=False)

    def distinct(self, table: str, column: str) -> set[int]:
        """Distinct values of an integer column; empty if the column is missing."""
        if column not in self.columns(table):
            return set()
        name = quoted(column)
        sql = f"SELECT DISTINCT {name} FROM {quoted(table)} WHERE typeof({name}) = 'integer'"
        return {row[0] for row in self.query(sql, where=f"table {table}")}

    def count_missing(self, table: str, column: str, other: str = "", among: Collection[int] = ()) -> int:
        """The number of nulls in `column`; with `other`, only in rows where that column is one of `among`."""
        have = self.columns(table)
        if not have or (other and other not in have):
            return 0
        missing = f"{quoted(column)} IS NULL" if column in have else "TRUE"
        listed = ", ".join(str(number) for number in among)
        chosen = f"{quoted(other)} IN ({listed})" if other else "TRUE"
        sql = f"SELECT count(*) FROM {quoted(table)} WHERE {missing} AND {chosen}"
        return int(self.query(sql, where=f"table {table}")[0][0])

    def frame(
        self, table: str, schema: Mapping[str, DataType | DataTypeClass], only: tuple[str, int] | None = None
    ) -> pl.DataFrame:
        """Columns of a table with the types of `schema`, in row order; a missing column is null.

        With `only`, of the rows in which one of these columns has a value.

        Raises:
            DamagedReportError: Also when a value is not of its column's type.
        """
        rows = self.rows(table, tuple(schema), only)
        try:
            return pl.DataFrame(rows, schema=dict(schema), orient="row")
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            raise self.damaged(table, "a value is not of its column's type") from error

    def _check_length(self) -> None:
        """Raise DamagedReportError for a file shorter than its header says."""
        with readable(self.path), regular(self.path).open("rb") as file:
            head = file.read(_HEADER_BYTES)
        if len(head) < _HEADER_BYTES:
            raise DamagedReportError.at(self.path, "its header", f"the file ends after {len(head)} bytes")
        page = int.from_bytes(head[16:18], "big")
        page = 65536 if page == 1 else page
        pages, valid = int.from_bytes(head[28:32], "big"), head[24:28] == head[92:96]
        size = self.path.stat().st_size
        if valid and size < pages * page:
            what = f"the file ends after {size:,} of {pages * page:,} bytes"
            raise DamagedReportError.at(
                self.path, f"page {size // page + 1} of {pages}" if page else "its header", what
            )


def quoted(name: str) -> str:
    """`name` quoted as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


# A read-only SQLite connection; a pool (LRU) limits how many files are open.
#
# A notebook may hold a hundred reports, and a process may have few files open: so the connection that was not used for
# the longest time is closed when another one opens, and opened again when its file is next asked.

#: Most files open at once; reopening takes 0.1 ms.
MOST_OPEN: Final = 8

#: Open connections, most recently used last; above the limit only while all are in use.
_open: dict[SqliteConnection, None] = {}
_open_lock = Lock()


class SqliteConnection:
    """A thread-safe connection to the database at a path, opened on first use."""

    def __init__(self, path: Path) -> None:
        """Prepare to read the database at `path`."""
        self._path = path
        self._lock = Lock()  # used from several threads, which not every SQLite is built for
        self._connection: sqlite3.Connection | None = None
        self._seen: tuple[int, ...] | None = None
        self._closed = False

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a query.

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
            found = _fetched(self._connection, sql)
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
        """Close the file until its next use; returns False if it is in use."""
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
        try:
            connection.execute("PRAGMA cell_size_check = ON")
        except sqlite3.Error as error:
            connection.close()
            raise DamagedReportError.at(self._path, "its header", str(error)) from error
        return connection

    def _check_same(self) -> None:
        """Refuse to reopen a file that was replaced meanwhile."""
        with readable(self._path):
            found = regular(self._path).stat()
        seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if self._seen not in {None, seen}:
            raise UnreadableReportError.because(self._path, "it changed since it was first read")
        self._seen = seen


def _fetched(connection: sqlite3.Connection, sql: str) -> list[tuple[Any, ...]]:
    """All rows of a query; what is no UTF-8 in them is replaced, for which Python has to look at each text itself."""
    try:
        return connection.execute(sql).fetchall()
    except sqlite3.OperationalError as error:
        if "UTF-8" not in str(error):
            raise
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    return connection.execute(sql).fetchall()


def _used(connection: SqliteConnection) -> None:
    """Mark `connection` as most recently used, and close the least recently used one."""
    with _open_lock:
        _open.pop(connection, None)
        _open[connection] = None
        for other in [*_open][: max(len(_open) - MOST_OPEN, 0)]:
            if other.rest():
                del _open[other]
