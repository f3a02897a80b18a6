"""Makes a large nsys report of a real one: its events again and again, later and with correlation ids of their own.

    python benchmarks/make_report.py tests/reports/torch.sqlite big.sqlite --copies 124

Names, kernels, machine and process stay those of the real report; so do the shares of the ledger, all but what
happens once per process. The tables are written in turns, as a tool writes them that records as time passes, so that
their pages lie among each other in the file.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

#: What happens all the time, and is repeated. Overheads, contexts and page faults happen once.
_TABLES: Final = (
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
)

#: Calls that look up an entry point: a process makes a thousand of them when it starts, and none later.
_ONCE: Final = "SELECT id FROM StringIds WHERE value LIKE 'cuGetProcAddress%'"

#: Between the end of one copy and the start of the next.
_PAUSE_NS: Final = 1000


def main() -> None:
    """Make the report that the command line asks for, and say what is in it."""
    parser = argparse.ArgumentParser(description="Make a large nsys report of a real one.")
    parser.add_argument("report", type=Path, help="the real one: an .sqlite file of nsys")
    parser.add_argument("out", type=Path, help="the file to write; replaced if it is there")
    parser.add_argument("--copies", type=int, default=124, help="how often every event is in it (default: 124)")
    options = parser.parse_args()
    shutil.copyfile(options.report, options.out)
    with closing(sqlite3.connect(options.out, isolation_level=None)) as connection:
        for statement in ("PRAGMA journal_mode = off", "PRAGMA synchronous = off", "BEGIN"):
            connection.execute(statement)
        repeat(connection, options.copies)
        connection.execute("COMMIT")
        for table in _present(connection):
            count = _number(connection, f"SELECT count(*) FROM {table}")
            print(f"{count:>13,}  {table}")
    print(f"{options.out.stat().st_size:>13,}  bytes")


def repeat(connection: sqlite3.Connection, copies: int) -> None:
    """Add to every table of events as many copies of its rows as make it `copies` times as long."""
    tables = _present(connection)
    start = min(_number(connection, f"SELECT min(start) FROM {table}") for table in tables)
    span = max(_number(connection, f'SELECT max("end") FROM {table}') for table in tables) - start + _PAUSE_NS
    ids = 1 + max(
        _number(connection, f"SELECT max(correlationId) FROM {table}")
        for table in tables
        if "correlationId" in _columns(connection, table)
    )
    inserts = [_insert(connection, table) for table in tables]
    for copy in range(1, copies):
        shift = {"time": copy * span, "ids": copy * ids}
        for insert in inserts:
            connection.execute(insert, shift)
    added = {"ns": (copies - 1) * span}
    connection.execute("UPDATE ANALYSIS_DETAILS SET duration = duration + :ns, stopTime = stopTime + :ns", added)


def _insert(connection: sqlite3.Connection, table: str) -> str:
    """The statement that adds one copy of the first rows of `table`, `:time` later and with ids `:ids` higher."""
    shifted = {
        "start": '"start" + :time',
        "end": '"end" + :time',
        "correlationId": "iif(correlationId = 0, 0, correlationId + :ids)",
    }
    values = ", ".join(shifted.get(name, f'"{name}"') for name in _columns(connection, table))
    last = _number(connection, f"SELECT max(rowid) FROM {table}")
    once = f" AND nameId NOT IN ({_ONCE})" if table.endswith("RUNTIME") else ""
    return f"INSERT INTO {table} SELECT {values} FROM {table} WHERE rowid <= {last}{once}"


def _present(connection: sqlite3.Connection) -> list[str]:
    found = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    return [table for table in _TABLES if table in found]


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0] or 0)


if __name__ == "__main__":
    main()
