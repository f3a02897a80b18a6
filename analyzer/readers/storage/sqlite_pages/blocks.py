"""Large tables as polars frames, through :mod:`kanalyze.readers.storage.sqlite_pages.pages`; only they need numpy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

import polars as pl

from kanalyze.errors import DamagedReportError
from kanalyze.readers.storage.sqlite_pages.grown_columns import GrownFrame
from kanalyze.readers.storage.sqlite_pages.pages import Block, Column, DamagedPageError, NotDecodableError, PagesFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path


T = TypeVar("T")

#: What a row takes at least: pointer, length, rowid, and the length of its header.
_SMALLEST_ROW: Final = 5

#: So many rows are handed on together: polars' threads and those that decode wait for each other at every call.
_ROWS: Final = 1 << 20


def read_blocks(
    path: Path,
    table: str,
    columns: Sequence[str],
    transform: Callable[[pl.DataFrame], pl.DataFrame],
    most_rows: int,
) -> pl.DataFrame | None:
    """The rows of a table, in their order, as `transform` makes them of frames with Int64 `columns`.

    None where the table holds what only SQLite can read. The columns must exist, and rows, but not over `most_rows`.

    Raises:
        DamagedReportError: A page cannot be what SQLite wrote.
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
    """Use each of what is `made` while the next one is being made."""
    with ThreadPoolExecutor(1) as pool:
        using: Future[None] | None = None
        for one in made:
            if using is not None:
                using.result()
            using = pool.submit(use, one)
        if using is not None:
            using.result()


def _together(blocks: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """The rows of `blocks` in frames of at least :data:`_ROWS`, but for the last one."""
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
