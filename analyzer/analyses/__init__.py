"""Analyses: tables in, one small table out. They print nothing, open nothing and know no tool.

Each room below is a subject. An analysis is a module of a room named for its table, with the declaration ``TABLE`` and
a function of the same name that takes a :class:`kanalyze.report.Report` and gives that table as a polars frame; adding
the file adds the table, in the command line too. Modules that begin with an underscore are what analyses share. Tables
of two sides, and those of a job, stand several in a module, each with its function.

Three outcomes: a table; an empty table (looked, and there is nothing); or :class:`kanalyze.errors.CannotTellError`
(the report does not hold what the answer needs).
"""

from functools import cache
from importlib import import_module
from typing import Final

from kanalyze.machinery import modules
from kanalyze.schema import Table

#: The rooms whose tables compare two sides, or are of a job of several ranks; and rooms whose modules are no tables.
_OF_SIDES: Final = "comparing"
_OF_JOBS: Final = "ranks"
_NO_TABLES: Final = ("communication", "page", "shared", _OF_SIDES, _OF_JOBS)


@cache
def homes() -> dict[str, str]:
    """The module of each table, by the table's name, in alphabetical order; found by walking the rooms."""
    return _modules({room for room, _, _ in modules(__name__, __path__)} - {*_NO_TABLES})


@cache
def homes_of_sides() -> dict[str, str]:
    """The same of the tables that compare two sides, whose functions take what is compared instead of a report."""
    return _declared(_OF_SIDES)


@cache
def homes_of_jobs() -> dict[str, str]:
    """The same of the tables of a job of several ranks, whose functions take the job instead of a report."""
    return _declared(_OF_JOBS)


def _modules(rooms: set[str]) -> dict[str, str]:
    found = {
        name: module for room, name, module in modules(__name__, __path__) if room in rooms and not name.startswith("_")
    }
    return dict(sorted(found.items()))


def _declared(room: str) -> dict[str, str]:
    """The module of each table that the modules of a room declare, which are imported for that."""
    return dict(sorted((name, module) for module in _modules({room}).values() for name in declarations(module)))


def declarations(module: str) -> dict[str, Table]:
    """The tables that a module declares, by name; without their forms that options select."""
    every = vars(import_module(module)).values()
    return {one.name: one for one in every if isinstance(one, Table) and not one.when}
