"""SQL over the tables of reports: a statement names tables, which are then made, and polars answers it.

Only the tables that the statement names are made: polars says which relation it does not know, that one is made, and
the statement is asked again. Texts are plain strings in it, not categories, so that any text can be compared with them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Unpack

import polars as pl

from kanalyze import catalog
from kanalyze.errors import CannotTellError, SqlError
from kanalyze.renderers.tables.frame import of_reports
from kanalyze.report import Report
from kanalyze.sample_model import SAMPLE_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kanalyze.report import Where

#: What polars says of a table that it does not know; tests hold it.
_UNKNOWN: Final = re.compile(r"relation '(.*)' was not found", re.DOTALL)

#: What is no part of a statement's words: texts and comments.
_APART: Final = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)

#: Functions of polars' SQL that open files or addresses, which a question about a report has no need of.
_OPENS: Final = re.compile(r"\bread_\w+\"?\s*\(", re.IGNORECASE)


def sql(report: Report | Sequence[Report], statement: str, **where: Unpack[Where]) -> pl.DataFrame:
    """The answer to an SQL statement over the tables of a report, by the names that ``kanalyze tables`` lists.

    Of several reports each table has the rows of all, with a first column `report`. Of a capture, tables that only
    samples tell are of its run with samples, as are their times.

    Raises:
        UnknownNameError: There is no such table.
        CannotTellError: A report does not hold what a table needs.
        SqlError: The statement is no SQL that polars understands.
    """
    reports = [report] if isinstance(report, Report) else [*report]

    def make(name: str) -> pl.DataFrame:
        if catalog.table(name).together:
            return catalog.make(reports[0], name, *reports[1:], **where)
        made = [(str(one.meta.path), _rows(one, name, where)) for one in reports]
        return made[0][1] if len(made) == 1 else of_reports(made)

    return answer(statement, make)


def _rows(report: Report, name: str, where: Where) -> pl.DataFrame:
    """A table of a report; of a capture that of its run with samples where only samples tell it."""
    other = None
    try:
        found = catalog.make(report.narrow(**where), name)
        if found.is_empty() and any(name == table.name for table in SAMPLE_TABLES):
            other = report.sampled()
    except CannotTellError:
        other = report.sampled()
        if other is None:
            raise
    return found if other is None else catalog.make(other.narrow(**where), name)


def answer(statement: str, make: Callable[[str], pl.DataFrame]) -> pl.DataFrame:
    """The answer to a statement over tables that `make` gives by name; it is asked for those alone that are named.

    Raises:
        UnknownNameError: There is no such table.
        SqlError: The statement is no SQL that polars understands, or opens files.
    """
    if statement.strip().rstrip(";").split() == ["SHOW", "TABLES"]:
        return pl.DataFrame({"name": catalog.every_name()})
    if found := _OPENS.search(_APART.sub(" ", statement)):
        function = found[0].rstrip(' ("\n\t')
        raise SqlError.of(f"{function} opens a file, and a statement sees the tables of the reports alone")
    context, made = pl.SQLContext(), set[str]()
    while True:
        try:
            return context.execute(statement).collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            missing = _UNKNOWN.fullmatch(str(error).partition("\n\nResolved plan")[0])
            if missing is None or missing[1] in made:
                raise refused(error) from error
            name = missing[1]
        catalog.table(name)  # raises where there is none
        context.register(name, _plain(make(name)))
        made.add(name)


def refused(error: BaseException) -> SqlError:
    """The error of a user for what polars says of a statement; of that the first paragraph, on one line."""
    return SqlError.of(" ".join(str(error).partition("\n\n")[0].split()).rstrip("."))


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with plain texts in place of categories, and integers of which a product does not wrap."""
    return pl.DataFrame(frame).with_columns(
        pl.col(pl.Categorical, pl.Enum).cast(pl.String), pl.col(pl.Int32).cast(pl.Int64)
    )
