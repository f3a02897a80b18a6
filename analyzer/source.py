"""Interface of a report's data source, and the cache of tables read from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import polars as pl

from kanalyze.columns import constant
from kanalyze.errors import ClosedReportError, DamagedReportError, UnreadableReportError

T = TypeVar("T")

#: Cache key of the kinds of events that a report recorded, which are known without reading any.
KINDS_KEY: Final = "kinds"


class Source(Protocol):
    """Interface of a reader's result: tables of :mod:`kanalyze.model`, read on demand, thread-safe."""

    @property
    def kinds(self) -> Iterable[str]:
        """The kinds of events that were recorded."""

    def events(self, kind: str) -> pl.DataFrame:
        """The events of one kind, as :data:`kanalyze.model.EVENTS`."""

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables of :data:`kanalyze.model.READER_TABLES`."""

    def notes_of_read(self) -> pl.DataFrame:
        """The table `notes`, as far as known without reading further tables."""

    def close(self) -> object:
        """Release files and buffers; nothing is read afterwards."""


@runtime_checkable
class PartedSource(Protocol):
    """A source that gives large tables part by part, for what need not have them in memory."""

    def mapped(self, name: str, transform: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
        """The parts of a table, in no set order and not sorted, mapped by `transform` and concatenated."""


class Kept:
    """Thread-safe cache of what was read from a source, shared by all views of a report."""

    def __init__(self) -> None:
        """Start empty."""
        self._values: dict[str, Any] = {}
        self._stacks: dict[tuple[str, ...], pl.DataFrame] = {}
        self._reading: dict[str, RLock] = {}
        self.closed = False
        self.damaged: dict[str, str] = {}
        self.beside: dict[str, Kept] = {}

    def value(self, name: str, read: Callable[[], T], path: Path) -> T:
        """The cached value of `name`, else the result of `read`, which is cached.

        Raises:
            ClosedReportError: It was not read before the report at `path` was closed.
            UnreadableReportError: The operating system refuses to read it any more.
        """
        with self._lock(name):
            if name not in self._values:
                if self.closed:
                    raise ClosedReportError.of(path, name)
                try:
                    with self.noted(name):
                        self._values[name] = read()
                except OSError as error:  # file or disk disappeared
                    raise UnreadableReportError.of(path, error) from error
            found: T = self._values[name]
            return found

    @contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """Inside, what is damaged is noted: whoever goes on without `name` need not say so."""
        try:
            yield
        except DamagedReportError as error:
            self.damaged[f"table {name}"] = str(error)
            raise

    def _lock(self, name: str) -> RLock:
        """The lock of one entry."""
        return self._reading.setdefault(name, RLock())

    def has(self, name: str) -> bool:
        """Whether a value is cached."""
        return name in self._values

    def stacked(self, names: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
        """Concatenates columns of cached frames, each once.

        Cached frames then point into the concatenation, so that both take the memory of one; columns of one value take
        none.
        """
        key = tuple(names)
        with ExitStack() as locks:
            for name in sorted(names):
                locks.enter_context(self._lock(name))
            known = self._stacks.get(key, pl.DataFrame())
            if missing := [column for column in columns if column not in known.columns]:
                stack, at = _stack([self._values[name].select(missing) for name in names]), 0
                for name in names:
                    own = self._values[name]
                    rest = [own.drop(missing), stack.slice(at, own.height)]
                    self._values[name] = pl.concat(rest, how="horizontal")[own.columns]
                    at += own.height
                self._stacks[key] = pl.concat([known, stack], how="horizontal") if known.width else stack
            return self._stacks[key].select(columns)

    def close(self) -> None:
        """Refuse further reads."""
        self.closed = True


def _stack(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The rows of several frames; columns of one integer as literals."""
    stack = pl.concat([part for part in parts if part.height] or parts[:1], rechunk=True)
    first = stack.head(1)
    alike = [values.name for values in stack.clone() if values.dtype.is_integer() and len(values) and _one(values)]
    return stack.with_columns(pl.lit(first.item(0, name), dtype=stack.schema[name]).alias(name) for name in alike)


def _one(values: pl.Series) -> bool:
    """Whether all of `values` are equal, or null."""
    return values.null_count() == len(values) or constant(values)
