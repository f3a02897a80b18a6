"""Redacts SQLite exports of nsys: copies known-harmless data into a new database.

Deleting from a copy would leave removed data in free pages. Row ids and page size are kept, so that readers that decode
pages see nsys' own layout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kanalyze.files import python_stacks
from kanalyze.redact.nsys_known import (
    IDENTIFIERS,
    NUMBERS,
    PROFILED,
    REFERENCES,
    SAMPLES,
    SETTINGS,
    TABLES,
    WARNING,
    Table,
)
from kanalyze.redact.rules.assigned import is_argument
from kanalyze.redact.sqlite_files import columns_of, failed, opened, quoted, tables_of

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from kanalyze.redact.nsys_known import How
    from kanalyze.redact.rules.names import Names
    from kanalyze.redact.rules.texts import Texts
    from kanalyze.redact.sqlite_files import Column

#: Tables of which any shows that nsys wrote the database.
SIGNS: Final = frozenset(
    ("META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE", "TARGET_INFO_SESSION_START_TIME", "StringIds")
)

#: Redaction rules for strings, strictest first, for those referred to by several columns.
_STRICTEST: Final[tuple[How, ...]] = ("path", "free", "module", "name")

#: Process of a globalTid, by its lowest bit and mask.
_PROCESS: Final = 24
_PROCESSES: Final = (1 << _PROCESS) - 1

#: Kinds of rows that are of profiled processes alone, and what others are called where they are samples.
_OF_PROCESSES: Final = ("profiled", "sampled")
_SAMPLED: Final = {
    SAMPLES: "samples of processes that were not profiled",
    "SAMPLING_CALLCHAINS": "functions in samples of processes that were not profiled",
}

_NVTX: Final = "NVTX_EVENTS"


def learn(path: Path, names: Names) -> None:
    """Collect identifying names from the export at `path` into `names`."""
    with opened(path) as database:
        for table in tables_of(database):
            with failed(path, table):
                _learn_table(database, table, names)


def copy(path: Path, target: Path | None, texts: Texts) -> None:
    """Write the redacted copy of the export at `path` to `target`; without a target, only count the removals.

    Raises:
        DamagedReportError: A table cannot be read, or holds text where numbers belong.
        OSError: The target cannot be written.
    """
    with opened(path, target) as database:
        have = tables_of(database)
        work = _Copy(path, database, texts, counting=target is None)
        for table in have:
            with failed(path, table):
                work.table(table, have)
        if "StringIds" in have:
            with failed(path, "StringIds"):
                work.strings(have)
        database.commit()


@dataclass
class _Copy:
    """A copy in progress: `source` is attached to the new database's connection."""

    path: Path
    database: sqlite3.Connection
    texts: Texts
    counting: bool

    def __post_init__(self) -> None:
        self.database.create_function("redacted", 2, self._redacted, deterministic=True)
        self.database.create_function("not_a_number", 0, _refuse)
        columns = {column.name for column in columns_of(self.database, "NVTX_EVENTS")}
        self._stacks = PythonStacks(self.database, columns)

    def table(self, name: str, have: list[str]) -> None:
        """Copy the table `name`, if it is known."""
        spec = TABLES.get(name)
        if spec is None:
            self._left_out(name)
        elif name != "StringIds":
            columns = self._kept(name, spec)
            self.database.execute(_created(name, columns))
            if spec.rows == "settings":
                _copy_settings(self.database, name, columns, self.texts)
            elif spec.texts or spec.rows in _OF_PROCESSES or not self.counting:
                self._insert(name, spec, columns, have)

    def strings(self, have: list[str]) -> None:
        """Copy the strings that kept columns refer to, each by the strictest applicable rule."""
        columns = self._kept("StringIds", TABLES["StringIds"])
        self.database.execute(_created("StringIds", columns))
        used = self._used(have)
        rows = self.database.execute("SELECT id, CAST(value AS BLOB) FROM source.StringIds")
        kept = [(number, self._redacted(used[number], value)) for number, value in rows if number in used]
        self.database.executemany("INSERT INTO main.StringIds (id, value) VALUES (?, CAST(? AS TEXT))", kept)
        total = self.database.execute("SELECT count(*) FROM source.StringIds").fetchone()[0]
        self.texts.removed.add("texts that no event refers to", total - len(kept))

    def _left_out(self, name: str) -> None:
        rows = self.database.execute(f"SELECT count(*) FROM source.{quoted(name)}").fetchone()[0]
        known = _EXPECTED.get(name)
        self.texts.removed.add(known or f"rows of table {self.texts.free(name)}, which is not known", rows)

    def _kept(self, name: str, spec: Table) -> list[Column]:
        """The columns to keep; unknown ones are counted as removed."""
        columns = columns_of(self.database, name)
        known = NUMBERS | IDENTIFIERS | spec.texts.keys()
        for column in columns:
            if column.name not in known:
                self.texts.removed.add(f"column {name}.{self.texts.free(column.name)}, which is not known")
        return [column for column in columns if column.name in known]

    def _insert(self, name: str, spec: Table, columns: list[Column], have: list[str]) -> None:
        made = {quoted(column.name): self._expression(name, spec, column) for column in columns}
        if spec.numbered and not any(column.is_row_id for column in columns):
            made = {"rowid": "rowid", **made}
        where = "TRUE"
        if spec.rows == "profiled":
            where = self._profiled(columns, have)
        elif spec.rows == "sampled" and SAMPLES in have:
            own = self._profiled(columns_of(self.database, SAMPLES), have)
            where = f"id IN (SELECT id FROM source.{SAMPLES} WHERE {own})"
        self._count(name, columns, where)
        self.database.execute(
            f"INSERT INTO main.{quoted(name)} ({', '.join(made)}) SELECT {', '.join(made.values())} "
            f"FROM source.{quoted(name)} WHERE {where} ORDER BY rowid"
        )

    def _count(self, name: str, columns: list[Column], where: str) -> None:
        """Count removed rows and device ids."""
        table = f"source.{quoted(name)}"
        if where != "TRUE":
            gone = self.database.execute(f"SELECT count(*) FROM {table} WHERE NOT ({where})").fetchone()[0]
            what = "processes and threads that were not profiled"
            self.texts.removed.add(_SAMPLED.get(name, what), gone)
        for column in columns:
            if column.name in IDENTIFIERS:
                kept = self._stacks.expression(name, column.name) or "NULL"
                sql = (
                    f"SELECT count(*) FROM {table} "
                    f"WHERE coalesce({quoted(column.name)}, '') NOT IN ('', 0) AND ({kept}) IS NULL"
                )
                what = "payloads of ranges" if column.name == "binaryData" else "ids and addresses of GPUs"
                self.texts.removed.add(what, self.database.execute(sql).fetchone()[0])

    def _expression(self, table: str, spec: Table, column: Column) -> str:
        name = quoted(column.name)
        how = spec.texts.get(column.name)
        if stack := self._stacks.expression(table, column.name):
            return stack
        if column.name in IDENTIFIERS or how == "blank":
            return column.nothing
        if how:
            return f"CAST(redacted('{how}', CAST({name} AS BLOB)) AS TEXT)"
        # SQLite sorts text after numbers, and comparing costs a third of typeof()
        return f"CASE WHEN {name} >= '' THEN not_a_number() ELSE {name} END"

    def _profiled(self, columns: list[Column], have: list[str]) -> str:
        """SQL condition: the row belongs to a profiled process."""
        sql = [
            f"SELECT DISTINCT ({column} >> {_PROCESS}) & {_PROCESSES} FROM source.{table}"
            for table, column in PROFILED.items()
            if table in have and any(column == found.name for found in columns_of(self.database, table))
        ]
        if "TARGET_INFO_CUDA_DEVICE" in have:
            sql.append("SELECT pid FROM source.TARGET_INFO_CUDA_DEVICE")
        pids = {row[0] for part in sql for row in self.database.execute(part)}
        listed = ", ".join(str(pid) for pid in sorted(pid for pid in pids if isinstance(pid, int)))
        found = {column.name for column in columns}
        pid = "pid" if "pid" in found else f"((globalTid >> {_PROCESS}) & {_PROCESSES})"
        return f"{pid} IN ({listed})"

    def _used(self, have: list[str]) -> dict[int, How]:
        """The string ids that kept columns refer to, with the rule for each."""
        used = dict(self._stacks.used)
        order = {how: rank for rank, how in enumerate(_STRICTEST)}
        for table in (name for name in have if name in TABLES and name != "StringIds"):
            # rows of processes that were not profiled are gone; all other tables are copied unchanged, or not yet
            side = "main" if TABLES[table].rows in _OF_PROCESSES else "source"
            for column in columns_of(self.database, table):
                how = REFERENCES.get(column.name)
                if how is None or column.name in TABLES[table].texts:
                    continue
                name = quoted(column.name)
                sql = f"SELECT DISTINCT {name} FROM {side}.{quoted(table)} WHERE typeof({name}) = 'integer'"
                for (number,) in self.database.execute(sql):
                    if order[how] <= order[used.get(number, "name")]:
                        used[number] = how
        return used

    def _redacted(self, how: How, value: bytes | None) -> bytes | None:
        if value is None:
            return None
        text = value.decode("utf-8", "surrogateescape")
        texts = self.texts
        rules = {
            "name": texts.name,
            "free": texts.free,
            "path": texts.path,
            "module": texts.module,
            "counters": texts.counters,
        }
        return rules[how](text).encode("utf-8", "surrogateescape")


def _created(name: str, columns: list[Column]) -> str:
    """SQL that creates the table with these columns, taking nothing else from the file's own schema."""
    keys = [column for column in columns if column.key]
    parts = [column.declared(alone=len(keys) == 1) for column in columns]
    if len(keys) > 1:
        listed = ", ".join(quoted(column.name) for column in sorted(keys, key=lambda column: column.key))
        parts.append(f"PRIMARY KEY ({listed})")
    return f"CREATE TABLE main.{quoted(name)} ({', '.join(parts)})"


def _refuse() -> None:
    raise TypeError


class PythonStacks:
    """Stacks of one export.

    Attributes:
        used: StringIds that the stacks kept so far refer to, with the rule for each.
    """

    def __init__(self, database: sqlite3.Connection, columns: set[str]) -> None:
        """Look for nsys' domains of Python stacks in the attached `source`, whose events have these `columns`."""
        self.used: dict[int, How] = {}
        self._domains: set[tuple[int, int]] = set()
        if columns >= {"text", "globalTid", "domainId", "eventType", "binaryData"}:
            names = ", ".join(f"'{name}'" for name in python_stacks.DOMAINS)
            sql = f"SELECT globalTid, domainId FROM source.{_NVTX} WHERE eventType = ? AND text IN ({names})"
            self._domains = {
                (thread >> _PROCESS & _PROCESSES, domain)
                for thread, domain in database.execute(sql, (python_stacks.DOMAIN,))
                if isinstance(thread, int) and isinstance(domain, int)
            }
        database.create_function("python_stack", 3, self._kept)

    def expression(self, table: str, column: str) -> str | None:
        """SQL for the payload of a row if it is a stack, else null; None for columns that hold none."""
        if not self._domains or (table, column) != (_NVTX, "binaryData"):
            return None
        return (
            f"CASE WHEN eventType = {python_stacks.MARK} AND {column} IS NOT NULL "
            f"THEN python_stack(globalTid, domainId, {column}) END"
        )

    def _kept(self, thread: object, domain: object, payload: object) -> bytes | None:
        data = payload.encode() if isinstance(payload, str) else payload
        if not (isinstance(thread, int) and isinstance(domain, int) and isinstance(data, bytes)):
            return None
        if (thread >> _PROCESS & _PROCESSES, domain) not in self._domains:
            return None
        stack = python_stacks.unpacked(data)
        if stack is None:
            return None
        for function, file, _ in stack.frames:
            self.used.setdefault(function, "name")
            self.used[file] = "module"
        return python_stacks.packed(stack)


# Tables that describe the recording: names are collected from them, and a few settings kept.

#: Tables whose texts name the machine and its user.
_SPEAKING: Final = frozenset(
    (
        *("META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_SYSTEM_ENV", "DIAGNOSTIC_EVENT"),
        *("PROCESSES", "StringIds", "ANALYSIS_FILE"),
    )
)

_SPOKEN: Final = ("name", "value", "text", "filename", "content")

#: Tables left out on purpose, and what their rows are.
_EXPECTED: Final = {
    "ANALYSIS_FILE": "outputs and environments of processes",
    "ProcessStreams": "outputs and environments of processes",
}

#: The kind that removed settings are counted as, by a part of their name.
_GONE: Final = (
    ("ENVIRONMENT", "variables of the environment"),
    ("DeviceEnvironment", "variables of the environment"),
    ("UUID", "ids of sessions and machines"),
    ("UID", "ids of sessions and machines"),
    ("SESSION", "ids of sessions and machines"),
    ("HOST", "host names"),
    ("Hostname", "host names"),
    ("DISPLAY_NAME", "host names"),
    ("USER", "user names"),
    ("PATH", "paths"),
    ("DIR", "paths"),
    ("Dir", "paths"),
)

_HOSTS: Final = re.compile(r"Hostname|EXPORT_HOST|DEVICE_DISPLAY_NAME")
_USERS: Final = re.compile(r"(?:PROCESS_\d+:)?USER_NAME|EXPORT_USER")
_FOLDERS: Final = re.compile(r"(?:PROCESS_\d+:)?WORKING_DIR|TargetInstallDir")
_VARIABLE: Final = re.compile(r"(?:PROCESS_\d+:)?ENVIRONMENT_VARIABLE")
_PATHS: Final = re.compile(r"PROCESS_\d+:COMMAND")


def _learn_table(database: sqlite3.Connection, table: str, names: Names) -> None:
    """Collect identifying names into `names`: of a _SPEAKING table from all texts, of another from those that stay."""
    have = [column.name for column in columns_of(database, table)]
    stay = TABLES[table].texts if table in TABLES else {}
    wanted = _SPOKEN if table in _SPEAKING else [name for name, how in stay.items() if how not in ("blank", "counters")]
    texts = [name for name in wanted if name in have]
    if not texts:
        return
    rows = database.execute(f"SELECT {', '.join(map(quoted, texts))} FROM source.{quoted(table)}")
    if texts == ["name", "value"]:
        option = ""
        for name, value in rows:
            _learn_setting(str(name), str(value or ""), names)
            if is_argument(option, value):
                names.assigned(value)
            option = str(value) if ":ARGUMENT_" in str(name) else ""
        return
    for row in rows:
        for value in row:
            text = str(value or "")
            names.text(text)
            if "\0" in text:
                names.environment(text)


def _learn_setting(name: str, value: str, names: Names) -> None:
    if _HOSTS.fullmatch(name):
        names.host(value)
    elif _USERS.fullmatch(name):
        names.user(value)
    elif _FOLDERS.fullmatch(name):
        names.folder(value)
    elif _VARIABLE.fullmatch(name) or name == "DeviceEnvironment":
        names.environment(value)
    names.text(value)


def _copy_settings(database: sqlite3.Connection, table: str, columns: list[Column], texts: Texts) -> None:
    """Copy the allowlisted rows of a table of settings."""
    listed = ", ".join(quoted(column.name) for column in columns)
    places = [column.name for column in columns]
    marks = ", ".join("CAST(? AS TEXT)" if column.name in _TEXTS else "?" for column in columns)
    option = ""
    for row in database.execute(f"SELECT {listed} FROM source.{quoted(table)} ORDER BY rowid").fetchall():
        values = dict(zip(places, row, strict=True))
        name, value = str(values.get("name") or ""), str(values.get("value") or values.get("text") or "")
        if not _stays(table, name, value, values.get("severity")):
            texts.removed.add(_gone(table, name), bool(value))
            continue
        kept = texts.path(value) if _PATHS.fullmatch(name) else texts.free(value)
        if is_argument(option, value):
            texts.removed.add("secrets")
            kept = "[secret]"
        option = value if ":ARGUMENT_" in name else ""
        values.update({"value" if "value" in values else "text": kept, "devStateName": ""})
        database.execute(
            f"INSERT INTO main.{quoted(table)} ({listed}) VALUES ({marks})", [_bytes(values[place]) for place in places]
        )


_TEXTS: Final = frozenset(("name", "value", "text", "devStateName"))


def _stays(table: str, name: str, value: str, severity: object) -> bool:
    if table == "DIAGNOSTIC_EVENT":
        return not isinstance(severity, int) or severity >= WARNING or bool(SETTINGS[table].fullmatch(value))
    return bool(SETTINGS[table].fullmatch(f"{name}={value}"))


def _gone(table: str, name: str) -> str:
    if table == "DIAGNOSTIC_EVENT":
        return "messages of nsys that are no warnings"
    return next((what for part, what in _GONE if part in name), "settings and properties of the machine")


def _bytes(value: object) -> object:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
