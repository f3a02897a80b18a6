"""Redacts SQLite exports of nsys: copies known-harmless data into a new database.

Deleting from a copy would leave removed data in free pages. Row ids and page size are kept, so that readers that decode
pages see nsys' own layout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from kanalyze.errors import UnknownFormatError
from kanalyze.files import python_stacks
from kanalyze.redact.rules import ALLOWED, words
from kanalyze.redact.rules.assigned import is_argument
from kanalyze.redact.rules.names import Names
from kanalyze.redact.sqlite_files import columns_of, failed, holds, opened, quoted, tables_of

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from kanalyze.redact.rules.texts import Texts
    from kanalyze.redact.sqlite_files import Column

#: How a text is redacted (a method of :class:`Texts`, or not at all), and which rows are kept: see allowed.toml.
How = Literal["name", "free", "path", "module", "counters", "blank"]
Rows = Literal["all", "profiled", "sampled", "settings"]


class Table(NamedTuple):
    """What is kept of one table.

    Attributes:
        texts: The redaction rule of each text column.
        rows: Which rows are kept; row ids are where all are, since a gap in them is a row lost by nsys.
    """

    texts: dict[str, How]
    rows: Rows


def _known_tables() -> dict[str, Table]:
    """The tables of allowed.toml."""
    enums: dict[str, dict[str, How]] = {name: {"name": "name", "label": "name"} for name in words(_KNOWN["enums"])}
    texts: dict[str, dict[str, How]] = _KNOWN["texts"] | enums
    some: tuple[Rows, ...] = ("profiled", "sampled", "settings")
    rows: dict[str, Rows] = {name: kind for kind in some for name in words(_KNOWN[kind])}
    names = words(_KNOWN["numeric"]) | rows.keys() | texts.keys()
    return {name: Table(texts.get(name, {}), rows.get(name, "all")) for name in names}


_KNOWN: Final = ALLOWED["nsys"]
TABLES: Final = _known_tables()

#: Columns that are kept in every table, and those of them that are emptied, since they identify a device.
_IDENTIFIERS: Final = words(_KNOWN["identifiers"])
_COLUMNS: Final = words(_KNOWN["numbers"]) | _IDENTIFIERS

#: Columns that refer to StringIds, and how those strings are redacted.
REFERENCES: Final[dict[str, How]] = {name: how for how, names in _KNOWN["references"].items() for name in names.split()}

#: Tables whose rows show which processes were profiled, and the column.
_PROFILED: Final = {table: column for column, names in _KNOWN["processes"].items() for table in names.split()}

#: Samples, whose ids stacks are told by.
SAMPLES: Final = "COMPOSITE_EVENTS"

#: Tables of which any shows that nsys wrote the database.
_SIGNS: Final = frozenset(
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
    """Collect identifying names from the export at `path` into `names`.

    Raises:
        UnknownFormatError: It is a database that nsys did not write.
        DamagedReportError: A table cannot be read.
    """
    if not holds(path, _SIGNS):
        raise UnknownFormatError.of(path, "an SQLite database that nsys did not write")
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
        self._stacks = PythonStacks(self.database)

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
        known = _COLUMNS | spec.texts.keys()
        for column in columns:
            if column.name not in known:
                self.texts.removed.add(f"column {name}.{self.texts.free(column.name)}, which is not known")
        return [column for column in columns if column.name in known]

    def _insert(self, name: str, spec: Table, columns: list[Column], have: list[str]) -> None:
        made = {quoted(column.name): self._expression(name, spec, column) for column in columns}
        if spec.rows == "all" and not any(column.is_row_id for column in columns):
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
            if column.name in _IDENTIFIERS:
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
        if column.name in _IDENTIFIERS or how == "blank":
            return column.nothing
        if how:
            return f"CAST(redacted('{how}', CAST({name} AS BLOB)) AS TEXT)"
        # SQLite sorts text after numbers, and comparing costs a third of typeof()
        return f"CASE WHEN {name} >= '' THEN not_a_number() ELSE {name} END"

    def _profiled(self, columns: list[Column], have: list[str]) -> str:
        """SQL condition: the row belongs to a profiled process."""
        sql = [
            f"SELECT DISTINCT ({column} >> {_PROCESS}) & {_PROCESSES} FROM source.{table}"
            for table, column in _PROFILED.items()
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
        rule = getattr(self.texts, how)
        made: str = rule(value.decode("utf-8", "surrogateescape"))
        return made.encode("utf-8", "surrogateescape")


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

    def __init__(self, database: sqlite3.Connection) -> None:
        """Look for nsys' domains of Python stacks in the attached `source`."""
        columns = {column.name for column in columns_of(database, _NVTX)}
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

#: Tables left out on purpose, and what their rows are; what removed settings are, by a part of their name.
_EXPECTED: Final = _KNOWN["left_out"]
_GONE: Final = _KNOWN["gone"]

#: Settings that names are collected from, each with what takes them.
_TELLING: Final = (
    (re.compile(r"Hostname|EXPORT_HOST|DEVICE_DISPLAY_NAME"), Names.host),
    (re.compile(r"(?:PROCESS_\d+:)?USER_NAME|EXPORT_USER"), Names.user),
    (re.compile(r"(?:PROCESS_\d+:)?WORKING_DIR|TargetInstallDir"), Names.folder),
    (re.compile(r"(?:PROCESS_\d+:)?ENVIRONMENT_VARIABLE|DeviceEnvironment"), Names.environment),
)
_PATHS: Final = re.compile(r"PROCESS_\d+:COMMAND")

#: A value that cannot identify: a switch, a number, a version, a time, or a word of nsys.
_HARMLESS: Final = r"(?:[-+\d.,: TZ]*(?: sec| UTC)?|[A-Za-z]{0,24})"

#: Settings that are kept, as ``name=value``, by table.
_SETTINGS: Final[dict[str, re.Pattern[str]]] = {
    "META_DATA_CAPTURE": re.compile(
        rf"(?:PROCESS_\d+:)?(?:COLLECT_\w+|CUDA_\w+(?::\w+)?|HOW_TO_ATTACH|LAUNCH_AS_ROOT|SAMPLING_\w+(?::\w+)?)={_HARMLESS}"
        rf"|(?:CAPTURE_EVENT_TYPE|(?:START|STOP)_TRIGGER|DEVICE_TYPE|\w+_(?:HZ|FREQ|MS|ENABLED)|COLLECT_\w+|USE_\w+|TRACE_\w+"
        rf"|INCLUDE_CHILDREN|SHOW_BACKTRACE|SAMPLE_ALL_TASKS|RESUME|RUN_DURATION_\w+|START_\w+|DISABLE_TIME_SYNC"
        rf"|NVTX_OPTIONS:\w+_(?:KEY|VALUE|INCLUDE)|SYMBOL_RESOLUTION_OPTIONS:\w+)={_HARMLESS}"
        r"|PROCESS_\d+:(?:COMMAND|ARGUMENT_\d+|NVTX_\w+)=.*|NVTX_OPTIONS:NVTX_DOMAIN_FILTER_STRING=.*",
        re.DOTALL,
    ),
    **dict.fromkeys(
        ("META_DATA_EXPORT", "EXPORT_META_DATA"),
        re.compile(
            rf"EXPORT_(?:PRODUCT_(?:NAME=[A-Za-z ]*|VERSION=[\d.]*|DATE=[\w.]*)|(?:SCHEMA_\w+|TIME_UTC)={_HARMLESS}"
            rf"|(?:PLATFORM|ARCH)=[\w-]*|PARAM_(?:OVERWRITE|APPEND|LAZY|TIME_NORMALIZE|TIME_SHIFT)={_HARMLESS}"
            rf"|CONFIG_TIME_SHIFT={_HARMLESS}|TIME={_HARMLESS}|PARAM_(?:INPUT|OUTPUT)_FILE=[^/\\]*)"
        ),
    ),
    "TARGET_INFO_SYSTEM_ENV": re.compile(
        r"(?:CpuCores|CpuSpeedMhz|CpuEmcSpeedMhz|NvDriverVersion|CudaDriverVersion|LinuxParanoidLevel|ExportLevel)=[\d.]*"
        r"|(?:CpuArchitecture|SupportedABIs|Supported64BitABIs|HardwarePlatform|SoftwarePlatform)=[\w,-]*"
        r"|(?:Is[A-Z]|Has|Supports|dpti)\w*=\d{0,2}|CpuDescription=[\w ()@.,-]*|OsDescription=[\w ().,/-]*"
    ),
    #: Informational diagnostics of nsys that are kept; all warnings and errors are, since some report lost records.
    "DIAGNOSTIC_EVENT": re.compile(
        r"Profiling has (?:started|stopped)\.|Number of [A-Za-z]+ events (?:collected|produced): .[\d,]*.*"
        r"|[\w -]+ initialized successfully\.|Buffers holding CUDA trace data .*|Enabling trace for [a-z ]+"
    ),
}

#: Severity from which a diagnostic is a warning (ENUM_DIAGNOSTIC_SEVERITY_LEVEL).
_WARNING: Final = 2


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
    for pattern, learned in _TELLING:
        if pattern.fullmatch(name):
            learned(names, value)
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
        return not isinstance(severity, int) or severity >= _WARNING or bool(_SETTINGS[table].fullmatch(value))
    return bool(_SETTINGS[table].fullmatch(f"{name}={value}"))


def _gone(table: str, name: str) -> str:
    if table == "DIAGNOSTIC_EVENT":
        return "messages of nsys that are no warnings"
    return next((what for part, what in _GONE.items() if part in name), "settings and properties of the machine")


def _bytes(value: object) -> object:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
