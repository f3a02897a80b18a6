"""Catalog of all tables, discovered by walking the packages: no table is registered by hand; and SQL over them.

A statement names tables, which are then made, and polars answers it. Only those are made: polars says which relation it
does not know, that one is made, and the statement is asked again. Texts are plain strings in it, not categories, so
that any text can be compared with them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Final, Unpack

import polars as pl

from kanalyze import errors, model, schema
from kanalyze.analyses import declarations, homes, homes_of_jobs, homes_of_sides
from kanalyze.counter_model import LAUNCH_NUMBERS, RULE_RESULTS, SAMPLED, SOURCE_FILES, SYMBOLS
from kanalyze.renderers.tables.frame import of_reports
from kanalyze.report import Report, Where

#: Scope keywords of tables that join several reports; they apply to the timeline report.
_WHERE: Final = ("window", "device", "process", "steps")

#: Components of tables such as `health` and `joined`, or of the command `source`; not offered as tables.
_HIDDEN: Final = (model.NOTES, model.COMPILED_KERNELS, RULE_RESULTS, SOURCE_FILES, LAUNCH_NUMBERS, SYMBOLS)
_READER_TABLES: Final = {name: table for name, table in model.READER_TABLES.items() if table not in _HIDDEN}

#: Rooms of the analyses by what their tables are about, in the order of the list of tables.
_COUNTED: Final = "What ncu measured"
_RAW: Final = "What the report holds"
_SUBJECTS: Final[dict[str, tuple[str, ...]]] = {
    "Where the time went": ("iterations", "serving", "idle", "findings"),
    "Work on the GPU": ("device", "streams", "launches", "timeline"),
    "Operators, ranges and steps": ("operators", "ranges"),
    "Calls of the host": ("host",),
    "Memory": ("memory",),
    _COUNTED: ("counters",),
    "Several reports together": ("joining",),
    "Two sides compared": ("comparing",),
    "Ranks of one job": ("ranks",),
}


#: What polars says of a table that it does not know; tests hold it.
_UNKNOWN: Final = re.compile(r"relation '(.*)' was not found", re.DOTALL)

#: How the names of polars' functions begin that open files or addresses; no column's name does, which tests hold.
_OPENS: Final = re.compile(r"(?<![A-Za-z_])(rea)d_", re.IGNORECASE | re.ASCII)


def names() -> list[str]:
    """Names of all tables of a report, or of several of one program: analyses first, then readers' tables."""
    return [*homes(), *_READER_TABLES]


def every_name() -> list[str]:
    """Names of all tables, those that compare two sides, or are of a job, among them."""
    return [*names(), *homes_of_sides(), *homes_of_jobs()]


def _home(name: str) -> str:
    """The module of the table `name`; the rooms that are imported to be searched come last."""
    home = homes().get(name) or homes_of_sides().get(name) or homes_of_jobs().get(name)
    if home is None:
        raise errors.UnknownNameError.of("table", name, every_name())
    return home


def subjects() -> dict[str, list[str]]:
    """Names of all tables by subject, in the order of the command line; a room that is not placed is a subject."""
    headings = {room: heading for heading, rooms in _SUBJECTS.items() for room in rooms}
    tables: dict[str, list[str]] = {heading: [] for heading in _SUBJECTS}
    for name, home in (homes() | homes_of_sides() | homes_of_jobs()).items():
        package, room, _ = home.rsplit(".", 2)
        heading = headings.get(room) or (import_module(f"{package}.{room}").__doc__ or room).partition(".")[0]
        tables.setdefault(heading, []).append(name)
    for name, declared in _READER_TABLES.items():
        tables.setdefault(_COUNTED if declared.counted else _RAW, []).append(name)
    tables[_RAW] = tables.pop(_RAW)  # last
    return {heading: listed for heading, listed in tables.items() if listed}


def table(name: str) -> schema.Table:
    """The declaration of the table `name`; UnknownNameError if there is no such table."""
    return _READER_TABLES.get(name) or declarations(_home(name))[name]


def forms(name: str) -> list[schema.Table]:
    """Declarations of the variants of table `name`, such as grouped ones."""
    if name in _READER_TABLES:
        return []
    values = vars(import_module(_home(name))).values()
    declared = (value for value in values if isinstance(value, schema.Table) and value.name == name)
    return list({form.when: form for form in declared if form.when}.values())  # a module may bind one under two names


def telling(name: str, rows: pl.DataFrame) -> tuple[str, ...]:
    """The most telling columns of the form of table `name` that has these columns."""
    columns = {*rows.columns} - {"instance"}  # the window that a row is of, where a table is made of several
    matches = (form.telling for form in forms(name) if form.telling and {*form.schema} == columns)
    return next(matches, table(name).telling)


def make(report: Report, name: str, *others: Report, **options: object) -> pl.DataFrame:
    """Computes the table `name` of a report; `options` are keywords of its function, ``by`` among them.

    With `others`, reports of the same program by other tools, it joins them all; only tables that say so can. Raises
    UnknownNameError if there is no such table, option or grouping; CannotTellError if the report lacks what it needs.
    """
    declared = table(name)
    by = options.get("by")
    if by is not None and by not in declared.groupings:
        raise errors.UnknownNameError.of(f"grouping of {name}", by, declared.groupings)
    for option in options:
        if option not in ("by", *declared.options, *(_WHERE if declared.together else ())):
            raise errors.UnknownNameError.of(f"option of {name}", schema.flag(option), declared.flags)
    if name in _READER_TABLES:
        return report.table(name)
    frame: pl.DataFrame = getattr(import_module(homes()[name]), name)(report, *others, **options)
    return frame


def sql(report: Report | Sequence[Report], statement: str, **where: Unpack[Where]) -> pl.DataFrame:
    """The answer to an SQL statement over the tables of a report, by the names that ``kanalyze show`` lists.

    Of several reports each table has the rows of all, with a first column `report`. Of a capture, tables that only
    samples tell are of its run with samples, as are their times. Raises what :func:`make` and :func:`answer` do.
    """
    reports = [report] if isinstance(report, Report) else [*report]

    def rows(name: str) -> pl.DataFrame:
        if table(name).together:
            return make(reports[0], name, *reports[1:], **where)
        each = [(str(source.meta.path), _rows(source, name, where)) for source in reports]
        return each[0][1] if len(each) == 1 else of_reports(each)

    return answer(statement, rows)


def _rows(report: Report, name: str, where: Where) -> pl.DataFrame:
    """A table of a report; of a capture that of its run with samples where only samples tell it."""
    other = None
    try:
        rows = make(report.narrow(**where), name)
        if rows.is_empty() and any(name == one.name for one in SAMPLED):
            other = report.sampled()
    except errors.CannotTellError:
        other = report.sampled()
        if other is None:
            raise
    return rows if other is None else make(other.narrow(**where), name)


def answer(
    statement: str,
    rows_of: Callable[[str], pl.DataFrame],
    bounded: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> pl.DataFrame:
    """The answer to a statement over tables that `rows_of` gives by name; it is asked for those alone that are named.

    Polars works within `bounded`, where it may have less than `rows_of`; it opens no files there for itself either.
    Raises UnknownNameError if there is no such table; SqlError for what polars does not understand, or opens files.
    """
    if statement.strip().rstrip(";").casefold().split() == ["show", "tables"]:
        return pl.DataFrame({"name": every_name()})
    tables: dict[str, pl.DataFrame] = {}
    pl.DataFrame().lazy().collect()  # begins what polars holds open
    while True:
        try:
            with bounded():
                _refuse_functions(statement, tables)
                return pl.SQLContext(tables).execute(statement).collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            missing = _UNKNOWN.fullmatch(str(error).partition("\n\nResolved plan")[0])
            if missing is None or missing[1] in tables:
                raise refused(error) from error
            name = missing[1]
        table(name)  # raises where there is none
        # plain texts in place of categories, and integers of which a product does not wrap
        plain = pl.col(pl.Categorical, pl.Enum).cast(str), pl.col(pl.Int32).cast(int)
        tables[name] = pl.DataFrame(rows_of(name)).with_columns(plain)


def _refuse_functions(statement: str, tables: Mapping[str, pl.DataFrame]) -> None:
    """Raise SqlError for functions that open files, however they are spelt.

    Polars plans the statement with their names misspelt, and says which of them it does not have; no file is opened.
    """
    if not _OPENS.search(statement):
        return
    try:
        pl.SQLContext(tables).execute(_OPENS.sub(r"\1q_", statement)).explain()  # plans all of it
    except pl.exceptions.PolarsError as error:
        message = re.sub(r"(rea)q_", r"\1d_", str(error), flags=re.IGNORECASE)
        # what polars says of a function after FROM that it does not have; tests hold it
        if function := re.search(r"'(.*)' is not a supported table function", message, re.DOTALL):
            raise errors.SqlError.of(
                f"{function[1]} opens a file or an address, and a statement sees the tables of the reports alone",
                "Take a table of the reports; `SHOW TABLES` lists them.",
            ) from error
        raise type(error)(message) from error


def refused(error: BaseException) -> errors.SqlError:
    """The error of a user for what polars says of a statement; of that the first paragraph, on one line."""
    return errors.SqlError.of(" ".join(str(error).partition("\n\n")[0].split()).rstrip("."))
