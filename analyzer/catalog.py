"""Catalog of all tables, discovered by walking the packages: no table is registered by hand."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from kanalyze.analyses import declarations, homes, homes_of_jobs, homes_of_sides
from kanalyze.counter_model import LAUNCH_NUMBERS, RULE_RESULTS, SOURCE_FILES, SYMBOLS
from kanalyze.errors import UnknownNameError
from kanalyze.model import COMPILED_KERNELS, NOTES, READER_TABLES
from kanalyze.schema import Table, flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from kanalyze.report import Report

#: Scope keywords of tables that join several reports; they apply to the timeline report.
WHERE: Final = ("window", "device", "process")

#: Components of tables such as `health` and `joined`, or of the command `source`; not offered as tables.
_HIDDEN: Final = (NOTES, COMPILED_KERNELS, RULE_RESULTS, SOURCE_FILES, LAUNCH_NUMBERS, SYMBOLS)
_PARTS: Final = tuple(table.name for table in _HIDDEN)
_READER_TABLES: Final = {name: table for name, table in READER_TABLES.items() if name not in _PARTS}

#: The column that says which window a row is of, where a table is made of several.
INSTANCE: Final = "instance"

#: Rooms of the analyses by what their tables are about, in the order of the list of tables.
_COUNTED: Final = "What ncu measured"
_RAW: Final = "What the report holds"
_SUBJECTS: Final[dict[str, tuple[str, ...]]] = {
    "Where the time went": ("iterations", "idle", "findings"),
    "Work on the GPU": ("device", "occupancy", "streams", "launches", "units"),
    "Operators, ranges and steps": ("operators", "fusion", "ranges"),
    "Calls of the host": ("host",),
    "Memory": ("memory",),
    _COUNTED: ("counters",),
    "Several reports together": ("joining",),
    "Two sides compared": ("comparing",),
    "Ranks of one job": ("ranks",),
}


def names() -> list[str]:
    """Names of all tables of a report, or of several of one program: analyses first, then readers' tables."""
    return [*homes(), *_READER_TABLES]


def every_name() -> list[str]:
    """Names of all tables, those that compare two sides, or are of a job, among them."""
    return [*names(), *homes_of_sides(), *homes_of_jobs()]


def _home(name: str) -> str:
    """The module of the table `name`; the rooms that are imported to be searched come last."""
    found = homes().get(name) or homes_of_sides().get(name) or homes_of_jobs().get(name)
    if found is None:
        raise UnknownNameError.of("table", name, every_name())
    return found


def subjects() -> dict[str, list[str]]:
    """Names of all tables by subject, in the order of the command line; a room that is not placed is a subject."""
    headings = {room: heading for heading, rooms in _SUBJECTS.items() for room in rooms}
    found: dict[str, list[str]] = {heading: [] for heading in _SUBJECTS}
    for name, home in (homes() | homes_of_sides() | homes_of_jobs()).items():
        package, room, _ = home.rsplit(".", 2)
        heading = headings.get(room) or (import_module(f"{package}.{room}").__doc__ or room).partition(".")[0]
        found.setdefault(heading, []).append(name)
    for name, declared in _READER_TABLES.items():
        found.setdefault(_COUNTED if declared.counted else _RAW, []).append(name)
    found[_RAW] = found.pop(_RAW)  # last
    return {heading: listed for heading, listed in found.items() if listed}


def table(name: str) -> Table:
    """The declaration of the table `name`.

    Raises:
        UnknownNameError: There is no such table.
    """
    if name in _READER_TABLES:
        return _READER_TABLES[name]
    return declarations(_home(name))[name]


def forms(name: str) -> list[Table]:
    """Declarations of the variants of table `name`, such as grouped ones."""
    if name in _READER_TABLES:
        return []
    every = vars(import_module(_home(name))).values()
    declared = (value for value in every if isinstance(value, Table) and value.name == name)
    return list({form.when: form for form in declared if form.when}.values())  # a module may bind one under two names


def telling(name: str, columns: Sequence[str]) -> tuple[str, ...]:
    """The most telling columns of the form of table `name` that has these `columns`; else of the table itself."""
    found = (form.telling for form in forms(name) if form.telling and {*form.schema} == {*columns} - {INSTANCE})
    return next(found, table(name).telling)


def first(report: Report, name: str, count: int, **options: object) -> pl.DataFrame:
    """The first rows of the table `name`; raises as :func:`make`, without which a large table of a reader is."""
    if name in _READER_TABLES and not options:
        return report.first(name, count)
    return make(report, name, **options).head(count)


def make(report: Report, name: str, *others: Report, **options: object) -> pl.DataFrame:
    """Computes the table `name` of a report; `options` are keywords of its function, ``by`` among them.

    With `others`, reports of the same program by other tools, it joins them all; only tables that say so can.

    Raises:
        UnknownNameError: There is no such table, or it has no such option or grouping.
        CannotTellError: The report does not hold what the table needs.
    """
    declared = table(name)
    by = options.get("by")
    if by is not None and by not in declared.groupings:
        raise UnknownNameError.of(f"grouping of {name}", by, declared.groupings)
    for option in options:
        if option not in ("by", *declared.options, *(WHERE if declared.together else ())):
            raise UnknownNameError.of(f"option of {name}", flag(option), declared.flags)
    if name in _READER_TABLES:
        return report.table(name)
    function = getattr(import_module(homes()[name]), name)
    frame: pl.DataFrame = function(report, *others, **options)
    return frame
