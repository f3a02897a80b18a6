"""Damage to rows, columns, types and tables of an SQLite database or a folder of Parquet files, which stay valid."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import polars as pl

from fuzz.damage_bytes import scalar

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


def damage_database(rng: Random, path: Path, how: str) -> str:
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


# Frames, and files of a folder


def _other_type(rng: Random, frame: pl.DataFrame) -> pl.DataFrame:
    """A column is of another type."""
    name = rng.choice(frame.columns)
    other = rng.choice([pl.String, pl.Float64, pl.Int8, pl.Boolean, pl.Binary, pl.Datetime, pl.Categorical])
    made = rng.choice(
        [
            pl.col(name).cast(other, strict=False),
            pl.struct(pl.col(name), other=pl.lit(1)).alias(name),
            pl.concat_list(pl.col(name)).alias(name),
            pl.lit(None).alias(name),
            pl.lit(scalar(rng)).alias(name),
        ]
    )
    try:
        return frame.with_columns(made)
    except pl.exceptions.PolarsError:  # no such cast
        return frame.with_columns(pl.lit(None).alias(name))


def _seed(rng: Random) -> int:
    return rng.randrange(1 << 30)


#: Rows are gone, or stand twice; a column is gone, has its values in other rows, or is of another type.
FRAMES: dict[str, Callable[[Random, pl.DataFrame], pl.DataFrame]] = {
    "lose_rows": lambda rng, frame: frame.sample(fraction=rng.choice([0.0, 0.7, 0.99]), seed=_seed(rng)),
    "repeat_rows": lambda rng, frame: pl.concat([frame, frame.sample(min(3, frame.height), seed=_seed(rng))]),
    "drop_column": lambda rng, frame: frame.drop(rng.choice(frame.columns)),
    "swap_values": lambda rng, frame: frame.with_columns(pl.col(rng.choice(frame.columns)).shuffle(seed=_seed(rng))),
    "change_type": _other_type,
}


def damage_folder(rng: Random, folder: Path, how: str) -> str:
    """Damage one table of the folder and say which."""
    files = sorted(folder.glob("*.parquet"))
    filled = [file for file in files if pl.read_parquet(file).height]
    file = rng.choice(filled)
    frame = FRAMES[how](rng, pl.read_parquet(file))
    frame.write_parquet(file)
    return file.stem


def damage_file(rng: Random, folder: Path) -> str:
    """Put something else in the place of a file of the folder and say which."""
    file = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    file.unlink()
    kind = rng.randrange(5)
    if kind == 1:
        file.write_bytes(b"")
    elif kind == 2:
        file.mkdir()
    elif kind == 3:
        file.symlink_to(file.name)
    elif kind == 4:
        file.symlink_to(folder)
    return file.name
