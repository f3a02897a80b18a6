"""Damage to the rows, columns, types and tables of a SQLite database that stays a valid one."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from fuzz.damage_values import scalar

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random
    from sqlite3 import Connection


def lose_rows(rng: Random, base: Connection, table: str) -> None:
    """Some rows are gone, or all."""
    share = rng.choice([0.01, 0.3, 1.0])
    rows = [row for (row,) in base.execute(f"SELECT rowid FROM {table}")]
    lost = [(row,) for row in rows if rng.random() < share]
    base.executemany(f"DELETE FROM {table} WHERE rowid = ?", lost or [(rng.choice(rows),)])


def repeat_rows(rng: Random, base: Connection, table: str) -> None:
    """Some rows stand twice; keys that forbid it go."""
    rows = base.execute(f"SELECT * FROM {table}").fetchall()
    columns = [column for _, column, *_ in base.execute(f"PRAGMA table_info({table})")]
    base.execute(f"ALTER TABLE {table} RENAME TO moved")
    base.execute(f"CREATE TABLE {table} ({', '.join(map(_quoted, columns))})")
    twice = rng.choices(rows, k=rng.randint(1, 5))
    base.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", [*rows, *twice])
    base.execute("DROP TABLE moved")


def drop_column(rng: Random, base: Connection, table: str) -> None:
    """A column is gone, or has another name."""
    column = _column(rng, base, table)
    keep = rng.random() < 0.5
    base.execute(f"ALTER TABLE {table} {f'RENAME COLUMN {column} TO renamed' if keep else f'DROP COLUMN {column}'}")


def swap_values(rng: Random, base: Connection, table: str) -> None:
    """A column's values stand in other rows."""
    column = _column(rng, base, table)
    rows = base.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
    values = [value for _, value in rows]
    rng.shuffle(values)
    base.executemany(
        f"UPDATE {table} SET {column} = ? WHERE rowid = ?", zip(values, (row for row, _ in rows), strict=True)
    )


def change_type(rng: Random, base: Connection, table: str) -> None:
    """Values of one column, of one row or of all, are of another type or out of any range."""
    column, value = _column(rng, base, table), scalar(rng)
    if rng.random() < 0.2:
        value = rng.randbytes(8)
    where = "" if rng.random() < 0.3 else f" WHERE rowid = (SELECT max(rowid) FROM {table})"
    number = None if isinstance(value, float) and math.isnan(value) else value
    base.execute(f"UPDATE {table} SET {column} = ?{where}", (number,))


def drop_table(_: Random, base: Connection, table: str) -> None:
    """A table is gone."""
    base.execute(f"DROP TABLE {table}")


def replace_table(rng: Random, base: Connection, table: str) -> None:
    """A table of that name has other columns, or is a view that asks for what is not there."""
    base.execute(f"DROP TABLE {table}")
    base.execute(
        rng.choice(
            [
                f"CREATE TABLE {table} (nothing)",
                f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, value BLOB) WITHOUT ROWID",
                f"CREATE VIEW {table} AS SELECT * FROM {table}_",
                f"CREATE VIEW {table} AS SELECT 1 AS start, 'x' AS end",
            ]
        )
    )


TABLES = {
    of.__name__: of for of in (lose_rows, repeat_rows, drop_column, swap_values, change_type, drop_table, replace_table)
}


def damage(rng: Random, path: Path, how: str) -> str:
    """Damage one table of the database at `path` and say which."""
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        names = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        filled = [name for name in names if base.execute(f"SELECT 1 FROM {_quoted(name)} LIMIT 1").fetchone()]
        table = _quoted(rng.choice(filled))
        base.execute("BEGIN")
        try:
            TABLES[how](rng, base, table)
            base.execute("COMMIT")
        except sqlite3.Error:  # a key or an index stands in the way
            base.execute("ROLLBACK")
            drop_table(rng, base, table)
    return table


def _column(rng: Random, base: Connection, table: str) -> str:
    return _quoted(rng.choice([column for _, column, *_ in base.execute(f"PRAGMA table_info({table})")]))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
