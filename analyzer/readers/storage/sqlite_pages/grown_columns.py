"""Concatenates batches into a large frame without holding the data twice."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

if TYPE_CHECKING:
    import numpy.typing as npt


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
