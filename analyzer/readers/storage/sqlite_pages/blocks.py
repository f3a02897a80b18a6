"""Large tables as polars frames, through :mod:`.table_scan`, which imports numpy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

import polars as pl

from kanalyze.errors import DamagedReportError
from kanalyze.readers.storage.sqlite_pages.grown_columns import GrownFrame
from kanalyze.readers.storage.sqlite_pages.table_scan import (
    Block,
    Column,
    DamagedPageError,
    NotDecodableError,
    PagesFile,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path


T = TypeVar("T")

#: Minimum bytes per row: pointer, length, rowid, header length.
_SMALLEST_ROW: Final = 5

#: Rows per batch: each call makes polars' threads and the decoding threads wait for each other.
_ROWS: Final = 1 << 20


def read_blocks(
    path: Path,
    table: str,
    columns: Sequence[str],
    transform: Callable[[pl.DataFrame], pl.DataFrame],
    most_rows: int,
) -> pl.DataFrame | None:
    """Decodes a table in batches of Int64 `columns`, maps each by `transform` and concatenates.

    None if only SQLite can read the table. The columns must exist, and there must be from 1 to `most_rows` rows.

    Raises:
        DamagedReportError: A page is invalid.
    """

    def work(block: Block) -> pl.DataFrame:
        return pl.DataFrame([_series(name, block.columns[name]) for name in columns])

    found = GrownFrame(min(most_rows, path.stat().st_size // _SMALLEST_ROW))
    try:
        with PagesFile(path) as file:
            _each_meanwhile(found.add, map(transform, _together(file.scan(table, columns, work))))
    except NotDecodableError:
        return None
    except DamagedPageError as error:
        raise DamagedReportError.at(path, f"table {table}", str(error)) from error
    return found.frame()


def _each_meanwhile(use: Callable[[T], None], made: Iterable[T]) -> None:
    """Consume items while the next one is produced in another thread."""
    with ThreadPoolExecutor(1) as pool:
        using: Future[None] | None = None
        for one in made:
            if using is not None:
                using.result()
            using = pool.submit(use, one)
        if using is not None:
            using.result()


def _together(blocks: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Batches `blocks` into frames of at least :data:`_ROWS` rows, except for the last."""
    waiting: list[pl.DataFrame] = []
    for block in blocks:
        waiting.append(block)
        if sum(one.height for one in waiting) >= _ROWS:
            yield pl.concat(waiting, rechunk=True)
            waiting.clear()
    if waiting:
        yield pl.concat(waiting, rechunk=True)


def _series(name: str, column: Column) -> pl.Series:
    values = pl.Series(name, column.values)
    return values if column.valid is None else values.set(pl.Series(~column.valid), None)
