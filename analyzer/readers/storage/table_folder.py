"""A folder with one file per table, as columns: Parquet files, or streams of Arrow's IPC format.

Source: what ``nsys export --type=parquetdir`` and ``--type=arrowdir`` write. A file is called as its table, its rows
are in the order of the rows of the SQLite export, and its columns are the same but for their types: unsigned where
SQLite has but one type, Boolean for 0 and 1.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.errors import DamagedReportError, UnreadableReportError
from kanalyze.frames import stacked
from kanalyze.readers.shared.regular_files import readable, regular

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from polars.datatypes import DataType, DataTypeClass

#: Rows that are in memory at once before they are made into events: some 100 MB.
_ROWS_AT_ONCE: Final = 2 << 20

#: What a stream of Arrow's IPC format ends with: the mark of a message, and its length, 0.
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"

#: What polars puts before its own words about a file.
_PREFIX: Final = re.compile(r"^(parquet error|parquet|out-of-spec)?:? *(File out of specification: )?")


class TableFolder:
    """A folder that is only read; see :class:`kanalyze.readers.storage.table_file.TableFile`.

    Raises:
        DamagedReportError: From every method: a file is cut short, or cannot be what was written.
        UnreadableReportError: From every method: the operating system does not let us read it.
    """

    def __init__(self, path: Path, form: Form) -> None:
        """Look at the files of the folder at `path` that are in `form`."""
        self.path = path
        self._form = form
        self._schemas: dict[str, Mapping[str, DataType]] = {}
        self._heights: dict[str, int] = {}
        # also what is no file: a table that cannot be read is not one that nsys left out
        self.tables = frozenset(entry.stem for entry in _called_so(path, form))

    def close(self) -> None:
        """Do nothing: no file is open between two reads."""

    def damaged(self, table: str, what: str) -> DamagedReportError:
        """The error that a table of this folder makes no sense."""
        return DamagedReportError.at(self.path, f"table {table}", what)

    def columns(self, table: str) -> tuple[str, ...]:
        """The names of the table's columns; empty where there is no such table."""
        return tuple(self._schema(table))

    def last_row(self, table: str) -> int:
        """The number of rows of the table, which count from 1; 0 without table."""
        if table not in self._heights:
            first = self.columns(table)[:1]
            with self._reading(table):
                counted = self._form.scan(self._file(table), [*first]).select(pl.len()).collect() if first else None
            self._heights[table] = 0 if counted is None else int(counted.item())
        return self._heights[table]

    def row_span(self, table: str) -> int:
        """As many as there are rows: a folder does not tell which are missing."""
        return self.last_row(table)

    def row_count(self, table: str) -> int:
        """How many rows the table has; 0 without table."""
        return self.last_row(table)

    def integers(
        self, table: str, columns: Sequence[str], transform: Callable[[pl.DataFrame], pl.DataFrame]
    ) -> pl.DataFrame:
        """Integer columns of a table, in row order, as `transform` makes them.

        `transform` gets a part of the table with Int64 columns (null where the row or the whole table lacks a
        value) and gives the part of the result; it works on rows alone, since the parts are cut anywhere.

        Raises:
            DamagedReportError: Also when a column holds anything but integers and null.
        """
        types, rows = dict.fromkeys(columns, pl.Int64), range(self.last_row(table))
        scan = self._scan(table, columns)
        parts = [rows[start : start + _ROWS_AT_ONCE] for start in rows[::_ROWS_AT_ONCE]] or [rows]
        made = (transform(self._read(table, scan, types, part)) for part in parts)
        return stacked(made) if len(parts) > 1 else next(made)

    def texts(self, table: str, column: str) -> pl.Series:
        """A column of text, in row order, as String; null where a value is none, or the table lacks the column."""
        return self.frame(table, {column: pl.String}).to_series()

    def frame(self, table: str, schema: Mapping[str, DataType | DataTypeClass]) -> pl.DataFrame:
        """Columns of a table with the types of `schema`, in row order; a column that the table lacks is null.

        Raises:
            DamagedReportError: Also when a column is of another type.
        """
        return self._read(table, self._scan(table, schema), schema, range(self.last_row(table)))

    def distinct(self, table: str, column: str) -> set[int]:
        """The integers that a column holds; empty where the table lacks it."""
        return set(self.frame(table, {column: pl.Int64}).to_series().drop_nulls().unique())

    def count_missing(self, table: str, column: str, other: str = "", among: Collection[int] = ()) -> int:
        """How many rows lack a value in `column`; with `other`, of those that have one of `among` in that column."""
        have = self.columns(table)
        if not have or (other and other not in have):
            return 0
        rows = self.frame(table, dict.fromkeys((column, other) if other else (column,), pl.Int64))
        chosen = pl.col(other).is_in(list(among)) if other else pl.lit(value=True)
        return rows.filter(pl.col(column).is_null() & chosen).height

    def _scan(self, table: str, columns: Iterable[str]) -> pl.LazyFrame:
        """Those of the `columns` that the table has."""
        have = [name for name in columns if name in self._schema(table)]
        with self._reading(table):
            return self._form.scan(self._file(table), have) if have else pl.LazyFrame()

    def _read(
        self, table: str, scan: pl.LazyFrame, schema: Mapping[str, DataType | DataTypeClass], rows: range
    ) -> pl.DataFrame:
        """The `rows` of a `scan` of `table`, as `schema`."""
        with self._reading(table):
            found = scan.slice(rows.start, len(rows)).collect()
        if found.width and found.height != len(rows):
            raise self.damaged(table, "its rows cannot be counted")
        try:
            columns = {name: _converted(found.get_column(name), schema[name]) for name in found.columns}
        except pl.exceptions.PolarsError as error:
            raise self.damaged(table, "a value is not of its column's type") from error
        return pl.DataFrame(columns.get(name, _nulls(name, schema[name], len(rows))) for name in schema)

    def _schema(self, table: str) -> Mapping[str, DataType]:
        """The columns of a table in its file; empty without table."""
        if table not in self._schemas:
            with self._reading(table):
                self._schemas[table] = self._form.schema(self._file(table)) if table in self.tables else {}
        return self._schemas[table]

    def _file(self, table: str) -> Path:
        return self.path / f"{table}{self._form.suffix}"

    @contextmanager
    def _reading(self, table: str) -> Iterator[None]:
        """Say what is wrong where `table` cannot be read."""
        if table in self.tables:
            regular(self._file(table))
        try:
            yield
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise self.damaged(table, _in_short(error)) from error
        except OSError as error:
            reason, of_system, _ = str(error).partition(" (os error")
            if of_system:
                raise UnreadableReportError.because(self._file(table), reason) from error
            raise self.damaged(table, _in_short(error)) from error


@dataclass(frozen=True)
class Form:
    """How the file of a table is called and read.

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
    """The columns of a stream; one that was cut between two of its blocks would read as a shorter table."""
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
    """The names of the tables in the folder at `path` whose files are in `form`, in order.

    Raises:
        UnreadableReportError: The operating system does not let us list it.
    """
    return [entry.stem for entry in _called_so(path, form) if entry.is_file()]


def _called_so(path: Path, form: Form) -> list[Path]:
    """What in the folder at `path` is called as a table in `form`, whatever it is, in order."""
    with readable(path):
        return sorted(entry for entry in path.iterdir() if entry.suffix == form.suffix)


def _converted(values: pl.Series, of_type: DataType | DataTypeClass) -> pl.Series:
    """`values` as `of_type`, Int64 or String; unsigned numbers beyond Int64 by their bits, as SQLite has them.

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


def _in_short(error: BaseException) -> str:
    """The first line of an error, if it is in words: some show an inner state instead."""
    first = _PREFIX.sub("", str(error).partition("\n")[0]).rstrip(".")
    return first if first and "{" not in first else "it is not what was written"


def _nulls(name: str, of_type: DataType | DataTypeClass, rows: int) -> pl.Series:
    return pl.Series(name, [None], dtype=of_type).new_from_index(0, rows)
