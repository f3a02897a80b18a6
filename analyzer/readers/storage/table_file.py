"""Interface of a file of tables, by name, as columns: what the readers of nsys exports need.

Implementations: an SQLite file (:mod:`kanalyze.readers.storage.sqlite_file`) and a folder with a file per table
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
    """Tables in row order; a missing table is empty, a missing column null.

    Raises:
        DamagedReportError: From every method: the stored data is corrupt.
    """

    @property
    def path(self) -> Path:
        """The file or folder, for messages."""

    @property
    def tables(self) -> frozenset[str]:
        """The names of the tables."""

    def close(self) -> None:
        """Close the file; nothing is read afterwards."""

    def damaged(self, table: str, what: str) -> DamagedReportError:
        """An error for a corrupt table of this file."""

    def columns(self, table: str) -> tuple[str, ...]:
        """Column names of the table; empty if there is no such table."""

    def last_row(self, table: str) -> int:
        """The highest row id, which equals the row count unless rows were lost; 0 if there is no table."""

    def row_span(self, table: str) -> int:
        """The number of row ids from the first row, or from 1 if lower, to the last row."""

    def row_count(self, table: str) -> int:
        """The row count; 0 if there is no table."""

    def integers(
        self, table: str, columns: Sequence[str], transform: Callable[[pl.DataFrame], pl.DataFrame]
    ) -> pl.DataFrame:
        """Integer columns of a table, mapped by `transform`.

        `transform` maps a batch of Int64 columns to a batch of the result, row by row, since batches end anywhere.
        """

    def texts(self, table: str, column: str) -> pl.Series:
        """A text column as String; null for a missing value or column."""

    def frame(
        self, table: str, schema: Mapping[str, DataType | DataTypeClass], only: tuple[str, int] | None = None
    ) -> pl.DataFrame:
        """Columns of a table with the types of `schema`; `only` the rows in which one of them has a value."""

    def distinct(self, table: str, column: str) -> set[int]:
        """Distinct values of an integer column."""

    def count_missing(self, table: str, column: str, other: str = "", among: Collection[int] = ()) -> int:
        """The number of nulls in `column`; with `other`, only in rows where that column is one of `among`."""
