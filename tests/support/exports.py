"""Copies of real nsys exports, altered: what other versions wrote, what damage leaves, what nobody expects.

The facts on versions are from nsys itself: `nsys export --type=sqlite --lazy=false` of 2022.4.2, 2023.4.4 and 2024.2.3,
which create every table; those of 2026.1 are from the schema reference in the user guide. docs/formats.md lists them.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field


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
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]


def columns_of(path, table):
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


KERNEL, MEMCPY, MEMSET, SYNC, RECORDS, GRAPH, RUNTIME = (
    f"CUPTI_ACTIVITY_KIND_{name}"
    for name in ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "CUDA_EVENT", "GRAPH_TRACE", "RUNTIME")
)
CPU_FAULTS, MEMORY, NODES = "CUDA_UM_CPU_PAGE_FAULT_EVENTS", "CUDA_GPU_MEMORY_USAGE_EVENTS", "CUDA_GRAPH_NODE_EVENTS"
CONTEXTS = "TARGET_INFO_CUDA_CONTEXT_INFO"
_NULL_STREAMS = f"SELECT nullStreamId AS streamId, hwId, vmId, processId, deviceId, contextId FROM {CONTEXTS}"


@dataclass(frozen=True)
class Version:
    """What tells the export of one version from that of 2025.3."""

    schema: str  # its EXPORT_SCHEMA_VERSION
    lacks_tables: tuple = ()
    lacks_columns: dict = field(default_factory=dict)  # by table
    renamed: dict = field(default_factory=dict)  # tables
    adds: dict = field(default_factory=dict)  # columns that it has besides, by table, as SQL
    every_table: tuple = ()  # those that it writes without rows, too


_2024_2 = {
    MEMCPY: ("copyCount",), SYNC: ("deprecatedSyncType", "eventSyncId"), RECORDS: ("eventSyncId",),
    CPU_FAULTS: ("sourceFile", "sourceLine"), MEMORY: ("streamId",), "NVTX_EVENTS": ("binaryData",),
}  # fmt: skip

_GREEN = dict.fromkeys((KERNEL, MEMCPY, MEMSET, SYNC, RECORDS), ("greenContextId",))
_NOT_YET = ("DIAGNOSTIC_EVENT", "TARGET_INFO_CUDA_DEVICE", "ANALYSIS_FILE", GRAPH)

VERSIONS = {
    "2022.4": Version(
        "3.0.0",
        (
            *("META_DATA_CAPTURE", "DIAGNOSTIC_EVENT", "TARGET_INFO_CUDA_DEVICE", CONTEXTS, "ENUM_CUPTI_STREAM_TYPE"),
            *("ENUM_CUDA_KERNEL_LAUNCH_TYPE", "ANALYSIS_FILE", GRAPH),
        ),
        {table: (*_2024_2.get(table, ()), *_GREEN.get(table, ())) for table in {**_2024_2, **_GREEN}},
        {"META_DATA_EXPORT": "EXPORT_META_DATA", NODES: "CUDA_GRAPH_EVENTS"},
    ),
    "2023.4": Version("3.7.2", _NOT_YET, _2024_2, {NODES: "CUDA_GRAPH_EVENTS"}),
    "2024.2": Version("3.11.1", ("TARGET_INFO_CUDA_DEVICE",), _2024_2),
    "2026.1": Version(
        "3.24.14",
        adds={
            KERNEL: {"graphId": "NULL", "clusterX": "1", "tensorSizeMinusOneElements": "'[]'"},
            RECORDS: {"timestamp": "0"},
            "TARGET_INFO_CUDA_DEVICE": {"uuid": "NULL", "numMultiprocessors": "132"},
        },
        every_table=(
            *(KERNEL, MEMCPY, MEMSET, SYNC, RECORDS, GRAPH, CPU_FAULTS, MEMORY, NODES, "NVTX_EVENTS", "OSRT_API"),
        ),
    ),
}


def as_written_by(version, folder, source):
    """A copy of `source`, an export of 2025.3, in `folder` as `version` would have written it."""
    facts, have = VERSIONS[version], tables_of(source)
    statements = [f"DROP TABLE {table}" for table in facts.lacks_tables if table in have]
    kept = [table for table in have if table not in facts.lacks_tables]
    for table in kept:
        lacking = set(facts.lacks_columns.get(table, ())).intersection(columns_of(source, table))
        added = facts.adds.get(table, {})
        if lacking or added:
            statements += remade(source, table, **dict.fromkeys(lacking), **added)
    statements.append(f"UPDATE META_DATA_EXPORT SET value = '{facts.schema}' WHERE name = 'EXPORT_SCHEMA_VERSION'")
    if NODES in facts.renamed:
        statements.append("DROP TABLE IF EXISTS CUDA_GRAPH_EVENTS")
    if CONTEXTS in have and CONTEXTS in facts.lacks_tables:
        statements.insert(0, f"CREATE TABLE TARGET_INFO_CUDA_NULL_STREAM AS {_NULL_STREAMS}")
    statements += [f"ALTER TABLE {old} RENAME TO {new}" for old, new in facts.renamed.items() if old in kept]
    statements += [
        f'CREATE TABLE IF NOT EXISTS {table} (start INTEGER NOT NULL, "end" INTEGER)' for table in facts.every_table
    ]
    return altered(folder, source, *statements)
