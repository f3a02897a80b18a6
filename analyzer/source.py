"""Interface of a report's data source, and the cache of tables read from it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from threading import RLock, local
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, runtime_checkable

import polars as pl

from kanalyze.errors import ClosedReportError, UnreadableReportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

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


class UndeclaredReadError(Exception):
    """An analysis read what its table does not declare: a defect of the declaration, which only tests look for."""


class _Seal(NamedTuple):
    """Names that may be read ahead of an analysis, those that may be while it computes, and those that it used."""

    names: frozenset[str]
    more: frozenset[str]
    used: set[str]

    def check(self, name: str, *, cached: bool, ahead: bool) -> None:
        """Raises :class:`UndeclaredReadError` if `name` may not be used, or not be read so late."""
        if name == KINDS_KEY:
            return
        if name not in self.names | self.more:
            raise UndeclaredReadError(f"{name!r} is used and not declared")
        if not ahead:
            self.used.add(name)
        if not (cached or ahead or name in self.more):
            raise UndeclaredReadError(f"{name!r} is declared, and read while the analysis computes")


class Kept:
    """Thread-safe cache of what was read from a source, shared by all views of a report."""

    def __init__(self) -> None:
        """Start empty."""
        self._values: dict[str, Any] = {}
        self._stacks: dict[tuple[str, ...], pl.DataFrame] = {}
        self._reading: dict[str, RLock] = {}
        self.closed = False
        self._released: set[str] = set()
        self._ahead = local()
        self._seal: _Seal | None = None

    def value(self, name: str, read: Callable[[], T], path: Path) -> T:
        """The cached value of `name`, else the result of `read`, which is cached.

        Raises:
            ClosedReportError: It was not read before the report at `path` was closed.
            UnreadableReportError: The operating system refuses to read it any more.
        """
        with self._lock(name):
            if self._seal is not None:
                self._seal.check(name, cached=name in self._values, ahead=getattr(self._ahead, "now", False))
            if name not in self._values:
                if self.closed:
                    raise ClosedReportError.of(path, name)
                try:
                    self._values[name] = read()
                except OSError as error:  # file or disk disappeared
                    raise UnreadableReportError.of(path, error) from error
            found: T = self._values[name]
            return found

    def _lock(self, name: str) -> RLock:
        """The lock of one entry."""
        return self._reading.setdefault(name, RLock())

    def has(self, name: str) -> bool:
        """Whether a value is cached."""
        return name in self._values

    def used_in_parts(self, name: str) -> None:
        """Notes that a value is used that is read part by part, and not cached."""
        if self._seal is not None:
            self._seal.check(name, cached=True, ahead=False)

    def stacked(self, names: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
        """Concatenates columns of cached frames, once.

        Cached frames then point into the concatenation, so that both take the memory of one.
        """
        key = (*names, *columns)
        with ExitStack() as locks:
            for name in sorted(names):
                locks.enter_context(self._lock(name))
            if key not in self._stacks:
                self._stacks[key] = stack = pl.concat(
                    (self._values[name].select(columns) for name in names), rechunk=True
                )
                at = 0
                for name in names:
                    height = self._values[name].height
                    self._values[name] = self._values[name].with_columns(stack.slice(at, height))
                    at += height
            return self._stacks[key]

    def release(self, name: str) -> None:
        """Drop a value from the cache; it is read again when needed, but never again ahead of need."""
        with self._lock(name):
            self._values.pop(name, None)
            self._released.add(name)

    def was_released(self, name: str) -> bool:
        """Whether a value was dropped from the cache."""
        return name in self._released

    @contextmanager
    def reading_ahead(self) -> Iterator[None]:
        """Inside, this thread reads what analyses will need."""
        before = getattr(self._ahead, "now", False)
        self._ahead.now = True
        try:
            yield
        finally:
            self._ahead.now = before

    @contextmanager
    def sealed(self, names: Iterable[str], more: Iterable[str]) -> Iterator[set[str]]:
        """Inside, undeclared reads raise: of a name in neither argument, and of one of `names` not read ahead.

        Gives the set in which the names that are used come together.
        """
        self._seal = _Seal(frozenset(names), frozenset(more), set())
        try:
            yield self._seal.used
        finally:
            self._seal = None

    def close(self) -> None:
        """Refuse further reads."""
        self.closed = True
