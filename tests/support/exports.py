"""Copies of real nsys exports, altered: what older versions wrote, what damage leaves, what nobody expects."""

import sqlite3
from contextlib import closing


def altered(folder, source, *statements):
    """A copy of `source` in `folder` on which SQL `statements` were run."""
    path = folder / source.name
    path.write_bytes(source.read_bytes())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


def remade(source, table, **columns):
    """The statements that make a `table` of `source` anew without constraints.

    Each of `columns` becomes the SQL expression given for it; one that is None is left out, the others stay.
    """
    made = {f'"{name}"': f'"{name}"' for name in columns_of(source, table)}
    made |= {f'"{name}"': expression for name, expression in columns.items()}
    listed = ", ".join(f"{expression} AS {name}" for name, expression in made.items() if expression is not None)
    return [
        f"CREATE TABLE remade AS SELECT {listed} FROM {table} ORDER BY rowid",
        f"DROP TABLE {table}",
        f"ALTER TABLE remade RENAME TO {table}",
    ]


def without_column(folder, source, table, column):
    """A copy of `source` whose `table` lacks a `column`."""
    return altered(folder, source, *remade(source, table, **{column: None}))


def with_first(folder, source, table, column, value):
    """A copy of `source` in whose `table` the first row has the SQL literal `value` in a `column`."""
    expression = f'CASE WHEN rowid = (SELECT min(rowid) FROM {table}) THEN {value} ELSE "{column}" END'
    return altered(folder, source, *remade(source, table, **{column: expression}))


def only(folder, source, *tables):
    """A copy of `source` with no other than these `tables`."""
    return altered(folder, source, *(f'DROP TABLE "{name}"' for name in tables_of(source) if name not in tables))


def tables_of(path):
    """The names of all tables in the database at `path`."""
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]


def columns_of(path, table):
    """The names of the columns of one table."""
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
