"""Where the tables of a report come from: what a reader gives, and what was read of it."""

from __future__ import annotations

from contextlib import ExitStack
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kanalyze.errors import ClosedReportError, UnreadableReportError
from kanalyze.frames import stacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import polars as pl

T = TypeVar("T")


class Source(Protocol):
    """What a reader gives: tables of :mod:`kanalyze.model`, read when they are asked for, several at once."""

    @property
    def kinds(self) -> Iterable[str]:
        """The kinds of events that the report records at all."""

    def events(self, kind: str) -> pl.DataFrame:
        """The events of one kind, as :data:`kanalyze.model.EVENTS`."""

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables of :data:`kanalyze.model.READER_TABLES`."""

    def notes_of_read(self) -> pl.DataFrame:
        """The table `notes`, as far as it can be told without reading more than was asked for before."""

    def close(self) -> object:
        """Let go of files and of what was kept to make tables of; nothing is asked for afterwards."""


class Kept:
    """What was read of a source, by name, which all parts of a report share; read when it is first asked for."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._values: dict[str, Any] = {}
        self._stacks: dict[tuple[str, ...], pl.DataFrame] = {}
        self._reading: dict[str, RLock] = {}
        self.closed = False

    def value(self, name: str, read: Callable[[], T], path: Path) -> T:
        """What `read` gives, and gave before.

        Raises:
            ClosedReportError: It was not read before the report at `path` was closed.
            UnreadableReportError: The operating system does not let us read it any more.
        """
        with self._lock(name):
            if name not in self._values:
                if self.closed:
                    raise ClosedReportError.of(path, name)
                try:
                    self._values[name] = read()
                except OSError as error:  # the file went away, or its disk did
                    raise UnreadableReportError.because(path, error.strerror or str(error)) from error
            found: T = self._values[name]
            return found

    def _lock(self, name: str) -> RLock:
        """Held while a value is read or changed."""
        return self._reading.setdefault(name, RLock())

    def has(self, name: str) -> bool:
        """Whether a value was read, and is still kept."""
        return name in self._values

    def stacked(self, names: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
        """Columns of some values, which are frames that were read, one after the other; made once.

        What is kept of each value then points into it, so that both take the memory of one.
        """
        key = (*names, *columns)
        with ExitStack() as locks:
            for name in sorted(names):
                locks.enter_context(self._lock(name))
            if key not in self._stacks:
                self._stacks[key] = stack = stacked(self._values[name].select(columns) for name in names)
                at = 0
                for name in names:
                    height = self._values[name].height
                    self._values[name] = self._values[name].with_columns(stack.slice(at, height))
                    at += height
            return self._stacks[key]

    def release(self, name: str) -> None:
        """Let go of a value; it is read again when it is asked for."""
        with self._lock(name):
            self._values.pop(name, None)

    def close(self) -> None:
        """Read nothing any more."""
        self.closed = True
