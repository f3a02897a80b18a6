"""Table schemas, declared once and checked wherever a table is produced; and what holds tables that a reader reads.

A table is declared where it is built: readers' tables in :mod:`kanalyze.model`, the table of an analysis in the
analysis' own file. ``kanalyze show``, the docs page and the run-time check all use that declaration.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from threading import RLock
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from kanalyze.errors import ClosedReportError, DamagedReportError, UnreadableReportError
from kanalyze.tools import NAMES, TOOLS, recorders

T = TypeVar("T")

#: Cache key of the kinds of events that a report recorded, which are known without reading any.
KINDS_KEY: Final = "kinds"

#: Units by the last word (or words) of a column's name.
UNITS = {
    "bytes_per_s": "bytes/s",
    "ns": "ns",
    "bytes": "bytes",
    "hz": "Hz",
    "flop_per_s": "FLOP/s",
    "flop_per_byte": "FLOP/byte",
    "flop": "FLOP",
    "share": "0..1",
}

#: The heading of the columns in the docstring of a table's function; the source has their names below it.
COLUMNS = "Columns:"

#: The tools that count.
_COUNTING: Final = tuple(one.short for one in TOOLS if one.counts)

#: How docstrings are laid out.
_WIDE, _IN = 100, "    "


def unit_of(name: str) -> str:
    """The unit in a column's name; empty if it has none."""
    return next((unit for ending, unit in UNITS.items() if name == ending or name.endswith(f"_{ending}")), "")


@dataclass(frozen=True)
class Column:
    """A column: name (unit last), polars type, meaning, nullability."""

    name: str
    dtype: DataType | DataTypeClass
    doc: str
    nullable: bool = False

    @property
    def unit(self) -> str:
        """The unit in the name; empty if the column has none."""
        return unit_of(self.name)


@dataclass(frozen=True)
class Table:
    """A table's schema: meaning of a row, columns in order, equivalent report of another tool."""

    name: str  # name on the command line and in Python
    doc: str  # meaning of a row, one sentence
    columns: tuple[Column, ...]  # the columns, in the order of every frame and file
    equals: str = ""  # the equivalent report of another tool, with equal figures; empty if there is none
    groupings: tuple[str, ...] = ()  # values of ``--by`` for this table
    options: tuple[str, ...] = ()  # further keywords of the table's function, each an option of ``kanalyze show``
    when: str = ""  # for a variant of a table: the options that select it, such as ``--by launch-shape``
    together: bool = False  # whether it joins reports of several tools
    sides: bool = False  # whether it compares two sides, each of one report or more
    job: bool = False  # whether it is of a job of several ranks, each in a report of its own or in one of all
    counted: bool = False  # whether it is built from counters, and so from the ncu report of a capture
    purpose: str = ""  # what it answers, one clause that fits a line of the list of tables
    no_rows: str = ""  # why there may be none, where that is not plain
    telling: tuple[str, ...] = ()  # columns that a terminal shows first where not all fit, the most telling one first
    #: the tools whose reports can have rows of it; ``capture`` for a folder of ``kanalyze collect``
    tools: tuple[str, ...] = recorders()

    @property
    def inputs(self) -> str:
        """Inputs that can have rows of it: tools, ``any`` of them, or ``several`` reports."""
        tools = ("several",) if self.together or self.sides or self.job else _COUNTING if self.counted else self.tools
        return "any" if len(tools) == len(NAMES) else " ".join(tools)

    @property
    def schema(self) -> dict[str, DataType | DataTypeClass]:
        """Column names and types, in order."""
        return {column.name: column.dtype for column in self.columns}

    @property
    def flags(self) -> list[str]:
        """The options in command-line spelling."""
        return [flag(option) for option in self.options]

    def told(self) -> str:
        """A docstring section that lists the columns with types, units and meanings."""
        lines = [f"Columns {_in_python(self.when)}:" if self.when else COLUMNS]
        for column in self.columns:
            kind = column.dtype if isinstance(column.dtype, type) else type(column.dtype)
            about = ", ".join(filter(None, (kind.__name__, column.unit, "nullable" if column.nullable else "")))
            text = f"{column.name} ({about}): {column.doc}"
            lines += wrap(text, _WIDE, initial_indent=_IN, subsequent_indent=2 * _IN)
        return "\n".join(lines)

    def empty(self) -> pl.DataFrame:
        """An empty frame of this schema."""
        return pl.DataFrame(schema=self.schema)

    def check(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Checks `frame` against the schema and returns it.

        Raises TypeError if a column is missing, superfluous or of another type, or a required value is null: a defect
        of the function that made the frame, never of the user's input.
        """
        types, expected = dict(frame.schema), self.schema
        if list(types.items()) != list(expected.items()):
            wrong = [name for name in {*types, *expected} if types.get(name) != expected.get(name)]
            details = ", ".join(f"{name}: {types.get(name)} is not {expected.get(name)}" for name in sorted(wrong))
            raise TypeError(f"table {self.name}: {details or 'columns are in another order'}")
        nulls = frame.null_count()  # a column of one value, got as a series, would take memory from then on
        for column in self.columns:
            if not column.nullable and nulls.item(0, column.name):
                raise TypeError(f"table {self.name}: column {column.name} has nulls")
        return frame

    def completed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Adds the columns that `frame` lacks, of nulls, which take no memory."""
        missing = (column for column in self.columns if column.name not in frame.columns)
        return frame.with_columns(pl.lit(None, dtype=column.dtype).alias(column.name) for column in missing)

    def select(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Selects the schema's columns of `frame`, in order, cast and checked."""
        return self.check(frame.select(pl.col(column.name).cast(column.dtype) for column in self.columns))


def _in_python(when: str) -> str:
    """The option of a table's variant in Python syntax: ``with by='stack'`` for ``--by stack``."""
    if not when.startswith("--"):
        return when
    option, _, value = when.removeprefix("--").partition(" ")
    return f"with {option.replace('-', '_')}={value!r}" if value else f"with {option.replace('-', '_')}=True"


def flag(option: str) -> str:
    """The command-line option of a keyword: ``threshold_ns`` is ``--threshold``, which takes a unit."""
    unit = next((f"_{ending}" for ending in UNITS if option.endswith(f"_{ending}")), "")
    return "--" + option.removesuffix(unit).replace("_", "-")


#: What the types of columns are called in the text of :func:`columns`.
_TYPES: Final = {
    "int": pl.Int64,
    "int32": pl.Int32,
    "float": pl.Float64,
    "text": pl.String,
    "category": pl.Categorical,
    "bool": pl.Boolean,
}


def columns(text: str) -> tuple[Column, ...]:
    """The columns that a text declares, one a line: name, type and meaning, as in ``size_bytes int?: Bytes moved.``.

    The types are those of :data:`_TYPES`; a question mark says that values may be null. A meaning goes on in lines that
    are indented more deeply than the first one.
    """
    edge = text[: -len(text.lstrip())] or "\n"
    declared = (" ".join(entry.split()).split(" ", 2) for entry in re.split(rf"{edge}(?=\S)", text.strip()))
    return tuple(
        Column(name, _TYPES[kind.rstrip("?:")], meaning, nullable=kind.endswith("?:"))
        for name, kind, meaning in declared
    )


# What holds the tables of a report.


class Source(Protocol):
    """A reader's result: tables of :mod:`kanalyze.model`, read on demand, thread-safe."""

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
        self._reading: dict[str, RLock] = {}
        self.closed = False
        self.damaged: dict[str, str] = {}
        self.beside: dict[str, Kept] = {}

    def value(self, name: str, read: Callable[[], T], path: Path) -> T:
        """The cached value of `name`, else the result of `read`, which is cached.

        Raises ClosedReportError if it was not read before the report at `path` was closed; UnreadableReportError if the
        operating system refuses to read it any more.
        """
        with self._reading.setdefault(name, RLock()):
            if name not in self._values:
                if self.closed:
                    raise ClosedReportError.of(path, name)
                try:
                    with self.noted(name):
                        self._values[name] = read()
                except OSError as error:  # file or disk disappeared
                    raise UnreadableReportError.of(path, error) from error
            result: T = self._values[name]
            return result

    def has(self, name: str) -> bool:
        """Whether a value is cached."""
        return name in self._values

    @contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """Inside, what is damaged is noted: whoever goes on without `name` need not say so."""
        try:
            yield
        except DamagedReportError as error:
            self.damaged[f"table {name}"] = str(error)
            raise
