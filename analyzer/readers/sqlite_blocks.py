"""Large tables as polars frames, through :mod:`kanalyze.readers.sqlite_pages`; the only importer of numpy here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.errors import DamagedReportError
from kanalyze.frames import owned
from kanalyze.readers.sqlite_pages import Block, Column, DamagedPageError, NotDecodableError, PagesFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def read_blocks(
    path: Path, table: str, columns: Sequence[str], transform: Callable[[pl.DataFrame], pl.DataFrame]
) -> list[pl.DataFrame] | None:
    """The parts of a table in row order, each as `transform` makes it of a frame with Int64 `columns`.

    None where the table holds what only SQLite can read. The columns must exist.

    Raises:
        DamagedReportError: A page cannot be what SQLite wrote.
    """

    def work(block: Block) -> pl.DataFrame:
        return owned(transform(pl.DataFrame([_series(name, block.columns[name]) for name in columns])))

    try:
        with PagesFile(path) as file:
            return list(file.scan(table, columns, work))
    except NotDecodableError:
        return None
    except DamagedPageError as error:
        raise DamagedReportError.at(path, f"table {table}", str(error)) from error


def _series(name: str, column: Column) -> pl.Series:
    values = pl.Series(name, column.values)
    return values if column.valid is None else values.set(pl.Series(~column.valid), None)
