"""Redacts SQLite exports of nsys: copies known-harmless data into a new database.

Deleting from a copy would leave removed data in free pages. Row ids and page size are kept, so that readers that decode
pages see nsys' own layout. One connection has the new database, and the export attached as ``source``.
"""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple

from kanalyze import files
from kanalyze.errors import DamagedReportError, UnknownFormatError
from kanalyze.files import database_uri, page_bytes, quoted
from kanalyze.redact.names import ALLOWED, Names, by_word, is_argument, words
from kanalyze.redact.texts import Texts

#: How a text is redacted (a method of :class:`Texts`, or not at all), and which rows are kept: see allowed.toml.
How = Literal["name", "free", "path", "module", "counters", "blank"]
Rows = Literal["all", "profiled", "sampled", "settings"]

_KNOWN: Final = ALLOWED["nsys"]

#: Settings that are kept, as ``name=value``, by table; a value that cannot identify is written as % there.
_HARMLESS: Final = r"(?:[-+\d.,: TZ]*(?: sec| UTC)?|[A-Za-z]{0,24})"
_SETTINGS: Final = {
    name: re.compile("|".join(patterns).replace("%", _HARMLESS)) for name, patterns in _KNOWN["settings"].items()
}
_SETTINGS["EXPORT_META_DATA"] = _SETTINGS["META_DATA_EXPORT"]

#: Which rows are kept of each table, and the redaction rule of each of its text columns, if it has any.
_ROWS: Final[dict[str, Rows]] = {
    **dict.fromkeys(words(" ".join((_KNOWN["numeric"], _KNOWN["enums"], *_KNOWN["texts"]))), "all"),
    **dict.fromkeys(_SETTINGS, "settings"),
    **dict.fromkeys(words(_KNOWN["profiled"]), "profiled"),
    **dict.fromkeys(words(_KNOWN["sampled"]), "sampled"),
}
_TEXTS: Final[dict[str, dict[str, How]]] = {
    **{name: {"name": "name", "label": "name"} for name in words(_KNOWN["enums"])},
    **_KNOWN["texts"],
}

#: Columns that are kept in every table, and those of them that are emptied, since they identify a device.
_IDENTIFIERS: Final = words(_KNOWN["identifiers"])
_COLUMNS: Final = words(_KNOWN["numbers"]) | _IDENTIFIERS

#: Columns that refer to StringIds, and how those strings are redacted; the rules strictest first, for strings that
#: several columns refer to.
_REFERENCES: Final[dict[str, How]] = by_word(_KNOWN["references"])

#: Tables whose rows show which processes were profiled, and the column.
_PROFILED: Final = by_word(_KNOWN["processes"])

#: Samples, whose ids stacks are told by; what rows of other processes are called in tables of them.
_SAMPLES: Final = "COMPOSITE_EVENTS"
_OF_OTHERS: Final = {
    _SAMPLES: "samples of processes that were not profiled",
    "SAMPLING_CALLCHAINS": "functions in samples of processes that were not profiled",
}

#: Process of a globalTid, by its lowest bit and mask.
_PROCESS: Final = 24
_PROCESSES: Final = (1 << _PROCESS) - 1
_PROCESS_OF_THREAD: Final = f"((globalTid >> {_PROCESS}) & {_PROCESSES})"

_NVTX: Final = "NVTX_EVENTS"

#: Tables whose texts name the machine and its user, and their columns; settings that do, with what takes their value.
_SPEAKING: Final = words(_KNOWN["learned"]["tables"])
_SPOKEN: Final = _KNOWN["learned"]["columns"].split()
_TELLING: Final = [(re.compile(names), getattr(Names, how)) for how, names in _KNOWN["learned"]["settings"].items()]

#: Severity from which a diagnostic is a warning (ENUM_DIAGNOSTIC_SEVERITY_LEVEL).
_WARNING: Final = 2

_PRAGMAS: Final = ("journal_mode = OFF", "synchronous = OFF", "secure_delete = ON", "cache_size = -65536")


def learn(path: Path, names: Names) -> None:
    """Collect identifying names from the export at `path` into `names`."""
    with _opened(path) as database:
        with failed(path, "its list of tables"):
            tables = _tables_of(database)
        if {*_SETTINGS, "TARGET_INFO_SESSION_START_TIME", "StringIds"}.isdisjoint(tables):
            raise UnknownFormatError.of(path, "an SQLite database that nsys did not write")
        for table in tables:
            with failed(path, table):
                _learn_table(database, table, names)


def copy(path: Path, target: Path, texts: Texts) -> None:
    """Write the redacted copy of the export at `path` to `target`; where that is no file, only count the removals."""
    is_counting = target == Path(os.devnull)
    with _opened(path, "" if is_counting else str(target)) as database:
        work = _Copy(database, texts, is_counting=is_counting)
        for table in [name for name in work.columns if name != "StringIds"]:
            with failed(path, table):
                work.table(table)
        if "StringIds" in work.columns:
            with failed(path, "StringIds"):
                work.strings()
        database.commit()


class Column(NamedTuple):
    """A column: the SQL that declares it and that of an empty value; its place in the primary key, from 1, or 0."""

    name: str
    declared: str
    nothing: str
    key: int
    is_row_id: bool


class _Copy:
    """A copy in progress; `columns` are those of the tables in `source`, which is attached to the new database."""

    def __init__(self, database: sqlite3.Connection, texts: Texts, *, is_counting: bool) -> None:
        self._database, self._texts, self._is_counting = database, texts, is_counting
        self.columns = {name: _columns_of(database, name) for name in _tables_of(database)}
        self._used: dict[int, How] = {}  # StringIds that stacks refer to, with the rule for each
        self._domains = self._stack_domains()
        database.create_function("redacted", 2, self._redacted, deterministic=True)
        database.create_function("not_a_number", 0, lambda: 1 / 0)
        database.create_function("python_stack", 1, self._stack)

    def table(self, name: str) -> None:
        """Copy the table `name`, if it is known."""
        rows = _ROWS.get(name)
        if rows is None:
            what = _KNOWN["left_out"].get(name) or f"rows of table {self._texts.free(name)}, which is not known"
            self._texts.removed.add(what, self._number(f"source.{quoted(name)}"))
            return
        columns = self._created(name)
        if rows == "settings":
            self._copy_settings(name, columns)
        elif name in _TEXTS or rows != "all" or not self._is_counting:
            self._insert(name, rows, columns)

    def strings(self) -> None:
        """Copy the strings that kept columns refer to, each by the strictest applicable rule."""
        self._created("StringIds")
        used = self._references()
        rows = self._database.execute("SELECT id, CAST(value AS BLOB) FROM source.StringIds")
        kept = [(number, self._redacted(used[number], value)) for number, value in rows if number in used]
        self._database.executemany("INSERT INTO main.StringIds (id, value) VALUES (?, CAST(? AS TEXT))", kept)
        self._texts.removed.add("texts that no event refers to", self._number("source.StringIds") - len(kept))

    def _number(self, rows: str) -> int:
        """How many `rows` there are, an SQL table with a condition."""
        number: int = self._database.execute(f"SELECT count(*) FROM {rows}").fetchone()[0]
        return number

    def _created(self, name: str) -> list[Column]:
        """Create the table with the columns to keep, taking nothing else from the file's own schema.

        Unknown columns are counted as removed.
        """
        names = _COLUMNS | _TEXTS.get(name, {}).keys()
        for column in self.columns[name]:
            if column.name not in names:
                self._texts.removed.add(f"column {name}.{self._texts.free(column.name)}, which is not known")
        columns = [column for column in self.columns[name] if column.name in names]
        keys = sorted((column for column in columns if column.key), key=lambda column: column.key)
        parts = [column.declared for column in columns]
        parts += [f"PRIMARY KEY ({', '.join(quoted(column.name) for column in keys)})"] if len(keys) > 1 else []
        self._database.execute(f"CREATE TABLE main.{quoted(name)} ({', '.join(parts)})")
        return columns

    def _insert(self, name: str, rows: Rows, columns: list[Column]) -> None:
        expressions = {quoted(column.name): self._expression(name, column) for column in columns}
        if rows == "all" and not any(column.is_row_id for column in columns):  # a gap in row ids is a row lost by nsys
            expressions = {"rowid": "rowid", **expressions}
        source, where = f"source.{quoted(name)}", "TRUE"
        if rows == "profiled":
            where = self._profiled(columns)
        elif rows == "sampled" and _SAMPLES in self.columns:
            where = f"id IN (SELECT id FROM source.{_SAMPLES} WHERE {self._profiled(self.columns[_SAMPLES])})"
        if where != "TRUE":
            what = _OF_OTHERS.get(name, "processes and threads that were not profiled")
            self._texts.removed.add(what, self._number(f"{source} WHERE NOT ({where})"))
        for column in columns:
            if column.name in _IDENTIFIERS:
                kept = self._stack_expression(name, column.name) or "NULL"
                what = "payloads of ranges" if column.name == "binaryData" else "ids and addresses of GPUs"
                is_set = f"coalesce({quoted(column.name)}, '') NOT IN ('', 0)"
                self._texts.removed.add(what, self._number(f"{source} WHERE {is_set} AND ({kept}) IS NULL"))
        self._database.execute(
            f"INSERT INTO main.{quoted(name)} ({', '.join(expressions)}) SELECT {', '.join(expressions.values())} "
            f"FROM {source} WHERE {where} ORDER BY rowid"
        )

    def _expression(self, table: str, column: Column) -> str:
        """SQL for what a column of a table becomes."""
        name, how = quoted(column.name), _TEXTS.get(table, {}).get(column.name)
        if stack := self._stack_expression(table, column.name):
            return stack
        if column.name in _IDENTIFIERS or how == "blank":
            return column.nothing
        if how:
            return f"CAST(redacted('{how}', CAST({name} AS BLOB)) AS TEXT)"
        # SQLite sorts text after numbers, and comparing costs a third of typeof()
        return f"CASE WHEN {name} >= '' THEN not_a_number() ELSE {name} END"

    def _profiled(self, columns: list[Column]) -> str:
        """SQL condition: the row belongs to a profiled process."""
        sql = [
            f"SELECT DISTINCT ({column} >> {_PROCESS}) & {_PROCESSES} FROM source.{table}"
            for table, column in _PROFILED.items()
            if any(column == one.name for one in self.columns.get(table, ()))
        ]
        sql += ["SELECT pid FROM source.TARGET_INFO_CUDA_DEVICE"] if "TARGET_INFO_CUDA_DEVICE" in self.columns else []
        pids = {row[0] for part in sql for row in self._database.execute(part)}
        listed = ", ".join(str(pid) for pid in sorted(pid for pid in pids if isinstance(pid, int)))
        has_pid = any(column.name == "pid" for column in columns)
        return f"{'pid' if has_pid else _PROCESS_OF_THREAD} IN ({listed})"

    def _references(self) -> dict[int, How]:
        """The string ids that kept columns refer to, with the rule for each."""
        used = dict(self._used)
        # rows of processes that were not profiled are gone; all other tables are copied unchanged, or not yet
        sides = {"profiled": "main", "sampled": "main"}
        for table, column in ((table, one.name) for table, columns in self.columns.items() for one in columns):
            how = _REFERENCES.get(column)
            if how is None or table not in _ROWS or table == "StringIds" or column in _TEXTS.get(table, {}):
                continue
            source, name = f"{sides.get(_ROWS[table], 'source')}.{quoted(table)}", quoted(column)
            sql = f"SELECT DISTINCT {name} FROM {source} WHERE typeof({name}) = 'integer'"
            for (number,) in self._database.execute(sql):
                used[number] = min(how, used.get(number, "name"), key=("path", "free", "module", "name").index)
        return used

    def _redacted(self, how: How, value: bytes | None) -> bytes | None:
        if value is None:
            return None
        text: str = getattr(self._texts, how)(value.decode("utf-8", "surrogateescape"))
        return text.encode("utf-8", "surrogateescape")

    def _copy_settings(self, table: str, columns: list[Column]) -> None:
        """Copy the allowlisted rows of a table of settings."""
        removed, option, is_message = self._texts.removed, "", table == "DIAGNOSTIC_EVENT"
        usual = "messages of nsys that are no warnings" if is_message else "settings and properties of the machine"
        gone = by_word(_KNOWN["gone"])
        listed = ", ".join(quoted(column.name) for column in columns)
        marks = ", ".join("CAST(? AS TEXT)" if column.name in _TEXTS[table] else "?" for column in columns)
        insert = f"INSERT INTO main.{quoted(table)} ({listed}) VALUES ({marks})"
        for row in self._database.execute(f"SELECT {listed} FROM source.{quoted(table)} ORDER BY rowid").fetchall():
            values = {column.name: value for column, value in zip(columns, row, strict=True)}
            name, value = str(values.get("name") or ""), str(values.get("value") or values.get("text") or "")
            severity = values.get("severity")
            is_warning = is_message and (not isinstance(severity, int) or severity >= _WARNING)
            if not is_warning and not _SETTINGS[table].fullmatch(value if is_message else f"{name}={value}"):
                removed.add(next((what for part, what in gone.items() if part in name), usual), bool(value))
                continue
            kept = self._texts.path(value) if re.fullmatch(r"PROCESS_\d+:COMMAND", name) else self._texts.free(value)
            if is_argument(option, value):
                kept = self._texts.secret()
            option = value if ":ARGUMENT_" in name else ""
            values |= {"value" if "value" in values else "text": kept, "devStateName": ""}
            cells = (values[column.name] for column in columns)
            texts_as_bytes = [one.encode("utf-8", "surrogateescape") if isinstance(one, str) else one for one in cells]
            self._database.execute(insert, texts_as_bytes)

    # Stacks of Python in payloads of ranges

    def _stack_domains(self) -> str:
        """SQL for processes and domains of nsys' stacks of Python; empty where there can be none."""
        names = {column.name for column in self.columns.get(_NVTX, ())}
        if not names >= {"text", "globalTid", "domainId", "eventType", "binaryData"}:
            return ""
        domains = ", ".join(f"'{name}'" for name in files.DOMAINS)
        where = f"eventType = {files.DOMAIN} AND text IN ({domains})"
        return f"SELECT {_PROCESS_OF_THREAD}, domainId FROM source.{_NVTX} WHERE {where}"

    def _stack_expression(self, table: str, column: str) -> str | None:
        """SQL for the payload of a row if it is a stack of Python, else null; None for columns that hold none."""
        if not self._domains or (table, column) != (_NVTX, "binaryData"):
            return None
        is_stack = f"eventType = {files.MARK} AND ({_PROCESS_OF_THREAD}, domainId) IN ({self._domains})"
        return f"CASE WHEN {is_stack} THEN python_stack({column}) END"

    def _stack(self, payload: object) -> bytes | None:
        stack = files.PythonStack.of(payload)
        if stack is None:
            return None
        for function, file, _ in stack.frames:
            self._used.setdefault(function, "name")
            self._used[file] = "module"
        return stack.packed()


def _learn_table(database: sqlite3.Connection, table: str, names: Names) -> None:
    """Collect identifying names into `names`: of a _SPEAKING table from all texts, of another from those that stay."""
    have = {column.name for column in _columns_of(database, table)}
    stay = _TEXTS.get(table, {}) if table in _ROWS else {}
    fields = _SPOKEN if table in _SPEAKING else [name for name, how in stay.items() if how not in ("blank", "counters")]
    columns, option = [name for name in fields if name in have], ""
    sql = f"SELECT {', '.join(map(quoted, columns))} FROM source.{quoted(table)}"
    for row in database.execute(sql) if columns else ():
        texts = [str(value or "") for value in row]
        for text in texts:
            names.text(text)
            if "\0" in text:
                names.environment(text)
        if columns == ["name", "value"]:
            name, value = texts
            for pattern, learned in _TELLING:
                if pattern.fullmatch(name):
                    learned(names, value)
            if is_argument(option, value):
                names.assigned(value)
            option = value if ":ARGUMENT_" in name else ""


@contextmanager
def _opened(path: Path, target: str = "") -> Iterator[sqlite3.Connection]:
    """Connects to the new database `target`, or to a temporary one, with `path` attached as ``source``.

    Raises DamagedReportError if the file is truncated, or no database; OSError if the target cannot be written.
    """
    page_size = page_bytes(path)
    # undecodable text is copied as bytes
    with closing(sqlite3.connect(target, uri=True, isolation_level=None)) as database:
        database.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        database.set_progress_handler(lambda: 0, 1_000_000)  # allows Ctrl-C
        with failed(path, "its header"):
            for pragma in (f"page_size = {page_size}", *_PRAGMAS):
                database.execute(f"PRAGMA {pragma}")
            database.execute("ATTACH ? AS source", (database_uri(path),))
            database.execute("PRAGMA source.cell_size_check = ON")
            database.execute("PRAGMA source.mmap_size = 268435456")
            database.execute("BEGIN")
            yield database


@contextmanager
def failed(path: Path, where: str) -> Iterator[None]:
    """Convert SQLite errors in table `where` into errors about the file at `path`."""
    try:
        yield
    except sqlite3.Error as error:
        message = str(error)
        if message == "interrupted":
            raise KeyboardInterrupt from error
        # SQLite errors that concern the copy, not the source
        if any(word in message for word in ("full", "readonly", "disk I/O", "unable to open")):
            raise OSError(0, message) from error
        what = "text where numbers belong" if "user-defined function" in message else message
        raise DamagedReportError.at(path, where if where.startswith("its ") else f"table {where}", what) from error


def _tables_of(database: sqlite3.Connection) -> list[str]:
    """Names of the source's tables, in order of creation."""
    sql = "SELECT name FROM source.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    return [str(row[0]) for row in database.execute(sql)]


def _columns_of(database: sqlite3.Connection, table: str) -> list[Column]:
    """Columns of a source table."""
    rows = database.execute(f"PRAGMA source.table_info({quoted(table)})").fetchall()
    is_alone = sum(1 for row in rows if row[5]) == 1
    columns = []
    for _, name, declared, is_required, _, key in rows:
        kind = str(declared).upper() if re.fullmatch(r"[A-Za-z ]{1,24}", str(declared)) else ""
        parts = (quoted(str(name)), kind, "NOT NULL" * is_required, "PRIMARY KEY" if key and is_alone else "")
        empty = ("''" if "TEXT" in kind else "0") if is_required else "NULL"
        is_row_id = bool(key) and is_alone and kind == "INTEGER"
        columns.append(Column(str(name), " ".join(filter(None, parts)), empty, key, is_row_id))
    return columns
