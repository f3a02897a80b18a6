"""SQL over the tables of reports: a statement names tables, which are then made, and polars answers it.

Only the tables that the statement names are made: polars says which relation it does not know, that one is made, and
the statement is asked again. Texts are plain strings in it, not categories, so that any text can be compared with them.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, Unpack

import polars as pl

from kanalyze import catalog
from kanalyze.errors import CannotTellError, SqlError
from kanalyze.renderers.tables.frame import of_reports
from kanalyze.report import Report
from kanalyze.sample_model import SAMPLE_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from kanalyze.report import Where

#: What polars says of a table that it does not know; tests hold it.
_UNKNOWN: Final = re.compile(r"relation '(.*)' was not found", re.DOTALL)

#: How the names of polars' functions begin that open files or addresses; no column's name does, which tests hold.
_OPENS: Final = re.compile(r"(?<![A-Za-z_])(rea)d_", re.IGNORECASE | re.ASCII)

#: What polars says of a function after FROM that it does not have; tests hold it.
_NO_FUNCTION: Final = re.compile(r"'(.*)' is not a supported table function", re.DOTALL)


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


def answer(
    statement: str,
    make: Callable[[str], pl.DataFrame],
    bounded: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> pl.DataFrame:
    """The answer to a statement over tables that `make` gives by name; it is asked for those alone that are named.

    Polars works within `bounded`, where it may have less than `make`; it does not open files there for itself either.

    Raises:
        UnknownNameError: There is no such table.
        SqlError: The statement is no SQL that polars understands, or opens files.
    """
    if statement.strip().rstrip(";").split() == ["SHOW", "TABLES"]:
        return pl.DataFrame({"name": catalog.every_name()})
    made: dict[str, pl.DataFrame] = {}
    pl.DataFrame().lazy().collect()  # begins what polars holds open
    while True:
        try:
            with bounded():
                _refuse_functions(statement, made)
                return pl.SQLContext(made).execute(statement).collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            missing = _UNKNOWN.fullmatch(str(error).partition("\n\nResolved plan")[0])
            if missing is None or missing[1] in made:
                raise refused(error) from error
            name = missing[1]
        catalog.table(name)  # raises where there is none
        made[name] = _plain(make(name))


def _refuse_functions(statement: str, made: Mapping[str, pl.DataFrame]) -> None:
    """Refuses functions that open files, as polars itself parses the statement, however they are spelt.

    Polars plans the statement with their names misspelt, and says which of them it does not have. What else it says of
    that statement it would say of the true one, and no file is opened.

    Raises:
        SqlError: The statement calls such a function.
        PolarsError: It cannot be planned for another reason.
    """
    if not _OPENS.search(statement):
        return
    try:
        pl.SQLContext(made).execute(_OPENS.sub(r"\1q_", statement)).explain()  # plans all of it
    except pl.exceptions.PolarsError as error:
        said = re.sub(r"(rea)q_", r"\1d_", str(error), flags=re.IGNORECASE)
        if function := _NO_FUNCTION.search(said):
            raise SqlError.of(
                f"{function[1]} opens a file or an address, and a statement sees the tables of the reports alone",
                "Take a table of the reports; `SHOW TABLES` lists them.",
            ) from error
        raise type(error)(said) from error


def refused(error: BaseException) -> SqlError:
    """The error of a user for what polars says of a statement; of that the first paragraph, on one line."""
    return SqlError.of(" ".join(str(error).partition("\n\n")[0].split()).rstrip("."))


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with plain texts in place of categories, and integers of which a product does not wrap."""
    return pl.DataFrame(frame).with_columns(
        pl.col(pl.Categorical, pl.Enum).cast(pl.String), pl.col(pl.Int32).cast(pl.Int64)
    )
