"""Whatever file is given: a page, or a message and a remedy with status 2; never a traceback, never a hang."""

import os
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

import polars as pl
import pytest

import kanalyze
from kanalyze.readers.nsys import tables as events
from kanalyze.readers.storage import table_files
from support.command import ADD, REPORTS, SAMPLES, refused, run
from support.exports import altered, remade, tables_of, with_first
from support.real_reports import real_report

GRAPH_NODE = REPORTS / "graph_node.sqlite"
KERNEL, MEMCPY, MEMSET, RUNTIME = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME"))
BY_PAGES, BY_CURSOR = 0, 1 << 40


@cache
def usual_page(path):
    """The page of a report as it lies in the repository."""
    return page(path)


def above(text):
    """A page without the commands below it, which name the file."""
    return text.partition("\nMore: ")[0]


def page(path):
    ran = run("summarize", path)
    assert (ran.status, ran.error) == (0, "")
    return ran.text


def message(path, *, slug):
    told, remedy = refused(run("summarize", path))
    assert remedy.endswith(f"[{slug}]")
    assert told.startswith(str(path))
    return told.removeprefix(str(path)), remedy.removesuffix(f"  [{slug}]")


def column(path, name, table="kernels"):
    return getattr(kanalyze, table)(kanalyze.read(path))[name].to_list()


def doubts(path):
    rows = kanalyze.health(kanalyze.read(path)).filter(pl.col("doubt"))
    return dict(rows.select("check", "count").iter_rows())


@pytest.fixture(params=[BY_CURSOR, BY_PAGES], ids=["cursor", "pages"])
def _either_way(request, monkeypatch):
    """Read the tables once row by row and once page by page, as tables of any size are."""
    monkeypatch.setattr(table_files, "PAGES_FROM_ROWS", request.param)


def test_a_missing_file_is_told_with_the_nearest_beside_it(tmp_path):
    near = tmp_path / "run_12.sqlite"
    near.touch()
    remedies = {"run12.sqlite": f"Did you mean {near}?", "x": "Check the path.", "x/y": "Check the path."}
    for name, remedy in remedies.items():
        assert message(tmp_path / name, slug="report-not-found") == (": no such file.", remedy)
    assert message(near / "x", slug="report-unreadable")[0] == ": cannot be read (Not a directory)."


@pytest.mark.parametrize("number", [5, 13], ids=["input/output error", "permission denied"])
def test_a_file_that_the_system_does_not_give_is_refused(monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "open", fail)
    assert message(ADD, slug="report-unreadable")[0] == f": cannot be read ({os.strerror(number)})."


@pytest.mark.parametrize(
    ("name", "content", "found", "remedy"),
    [
        *((f"a.{kind}", b"", "an empty file", "Give a .nsys-rep file, or") for kind in ("sqlite", "nsys-rep")),
        *(
            ("a.sqlite", content, "a file in an unknown format", "Give a .nsys-rep file, or")
            for content in (b"\0", b"SQLite format 3", bytes(range(256)) * 64, b"Where did the time go?\n")
        ),
        ("a.qdstrm", b"NVIDIA", "an unfinished Nsight Systems recording", "Finish it with `QdstrmImporter -i"),
        *(
            ("a.kz", zipped, "a baseline, which has figures of a run and no events", "Compare a run with it: `kanalyze")
            for zipped in (b"a zip", (SAMPLES / "loop_base.kz").read_bytes())
        ),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, name, content, found, remedy):
    path = tmp_path / name
    path.write_bytes(content)
    told, advised = message(path, slug="unknown-format")
    assert told == f": {found}, not a report that kanalyze reads."
    assert advised.startswith(remedy)


@pytest.mark.slow
def test_what_a_file_is_called_does_not_matter(tmp_path):
    for name in ("a.nsys-rep", "no suffix", "ä ? #%41&mode=rw.txt"):
        (tmp_path / name).write_bytes(ADD.read_bytes())
        assert page(tmp_path / name).startswith(f"{name}   nsys 2025.3.2")


@pytest.mark.parametrize(
    ("statements", "tables"),
    [
        (["CREATE TABLE users (id)", "CREATE TABLE logs (id)"], "logs, users"),
        (["CREATE TABLE users (id)", "DROP TABLE users"], "none"),
        (["CREATE TABLE a (i)", "CREATE VIEW StringIds AS SELECT i AS id, 'x' AS value FROM a"], "a"),
    ],
    ids=["other tables", "no tables", "a view"],
)
def test_a_database_of_somebody_else_is_refused(tmp_path, statements, tables):
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    expected = f": an SQLite database that nsys did not write (tables: {tables}), not a report that kanalyze reads."
    assert message(path, slug="unknown-format")[0] == expected


def test_the_report_is_only_read(tmp_path):
    path = altered(tmp_path, ADD)
    page(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == ADD.read_bytes()


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("value", ["'text'", "x'ff00'"])
def test_text_among_integers_is_told_in_words(tmp_path, value):
    path = with_first(tmp_path, GRAPH_NODE, KERNEL, "correlationId", value)
    told, _ = message(path, slug="report-damaged")
    assert told.startswith(f": damaged at table {KERNEL}: ")
    assert "append" not in told


OLD = [
    *(f"DROP TABLE {name}" for name in tables_of(GRAPH_NODE) if name.startswith(("ENUM_", "TARGET_INFO_", "META_"))),
    *remade(GRAPH_NODE, KERNEL, greenContextId=None, graphNodeId=None, mangledName=None, sharedMemoryExecuted="0"),
    *remade(GRAPH_NODE, MEMCPY, greenContextId=None, graphNodeId=None, migrationCause=None, copyCount=None),
    *remade(GRAPH_NODE, MEMSET, greenContextId=None, graphNodeId=None, memKind=None),
]


@pytest.mark.slow
def test_an_old_export_without_enumerations_and_machine_gives_the_same_times(tmp_path):
    old, new = kanalyze.read(altered(tmp_path, GRAPH_NODE, *OLD)), kanalyze.read(GRAPH_NODE)
    for table in (kanalyze.kernels, kanalyze.copies, kanalyze.ledger, kanalyze.launches):
        assert table(old).equals(table(new))
    assert old.devices.select("device", "name", "sm_count").rows() == [(0, None, None)]
    assert old.copy_detail["source_memory"].to_list() == new.copy_detail["source_memory"].to_list()
    assert "GPU" in page(old.meta.path).splitlines()[0]


@pytest.mark.slow
def test_ids_that_are_zero_are_none(tmp_path):
    zeros = {name: f"coalesce({name}, 0)" for name in ("correlationId", "globalPid", "graphNodeId", "greenContextId")}
    path = altered(tmp_path, GRAPH_NODE, *remade(GRAPH_NODE, KERNEL, **zeros))
    assert above(page(path)) == above(usual_page(GRAPH_NODE))
    assert kanalyze.read(path).kernel_config.equals(kanalyze.read(GRAPH_NODE).kernel_config)
    assert kanalyze.read(path).kernel_config["graph_node_id"].null_count() > 0


@pytest.mark.slow
def test_calls_with_correlation_zero_launch_nothing(tmp_path):
    statements = (f"UPDATE {table} SET correlationId = 0" for table in (KERNEL, MEMCPY, MEMSET, RUNTIME))
    report = kanalyze.read(altered(tmp_path, GRAPH_NODE, *statements))
    assert kanalyze.launches(report).is_empty()
    assert page(report.meta.path)


def test_marker_names_are_inline_or_in_the_string_table(tmp_path):
    text = "INSERT INTO StringIds SELECT 70000 + rowid, text FROM NVTX_EVENTS WHERE text IS NOT NULL"
    names = "UPDATE NVTX_EVENTS SET textId = 70000 + rowid, text = NULL WHERE text IS NOT NULL"
    registered, inline = kanalyze.read(altered(tmp_path, GRAPH_NODE, text, names)), kanalyze.read(GRAPH_NODE)
    assert registered.kind("range")["name"].to_list() == inline.kind("range")["name"].to_list()
    assert "graph launches" in inline.kind("range")["name"].to_list()


@pytest.mark.slow
def test_ranges_that_were_never_closed_are_a_doubt(tmp_path):
    path = altered(tmp_path, GRAPH_NODE, 'UPDATE NVTX_EVENTS SET "end" = NULL WHERE rowid < 4')
    assert page(path)
    assert doubts(path)["ranges never closed"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [-1, -(1 << 62), (1 << 63) - 1, 1 << 32])
def test_names_of_impossible_numbers_cannot_be_found(tmp_path, number):
    path = with_first(tmp_path, GRAPH_NODE, KERNEL, "demangledName", str(number))
    assert column(path, "count").count(1) == 1
    assert doubts(path)["events without a name"] == 1
    assert page(path)


def test_text_that_is_no_utf8_is_shown_as_far_as_it_is(tmp_path):
    broken = "UPDATE StringIds SET value = CAST(x'6162FF63' AS TEXT) WHERE value LIKE 'add(%'"
    path = altered(tmp_path, ADD, broken)
    assert column(path, "name") == ["ab\N{REPLACEMENT CHARACTER}c"]
    assert "ab\N{REPLACEMENT CHARACTER}c" in page(path)


@pytest.mark.parametrize("where", ["value LIKE 'add(%'", "value LIKE 'cudaLaunch%'"], ids=["kernel", "call"])
def test_a_text_of_megabytes_is_cut_and_that_is_said(tmp_path, monkeypatch, where):
    monkeypatch.setattr(events, "_LONGEST", 100)
    path = altered(tmp_path, ADD, f"UPDATE StringIds SET value = value || '{'b' * 200}' WHERE {where}")
    opened = kanalyze.read(path)
    assert max(map(len, [*kanalyze.kernels(opened)["name"], *kanalyze.api(opened)["name"]])) == 100
    assert doubts(path)["ends of texts, after 1,048,576 characters"] >= 1
    assert not any("ends of texts" in check for check in doubts(ADD))


@pytest.mark.parametrize("table", [KERNEL, RUNTIME])
def test_times_of_another_age_are_refused(tmp_path, table):
    path = with_first(tmp_path, GRAPH_NODE, table, "start", -(1 << 63))
    told, _ = message(path, slug="report-damaged")
    assert told == f": damaged at table {table}: a time (start_ns) is out of all bounds."


@pytest.mark.slow
@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize(("table", "kind"), [(KERNEL, "kernel"), (RUNTIME, "api"), (MEMCPY, "memcpy")])
def test_rows_missing_in_the_middle_are_a_doubt(tmp_path, table, kind):
    path = altered(tmp_path, GRAPH_NODE, f"DELETE FROM {table} WHERE rowid IN (3, 7, 8, 9)")
    report, usual = kanalyze.read(path), real_report(GRAPH_NODE)
    counts = [dict(kanalyze.health(of).filter("doubt").select("check", "count").rows()) for of in (report, usual)]
    assert [count.get(f"rows missing from {table}") for count in counts] == [4, None]
    assert report.kind(kind).height == usual.kind(kind).height - 4
    assert report.kind(kind)["event_id"].is_unique().all()


@pytest.mark.slow
def test_kernels_keep_their_shapes_where_rows_are_missing_or_numbered_otherwise(tmp_path):
    whole = kanalyze.read(GRAPH_NODE)
    other = altered(tmp_path, GRAPH_NODE, f"UPDATE {KERNEL} SET rowid = rowid - 20")
    assert f"rows missing from {KERNEL}" not in doubts(other)
    assert kanalyze.health(kanalyze.read(other))["count"].min() == 0
    report = kanalyze.read(altered(tmp_path, GRAPH_NODE, f"DELETE FROM {KERNEL} WHERE rowid % 5 = 2"))
    keys = ["api_start_ns", "kernel_start_ns"]
    kept = kanalyze.launches(whole).join(kanalyze.launches(report), on=keys, how="semi")
    shape = [*keys, "kernel", "grid_x", "block_x", "kernel_ns"]
    assert kanalyze.launches(report).select(shape).equals(kept.select(shape))
    assert kept.height < kanalyze.launches(whole).height


# A file that is cut, changed, or still being written


def test_a_file_that_is_cut_is_refused(tmp_path):
    """Around everything that a header tells, and at many places in between."""
    data, path = GRAPH_NODE.read_bytes(), tmp_path / "cut.sqlite"
    size = len(data)
    around = (16, 17, 50, 99, 100, 101, 511, 512, 4095, 4096, 4097, size - 4096, size - 1)
    for length in (*around, *range(5000, size, size // 25)):
        path.write_bytes(data[:length])
        told, _ = message(path, slug="report-damaged")
        assert "the file ends after" in told


def test_a_name_in_the_schema_that_is_no_utf8_is_no_traceback(tmp_path):
    path = tmp_path / "changed.sqlite"
    path.write_bytes(ADD.read_bytes().replace(b"tableThreadNamesThreadNames", b"table\xd4hreadNamesThreadNames"))
    message(path, slug="report-damaged")


@pytest.mark.usefixtures("_either_way")
def test_a_write_ahead_log_beside_the_file_is_read_with_it(tmp_path):
    path, copy = altered(tmp_path, ADD, "PRAGMA journal_mode = wal"), tmp_path / "copy.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f'UPDATE {KERNEL} SET "end" = "end" + 1000')
        copy.write_bytes(path.read_bytes())
        log = path.with_name(path.name + "-wal").read_bytes()
    assert column(copy, "total_ns") == column(ADD, "total_ns")
    copy.with_name(copy.name + "-wal").write_bytes(log)
    assert len(log) > 4096
    assert column(copy, "total_ns") == [column(ADD, "total_ns")[0] + 1000]


@pytest.mark.one_in(7)
@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("content", [b"", b"no log", bytes(range(256)) * 100])
@pytest.mark.parametrize("suffix", ["-wal", "-journal", ""])
def test_what_is_behind_the_file_or_beside_it_but_no_log_does_not_matter(tmp_path, suffix, content):
    path = altered(tmp_path, ADD)
    with path.with_name(path.name + suffix).open("ab") as file:
        file.write(content)
    assert above(page(path)) == above(usual_page(ADD))
