"""Damage to reports: bytes; rows, columns and types of tables; trees of JSON; cells of CSV; what a baseline is made of.

Disks, transfers and killed programs leave the first; what is damaged in the other ways stays a valid file. A number is
always the same damage: each function draws what it does from the `rng` that it is given.
"""

import csv
import io
import json
import math
import sqlite3
import warnings
import zipfile
from contextlib import closing

import polars as pl

# Values that do not belong where they stand: of another type, out of any range, or hostile

NUMBERS = (0, -1, 1, 255, 1 << 31, -(1 << 31), (1 << 32) - 1, 1 << 53, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63))
REALS = (0.5, -0.0, 1e300, -1e300, math.nan, math.inf, -math.inf)
TEXTS = (
    *("", " ", "x", "-1", "1e9", "nan", "\x1b[2J", "\u202egnp", "</script>", "a" * 5000, "\ud800", "\0", "NULL", "🙂"),
)


def scalar(rng):
    """A value of any type that a table of a report can hold."""
    kind = rng.randrange(4)
    if kind == 0:
        return None
    if kind == 1:
        return rng.choice(NUMBERS)
    return rng.choice(REALS) if kind == 2 else rng.choice(TEXTS).encode("utf-8", "replace").decode()


def json_value(rng, depth=0):
    """Any JSON value: scalars, and lists and objects of them."""
    kind = rng.randrange(7 if depth < 2 else 4)
    if kind < 4:
        return scalar(rng)
    if kind == 4:
        return rng.random() < 0.5
    if kind == 5:
        return [json_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice(["name", "args", "ts", "x", ""]): json_value(rng, depth + 1) for _ in range(rng.randrange(3))}


# Bytes


def flip_bit(rng, data):
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def overwrite(rng, data):
    """Up to 64 bytes in a row are zeros, ones, or anything."""
    start, stop = _stretch(rng, data, 64)
    filler = rng.choice([b"\0", b"\xff", None])
    return data[:start] + (filler * (stop - start) if filler else rng.randbytes(stop - start)) + data[stop:]


def cut(rng, data):
    return data[: rng.randrange(len(data))]


def lose(rng, data):
    start, stop = _stretch(rng, data, 4096)
    return data[:start] + data[stop:]


def repeat(rng, data):
    start, stop = _stretch(rng, data, 4096)
    return data[:stop] + data[start:]


def insert(rng, data):
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randint(1, 64)) + data[at:]


def swap(rng, data):
    """Two stretches of the same length stand in each other's place."""
    size = rng.randint(1, max(1, min(4096, len(data) // 2)))
    first, second = sorted(rng.randrange(max(1, len(data) - size)) for _ in range(2))
    if second < first + size:
        return flip_bit(rng, data)
    middle = data[first + size : second]
    return data[:first] + data[second : second + size] + middle + data[first : first + size] + data[second + size :]


def _stretch(rng, data, most):
    start = rng.randrange(len(data))
    return start, min(len(data), start + rng.randint(1, most))


# Pages of a database, which says their size at byte 16


def copy_page(rng, data):
    size, count = _pages(data)
    source, target = rng.randrange(count), rng.randrange(1, count)
    page = data[source * size : (source + 1) * size]
    return data[: target * size] + page + data[(target + 1) * size :]


def zero_page(rng, data):
    size, count = _pages(data)
    target = rng.randrange(count)
    return data[: target * size] + bytes(size) + data[(target + 1) * size :]


def lose_pages(rng, data):
    size, count = _pages(data)
    return data[: rng.randrange(1, count) * size]


def page_header(rng, data):
    """A byte of the first twelve of a page, which say how to read it, is another."""
    size, count = _pages(data)
    at = rng.randrange(count) * size + rng.randrange(12)
    return data[:at] + rng.randbytes(1) + data[at + 1 :]


def _pages(data):
    size = int.from_bytes(data[16:18], "big")
    return size, len(data) // size


BYTES = {of.__name__: of for of in (flip_bit, overwrite, cut, lose, repeat, insert, swap)}
PAGES = {of.__name__: of for of in (copy_page, zero_page, lose_pages, page_header)}


# Tables of a database


def lose_rows(rng, base, table):
    """Some rows are gone, or all."""
    share = rng.choice([0.01, 0.3, 1.0])
    rows = [row for (row,) in base.execute(f"SELECT rowid FROM {table}")]
    lost = [(row,) for row in rows if rng.random() < share]
    base.executemany(f"DELETE FROM {table} WHERE rowid = ?", lost or [(rng.choice(rows),)])


def repeat_rows(rng, base, table):
    """Some rows stand twice; keys that forbid it go."""
    rows = base.execute(f"SELECT * FROM {table}").fetchall()
    columns = [column for _, column, *_ in base.execute(f"PRAGMA table_info({table})")]
    base.execute(f"ALTER TABLE {table} RENAME TO moved")
    base.execute(f"CREATE TABLE {table} ({', '.join(map(_quoted, columns))})")
    twice = rng.choices(rows, k=rng.randint(1, 5))
    base.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", [*rows, *twice])
    base.execute("DROP TABLE moved")


def drop_column(rng, base, table):
    """A column is gone, or has another name."""
    column = _column(rng, base, table)
    keep = rng.random() < 0.5
    base.execute(f"ALTER TABLE {table} {f'RENAME COLUMN {column} TO renamed' if keep else f'DROP COLUMN {column}'}")


def swap_values(rng, base, table):
    """A column's values stand in other rows."""
    column = _column(rng, base, table)
    rows = base.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
    values = [value for _, value in rows]
    rng.shuffle(values)
    pairs = zip(values, (row for row, _ in rows), strict=True)
    base.executemany(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", pairs)


def change_type(rng, base, table):
    """Values of one column, of one row or of all, are of another type or out of any range."""
    column, value = _column(rng, base, table), scalar(rng)
    if rng.random() < 0.2:
        value = rng.randbytes(8)
    where = "" if rng.random() < 0.3 else f" WHERE rowid = (SELECT max(rowid) FROM {table})"
    number = None if isinstance(value, float) and math.isnan(value) else value
    base.execute(f"UPDATE {table} SET {column} = ?{where}", (number,))


def drop_table(_, base, table):
    base.execute(f"DROP TABLE {table}")


def replace_table(rng, base, table):
    """A table of that name has other columns, or is a view that asks for what is not there."""
    drop_table(rng, base, table)
    others = (
        "TABLE {} (nothing)",
        "TABLE {} (id INTEGER PRIMARY KEY, value BLOB) WITHOUT ROWID",
        "VIEW {0} AS SELECT * FROM {0}_",
        "VIEW {} AS SELECT 1 AS start, 'x' AS end",
    )
    base.execute(f"CREATE {rng.choice(others).format(table)}")


TABLES = {
    of.__name__: of for of in (lose_rows, repeat_rows, drop_column, swap_values, change_type, drop_table, replace_table)
}


def damage_database(rng, path, how):
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


def _column(rng, base, table):
    return _quoted(rng.choice([column for _, column, *_ in base.execute(f"PRAGMA table_info({table})")]))


def _quoted(name):
    return '"' + name.replace('"', '""') + '"'


# Tables of a folder or a baseline, and files of a folder


def _other_type(rng, frame):
    """A column is of another type."""
    name = rng.choice(frame.columns)
    other = rng.choice([pl.String, pl.Float64, pl.Int8, pl.Boolean, pl.Binary, pl.Datetime, pl.Categorical])
    of_it = (
        pl.col(name).cast(other, strict=False),
        pl.struct(pl.col(name), other=pl.lit(1)),
        pl.concat_list(pl.col(name)),
        pl.lit(None),
        pl.lit(scalar(rng)),
    )
    try:
        return frame.with_columns(rng.choice(of_it).alias(name))
    except pl.exceptions.PolarsError:  # no such cast
        return frame.with_columns(pl.lit(None).alias(name))


def _seed(rng):
    return rng.randrange(1 << 30)


FRAMES = {
    "lose_rows": lambda rng, frame: frame.sample(fraction=rng.choice([0.0, 0.7, 0.99]), seed=_seed(rng)),
    "repeat_rows": lambda rng, frame: pl.concat([frame, frame.sample(min(3, frame.height), seed=_seed(rng))]),
    "drop_column": lambda rng, frame: frame.drop(rng.choice(frame.columns)),
    "swap_values": lambda rng, frame: frame.with_columns(pl.col(rng.choice(frame.columns)).shuffle(seed=_seed(rng))),
    "change_type": _other_type,
}


def damage_folder(rng, folder, how):
    file = rng.choice([file for file in sorted(folder.glob("*.parquet")) if pl.read_parquet(file).height])
    FRAMES[how](rng, pl.read_parquet(file)).write_parquet(file)


def damage_file(rng, folder):
    """Put something else in the place of a file of the folder, or nothing."""
    file = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    file.unlink()
    kind = rng.randrange(5)
    if kind == 1:
        file.write_bytes(b"")
    elif kind == 2:
        file.mkdir()
    elif kind > 2:
        file.symlink_to(file.name if kind == 3 else folder)


# Trees of JSON


def change_value(rng, tree):
    node, key = _place(rng, tree)
    node[key] = json_value(rng)


def lose_value(rng, tree):
    node, key = _place(rng, tree)
    del node[key]


def repeat_value(rng, tree):
    """An item stands twice in its list, or a value under another key too."""
    node, key = _place(rng, tree)
    if isinstance(node, list):
        node.insert(rng.randrange(len(node) + 1), node[key])
    else:
        node[rng.choice([*node, "dur", "args", "stream"])] = node[key]


def exchange_values(rng, tree):
    (first, one), (second, other) = _place(rng, tree), _place(rng, tree)
    first[one], second[other] = second[other], first[one]


TREES = {of.__name__: of for of in (change_value, lose_value, repeat_value)} | {"swap_values": exchange_values}


def damage_json(rng, text, how):
    """The text of a JSON document whose tree is damaged in one place or a few."""
    tree = json.loads(text)
    for _ in range(rng.choice([1, 1, 1, 5])):
        TREES[how](rng, tree)
    try:
        return json.dumps(tree).encode()
    except (ValueError, RecursionError):  # a value became a part of itself
        return text


def repeat_key(rng, text):
    """A key stands twice in its object."""
    at = rng.choice([at for at in range(len(text)) if text.startswith((b'": ', b'":'), at)])
    start = text.rfind(b'"', 0, at)
    value = json.dumps(json_value(rng)).encode()
    return text[:start] + text[start : at + 1] + b":" + value + b"," + text[start:]


def _place(rng, tree):
    """A node that has children, and the key of one, any depth alike."""
    node, wanted = tree, rng.randrange(1, 6)
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:  # only the whole tree can be without any
            node.append(0) if isinstance(node, list) else node.update(x=0)
            continue
        key = rng.choice(keys)
        child, wanted = node[key], wanted - 1
        if wanted == 0 or not isinstance(child, dict | list) or not child:
            return node, key
        node = child


# Cells of CSV


def change_cell(rng, rows):
    row = rng.choice(rows)
    row[rng.randrange(len(row))] = str(scalar(rng))


def lose_cell(rng, rows):
    row = rng.choice(rows)
    del row[rng.randrange(len(row))]


def lose_row(rng, rows):
    del rows[rng.randrange(len(rows))]


def repeat_row(rng, rows):
    rows.insert(rng.randrange(len(rows) + 1), rng.choice(rows))


def lose_column(rng, rows):
    at = rng.randrange(len(rows[0]))
    for row in rows:
        del row[at : at + 1]


def swap_columns(rng, rows):
    """Two columns have each other's heading."""
    first, second = (rng.randrange(len(rows[0])) for _ in range(2))
    rows[0][first], rows[0][second] = rows[0][second], rows[0][first]


CELLS = {of.__name__: of for of in (change_cell, lose_cell, lose_row, repeat_row, lose_column, swap_columns)}


def damage_csv(rng, text, how):
    """The text of a page of CSV that is damaged in one place or a few."""
    rows = [row for row in csv.reader(io.StringIO(text.decode())) if row]
    for _ in range(rng.choice([1, 1, 1, 5])):
        if rows:
            CELLS[how](rng, rows)
        rows = [row for row in rows if row]
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows(rows)
    return out.getvalue().encode("utf-8", "replace")


# A baseline: the file as git may leave it, and what is in it, put together again with right sums


def merge(rng, data):
    """Both versions of a stretch stand there, between the marks of a merge that nobody finished."""
    start, stop = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    middle = data[start:stop]
    return data[:start] + b"<<<<<<< HEAD\n" + middle + b"=======\n" + middle + b">>>>>>> other\n" + data[stop:]


def lf(data):
    """Each end of a line is one character, and bytes that only look like two are one as well."""
    made = data.replace(b"\r\n", b"\n")
    return made if made != data else data.replace(b"\r", b"\n")


#: Lines end in two characters, as in a checkout on Windows, or in one; a merge, or what is no UTF-8, was left in it.
ENDS = {
    "crlf": lambda _, data: data.replace(b"\n", b"\r\n"),
    "lf": lambda _, data: lf(data),
    "merge": merge,
    "utf8": lambda _, data: data.decode("utf-8", "replace").encode(),
}

#: What becomes of a member of the archive.
MEMBERS = ("lose", "repeat", "rename", "empty", "exchange", "add")

_HEAD = "kanalyze-baseline.json"


def damage_members(rng, members, how):
    """A member is gone, stands twice, or is another."""
    at, other = rng.sample(range(len(members)), 2)
    name, content = members[at]
    if how == "lose":
        del members[at]
    elif how == "repeat":
        members.append((name, rng.choice([content, members[other][1]])))
    elif how == "rename":
        members[at] = (rng.choice([name.upper(), f"../{name}", "other.parquet", ""]), content)
    elif how == "empty":
        members[at] = (name, b"")
    elif how == "exchange":
        members[at], members[other] = (name, members[other][1]), (members[other][0], content)
    else:
        members.append((rng.choice(["counters.parquet", "ops.parquet", "x", "a/b"]), rng.choice([content, b"", b"x"])))
    return members


#: All kinds, as cases name them.
BASELINE = (
    *(f"git {how}" for how in ENDS),
    *(f"head {how}" for how in TREES),
    *(f"digest {how}" for how in FRAMES),
    *(f"member {how}" for how in MEMBERS),
)

#: Those that leave no sum right, or a member that no baseline has.
SEEN = (*(f"git {how}" for how in ENDS), *(f"member {how}" for how in MEMBERS if how != "lose"))


def damage_baseline(rng, data, kind, how):
    """The file damaged in one of the ways of :data:`BASELINE`."""
    if kind == "git":
        return ENDS[how](rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    if kind == "member":
        return archive(damage_members(rng, [*members.items()], how))
    if kind == "head":
        members[_HEAD] = damage_json(rng, members[_HEAD], how)
    else:
        name, made = rng.choice(sorted({*members} - {_HEAD})), io.BytesIO()
        FRAMES[how](rng, pl.read_parquet(members[name])).write_parquet(made)
        members[name] = made.getvalue()
    return archive([*members.items()])


def archive(members):
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w") as file:
        warnings.simplefilter("ignore")  # that a name stands twice is meant
        for name, content in members:
            file.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return made.getvalue()
