"""The page decoder gives what SQLite gives, or says why not, whatever bytes are in the file."""

from __future__ import annotations

import random
import sqlite3
import threading
from contextlib import closing

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from kanalyze.readers.storage import table_files, table_scan
from kanalyze.readers.storage.page_decoder import DamagedPageError, NotDecodableError
from kanalyze.readers.storage.table_scan import PagesFile, joined
from support.command import REPORTS, refused, run

PAGE = 512
SIZES = [0, 1, 2, 127, 128, 2**15 - 1, 2**15, 2**23, 2**31, 2**47 - 1, 2**47, 2**62, 2**63 - 1]
INTEGERS = {
    "any": lambda rng, _: rng.choice([*SIZES, *(-1 - size for size in SIZES)]),
    "bit": lambda rng, _: rng.randrange(2),
    "byte": lambda rng, _: rng.choice([0, 1, 2, -1, 100, None]),
    "constant": lambda *_: 77,
    "maybe": lambda rng, _: rng.choice([None, 1, 70000]),
    "nothing": lambda *_: None,
    "one": lambda *_: 1,
    "time": lambda _, row: 1_700_000_000_000_000_000 + 1000 * row,
}
OTHERS = {
    "real": lambda rng, _: rng.random(),
    "text": lambda rng, _: "x" * rng.randrange(20),
    "long": lambda rng, _: "x" * rng.randrange(100),
}
KINDS = INTEGERS | OTHERS
RECIPES = st.fixed_dictionaries(
    {
        "kinds": st.lists(st.sampled_from([*INTEGERS, *KINDS]), min_size=1, max_size=30),
        "rows": st.sampled_from([0, 1, 30, 300, 1000]),
        "page_size": st.sampled_from([512, 1024, 4096, 65536]),
        "first": st.sampled_from([1, 1, 120, 16_300, 2**31, -300, -(2**63), 2**63 - 1100]),
        "after": st.sampled_from([[], ["DELETE FROM t WHERE _rowid_ % 7 < 2 OR _rowid_ % 400 < 150"]]),
        "vacuum": st.sampled_from([[], ["VACUUM"]]),
        "auto_vacuum": st.integers(0, 1),
        "seed": st.integers(0, 2**32),
    }
)


def create(path, *statements, page_size=PAGE):
    """Write a database; a statement is SQL, or SQL and a list of parameters for it."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size={page_size}")
        for statement in statements:
            if isinstance(statement, str):
                connection.execute(statement)
            else:
                connection.executemany(*statement)
    return path


def cook(path, recipe):
    """Write the table `t` of `recipe`, in turns with another; gives the names of its integer columns."""
    rng = random.Random(recipe["seed"])  # noqa: S311 # not for secrets
    names = [f"c{index}" for index in range(len(recipe["kinds"]))]
    insert = f"INSERT INTO t (_rowid_, {', '.join(names)}) VALUES ({', '.join('?' * (len(names) + 1))})"
    makers = [KINDS[kind] for kind in recipe["kinds"]]
    rows = [[recipe["first"] + row, *(make(rng, row) for make in makers)] for row in range(recipe["rows"])]
    turns = []
    for first in range(0, len(rows), 50):
        turns += [(insert, rows[first : first + 50]), ("INSERT INTO other VALUES (?)", [["y" * 400]])]
    tables = [f"PRAGMA auto_vacuum={recipe['auto_vacuum']}", "PRAGMA synchronous=off", "BEGIN"]
    tables += [f"CREATE TABLE t ({', '.join(names)})", "CREATE TABLE other (a)"]
    after = ["COMMIT", *recipe["after"], *recipe["vacuum"]]
    create(path, *tables, *turns, *after, page_size=recipe["page_size"])
    return [name for name, kind in zip(names, recipe["kinds"], strict=True) if kind in INTEGERS]


def series(rows, values="i, i * 1000, -i"):
    numbers = f"WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {rows})"
    return f"INSERT INTO t {numbers} SELECT {values} FROM s"


def tuples(block):
    """The rows of `block` as SQLite hands them out, rowid first."""
    listed = [block.rowids.tolist()]
    for column in block.columns.values():
        assert column.values.dtype == np.int64
        valid = np.ones(len(column.values), bool) if column.valid is None else column.valid
        assert column.valid is None or not (valid.all() or column.values[~valid].any())
        listed.append(np.where(valid, column.values.astype(object), None).tolist())
    return list(zip(*listed, strict=True))


def decoded(path, columns, table="t", **options):
    with closing(PagesFile(path)) as file:
        return [row for rows in file.scan(table, columns, tuples, **options) for row in rows]


def stepped(path, columns, table="t"):
    listed = ", ".join(["_rowid_", *(f'"{name}"' for name in columns)])
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(f'SELECT {listed} FROM "{table}" ORDER BY _rowid_').fetchall()


@given(RECIPES, st.integers(1, 4), st.sampled_from([2048, 1 << 16, 4 << 20]), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_gives_what_sqlite_gives(tmp_path, recipe, threads, block_bytes, data):
    path = tmp_path / "a.sqlite"
    columns = cook(path, recipe)
    wanted = data.draw(st.lists(st.sampled_from(columns), unique=True)) if columns else []
    try:
        found = decoded(path, wanted, threads=threads, block_bytes=block_bytes)
    except NotDecodableError as reason:
        # many long texts in one row of a small page
        assume(recipe["page_size"] != PAGE or "longer than a page" not in str(reason))
        raise
    assert found == stepped(path, wanted)


def test_odd_names_are_found(tmp_path):
    folder = tmp_path / "ä? #%41"
    folder.mkdir()
    path = create(folder / "x y.sqlite", 'CREATE TABLE "t ""1" ("a b", [c\'d])', 'INSERT INTO "t ""1" VALUES (1, 2)')
    assert decoded(path, ["c'd", "a b"], 't "1') == [(1, 2, 1)]


@pytest.mark.parametrize(
    "columns",
    [
        *("a INTEGER PRIMARY KEY, b", "b, a INTEGER, PRIMARY KEY (a DESC)", "a INTEGER PRIMARY KEY DESC, b"),
        *("a INTEGER UNIQUE, b, PRIMARY KEY (a, b)", "a INTEGER UNIQUE PRIMARY KEY, b INTEGER UNIQUE"),
    ],
)
def test_keys_that_are_the_rowid_and_keys_that_are_not(tmp_path, columns):
    path = create(tmp_path / "a.sqlite", f"CREATE TABLE t ({columns})", "INSERT INTO t (a, b) VALUES (7, 8), (300, 9)")
    assert decoded(path, ["a", "b"]) == stepped(path, ["a", "b"])


def test_columns_added_later_are_null_in_older_rows(tmp_path):
    added = [f"ALTER TABLE t ADD COLUMN {column}" for column in ("b", "c DEFAULT NULL", "d DEFAULT 3")]
    rows = ["INSERT INTO t VALUES (5), (6)", "INSERT INTO t VALUES (7, 8, 9)"]
    path = create(tmp_path / "a.sqlite", "CREATE TABLE t (a)", rows[0], *added[:2], rows[1], added[2])
    assert decoded(path, ["c", "a", "b"]) == [(1, None, 5, None), (2, None, 6, None), (3, 9, 7, 8)]
    with pytest.raises(NotDecodableError, match="column d"):
        decoded(path, ["d"])


def test_reserved_bytes_are_left_out(tmp_path):
    path = create(tmp_path / "a.sqlite", "CREATE TABLE gone (a)", "DROP TABLE gone", "VACUUM")
    blank = bytearray(path.read_bytes())
    blank[20] = 32
    blank[105:107] = (480).to_bytes(2, "big")
    path.write_bytes(blank)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (a, b, c)")
        connection.execute(series(3000))
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert path.read_bytes()[20] == 32
    assert decoded(path, ["a", "b"]) == stepped(path, ["a", "b"])


def test_the_smallest_cells_leave_the_smallest_free_blocks(tmp_path):
    """Of 4 bytes each: sizes of the payload and of its header, row id, type (which is the number)."""
    path = create(
        tmp_path / "a.sqlite", "CREATE TABLE t (a)", series(90, "i % 2"), "DELETE FROM t WHERE rowid IN (10, 20, 30)"
    )
    rows = decoded(path, ["a"])
    assert len(rows) == 87
    assert rows == stepped(path, ["a"])


def test_no_more_blocks_than_threads_and_one_are_under_way(tmp_path):
    path = create(tmp_path / "a.sqlite", "CREATE TABLE t (a, b, c)", series(3000))
    lock, started, most = threading.Lock(), 0, 0

    def count(_):
        nonlocal started
        with lock:
            started += 1

    with closing(PagesFile(path)) as file:
        for done, _ in enumerate(file.scan("t", ["a"], count, threads=3, block_bytes=1)):
            most = max(most, started - done)
    assert started > 90
    assert most <= 4


def test_a_scan_can_be_left_early_and_a_failing_transform_shows(tmp_path):
    path = create(tmp_path / "a.sqlite", "CREATE TABLE t (a, b, c)", series(3000))
    with closing(PagesFile(path)) as file:
        for rows in file.scan("t", ["a"], tuples, threads=2, block_bytes=1):
            assert rows[0] == (1, 1)
            break
        with pytest.raises(ZeroDivisionError):
            list(file.scan("t", ["a"], lambda _: 1 // 0, threads=2, block_bytes=1))
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]


FORGET_B = ["PRAGMA writable_schema=on", "UPDATE sqlite_master SET sql = 'CREATE TABLE t (a)'"]
TOO_MANY = ", ".join(f"c{index}" for index in range(127))


@pytest.mark.parametrize(
    ("reason", "statements"),
    [
        ("write-ahead log", ["CREATE TABLE t (a)", "PRAGMA journal_mode=wal"]),
        ("WITHOUT ROWID", ["CREATE TABLE t (a PRIMARY KEY) WITHOUT ROWID", "INSERT INTO t VALUES (1)"]),
        *(
            ("longer than a page", ["CREATE TABLE t (a, b)", f"INSERT INTO t VALUES (1, zeroblob({size}))"])
            for size in (9999, 480)
        ),
        ("no table t", ["CREATE TABLE u (a)", "CREATE VIEW t AS SELECT a FROM u"]),
        *(("no table t", [f"CREATE TABLE {of}"]) for of in ("u (a)", "t (b, a AS (b + 1))", f"t (a, {TOO_MANY})")),
        *(("no column a", [f"CREATE TABLE t ({column})"]) for column in ("b", "a DOUBLE")),
        ("column a holds more", ["CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1), (2.5)"]),
        ("column a holds more", ["CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES ('x')"]),
        ("column a holds more", ["CREATE TABLE t (a)", "INSERT INTO t VALUES (1), (zeroblob(100))"]),
        ("more columns", ["CREATE TABLE t (a, b)", "INSERT INTO t VALUES (1, 2)", *FORGET_B]),
    ],
)
def test_what_only_sqlite_can_read_is_refused(tmp_path, reason, statements):
    path = create(tmp_path / "a.sqlite", *statements)
    with pytest.raises(NotDecodableError, match=reason):
        decoded(path, ["a"])


def test_a_journal_beside_the_file_is_refused(tmp_path):
    path = create(tmp_path / "a.sqlite", "CREATE TABLE t (a)")
    for journal in (tmp_path / "a.sqlite-wal", tmp_path / "a.sqlite-journal"):
        journal.write_bytes(b"")
        assert decoded(path, ["a"]) == []
        journal.write_bytes(b"x")
        with pytest.raises(NotDecodableError, match=journal.name):
            decoded(path, ["a"])
        journal.unlink()


@pytest.fixture
def small(tmp_path):
    """A table of two levels, and its root page, first leaf and last leaf: numbers from 1."""
    tables = ["CREATE TABLE gone (a)", "CREATE TABLE t (a, b, c, d)"]
    rows = series(300, "i, NULL, i * 99999, 'text'")
    path = create(tmp_path / "a.sqlite", *tables, rows, "DROP TABLE gone")
    root = 3
    page = path.read_bytes()[(root - 1) * PAGE : root * PAGE]
    assert page[0] == 5
    first_cell = int.from_bytes(page[12:14], "big")
    first = int.from_bytes(page[first_cell : first_cell + 4], "big")
    return path, root, first, int.from_bytes(page[8:12], "big")


@pytest.mark.parametrize(
    ("where", "at", "new", "reason"),
    [
        ("root", 0, [7], "not a page of type 13"),
        ("root", 8, [0, 0, 0, 0], "page 0: a table's page that is not in the file"),
        ("root", 8, [255, 255, 255, 255], "page 4294967295: a table's page that is not in the file"),
        *(("root", 8, [0, 0, 0, page], "twice") for page in ("root", "first")),
        ("root", 8, [0, 0, 0, "free"], "not a page of type 13"),
        ("root", 3, [0, 0], "an empty page"),
        ("root", 12, [1, 255], "outside of the page"),
        ("last", 0, [5], "not a page of type 13"),
        ("last", 1, [0, 50], "free block|overlap"),
        ("last", 1, [1, 254], "a free block outside"),
        ("last", 3, [0, 0], "an empty page"),
        ("last", 3, [255, 255], "makes no sense"),
        ("last", 5, [0, 0], "makes no sense"),
        ("last", 7, [1], "do not fill the page|overlap"),
        ("last", 8, [0, 0], "outside of the cell area"),
        ("last", 8, [1, 255], "outside of the page"),
        ("first", 0, [13, 0, 0, 0, 0, 2, 0, 0], "an empty page"),
        *(
            (where, at, [cell, "one"], "rowids do not increase")
            for where, at, cell in (("root", 12, "two"), ("last", 8, "two"), ("last", 8, "one"))
        ),
        ("cell", 0, [19], "do not fill the page|overlap|outside of the page"),
        ("cell", 0, [255] * 9, "negative"),
        ("cell", 1, [255] * 9, "outside of the page|overlap"),
        ("cell", 3, [0], "longer than its record"),
        ("cell", 3, [6], "columns do not fill it|does not end"),
        *(("cell", at, [kind], "serial type that does not exist") for at, kind in ((4, 10), (5, 11))),
        ("cell", 5, [1], "columns do not fill it"),
        ("cell", 4, [255] * 4, "does not end"),
    ],
)
def test_what_sqlite_cannot_have_written_is_refused(small, where, at, new, reason):
    path, root, first, last = small
    data = bytearray(path.read_bytes())
    page = ({"root": root, "first": first}.get(where, last) - 1) * PAGE
    pointers = page + (12 if where == "root" else 8)
    cells = {"one": data[pointers : pointers + 2], "two": data[pointers + 2 : pointers + 4]}
    known = {"root": [root], "first": [first], "free": [2], **cells}
    start = page + at + (int.from_bytes(cells["one"], "big") if where == "cell" else 0)
    patch = [byte for item in new for byte in known.get(item, [item])]
    data[start : start + len(patch)] = bytes(patch)
    path.write_bytes(data)
    for block_bytes in (1, 4 << 20):
        with pytest.raises(DamagedPageError, match=reason):
            decoded(path, ["a", "c"], block_bytes=block_bytes)


@pytest.mark.parametrize(
    ("at", "new", "reason"),
    [
        *((0, b"x", "no SQLite header"), (16, b"\x03\x00", "makes no sense"), (20, b"\xff", "makes no sense")),
        *((21, b"A", "makes no sense"), (28, b"\x00\x01", "the file ends before it")),
        *((100, b"\x00", "SQLite cannot read the schema"), (PAGE * 2 + 5, b"\0\0", "bytes in use")),
    ],
)
def test_damaged_headers_are_refused(tmp_path, at, new, reason):
    """The last one is of an empty table."""
    path = create(tmp_path / "a.sqlite", "CREATE TABLE gone (a)", "CREATE TABLE t (a, b, c)")
    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    path.write_bytes(data)
    with pytest.raises(DamagedPageError, match=reason):
        decoded(path, ["a", "c"])


def test_without_a_valid_page_count_the_size_of_the_file_counts(small):
    path = small[0]
    whole = path.read_bytes()
    rows = decoded(path, ["a"])
    for data in (whole[:28] + bytes(4) + whole[32:], whole[:24] + bytes([9, 9, 9, 9, 255]) + whole[29:]):
        path.write_bytes(data)
        assert decoded(path, ["a"]) == rows
        path.write_bytes(data[:-PAGE])
        with pytest.raises(DamagedPageError, match="not in the file"):
            decoded(path, ["a"])


def outcome(read, path):
    """What `read` makes of the damaged file at `path`: rows, or None where it refuses."""
    try:
        return read(path, ["a", "b", "c"])
    except (DamagedPageError, NotDecodableError, sqlite3.Error, UnicodeDecodeError):
        return None


@pytest.mark.slow
def test_no_flipped_byte_gives_other_rows_than_sqlite(small):
    path, root, first, last = small
    whole = path.read_bytes()
    rows = stepped(path, ["a", "b", "c"])
    rng = random.Random(1)  # noqa: S311 # not for secrets
    heads = [(page - 1) * PAGE + at for page in (root, first, last) for at in range(24)]
    places = [*range(100), *heads, *(rng.randrange(100, len(whole)) for _ in range(600))]
    refused = 0
    for place in places:
        data = bytearray(whole)
        data[place] ^= rng.choice([1, 2, 4, 8, 16, 32, 64, 128, 255])
        path.write_bytes(data)
        ours, theirs = outcome(decoded, path), outcome(stepped, path)
        refused += ours is None
        assert ours is None or ours == theirs, place
        assert ours is None or sum(a != b for a, b in zip(ours, rows, strict=True)) <= 1, place
    assert 200 < refused < len(places)


def test_large_tables_are_decoded(tmp_path, monkeypatch):
    path, seen = tmp_path / "x.sqlite", set()
    sizes = {"large": 50, "middle": 40, "small": 5}
    with closing(sqlite3.connect(path)) as connection:
        for table, rows in sizes.items():
            connection.execute(f"CREATE TABLE {table} (n INTEGER)")
            connection.executemany(f"INSERT INTO {table} VALUES (?)", [(row,) for row in range(rows)])
        connection.execute("CREATE TABLE keyed (n INTEGER PRIMARY KEY) WITHOUT ROWID")
        connection.commit()
    monkeypatch.setattr(table_files, "PAGES_FROM_ROWS", 40)
    read_blocks = table_scan.read_blocks
    monkeypatch.setattr(
        table_scan, "read_blocks", lambda file, table, *rest: seen.add(table) or read_blocks(file, table, *rest)
    )
    file = table_files.SqliteFile(path)
    for table, rows in sizes.items():
        frame = file.integers(table, ["n"], lambda part: part)
        assert frame.get_column("n").to_list() == [*range(rows)]
    assert seen == {"large"}


# A page that lies over another: an error, or nothing that is printed changes; never other figures

GRAPH_NODE = REPORTS / "graph_node.sqlite"
PAGE_BYTES = 4096
KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


def leaves(path, table):
    """The numbers of a table's leaf pages, from its root, which has no further level between."""
    with closing(sqlite3.connect(path)) as connection:
        sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        ((root,),) = connection.execute(sql, (table,)).fetchall()
    data = path.read_bytes()
    page = data[(root - 1) * PAGE_BYTES : root * PAGE_BYTES]
    assert page[0] == 5
    cells = [int.from_bytes(page[12 + 2 * cell :][:2], "big") for cell in range(int.from_bytes(page[3:5], "big"))]
    found = [int.from_bytes(page[at:][:4], "big") for at in cells] + [int.from_bytes(page[8:12], "big")]
    assert all(data[(number - 1) * PAGE_BYTES] == 13 for number in found)
    return found


def copied(folder, pairs):
    """A copy of the report for each pair of pages, the first of which lies over the second."""
    data = GRAPH_NODE.read_bytes()
    path = folder / GRAPH_NODE.name
    for one, other in pairs:
        changed = bytearray(data)
        changed[(other - 1) * PAGE_BYTES : other * PAGE_BYTES] = data[(one - 1) * PAGE_BYTES : one * PAGE_BYTES]
        path.write_bytes(changed)
        yield path


@pytest.mark.parametrize("from_rows", [0, 1 << 40], ids=["pages", "cursor"])
def test_a_leaf_over_another_leaf_is_an_error(tmp_path, monkeypatch, from_rows):
    monkeypatch.setattr(table_files, "PAGES_FROM_ROWS", from_rows)
    kernels, calls = leaves(GRAPH_NODE, KERNEL), leaves(GRAPH_NODE, RUNTIME)
    assert (len(kernels), len(calls)) > (3, 1)
    pairs = [(kernels[0], kernels[1]), (kernels[2], kernels[1]), (kernels[-2], kernels[-1]), (calls[1], kernels[2])]
    for path in copied(tmp_path, pairs):
        message, remedy = refused(run("show", "kernels", path))
        assert message.startswith(f"{path}: damaged at table {KERNEL}: ")
        assert remedy.endswith("[report-damaged]")


def test_a_page_of_a_table_that_is_not_read_is_a_word_on_standard_error(tmp_path):
    one, other, *_ = leaves(GRAPH_NODE, RUNTIME)
    (path,) = [*copied(tmp_path, [(one, other)])]
    ran = run("show", "kernels", path, "--format", "csv")
    assert (ran.status, ran.text) == (0, run("show", "kernels", GRAPH_NODE, "--format", "csv").text)
    (line,) = ran.doubts
    assert line.startswith(f"kanalyze: not all of it can be read: {path}: damaged at table {RUNTIME}: ")


# What is joined column by column is its parts one below the other

NUMBERS = st.none() | st.integers(0, 1) | st.integers(-(1 << 62), 1 << 62)
NAMES = st.none() | st.sampled_from("abc")
SCHEMA = {"number": pl.Int64, "small": pl.Int32, "name": pl.Categorical, "text": pl.String}
ROWS = st.tuples(NUMBERS, st.none() | st.integers(0, 1), NAMES, NAMES)


@given(st.lists(st.lists(ROWS, max_size=4), min_size=1, max_size=5))
def test_a_joined_frame_is_its_parts_together(rows):
    parts = [pl.DataFrame(part, schema=SCHEMA, orient="row") for part in rows]
    together = pl.concat([parts[0].clear(), *parts])
    assert joined(parts).equals(together, null_equal=True)
    assert joined([together.clone()]).schema == together.schema
