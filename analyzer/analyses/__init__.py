"""Analyses: tables in, one small table out. They print nothing, open nothing and know no tool.

Each room below is a subject. An analysis is a module of a room named for its table, with the declaration ``TABLE`` and
a function of the same name that takes a :class:`kanalyze.report.Report` and gives that table as a polars frame; adding
the file adds the table, in the command line too. Modules that begin with an underscore are what analyses share.

Three outcomes: a table; an empty table (looked, and there is nothing); or :class:`kanalyze.errors.CannotTellError`
(the report does not hold what the answer needs).
"""

import pkgutil
from functools import cache
from pathlib import Path
from typing import Final

#: Rooms whose modules are no tables.
_NO_TABLES: Final = ("page", "shared")


@cache
def homes() -> dict[str, str]:
    """The module of each table, by the table's name, in alphabetical order; found by walking the rooms."""
    rooms = [room.name for room in pkgutil.iter_modules(__path__) if room.ispkg and room.name not in _NO_TABLES]
    found = {
        module.name: f"{__name__}.{room}.{module.name}"
        for room in rooms
        for module in pkgutil.iter_modules([str(Path(folder, room)) for folder in __path__])
        if not module.ispkg and not module.name.startswith("_")
    }
    return dict(sorted(found.items()))
