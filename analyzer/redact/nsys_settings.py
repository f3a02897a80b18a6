"""Redacts the nsys tables that describe the recording: collects names from them, keeps a few settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kanalyze.redact.nsys_known import SETTINGS, TABLES, WARNING
from kanalyze.redact.rules.assigned import is_argument
from kanalyze.redact.sqlite_files import columns_of, quoted

if TYPE_CHECKING:
    import sqlite3

    from kanalyze.redact.rules.names import Names
    from kanalyze.redact.rules.texts import Texts
    from kanalyze.redact.sqlite_files import Column

#: Tables whose texts name the machine and its user.
SPEAKING: Final = frozenset(
    (
        *("META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_SYSTEM_ENV", "DIAGNOSTIC_EVENT"),
        *("PROCESSES", "StringIds", "ANALYSIS_FILE"),
    )
)

_SPOKEN: Final = ("name", "value", "text", "filename", "content")

#: Tables left out on purpose, and what their rows are.
EXPECTED: Final = {
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


def learn(database: sqlite3.Connection, table: str, names: Names) -> None:
    """Collect identifying names into `names`: of a SPEAKING table from all texts, of another from those that stay."""
    have = [column.name for column in columns_of(database, table)]
    stay = TABLES[table].texts if table in TABLES else {}
    wanted = _SPOKEN if table in SPEAKING else [name for name, how in stay.items() if how not in ("blank", "counters")]
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


def copy(database: sqlite3.Connection, table: str, columns: list[Column], texts: Texts) -> None:
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
