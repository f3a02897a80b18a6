"""Exports of other versions of nsys: what one lacks costs only what is made of it; the order of rows tells nothing."""

import shutil
import sqlite3
from contextlib import closing

import polars as pl
import pytest

import kanalyze
from kanalyze import catalog
from kanalyze.analyses.page.time_page import summarize
from kanalyze.errors import CannotTellError
from kanalyze.model import KINDS, READER_TABLES, STREAMS
from kanalyze.readers.nsys.read_sqlite_folder import _driver
from kanalyze.renderers.formats import terminal
from kanalyze.renderers.tables import frame as frames
from support import exports
from support.command import REPORTS, run
from support.made_traces import counted
from support.real_reports import real_report

SOURCES = [
    REPORTS / f"{name}.sqlite"
    for name in ("findings", "graph_node", "memory", "nvtx", "prefetch", "thrash", "two_gpus", "two_processes")
]

#: Of 2024 and before.
BEFORE_2025 = [version for version in exports.VERSIONS if version < "2025"]

#: What tables lose with the columns that these do not write.
LOST = {
    "sync_detail": ["record_id"], "event_records": ["record_id"], "fault_detail": ["source_file", "source_line"],
    "processes": ["cuda_ordinal", "device"], "memory": ["stream"],
}  # fmt: skip


def noted(path):
    return counted(kanalyze.read(path))


def without_ids(frame, *columns):
    """A table but for what depends on where its rows are stored, and these `columns`."""
    return frame.drop("event_id", *columns, strict=False).unique(maintain_order=True)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("version", exports.VERSIONS)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_other_versions_give_the_same_tables_but_for_what_they_lack_and_say_so(tmp_path, version, source):
    """Links between waits and recordings, where the report waits for CUDA events; and GPUs, where there are several."""
    other, whole = kanalyze.read(exports.as_written_by(version, tmp_path, source)), real_report(source)
    assert other.meta.schema_version == exports.VERSIONS[version].schema
    assert other.meta.tool_version == whole.meta.tool_version
    lost = LOST if version in BEFORE_2025 else {}
    graphs = ["graph"] if exports.GRAPH in exports.VERSIONS[version].lacks_tables else []
    for kind in set(KINDS).difference(graphs):
        columns = lost.get(kind, ())
        assert without_ids(other.kind(kind), *columns).equals(without_ids(whole.kind(kind), *columns)), kind
    for name in set(READER_TABLES).difference(["events", "notes", "graph_detail", "compiled_kernels"]):
        columns = lost.get(name, ())
        assert without_ids(other.table(name), *columns).equals(without_ids(whole.table(name), *columns)), name
        assert all(other.table(name)[column].is_null().all() for column in columns), name
    waits, gpus = whole.table("sync_detail")["cuda_event_id"].count(), whole.devices.height
    wanted = counted(whole)
    if version in BEFORE_2025:
        wanted |= {f"column {exports.SYNC}.eventSyncId missing": 1} if waits else {}
        wanted |= {"table TARGET_INFO_CUDA_DEVICE missing": 1} if gpus > 1 else {}
    if "DIAGNOSTIC_EVENT" in exports.VERSIONS[version].lacks_tables:
        wanted = {check: count for check, count in wanted.items() if not check.startswith("nsys: ")}
    assert counted(other) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2022.4", "2023.4"])
def test_versions_that_leave_out_whole_graphs_say_which_launches_are_alone(tmp_path, version):
    source = REPORTS / "graph_graph.sqlite"
    whole, other = kanalyze.read(source), kanalyze.read(exports.as_written_by(version, tmp_path, source))
    assert whole.kind("graph").height == 30
    alone = [kanalyze.health(report).filter(check="launches without an operation") for report in (whole, other)]
    assert alone[1]["count"].item() == alone[0]["count"].item() + 30
    assert other.kind("kernel").equals(whole.kind("kernel"))


def test_tables_without_rows_are_not_taken_for_a_trace(tmp_path):
    """nsys writes them with --lazy=false."""
    for source in (REPORTS / "empty.sqlite", REPORTS / "nvtx.sqlite"):
        kinds = kanalyze.read(exports.as_written_by("2026.1", tmp_path, source)).kinds
        assert kinds == kanalyze.read(source).kinds
        assert "memory" not in kinds


# Real exports by three versions of the same recording: NVTX ranges and calls of the operating system, and no GPU


@pytest.mark.parametrize(
    ("name", "version", "schema"),
    [("2022_4", "2022.4.2.1", "3.0.0"), ("2023_4", "2023.4.4.54", "3.7.2"), ("2024_2", "2024.2.3.38", "3.11.1")],
)
def test_real_exports_of_old_versions_are_read(name, version, schema):
    report = kanalyze.read(REPORTS / "old" / f"marks_{name}.sqlite")
    meta = report.meta
    assert (meta.tool_version, meta.schema_version, meta.driver_version) == (version, schema, None)
    assert report.kinds == ("range", "overhead", "osrt") if name == "2022_4" else {"range", "osrt"} <= {*report.kinds}
    ranges = report.kind("range").join(report.table("range_detail"), on="event_id")
    sums = ranges.group_by("domain", "name", "style").agg(pl.len(), pl.col("dur_ns").sum()).sort("dur_ns")
    assert sums.rows() == [
        (None, "worker", "PushPop", 1, 10092908),
        ("loader", "load", "PushPop", 5, 10401497),
        (None, "step", "PushPop", 5, 10487045),
        (None, "epoch", "StartEnd", 1, 21175690),
        (None, "left open", "PushPop", 1, 42729044),
    ]
    (ender,) = ranges["end_thread_id"].drop_nulls()
    assert ender == ranges.filter(name="worker")["thread_id"].item()
    assert report.kind("osrt").filter(name="clock_nanosleep")["dur_ns"].sum() == 20396970
    assert report.table("processes").is_empty()
    assert report.table("notes").filter(~pl.col("check").str.starts_with("nsys: ")).is_empty()


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("name", "table", "column"),
    [
        ("graph_node", exports.KERNEL, "graphNodeId"),
        ("graph_node", exports.KERNEL, "registersPerThread"),
        ("graph_node", exports.KERNEL, "streamId"),
        ("graph_node", exports.MEMCPY, "bytes"),
        ("graph_node", exports.MEMSET, "bytes"),
        ("prefetch", exports.MEMCPY, "virtualAddress"),
        ("prefetch", exports.MEMCPY, "migrationCause"),
        ("nvtx", "NVTX_EVENTS", "endGlobalTid"),
        ("nvtx", "NVTX_EVENTS", "domainId"),
        ("graph_graph", exports.GRAPH, "graphExecId"),
        ("memory", "CUDA_GPU_MEMORY_USAGE_EVENTS", "localMemoryPoolAddress"),
        ("findings", exports.SYNC, "eventSyncId"),
        ("nvtx", "TARGET_INFO_GPU", "smCount"),
    ],
)
def test_a_missing_column_is_in_the_health_and_the_page_still_there(tmp_path, name, table, column):
    path = exports.without_column(tmp_path, REPORTS / f"{name}.sqlite", table, column)
    of = kanalyze.read(path)
    assert f"column {table}.{column} missing" in set(kanalyze.health(of).filter("doubt")["check"])
    assert f"column {table}.{column} missing" not in counted(real_report(REPORTS / f"{name}.sqlite"))
    assert summarize(of).answer


def test_a_table_of_device_work_that_is_not_read_is_in_the_health(tmp_path):
    made = 'CREATE TABLE CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS AS SELECT start, "end", deviceId FROM ' + exports.KERNEL
    path = exports.altered(tmp_path, REPORTS / "nvtx.sqlite", made)
    kernels = kanalyze.read(path).kind("kernel").height
    assert noted(path) == {"table CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS not read": kernels}
    limits = exports.altered(tmp_path, REPORTS / "nvtx.sqlite", "DROP TABLE TARGET_INFO_GPU")
    assert noted(limits) == {"table TARGET_INFO_GPU missing": 1}


@pytest.mark.parametrize("table", [exports.KERNEL, exports.MEMCPY, "PROFILER_OVERHEAD"])
@pytest.mark.one_in(4)
def test_rows_without_an_end_are_a_doubt(tmp_path, table):
    source = REPORTS / "graph_node.sqlite"
    some = exports.altered(
        tmp_path, source, *exports.remade(source, table, end='CASE WHEN rowid % 5 = 2 THEN NULL ELSE "end" END')
    )
    kind = {exports.KERNEL: "kernel", exports.MEMCPY: "memcpy"}.get(table, "overhead")
    events = kanalyze.read(source).kind(kind)
    lost = len(range(2, events.height + 1, 5))
    assert noted(some) == {f"rows of {table} without an end": lost}
    report = kanalyze.read(some)
    assert report.kind(kind).filter(dur_ns=0).height == lost
    assert counted(report) == noted(some)
    assert run("summarize", some).status == 0
    none = exports.without_column(tmp_path, source, table, "end")
    assert noted(none)[f"rows of {table} without an end"] == events.height


@pytest.mark.parametrize(
    ("told", "version"),
    [("5303002", "530.30.02"), ("5154304", "515.43.04"), ("580.95.05", "580.95.05"), ("551.61", "551.61"), ("0", None)],
)
def test_a_driver_whose_version_is_run_together(told, version):
    assert _driver(told) == version


# Streams: types, priorities and names, also where older exports say them elsewhere

NULL_STREAMS = [(926, 1, 7, "null", None, None), (926, 2, 19, "null", None, None)]
FORMER = ("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_NVTX_CUDA_STREAM", "TARGET_INFO_CUDA_STREAM")
OF_CONTEXTS = "nullStreamId AS streamId, hwId, vmId, processId, deviceId, contextId FROM TARGET_INFO_CUDA_CONTEXT_INFO"
OF_STREAMS = [(926, 1, 7, "null", 0, None), (926, 1, 14, None, 0, "gpu0 stream0")]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            [],
            [
                (926, 1, 7, "null", 0, None),
                (926, 1, 13, "blocking", -5, None),
                (926, 1, 14, "blocking", 0, "gpu0 stream0"),
                (926, 1, 17, "non-blocking", -5, "gpu0 stream3"),
                (926, 2, 19, "null", 0, None),
            ],
        ),
        (["DROP TABLE TARGET_INFO_CUDA_STREAM"], NULL_STREAMS),
        (
            [
                f"CREATE TABLE TARGET_INFO_CUDA_NULL_STREAM AS SELECT {OF_CONTEXTS}",
                *(f"DROP TABLE {name}" for name in FORMER),
            ],
            NULL_STREAMS,
        ),
        (["UPDATE TARGET_INFO_CUDA_STREAM SET flag = 0 WHERE streamId IN (14, 7)"], OF_STREAMS),
    ],
    ids=["as they are", "without a list of streams", "in a table of null streams", "of a type that nobody knows"],
)
def test_types_priorities_and_names(tmp_path, changes, expected):
    rows = kanalyze.read(exports.altered(tmp_path, REPORTS / "two_gpus.sqlite", *changes)).table("streams")
    assert rows.schema == STREAMS.schema
    assert rows.filter(pl.col("stream").is_in([row[2] for row in expected])).sort("stream").rows() == expected
    assert rows.height == 2 or expected != NULL_STREAMS


TABLES = ("kernels", "ledger", "ranges", "culprits", "findings", "gpu_metrics", "iterations", "health", "api")


def shown(report, table):
    """The whole page above its commands, or a table, as on a wide terminal; nothing where it cannot be told."""
    if table == "page":
        return terminal.render([summarize(report)], terminal.Look(200), None).split("More:")[0]
    try:
        return frames.terminal(catalog.make(report, table), 200, frames.Choice())
    except CannotTellError:
        return None


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
    ["add_um", "torch", "nvtx", "two_gpus", "graph_node", "gpu_metrics", "sampled_python", "memory", "network"],
)
def test_rows_in_any_order_give_the_same(tmp_path, name):
    source = REPORTS / f"{name}.sqlite"
    copy = kanalyze.read(shuffled(source, tmp_path / source.name))
    for table in ("page", *TABLES):
        assert shown(copy, table) == shown(real_report(source), table), table
