"""Columnar access to an SQLite file: its schema, and integer columns of a table as polars frames.

Small tables are read row by row with :mod:`sqlite3`; large ones are decoded page by page
(:mod:`kanalyze.readers.storage.table_scan`), without which reports of gigabytes would take minutes.
docs/dev/reading-sqlite.md has the measurements behind that choice.
"""

import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any, Final, TypeAlias
from weakref import finalize

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from kanalyze import files, machinery
from kanalyze.errors import ClosedReportError, DamagedReportError, UnreadableReportError

#: Larger tables are decoded by pages; below, importing numpy costs more than it saves (docs/dev/reading-sqlite.md).
PAGES_FROM_ROWS: Final = 40_000

#: Most files open at once: a notebook may hold a hundred reports, a process have few files. Reopening takes 0.1 ms.
MOST_OPEN: Final = 8

#: Open connections by number of their file, most recently used last. SQLite is not built for threads everywhere.
_open: dict[int, sqlite3.Connection] = {}
_open_lock: Final = RLock()  # within which another file may be collected as garbage, and closed
_numbers: Final = count()


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
        files.page_bytes(path)
        self._number = next(_numbers)
        self._seen: tuple[int, ...] | None = None
        self._closed = finalize(self, _close, self._number)
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
        if not self._closed.alive:
            raise ClosedReportError.of(self.path, sql)
        try:
            with _open_lock:
                connection = _open.pop(self._number, None) or self._connect()
                _open[self._number] = connection
                while len(_open) > MOST_OPEN:
                    _open.pop(next(iter(_open))).close()
                return _fetched(connection, sql)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise DamagedReportError.at(self.path, where, str(error)) from error

    def _connect(self) -> sqlite3.Connection:
        """Open the file, unless it was replaced since it was last open."""
        with files.readable(self.path):
            status = files.regular(self.path).stat()
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._seen not in {None, seen}:
            raise UnreadableReportError.because(self.path, "it changed since it was first read")
        self._seen = seen
        try:
            connection = sqlite3.connect(files.database_uri(self.path), uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise UnreadableReportError.because(self.path, str(error)) from error
        try:
            connection.execute("PRAGMA cell_size_check = ON")
        except sqlite3.Error as error:
            connection.close()
            raise DamagedReportError.at(self.path, "its header", str(error)) from error
        return connection

    def damaged(self, table: str, what: str) -> DamagedReportError:
        """An error for a corrupt table of this file."""
        return DamagedReportError.at(self.path, f"table {table}", what)

    def columns(self, table: str) -> tuple[str, ...]:
        """Column names of the table; empty if there is no such table."""
        if table not in self._columns:
            rows = self.query(f"PRAGMA table_info({files.quoted(table)})", where=f"table {table}")
            self._columns[table] = tuple(str(row[1]) for row in rows)
        return self._columns[table]

    def last_row(self, table: str) -> int:
        """The highest row id, which equals the row count unless rows were lost; 0 if there is no table."""
        if table not in self.tables:
            return 0
        return int(self.query(f"SELECT max(rowid) FROM {files.quoted(table)}", where=f"table {table}")[0][0] or 0)

    def row_span(self, table: str) -> int:
        """The number of row ids from the first row, or from 1 if lower, to the last row."""
        if table not in self.tables:
            return 0
        # min and max alone use the index; together, SQLite scans all rows
        ends = (f"(SELECT {which}(rowid) FROM {files.quoted(table)})" for which in ("min", "max"))
        first, last = self.query(f"SELECT {', '.join(ends)}", where=f"table {table}")[0]
        return 0 if last is None else int(last) - min(int(first), 1) + 1

    def row_count(self, table: str) -> int:
        """The row count, cached or counted; 0 if there is no table."""
        if table not in self.rows_read and table in self.tables:
            counted = self.query(f"SELECT count(*) FROM {files.quoted(table)}", where=f"table {table}")
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
        listed = ", ".join(files.quoted(name) if name in have else "NULL" for name in columns)
        if only is not None and only[0] not in have:
            return []
        chosen = "" if only is None else f" WHERE {files.quoted(only[0])} = {only[1]}"
        return self.query(f"SELECT {listed} FROM {files.quoted(table)}{chosen}", where=f"table {table}")

    def _check(self, table: str) -> None:
        """Run SQLite's integrity check on a table, once, to find pages that are used twice or misplaced.

        SQLite itself skips such pages silently: some rows would appear twice and others not at all. The check takes a
        twentieth of the time of reading the table. Decoding by pages checks more.
        """
        if table in self._checked:
            return
        rows = self.query(f"PRAGMA quick_check({files.quoted(table)})", where=f"table {table}")
        wrong = [line for (text,) in rows for line in str(text).splitlines() if not line.startswith("***")]
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
        have = [name for name in columns if name in self.columns(table)]
        missing = [pl.lit(None, dtype=pl.Int64).alias(name) for name in columns if name not in have]
        heights: list[int] = []

        def completed(raw: pl.DataFrame) -> pl.DataFrame:
            heights.append(raw.height)
            return transform(raw.with_columns(missing))

        frame = None
        if self.last_row(table) > PAGES_FROM_ROWS:
            with machinery.one_blas_thread():
                from kanalyze.readers.storage.table_scan import read_blocks  # noqa: PLC0415 - imports numpy, for large files only

            frame = read_blocks(self.path, table, have, completed)
        if frame is None:  # the table is small, or only SQLite can read it
            heights.clear()
            frame = completed(self.frame(table, dict.fromkeys(columns, pl.Int64)))
        self.rows_read[table] = sum(heights)
        return frame

    def texts(self, table: str, column: str) -> pl.Series:
        """A text column as String, in row order; null for a missing value or column."""
        return pl.Series(column, [row[0] for row in self.rows(table, (column,))], dtype=pl.String, strict=False)

    def distinct(self, table: str, column: str) -> set[int]:
        """Distinct values of an integer column; empty if the column is missing."""
        if column not in self.columns(table):
            return set()
        name = files.quoted(column)
        sql = f"SELECT DISTINCT {name} FROM {files.quoted(table)} WHERE typeof({name}) = 'integer'"
        return {row[0] for row in self.query(sql, where=f"table {table}")}

    def count_missing(self, table: str, column: str, other: str = "", among: Collection[int] = ()) -> int:
        """The number of nulls in `column`; with `other`, only in rows where that column is one of `among`."""
        have = self.columns(table)
        if not have or (other and other not in have):
            return 0
        missing = f"{files.quoted(column)} IS NULL" if column in have else "TRUE"
        listed = ", ".join(str(number) for number in among)
        chosen = f"{files.quoted(other)} IN ({listed})" if other else "TRUE"
        sql = f"SELECT count(*) FROM {files.quoted(table)} WHERE {missing} AND {chosen}"
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


def _close(number: int) -> None:
    """Close the file with that number, if it is open."""
    with _open_lock:
        if connection := _open.pop(number, None):
            connection.close()


def _fetched(connection: sqlite3.Connection, sql: str) -> list[tuple[Any, ...]]:
    """All rows of a query; what is no UTF-8 in them is replaced, for which Python has to look at each text itself."""
    try:
        return connection.execute(sql).fetchall()
    except sqlite3.OperationalError as error:
        if "UTF-8" not in str(error):
            raise
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    return connection.execute(sql).fetchall()


#: Rows per batch while events are built: some 100 MB.
_ROWS_AT_ONCE: Final = 2 << 20
#: End-of-stream marker of Arrow IPC: continuation, then length 0.
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
#: Prefix of polars' error messages about a file.
_PREFIX: Final = re.compile(r"^(parquet error|parquet|out-of-spec)?:? *(File out of specification: )?")
#: polars' message where the operating system refused something.
_OF_SYSTEM: Final = re.compile(r"(?s)(?P<reason>.*?) \(os error (?P<code>\d+)\)")

#: How files of tables begin, by how their names end: Parquet, and Arrow IPC streams.
FORMS: Final = {".parquet": b"PAR1", ".arrow": b"\xff\xff\xff\xff"}


class TableFolder:
    """A read-only folder of tables; it answers as :class:`kanalyze.readers.storage.table_files.SqliteFile`.

    Raises:
        DamagedReportError: From every method: a file is truncated, or is corrupt.
        UnreadableReportError: From every method: the operating system refuses to read it.
    """

    def __init__(self, path: Path, suffix: str) -> None:
        """List the files in the folder at `path` whose names end in `suffix`, one of :data:`FORMS`."""
        self.path = path
        self._suffix = suffix
        self._schemas: dict[str, Mapping[str, DataType]] = {}
        self._heights: dict[str, int] = {}
        # includes what is not a regular file: a table that cannot be read is not one that nsys left out
        self.tables = frozenset(entry.stem for entry in _called_so(path, suffix))

    def close(self) -> None:
        """Do nothing: no file stays open between reads."""

    def damaged(self, table: str, what: str) -> DamagedReportError:
        """An error for a corrupt table of this folder."""
        return DamagedReportError.at(self.path, f"table {table}", what)

    def columns(self, table: str) -> tuple[str, ...]:
        """Column names of the table; empty if there is no such table."""
        return tuple(self._schema(table))

    def last_row(self, table: str) -> int:
        """The row count, as rows are numbered from 1; 0 if there is no table."""
        if table not in self._heights:
            first = self.columns(table)[:1]
            with self._reading(table):
                counted = self._lazy(table, [*first]).select(pl.len()).collect() if first else None
            self._heights[table] = 0 if counted is None else int(counted.item())
        return self._heights[table]

    #: A folder has no row ids that would show lost rows.
    row_span = row_count = last_row

    def integers(
        self, table: str, columns: Sequence[str], transform: Callable[[pl.DataFrame], pl.DataFrame]
    ) -> pl.DataFrame:
        """Integer columns of a table, in row order, mapped by `transform` part by part."""
        types, rows = dict.fromkeys(columns, pl.Int64), range(self.last_row(table))
        scan = self._scan(table, columns)
        parts = [rows[start : start + _ROWS_AT_ONCE] for start in rows[::_ROWS_AT_ONCE]] or [rows]
        return pl.concat((transform(self._read(table, scan, types, part)) for part in parts), rechunk=True)

    def texts(self, table: str, column: str) -> pl.Series:
        """A text column as String, in row order; null for a missing value or column."""
        return self.frame(table, {column: pl.String}).to_series()

    def frame(
        self, table: str, schema: Mapping[str, DataType | DataTypeClass], only: tuple[str, int] | None = None
    ) -> pl.DataFrame:
        """Columns of a table with the types of `schema`; `only` the rows in which one of them has a value."""
        rows = self._read(table, self._scan(table, schema), schema, range(self.last_row(table)))
        return rows if only is None else rows.filter(pl.col(only[0]) == only[1])

    def distinct(self, table: str, column: str) -> set[int]:
        """Distinct values of an integer column; empty if the column is missing."""
        return set(self.frame(table, {column: pl.Int64}).to_series().drop_nulls().unique())

    def count_missing(self, table: str, column: str, other: str = "", among: Collection[int] = ()) -> int:
        """The number of nulls in `column`; with `other`, only in rows where that column is one of `among`."""
        have = self.columns(table)
        if not have or (other and other not in have):
            return 0
        rows = self.frame(table, dict.fromkeys((column, other) if other else (column,), pl.Int64))
        chosen = pl.col(other).is_in(list(among)) if other else pl.lit(value=True)
        return rows.filter(pl.col(column).is_null() & chosen).height

    def _scan(self, table: str, columns: Iterable[str]) -> pl.LazyFrame:
        """Scans the given columns, as far as the table has them."""
        have = [name for name in columns if name in self._schema(table)]
        with self._reading(table):
            return self._lazy(table, have) if have else pl.LazyFrame()

    def _read(
        self, table: str, scan: pl.LazyFrame, schema: Mapping[str, DataType | DataTypeClass], rows: range
    ) -> pl.DataFrame:
        """The given `rows` of a `scan` of `table`, cast to `schema`."""
        with self._reading(table):
            frame = scan.slice(rows.start, len(rows)).collect()
        if frame.width and frame.height != len(rows):
            raise self.damaged(table, "its rows cannot be counted")
        try:
            columns = {name: _converted(frame.get_column(name), schema[name]) for name in frame.columns}
        except pl.exceptions.PolarsError as error:
            raise self.damaged(table, "a value is not of its column's type") from error
        nulls = (pl.Series(name, [None], dtype=of).new_from_index(0, len(rows)) for name, of in schema.items())
        return pl.DataFrame(columns.get(empty.name, empty) for empty in nulls)

    def _schema(self, table: str) -> Mapping[str, DataType]:
        """The schema of a table's file; empty if there is no table."""
        if table not in self._schemas:
            with self._reading(table):
                self._schemas[table] = self._columns_in(self._file(table)) if table in self.tables else {}
        return self._schemas[table]

    def _columns_in(self, file: Path) -> Mapping[str, DataType]:
        """The schema in a file; refuses a stream truncated between batches, which would read as a shorter table."""
        if self._suffix == ".parquet":
            return pl.scan_parquet(file, glob=False).collect_schema()
        with file.open("rb") as stream:
            stream.seek(max(stream.seek(0, os.SEEK_END) - len(_END_OF_STREAM), 0))
            if stream.read() != _END_OF_STREAM:
                raise pl.exceptions.ComputeError("the file ends too early")
        return pl.read_ipc_stream(file, n_rows=0).schema

    def _lazy(self, table: str, names: list[str]) -> pl.LazyFrame:
        """Some columns of a table, read when they are collected, or at once."""
        if self._suffix == ".parquet":
            return pl.scan_parquet(self._file(table), glob=False).select(names)
        return pl.read_ipc_stream(self._file(table), columns=names).lazy()

    def _file(self, table: str) -> Path:
        return self.path / f"{table}{self._suffix}"

    @contextmanager
    def _reading(self, table: str) -> Iterator[None]:
        """Convert errors of reading `table` into DamagedReportError."""
        if table in self.tables:
            files.regular(self._file(table))
        try:
            yield
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            if isinstance(error, OSError) and (match := _OF_SYSTEM.match(str(error))):
                refused = OSError(int(match["code"]), match["reason"])
                raise UnreadableReportError.of(self._file(table), refused) from error
            # the first line where it is prose; some messages dump internal state
            first = _PREFIX.sub("", str(error).partition("\n")[0]).rstrip(".")
            raise self.damaged(table, first if first and "{" not in first else "it is not what was written") from error


def tables_in(path: Path, suffix: str) -> list[str]:
    """Names of the tables in the folder at `path` that are files whose names end in `suffix`, sorted.

    Raises UnreadableReportError if the operating system refuses to list it.
    """
    return [entry.stem for entry in _called_so(path, suffix) if entry.is_file()]


def _called_so(path: Path, suffix: str) -> list[Path]:
    """Entries of the folder at `path` whose names end so, of any file type, sorted."""
    with files.readable(path):
        return sorted(entry for entry in path.iterdir() if entry.suffix == suffix)


def _converted(values: pl.Series, of_type: DataType | DataTypeClass) -> pl.Series:
    """Casts `values` to Int64 or String; uint64 wraps, as in SQLite. Raises SchemaError for others: a time, say."""
    of = values.dtype
    if of == pl.UInt64 and of_type == pl.Int64:
        return values.reinterpret(signed=True)
    whole = of.is_integer() or of == pl.Boolean or (of.is_float() and (values % 1 == 0).all())
    if of != pl.Null and not ((of in (pl.String, pl.Categorical, pl.Enum)) if of_type == pl.String else whole):
        raise pl.exceptions.SchemaError
    return values.cast(of_type)


#: Tables in row order, of either kind; a missing table is empty, a missing column null.
TableFile: TypeAlias = SqliteFile | TableFolder
