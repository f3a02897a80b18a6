"""Folders with a file per table: the same report as from SQLite, or a message; never a traceback."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import polars as pl
import pytest

import kanalyze
from kanalyze.model import KINDS, READER_TABLES
from kanalyze.readers.storage import table_files, table_scan
from kanalyze.readers.storage.table_files import SqliteFile, TableFolder
from readers.nsys.test_bad_input import message
from support.command import REPORTS
from support.exports import KERNEL, tables_of

SQLITE, PARQUET = REPORTS / "nvtx.sqlite", REPORTS / "nvtx.parquetdir"


def tables_read(path):
    report = kanalyze.read(path)
    return {
        **{kind: report.kind(kind) for kind in KINDS},
        **{name: report.table(name) for name in READER_TABLES if name != "compiled_kernels"},
    }


def assert_same(one, other):
    assert_equal(tables_read(one), tables_read(other))


def assert_equal(one, other):
    for name, frame in one.items():
        assert frame.schema == other[name].schema, name
        assert frame.equals(other[name]), name


def copied(folder):
    return shutil.copytree(PARQUET, folder / "report")


def as_arrow(folder, source=PARQUET):
    """The tables of `source` as the streams that `nsys export --type=arrowdir` writes."""
    made = folder / "arrow"
    made.mkdir()
    for file in source.glob("*.parquet"):
        pl.read_parquet(file).write_ipc_stream(made / f"{file.stem}.arrow", compat_level=pl.CompatLevel.oldest())
    return made


def from_sqlite(folder, source):
    """The tables of an SQLite export as Parquet files."""
    folder.mkdir()
    with closing(sqlite3.connect(source)) as connection:
        for name in tables_of(source):
            columns = connection.execute("SELECT name, type FROM pragma_table_info(?)", (name,)).fetchall()
            types = {column: {"TEXT": pl.String, "INTEGER": pl.Int64}.get(kind, pl.Float64) for column, kind in columns}
            rows = connection.execute(f'SELECT * FROM "{name}" ORDER BY rowid').fetchall()
            pl.DataFrame(rows, schema=types, orient="row").write_parquet(folder / f"{name}.parquet")
    return folder


def changed(folder, table, **columns):
    """A copy of the report in whose `table` some columns are others; None leaves one out."""
    path = copied(folder)
    file = path / f"{table}.parquet"
    frame = pl.read_parquet(file)
    new = frame.with_columns(**{name: made for name, made in columns.items() if made is not None})
    new.drop(name for name, made in columns.items() if made is None).write_parquet(file)
    return path


@pytest.mark.slow
def test_a_folder_gives_what_the_sqlite_file_gives(tmp_path):
    assert_same(SQLITE, PARQUET)
    assert_same(SQLITE, as_arrow(tmp_path))
    one, other = kanalyze.read(SQLITE).meta, kanalyze.read(PARQUET).meta
    assert (one.path, other) == (SQLITE, replace(one, path=PARQUET))


@pytest.mark.parametrize("name", ["findings", "graph_graph", "memory", "thrash", "two_gpus", "visible_devices"])
@pytest.mark.one_in(4)
def test_what_other_reports_hold_is_the_same_too(tmp_path, name):
    source = REPORTS / f"{name}.sqlite"
    assert_same(source, from_sqlite(tmp_path / "report", source))


@pytest.mark.one_in(12)
@pytest.mark.parametrize("path", sorted(REPORTS.glob("*.sqlite")), ids=lambda path: path.stem)
def test_pages_and_cursor_give_the_same_tables(path, monkeypatch):
    read_blocks, decoded = table_scan.read_blocks, set()

    def spy(file, table, *rest):
        found = read_blocks(file, table, *rest)
        if found is not None:
            decoded.add(table)
        return found

    monkeypatch.setattr(table_scan, "read_blocks", spy)
    monkeypatch.setattr(table_files, "PAGES_FROM_ROWS", 1 << 40)
    by_cursor = tables_read(path)
    assert decoded <= {"GPU_METRICS"}  # which is always decoded
    monkeypatch.setattr(table_files, "PAGES_FROM_ROWS", 0)
    assert_equal(by_cursor, tables_read(path))
    cupti = {f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMSET", "RUNTIME")}
    assert decoded >= cupti.intersection(tables_of(path))


def test_rows_of_one_value_are_the_same_in_both():
    types = {"eventType": pl.Int64, "text": pl.String, "missing": pl.Int64}
    for file in (SqliteFile(SQLITE), TableFolder(PARQUET, ".parquet")):
        found = file.frame("NVTX_EVENTS", types, only=("eventType", 75))
        assert found.rows() == [(75, "solver", None), (75, "loader", None)]
        assert file.frame("NVTX_EVENTS", types, only=("missing", 75)).is_empty()
        file.close()


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 7])
def test_large_tables_are_read_in_parts(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(table_files, "_ROWS_AT_ONCE", rows)
    assert_same(SQLITE, PARQUET)
    assert_same(SQLITE, as_arrow(tmp_path))


def test_a_file_of_the_folder_leads_to_the_folder(tmp_path):
    assert kanalyze.read(PARQUET / f"{KERNEL}.parquet").meta.path == PARQUET
    arrow = as_arrow(tmp_path)
    assert kanalyze.read(arrow / "StringIds.arrow").meta.path == arrow


def test_other_files_in_the_folder_do_not_matter(tmp_path):
    path = copied(tmp_path)
    (path / "notes.txt").write_text("mine")
    (path / "old.parquet").mkdir()
    assert_same(PARQUET, path)


def test_only_the_tables_that_are_asked_for_are_read(tmp_path):
    path = copied(tmp_path)
    file = path / "NVTX_EVENTS.parquet"
    content = bytearray(file.read_bytes())
    content[4:2000] = bytes(1996)  # values; how many rows there are stands at the end
    file.write_bytes(content)
    report = kanalyze.read(path)
    assert report.kind("sync").equals(kanalyze.read(SQLITE).kind("sync"))
    with pytest.raises(kanalyze.KanalyzeError):
        report.kind("range")


def test_a_table_without_rows_is_none(tmp_path):
    """nsys writes those, with all columns, with --lazy=false."""
    path = copied(tmp_path)
    pl.read_parquet(path / f"{KERNEL}.parquet").clear().write_parquet(path / "CUPTI_ACTIVITY_KIND_GRAPH_TRACE.parquet")
    pl.DataFrame(schema={"start": pl.Int64}).write_parquet(path / "CUDA_GPU_MEMORY_USAGE_EVENTS.parquet")
    assert_same(SQLITE, path)


def test_numbers_beyond_the_signed_ones_are_those_of_sqlite(tmp_path):
    table = "CUPTI_ACTIVITY_KIND_MEMCPY"
    path = changed(tmp_path, table, virtualAddress=pl.lit((1 << 64) - 5, dtype=pl.UInt64))
    assert kanalyze.read(path).copy_detail["address"].drop_nulls().unique().to_list() == [-5]


def test_an_empty_folder_is_refused(tmp_path):
    assert message(tmp_path, slug="unknown-format")[0] == ": a folder without tables, not a report that kanalyze reads."


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_folder_of_other_tables_is_refused(tmp_path, ending):
    frame = pl.DataFrame({"user": [1]})
    for name in ("users", "logs"):
        file = tmp_path / f"{name}.{ending}"
        frame.write_parquet(file) if ending == "parquet" else frame.write_ipc_stream(file)
    expected = ": tables that nsys did not write (logs, users), not a report that kanalyze reads."
    assert message(tmp_path, slug="unknown-format")[0] == expected
    assert message(tmp_path / f"users.{ending}", slug="unknown-format")[0] == expected


@pytest.mark.parametrize("content", [b"", b"PAR1", b"Where did the time go?"])
def test_a_file_that_is_only_called_parquet_is_refused(tmp_path, content):
    (tmp_path / "a.parquet").write_bytes(content)
    message(tmp_path / "a.parquet", slug="unknown-format")


def test_a_file_that_the_system_does_not_give_is_unreadable(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise PermissionError("Permission denied (os error 13): /a/path")

    monkeypatch.setattr(pl, "scan_parquet", fail)
    told = message(copied(tmp_path), slug="report-unreadable")[0]
    assert told.endswith(".parquet: cannot be read (Permission denied).")


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_file_that_is_cut_is_refused(tmp_path, form):
    path = copied(tmp_path) if form == "parquet" else as_arrow(tmp_path)
    file = path / f"{KERNEL}.{form}"
    content = file.read_bytes()
    size = len(content)
    for length in (0, 1, 4, 7, 8, 9, 11, 12, 100, *range(200, size, size // 11), size - 9, size - 8, size - 1):
        file.write_bytes(content[:length])
        assert message(path, slug="report-damaged")[0].startswith(f": damaged at table {KERNEL}: "), length


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "values"),
    [
        *(("start", pl.lit(None, dtype=pl.Int64)), ("start", pl.lit(-(1 << 63))), ("gridX", pl.lit(1 << 40))),
        ("demangledName", pl.lit("add(float *)")),
    ],
    ids=str,
)
def test_a_column_that_makes_no_sense_is_told(tmp_path, column, values):
    path = changed(tmp_path, KERNEL, **{column: values})
    assert message(path, slug="report-damaged")[0].startswith(f": damaged at table {KERNEL}: ")
