"""Large tables as polars frames, through :mod:`.table_scan`, which imports numpy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import polars as pl

from kanalyze.errors import DamagedReportError
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

    import numpy.typing as npt


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


class GrownFrame:
    """A frame that grows by batches of the same columns.

    Memory for all rows is reserved at once, and used only as it is written to. Concatenating at the end would leave
    holes in memory, none of which fits a whole column.
    """

    def __init__(self, most_rows: int) -> None:
        """Allocate for at most `most_rows` rows."""
        self._most_rows = most_rows
        self._columns: dict[str, _Column] = {}

    def add(self, part: pl.DataFrame) -> None:
        """Append the rows of `part`."""
        if not self._columns:
            self._columns = {name: _Column(part.get_column(name).clear(), self._most_rows) for name in part.columns}
        for name, column in self._columns.items():
            column.add(part.get_column(name))

    def frame(self) -> pl.DataFrame:
        """The frame; constant and all-null columns become literals, which take no memory."""
        columns = iter(self._columns.items())
        frame = pl.DataFrame([column.values().alias(name) for name, column in islice(columns, 1)])
        return frame.with_columns(
            (column.values() if column.only is None else pl.lit(column.only.item(0), column.only.dtype)).alias(name)
            for name, column in columns
        )


class _Column:
    """A growing column: constant as long as all values are equal; then preallocated, or chunked once it has nulls.

    One batch stays as it is: most tables consist of one.
    """

    def __init__(self, empty: pl.Series, most_rows: int) -> None:
        self._empty, self._most_rows = empty, most_rows
        self._rows = 0
        self.only: pl.Series | None = None  # [1], the constant so far
        self._room: npt.NDArray[Any] | None = None
        self._parts: list[pl.Series] = []

    def add(self, values: pl.Series) -> None:
        """Append `values`."""
        if values.is_empty():
            return
        before, self._rows = self._rows, self._rows + len(values)
        if (before == 0 or self.only is not None) and _single_valued(values):
            first = values.new_from_index(0, 1)
            if self.only is None or first.equals(self.only, null_equal=True):
                self.only = first
                return
        if self.only is not None:
            self._put(self.only.new_from_index(0, before), 0)
            self.only = None
        self._put(values, before)

    def values(self) -> pl.Series:
        """The column."""
        if self.only is not None:
            return self.only.new_from_index(0, self._rows)
        if self._room is None:
            return pl.concat(self._parts or [self._empty], rechunk=True)
        return self._typed(self._room[: self._rows])

    def _typed(self, physical: npt.NDArray[Any]) -> pl.Series:
        found = pl.Series(physical)
        return found.cat.to(pl.Categorical) if self._empty.dtype == pl.Categorical else found

    def _put(self, values: pl.Series, at: int) -> None:
        """Appends `values` behind the first `at` rows."""
        fits = self._rows <= self._most_rows and not values.has_nulls()
        if fits and self._room is None and len(self._parts) == 1 and _roomy(self._parts[0]):
            first = _numbers(self._parts.pop())
            self._room = np.empty(self._most_rows, dtype=first.dtype)
            self._room[:at] = first
        if fits and self._room is not None:
            self._room[at : at + len(values)] = _numbers(values)
            return
        if self._room is not None:
            self._parts, self._room = [self._typed(self._room[:at])], None
        self._parts.append(values)


def _roomy(values: pl.Series) -> bool:
    """Whether a column is one of numbers without nulls, which can be put into an array."""
    return (values.dtype.is_integer() or values.dtype == pl.Categorical) and not values.has_nulls()


def _numbers(values: pl.Series) -> npt.NDArray[Any]:
    """The numbers of a column, those that stand for names included."""
    return (values if values.dtype.is_integer() else values.to_physical()).to_numpy()


def _single_valued(values: pl.Series) -> bool:
    """Whether a column holds one integer only, or nothing but nulls; False for no rows."""
    missing = values.null_count()
    if missing or values.is_empty():
        return missing == len(values) > 0
    return values.dtype.is_integer() and values.min() == values.max()
