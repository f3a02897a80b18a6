"""Columnar access to a folder with one file per table: Parquet, or Arrow IPC streams.

Source: what ``nsys export --type=parquetdir`` and ``--type=arrowdir`` write. A file is called as its table, its rows
are in the order of the rows of the SQLite export, and its columns are the same but for their types: unsigned where
SQLite has but one type, Boolean for 0 and 1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from kanalyze.errors import DamagedReportError, UnreadableReportError
from kanalyze.files.regular import readable, regular

#: Rows per batch while events are built: some 100 MB.
_ROWS_AT_ONCE: Final = 2 << 20

#: End-of-stream marker of Arrow IPC: continuation, then length 0.
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"

#: Prefix of polars' error messages about a file.
_PREFIX: Final = re.compile(r"^(parquet error|parquet|out-of-spec)?:? *(File out of specification: )?")

#: polars' message where the operating system refused something.
_OF_SYSTEM: Final = re.compile(r"(?s)(?P<reason>.*?) \(os error (?P<code>\d+)\)")


class TableFolder:
    """A read-only folder of tables; it answers as :class:`kanalyze.readers.storage.sqlite_file.SqliteFile`.

    Raises:
        DamagedReportError: From every method: a file is truncated, or is corrupt.
        UnreadableReportError: From every method: the operating system refuses to read it.
    """

    def __init__(self, path: Path, form: Form) -> None:
        """List the files in the folder at `path` of format `form`."""
        self.path = path
        self._form = form
        self._schemas: dict[str, Mapping[str, DataType]] = {}
        self._heights: dict[str, int] = {}
        # includes what is not a regular file: a table that cannot be read is not one that nsys left out
        self.tables = frozenset(entry.stem for entry in _called_so(path, form))

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
                counted = self._form.scan(self._file(table), [*first]).select(pl.len()).collect() if first else None
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
        made = (transform(self._read(table, scan, types, part)) for part in parts)
        return pl.concat(made, rechunk=True)

    def texts(self, table: str, column: str) -> pl.Series:
        """A text column as String, in row order; null for a missing value or column."""
        return self.frame(table, {column: pl.String}).to_series()

    def frame(
        self, table: str, schema: Mapping[str, DataType | DataTypeClass], only: tuple[str, int] | None = None
    ) -> pl.DataFrame:
        """Columns of a table with the types of `schema`; `only` the rows in which one of them has a value."""
        found = self._read(table, self._scan(table, schema), schema, range(self.last_row(table)))
        return found if only is None else found.filter(pl.col(only[0]) == only[1])

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
            return self._form.scan(self._file(table), have) if have else pl.LazyFrame()

    def _read(
        self, table: str, scan: pl.LazyFrame, schema: Mapping[str, DataType | DataTypeClass], rows: range
    ) -> pl.DataFrame:
        """The given `rows` of a `scan` of `table`, cast to `schema`."""
        with self._reading(table):
            found = scan.slice(rows.start, len(rows)).collect()
        if found.width and found.height != len(rows):
            raise self.damaged(table, "its rows cannot be counted")
        try:
            columns = {name: _converted(found.get_column(name), schema[name]) for name in found.columns}
        except pl.exceptions.PolarsError as error:
            raise self.damaged(table, "a value is not of its column's type") from error
        nulls = (pl.Series(name, [None], dtype=of).new_from_index(0, len(rows)) for name, of in schema.items())
        return pl.DataFrame(columns.get(empty.name, empty) for empty in nulls)

    def _schema(self, table: str) -> Mapping[str, DataType]:
        """The schema of a table's file; empty if there is no table."""
        if table not in self._schemas:
            with self._reading(table):
                self._schemas[table] = self._form.schema(self._file(table)) if table in self.tables else {}
        return self._schemas[table]

    def _file(self, table: str) -> Path:
        return self.path / f"{table}{self._form.suffix}"

    @contextmanager
    def _reading(self, table: str) -> Iterator[None]:
        """Convert errors of reading `table` into DamagedReportError."""
        if table in self.tables:
            regular(self._file(table))
        try:
            yield
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            if isinstance(error, OSError) and (found := _OF_SYSTEM.match(str(error))):
                refused = OSError(int(found["code"]), found["reason"])
                raise UnreadableReportError.of(self._file(table), refused) from error
            # the first line where it is prose; some messages dump internal state
            first = _PREFIX.sub("", str(error).partition("\n")[0]).rstrip(".")
            raise self.damaged(table, first if first and "{" not in first else "it is not what was written") from error


class Form(NamedTuple):
    """A file format of tables: suffix, magic bytes, and how it is read.

    Attributes:
        suffix: How its name ends.
        magic: How its content begins.
        schema: Its columns, by their names.
        scan: Some of its columns, read when they are collected, or at once.
    """

    suffix: str
    magic: bytes
    schema: Callable[[Path], Mapping[str, DataType]]
    scan: Callable[[Path, list[str]], pl.LazyFrame]


def _stream_schema(path: Path) -> Mapping[str, DataType]:
    """The schema of an Arrow stream; refuses one truncated between batches, which would read as a shorter table."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - len(_END_OF_STREAM), 0))
        if file.read() != _END_OF_STREAM:
            raise pl.exceptions.ComputeError("the file ends too early")
    return pl.read_ipc_stream(path, n_rows=0).schema


FORMS: Final = (
    Form(
        ".parquet",
        b"PAR1",
        lambda path: pl.scan_parquet(path, glob=False).collect_schema(),
        lambda path, names: pl.scan_parquet(path, glob=False).select(names),
    ),
    Form(
        ".arrow",
        b"\xff\xff\xff\xff",
        _stream_schema,
        lambda path, names: pl.read_ipc_stream(path, columns=names).lazy(),
    ),
)


def tables_in(path: Path, form: Form) -> list[str]:
    """Names of the tables in the folder at `path` that are files of format `form`, sorted.

    Raises:
        UnreadableReportError: The operating system refuses to list it.
    """
    return [entry.stem for entry in _called_so(path, form) if entry.is_file()]


def _called_so(path: Path, form: Form) -> list[Path]:
    """Entries of the folder at `path` with the suffix of `form`, of any file type, sorted."""
    with readable(path):
        return sorted(entry for entry in path.iterdir() if entry.suffix == form.suffix)


def _converted(values: pl.Series, of_type: DataType | DataTypeClass) -> pl.Series:
    """Casts `values` to `of_type`, Int64 or String; uint64 beyond Int64 wraps, as in SQLite.

    Raises:
        SchemaError: They are of a type that holds anything else: a time, say, whose unit would be lost.
    """
    of = values.dtype
    if of == pl.UInt64 and of_type == pl.Int64:
        return values.reinterpret(signed=True)
    whole = of.is_integer() or of == pl.Boolean or (of.is_float() and (values % 1 == 0).all())
    text = of in (pl.String, pl.Categorical, pl.Enum)
    if of != pl.Null and not (text if of_type == pl.String else whole):
        raise pl.exceptions.SchemaError
    return values.cast(of_type)
