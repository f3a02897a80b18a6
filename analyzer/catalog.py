"""Catalog of all tables, discovered by walking the packages: no table is registered by hand."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from kanalyze.analyses import homes
from kanalyze.counter_model import LAUNCH_NUMBERS, RULE_RESULTS, SOURCE_FILES, SYMBOLS
from kanalyze.errors import UnknownNameError
from kanalyze.model import COMPILED_KERNELS, NOTES, READER_TABLES
from kanalyze.schema import Table, flag

if TYPE_CHECKING:
    import polars as pl

    from kanalyze.report import Report

#: Scope keywords of tables that join several reports; they apply to the timeline report.
WHERE: Final = ("window", "device", "process")

#: Components of tables such as `health` and `joined`, or of the command `source`; not offered as tables.
_HIDDEN: Final = (NOTES, COMPILED_KERNELS, RULE_RESULTS, SOURCE_FILES, LAUNCH_NUMBERS, SYMBOLS)
_PARTS: Final = tuple(table.name for table in _HIDDEN)
_READER_TABLES: Final = {name: table for name, table in READER_TABLES.items() if name not in _PARTS}


def names() -> list[str]:
    """Names of all tables: analyses first, then readers' tables."""
    return [*homes(), *_READER_TABLES]


def table(name: str) -> Table:
    """The declaration of the table `name`.

    Raises:
        UnknownNameError: There is no such table.
    """
    if name in _READER_TABLES:
        return _READER_TABLES[name]
    if name not in names():
        raise UnknownNameError.of("table", name, names())
    declared: Table = import_module(homes()[name]).TABLE
    return declared


def forms(name: str) -> list[Table]:
    """Declarations of the variants of table `name`, such as grouped ones."""
    if name in _READER_TABLES:
        return []
    module = import_module(homes()[name])
    declared = (value for value in vars(module).values() if isinstance(value, Table) and value.name == name)
    return list({form.when: form for form in declared if form.when}.values())  # a module may bind one under two names


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
