"""Analyses: tables in, one small table out. They print nothing, open nothing and know no tool.

Each room below is a subject. An analysis is a function of a table's name in a module of a room, beside the declaration
of that table; it takes a :class:`kanalyze.report.Report` and gives the table as a polars frame. The line by which
``kanalyze/__init__.py`` tells type checkers of it adds the table everywhere, in the command line too. Modules that
begin with an underscore are what analyses share. Tables of two sides, and those of a job, are found in their rooms.

Three outcomes: a table; an empty table (looked, and there is nothing); or :class:`kanalyze.errors.CannotTellError`
(the report does not hold what the answer needs).
"""

import pkgutil
import re
from functools import cache
from importlib import import_module
from typing import Final

from kanalyze.machinery import modules
from kanalyze.schema import Table

#: The rooms whose tables compare two sides, or are of a job of several ranks; and rooms whose functions make no tables.
_OF_SIDES: Final = "comparing"
_OF_JOBS: Final = "ranks"
_NO_TABLES: Final = ("page", _OF_SIDES, _OF_JOBS)

#: Public names of analyses, as the package tells type checkers of them: module, room and names.
_PUBLIC: Final = re.compile(r"^    from (kanalyze\.analyses\.(\w+)\.\w+) import (\([^)]*\)|.*)$", re.MULTILINE)


@cache
def homes() -> dict[str, str]:
    """The module of each table, by the table's name, in alphabetical order; to know it nothing is imported."""
    listed = _PUBLIC.findall((pkgutil.get_data("kanalyze", "__init__.py") or b"").decode())
    of_tables = ((module, names) for module, room, names in listed if room not in _NO_TABLES)
    return dict(sorted((name, module) for module, names in of_tables for name in re.findall(r"\b(\w+) as \1\b", names)))


@cache
def homes_of_sides() -> dict[str, str]:
    """The same of the tables that compare two sides, whose functions take what is compared instead of a report."""
    return _declared(_OF_SIDES)


@cache
def homes_of_jobs() -> dict[str, str]:
    """The same of the tables of a job of several ranks, whose functions take the job instead of a report."""
    return _declared(_OF_JOBS)


def _declared(room: str) -> dict[str, str]:
    """The module of each table that the modules of a room declare, which are imported for that."""
    every = [module for of, name, module in modules(__name__, __path__) if of == room and not name.startswith("_")]
    return dict(sorted((name, module) for module in every for name in declarations(module)))


def declarations(module: str) -> dict[str, Table]:
    """The tables that a module declares, by name; without their forms that options select."""
    every = vars(import_module(module)).values()
    return {one.name: one for one in every if isinstance(one, Table) and not one.when}
