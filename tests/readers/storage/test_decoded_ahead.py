"""What a child decodes is what the file holds, or nothing; commands print the same with a child and without."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from support.command import REPORTS, ROOT, SAMPLES, environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is decoded ahead here")

#: Decodes the file at the first argument ahead, as `before` has it, and tells of each table whether its columns are
#: those that SQLite gives: null if they were not decoded.
SCRIPT = """
import json, os, signal, sqlite3, sys
from contextlib import closing
from pathlib import Path
from kanalyze.readers.storage import decoded_ahead
path = Path(sys.argv[1])
decoded_ahead.one_is_idle = lambda: True
before()
with decoded_ahead.decoding_ahead(path, ("",)):
    begun = len(decoded_ahead._ahead)
    after()
    import polars as pl
    from kanalyze.readers.storage.sqlite_file import SqliteFile
    told = {"begun": begun}
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    for table in tables:
        file = SqliteFile(path)
        columns = [name for name in file.columns(table) if not name.startswith("t_")]
        for wanted in (columns, columns[::-2]):
            found = decoded_ahead.decoded(path, table, wanted)
            if found is not None:
                found = found.equals(file.frame(table, dict.fromkeys(wanted, pl.Int64)))
            told.setdefault(table, []).append(found)
try:
    os.waitpid(-1, os.WNOHANG)
    told["left"] = True
except ChildProcessError:
    assert not decoded_ahead._ahead
print(json.dumps(told), flush=True)
os._exit(0)  # as commands do
"""

COLUMNS = {
    "any": lambda rng, _: rng.choice([0, 1, -1, 127, -(2**63), 2**63 - 1, 2**40]),
    "maybe": lambda rng, _: rng.choice([None, 1, 70_000]),
    "late": lambda _, row: None if row < 1500 else row,
    "early": lambda _, row: 7 if row < 1500 else None,
    "none": lambda *_: None,
    "same": lambda *_: -77,
    "nearly": lambda _, row: 5 if row != 2000 else 6,
    "t_text": lambda rng, _: "x" * rng.randrange(400),
}


def ahead(path, before="", after=""):
    """What the script tells of a database, with a line of Python before decoding is begun and after."""
    code = f"def before():\n    {before or 'pass'}\ndef after():\n    {after or 'pass'}\n{SCRIPT}"
    ran = subprocess.run(  # noqa: S603 - it starts this very package
        [sys.executable, "-W", "error", "-c", code, str(path)],
        capture_output=True,
        env=environment(),
        timeout=100,
        check=True,
    )
    assert ran.stderr == b""
    return json.loads(ran.stdout)


def write(path, sizes, *statements, page_size=4096):
    """A database with tables of so many rows, and a large one of texts."""
    path.unlink(missing_ok=True)
    rng = random.Random(f"{sizes}")  # noqa: S311 - not for secrets
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"PRAGMA page_size={page_size}")
        database.execute("BEGIN")
        for name, rows in sizes.items():
            declared = ", ".join(f"{column} {'TEXT' if column[:2] == 't_' else 'INTEGER'}" for column in COLUMNS)
            database.execute(f"CREATE TABLE {name} ({declared})")
            values = ([make(rng, row) for make in COLUMNS.values()] for row in range(rows))
            database.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(COLUMNS))})", values)
        database.execute("CREATE TABLE filling (t_text TEXT)")
        database.executemany("INSERT INTO filling VALUES (?)", [("x" * 3000,)] * 400)
        database.execute("COMMIT")
        for statement in statements:
            database.execute(statement)
    return path


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
def test_what_was_decoded_is_what_the_file_holds(tmp_path, page_size):
    sizes = {"one": 2001, "two": 2048, "three": 9999, "small": 2000, "empty": 0}
    deleted = "DELETE FROM three WHERE _rowid_ % 7 < 2 OR _rowid_ % 400 < 150"
    found = ahead(write(tmp_path / "some.sqlite", sizes, deleted, page_size=page_size))
    both = [True, True]
    assert found == {
        "begun": 1,
        "one": both,
        "two": both,
        "three": both,
        "small": [None, None],
        "empty": [None, None],
        "filling": [None, None],
    }


def test_a_table_that_cannot_be_decoded_is_left_out_alone(tmp_path):
    other = "UPDATE one SET same = 'text' WHERE _rowid_ = 1700"
    found = ahead(write(tmp_path / "some.sqlite", {"one": 2500, "two": 2400}, other))
    assert found["one"] == [None, None]
    assert found["two"] == [True, True]


def test_columns_that_later_rows_alone_have_may_be_too_many(tmp_path):
    more = [f"ALTER TABLE one ADD COLUMN c{number} INTEGER" for number in range(900)]
    found = ahead(write(tmp_path / "some.sqlite", {"one": 3000, "two": 2400}, *more))
    assert found["one"] == [None, None]
    assert found["two"] == [True, True]


def test_of_row_ids_nothing_is_concluded_about_memory(tmp_path):
    """Rows of a byte in as many columns as are decoded, whose row ids are negative or far apart."""
    sizes, columns = {"one": 3000}, ", ".join(f"c{number} INTEGER" for number in range(120))
    path = write(tmp_path / "some.sqlite", sizes, f"CREATE TABLE wide ({columns})", f"CREATE TABLE apart ({columns})")
    with closing(sqlite3.connect(path)) as database:
        rows = ((row - 60_000 if row else 5_000,) for row in range(60_000))
        database.executemany("INSERT INTO wide (_rowid_, c7) VALUES (?, 9)", rows)
        database.executemany("INSERT INTO apart (_rowid_, c7) VALUES (?, 9)", ((row << 40,) for row in range(300)))
        database.commit()
    limit = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, 1 << 29))"
    found = ahead(path, limit)
    assert found["wide"] == [None, None]
    assert found["one"] == [True, True]
    assert found["apart"] == [True, True]


@pytest.mark.parametrize(
    ("before", "after", "begun"),
    [
        ("import polars", "", 0),
        ("decoded_ahead.one_is_idle = lambda: False", "", 0),
        ("sys.platform = 'darwin'", "sys.platform = 'linux'", 0),
        ("decoded_ahead._decode = lambda *_: os.kill(os.getpid(), signal.SIGKILL)", "", 1),
        ("decoded_ahead._decode = lambda *_: 1 / 0", "", 1),
        ("decoded_ahead._large_tables = lambda *_: [(1, 'one', ['nowhere']), (1, 'two', ['any'])]", "", 1),
        ('decoded_ahead._decode = lambda *given: given[-1].write(b\'["one", 2500, {"any": [0, \')', "", 1),
        ("decoded_ahead._decode = lambda *_: __import__('time').sleep(100)", "decoded_ahead._ahead.clear()", 1),
        ("decoded_ahead._BYTES_EACH = 1 << 40", "", 0),
        ("", "os.utime(path, ns=(1, 1))", 1),
    ],
)
def test_nothing_where_there_is_no_child_or_it_fails(tmp_path, before, after, begun):
    found = ahead(write(tmp_path / "some.sqlite", {"one": 2500}), before, after)
    assert found == {"begun": begun, "one": [None, None], "filling": [None, None]}


def test_no_child_for_what_is_no_database_of_that_size(tmp_path):
    small, folder, other, missing = (tmp_path / name for name in ("small", "folder", "other", "missing"))
    with closing(sqlite3.connect(small)) as database:
        database.execute("CREATE TABLE one (n INTEGER)")
    folder.mkdir()
    other.write_bytes(b"x" * (2 << 20))
    os.mkfifo(tmp_path / "pipe")
    code = (
        "import sys; from pathlib import Path; from kanalyze.readers.storage import decoded_ahead as ahead\n"
        "ahead.one_is_idle = lambda: True\n"
        "for name in sys.argv[1:]:\n"
        "    with ahead.decoding_ahead(Path(name), ('',)):\n"
        "        assert not ahead._ahead and not ahead.decoded(Path(name), 'one', ['n'])"
    )
    names = [str(path) for path in (small, folder, other, missing, tmp_path / "pipe", "\0")]
    subprocess.run(  # noqa: S603 - as above
        [sys.executable, "-W", "error", "-c", code, *names[:-1]], env=environment(), timeout=100, check=True
    )


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A report of several megabytes, whose tables are decoded by pages."""
    path = tmp_path_factory.mktemp("many") / "many.sqlite"
    make = [sys.executable, ROOT / "benchmarks" / "make_report.py", REPORTS / "torch.sqlite", path, "--copies", "20"]
    subprocess.run(make, check=True, capture_output=True)  # noqa: S603 - as above
    assert 1 << 20 < path.stat().st_size < 1 << 26
    return path


def command(path, *arguments, idle, **streams):
    """How a command ends where a processor is idle or none."""
    code = (
        "from kanalyze.readers.storage import decoded_ahead as ahead\n"
        f"ahead.one_is_idle = lambda: {idle}\nfrom kanalyze.cli import entry\nentry()"
    )
    line = [sys.executable, "-W", "error", "-c", code, *arguments, str(path)]
    return subprocess.run(line, env=environment(), timeout=100, check=False, capture_output=True, **streams)  # noqa: S603


@pytest.mark.parametrize("arguments", [("summarize",), ("show", "kernels", "--columns", "name,total_ns")])
def test_commands_print_the_same_with_a_child_and_without(many, arguments):
    with_child, without = (command(many, *arguments, idle=idle) for idle in (True, False))
    assert with_child.stdout == without.stdout != b""
    assert (with_child.returncode, with_child.stderr) == (without.returncode, without.stderr)


def test_a_child_hides_no_damage(tmp_path):
    """SQLite checks more than the decoder does, such as nulls where there can be none."""
    path = tmp_path / "damaged.sqlite"
    shutil.copyfile(SAMPLES / "launch_bound_plain" / "nsys.sqlite", path)
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    with closing(sqlite3.connect(path)) as database:
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        known = database.execute(f"SELECT * FROM {table} WHERE _rowid_ = 100").fetchone()
        database.execute("PRAGMA writable_schema = ON")
        (sql,) = database.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        loose = re.sub(r'("gridId"\s+INTEGER)\s+NOT NULL', r"\1", sql)
        assert loose != sql
        database.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (loose, table))
        database.commit()
    assert known[columns.index("gridId")] is not None
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"UPDATE {table} SET gridId = NULL WHERE _rowid_ = 100")
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, table))
        database.commit()
    with_child, without = (command(path, "summarize", idle=idle) for idle in (True, False))
    assert with_child.returncode == without.returncode == 2
    assert with_child.stderr == without.stderr
    assert b"report-damaged" in without.stderr


def test_who_reads_another_file_of_the_program_need_not_wait_for_the_child(many):
    """The pipe ends when the command does, though the child sleeps."""
    code = (
        "import time\nfrom kanalyze.readers.storage import decoded_ahead as ahead\nahead.one_is_idle = lambda: True\n"
        "def sleeps(*_):\n    open('/proc/self/oom_score').read()\n    time.sleep(60)\n"
        "ahead._decode = sleeps\nahead.decoded = lambda *_: None\nfrom kanalyze.cli import entry\nentry()"
    )
    source, target = os.pipe()
    with os.fdopen(source, "rb") as pipe:
        line = [sys.executable, "-c", code, "show", "devices", str(many)]
        started = time.monotonic()
        subprocess.run(  # noqa: S603 - as above
            line, env=environment(), pass_fds=[target], check=True, capture_output=True, timeout=50
        )
        os.close(target)
        assert pipe.read() == b""
        assert time.monotonic() - started < 50
