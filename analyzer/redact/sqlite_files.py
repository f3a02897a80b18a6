"""One SQLite connection to the source database and its redacted copy."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from kanalyze.errors import DamagedReportError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEADER_BYTES: Final = 100
_STEPS: Final = 1_000_000

#: SQLite errors that concern the copy, not the source.
_UNWRITABLE: Final = ("full", "readonly", "disk I/O", "unable to open")


@dataclass(frozen=True)
class Column:
    """A declared column; `key` is its position in the primary key, from 1, or 0."""

    name: str
    type: str
    required: bool
    default: str | None
    key: int
    is_row_id: bool

    @property
    def nothing(self) -> str:
        """SQL for an empty value."""
        if not self.required:
            return "NULL"
        return "''" if "TEXT" in self.type else "0"

    def declared(self, *, alone: bool) -> str:
        """SQL that declares the column; `alone`: it is the whole primary key."""
        default = self.default if self.default and re.fullmatch(r"-?\d+(?:\.\d+)?|NULL|''", self.default) else None
        words = (
            quoted(self.name),
            self.type,
            "NOT NULL" if self.required else "",
            "PRIMARY KEY" if self.key and alone else "",
            f"DEFAULT {default}" if default else "",
        )
        return " ".join(word for word in words if word)


@contextmanager
def opened(path: Path, target: Path | None = None) -> Iterator[sqlite3.Connection]:
    """Connects to the new database `target`, or to a temporary one, with `path` attached as ``source``.

    Raises:
        DamagedReportError: The file is truncated, or no database.
        OSError: The target cannot be written.
    """
    page_bytes = _page_bytes(path)
    # undecodable text is copied as bytes
    with closing(sqlite3.connect(str(target or ""), uri=True, isolation_level=None)) as database:
        database.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        database.set_progress_handler(lambda: 0, _STEPS)  # allows Ctrl-C
        with failed(path, "its header"):
            for pragma in (
                f"page_size = {page_bytes}",
                "journal_mode = OFF",
                "synchronous = OFF",
                "secure_delete = ON",
                "cache_size = -65536",
            ):
                database.execute(f"PRAGMA {pragma}")
            database.execute("ATTACH ? AS source", (_uri(path),))
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
        said = str(error)
        if said == "interrupted":
            raise KeyboardInterrupt from error
        if any(word in said for word in _UNWRITABLE):
            raise OSError(0, said) from error
        what = "text where numbers belong" if "user-defined function" in said else said
        place = where if where.startswith("its ") else f"table {where}"
        raise DamagedReportError.at(path, place, what) from error


def holds(path: Path, tables: frozenset[str]) -> bool:
    """Whether the database at `path` has any of these tables."""
    with opened(path) as database, failed(path, "its list of tables"):
        return not tables.isdisjoint(tables_of(database))


def tables_of(database: sqlite3.Connection) -> list[str]:
    """Names of the source's tables, in order of creation."""
    sql = "SELECT name FROM source.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    return [str(row[0]) for row in database.execute(sql)]


def columns_of(database: sqlite3.Connection, table: str) -> list[Column]:
    """Columns of a source table."""
    rows = database.execute(f"PRAGMA source.table_info({quoted(table)})").fetchall()
    keys = sum(1 for row in rows if row[5])
    return [
        Column(
            str(name),
            declared if re.fullmatch(r"[A-Za-z ]{1,24}", declared := str(kind).upper()) else "",
            bool(required),
            default,
            key,
            is_row_id=bool(key) and keys == 1 and str(kind).upper() == "INTEGER",
        )
        for _, name, kind, required, default, key in rows
    ]


def quoted(name: str) -> str:
    """`name` quoted as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _page_bytes(path: Path) -> int:
    """The file's page size; refuses a file shorter than its header says."""
    with path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
    if len(head) < _HEADER_BYTES:
        raise DamagedReportError.at(path, "its header", f"the file ends after {len(head)} bytes")
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    pages, valid, size = int.from_bytes(head[28:32], "big"), head[24:28] == head[92:96], path.stat().st_size
    if valid and size < pages * page:
        raise DamagedReportError.at(path, f"page {size // page + 1} of {pages}", f"the file ends after {size:,} bytes")
    return page


def _uri(path: Path) -> str:
    log = path.with_name(path.name + "-wal")
    immutable = "" if log.exists() and log.stat().st_size else "&immutable=1"
    return f"file:{quote(os.fsencode(path.absolute()))}?mode=ro{immutable}"
