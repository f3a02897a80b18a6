"""nsys since 2025.6 writes rows in no order: no answer may depend on it."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from support.command import REPORTS, run

TABLES = ("kernels", "ledger", "ranges", "culprits", "findings", "gpu_metrics", "iterations", "health", "api")


def shuffled(source, target):
    """A copy of an export whose rows are in another order in every table."""
    shutil.copy(source, target)
    with closing(sqlite3.connect(target)) as database, database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for number, name in enumerate(tables):
            database.execute(f'CREATE TEMP TABLE t{number} AS SELECT * FROM "{name}" ORDER BY random()')
            database.execute(f'DELETE FROM "{name}"')
            database.execute(f'INSERT INTO "{name}" SELECT * FROM t{number}')
    return target


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("add", "add_um", "torch", "nvtx", "two_gpus", "two_processes", "graph_node", "nccl", "gpu_metrics"),
        *("sampled_python", "sampled_host", "memory", "network", "findings"),
    ],
)
def test_rows_in_any_order_give_the_same(tmp_path, name):
    (tmp_path / "a").mkdir()
    source = REPORTS / f"{name}.sqlite"
    shutil.copy(source, tmp_path / f"{name}.sqlite")
    copy = shuffled(source, tmp_path / "a" / f"{name}.sqlite")
    for command in (["summarize", "--full"], *(["show", table] for table in TABLES)):
        plain, mixed = (run(*command, path, columns=200) for path in (tmp_path / f"{name}.sqlite", copy))
        assert (plain.status, plain.raw.split(b"More:")[0]) == (mixed.status, mixed.raw.split(b"More:")[0]), command
