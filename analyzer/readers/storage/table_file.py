"""What the readers of nsys exports need of a file: its tables, by name, as columns.

Two forms have it: an SQLite file (:mod:`kanalyze.readers.storage.sqlite_file`) and a folder with a file per table
(:mod:`kanalyze.readers.storage.table_folder`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    import polars as pl
    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.errors import DamagedReportError


class TableFile(Protocol):
    """Tables in row order. A table or column that is not there reads as empty, or null.

    Raises:
        DamagedReportError: From every method: what is stored cannot be what was written.
    """

    @property
    def path(self) -> Path:
        """The file or folder, for messages."""

    @property
    def tables(self) -> frozenset[str]:
        """The names of the tables."""

    def close(self) -> None:
        """Close what is open; nothing is read afterwards."""

    def damaged(self, table: str, what: str) -> DamagedReportError:
        """The error that a table of this file makes no sense."""

    def columns(self, table: str) -> tuple[str, ...]:
        """The names of the table's columns; empty where there is no such table."""

    def last_row(self, table: str) -> int:
        """The highest row id of the table, which is its number of rows unless rows were lost; 0 without table."""

    def row_span(self, table: str) -> int:
        """How many row ids there are from the table's first to its last, or from 1 if that comes before the first."""

    def row_count(self, table: str) -> int:
        """How many rows the table has; 0 without table."""

    def integers(
        self, table: str, columns: Sequence[str], transform: Callable[[pl.DataFrame], pl.DataFrame]
    ) -> pl.DataFrame:
        """Integer columns of a table as `transform` makes them.

        `transform` gets a part of the table with Int64 columns and gives the part of the result; it works on rows
        alone, since the parts are cut anywhere.
        """

    def texts(self, table: str, column: str) -> pl.Series:
        """A column of text, as String; null where a value is none, or the whole table lacks the column."""

    def frame(self, table: str, schema: Mapping[str, DataType | DataTypeClass]) -> pl.DataFrame:
        """Columns of a table with the types of `schema`."""

    def distinct(self, table: str, column: str) -> set[int]:
        """The integers that a column holds."""

    def count_missing(self, table: str, column: str, other: str = "", among: Collection[int] = ()) -> int:
        """How many rows lack a value in `column`; with `other`, of those that have one of `among` in that column."""
