"""nsys exports: every table stays what it was, and nothing of the machine and its user is left in any byte."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import kanalyze
from kanalyze import catalog
from kanalyze.errors import CannotTellError, DamagedReportError, UnknownFormatError
from kanalyze.redact import redact
from kanalyze.redact.nsys import failed
from support.command import ADD, ADD_UM, REPORTS
from support.exports import VERSIONS, altered, as_written_by
from support.real_reports import EXPORTS, real_report

USER, HOST, FOLDER, SESSION = "quillon", "brontes-17", "/projekte/geheim", "81b1c0de-0000-4aaa-8bbb-c0ffee123456"
#: What a machine could be known by, each in a place of its own; all of it has to go.
PLANTED = {
    "host": f"INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, 'Local ({HOST})', 'Hostname', 619, '{HOST}')",
    "environment": "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES "
    f"(1, 'x', 'DeviceEnvironment', 610, 'USER={USER};HF_TOKEN=uncovered-token-1;HOME=/home/{USER}')",
    "kernel": "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, 'x', 'KernelVersion', 882, '#1 built at uncovered-forge')",
    "property": "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, 'x', 'NewProperty', 999, 'uncovered-property')",
    "session": f"INSERT INTO META_DATA_CAPTURE VALUES ('PROFILING_SESSION_UUID', '{SESSION}')",
    "user": f"INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:USER_NAME', '{USER}')",
    "folder": f"INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:WORKING_DIR', '{FOLDER}')",
    "command": f"INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:COMMAND', '{FOLDER}/train.py')",
    "option": "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ARGUMENT_0', '--api-key')",
    "secret": "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ARGUMENT_1', 'uncovered-secret-2')",
    "value": f"INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:COLLECT_CUDA_TRACE', '{FOLDER}')",
    "export": f"INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PARAM_OUTPUT_PATH_ABS', '{FOLDER}/run.sqlite')",
    "zone": "UPDATE TARGET_INFO_SESSION_START_TIME SET localTime = '2026-11-20T23:59:59'",
    "gpu": f"UPDATE TARGET_INFO_GPU SET uuid = '{SESSION}', busLocation = '0000:c1:00.0', "
    "ctrlDevPath = '/dev/uncovered'",
    "message": f"INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 1, 1, 1, 'loaded {FOLDER}/x.so for uncovered-app', NULL)",
    "warning": f"INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 1, 1, 2, 'cannot open {FOLDER}/cudnn.so on {HOST}', NULL)",
    "process": "INSERT INTO PROCESSES VALUES (4711 << 24, 4711, '/usr/bin/uncovered-daemon')",
    "string": f"INSERT INTO StringIds VALUES (900001, 'SSH_CLIENT=10.20.30.40' || char(0) || 'LOGNAME={USER}')",
    "thread": "INSERT INTO StringIds VALUES (900002, 'uncovered-thread'); "
    "INSERT INTO ThreadNames VALUES (900002, 0, 4711 << 24)",
    "range": f"INSERT INTO StringIds VALUES (900003, 'epoch of {USER} on {HOST}, 10.20.30.40, /home/{USER}/a.bin'); "
    "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = 900003 WHERE rowid = 2",
    "blob": "CREATE TABLE NEW_IN_2031 (start INTEGER, who TEXT); INSERT INTO NEW_IN_2031 VALUES (1, 'uncovered-table')",
    "column": "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN owner TEXT; "
    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET owner = 'uncovered-column'",
    "index": "CREATE VIEW uncovered_view AS SELECT 'uncovered-view'; CREATE INDEX uncovered_index ON StringIds (value)",
    "free": "CREATE TABLE gone (x TEXT); "
    "INSERT INTO gone SELECT 'uncovered-page-' || value FROM StringIds; DROP TABLE gone",
}
TELLING = (
    *("uncovered", USER, HOST, "projekte", "geheim", SESSION, "10.20.30.40", "c1:00.0", "4711", "23:59:59", "forge"),
)


def tables(report):
    """Every table of a report; of one that cannot be told, the reason."""
    return {name: _table(report, name) for name in catalog.names()}


def _table(report, name):
    try:
        return catalog.make(report, name)
    except CannotTellError as error:
        return str(error).removeprefix(str(report.meta.path))


def assert_same_tables(before, after):
    reports = real_report(before) if before.is_relative_to(REPORTS) else kanalyze.read(before), kanalyze.read(after)
    one, other = map(tables, reports)
    if len(one["communicator_calls"]):  # they tell which ranks a collective has, and so who waits
        for found in (one, other):
            del found["critical_path"], found["findings"]
    for found in (one, other):  # made of payloads of ranges, which are taken out
        found.pop("communicator_calls", None)
        found["stack_frames"] = of_files(found["stack_frames"].filter(pl.col("line").is_null()))  # native functions
        if isinstance(found["host_waits"], pl.DataFrame):
            found["host_waits"] = of_files(found["host_waits"])
        for name, bucket in (("ledger", "bucket"), ("budget", "part")):
            if isinstance(found[name], pl.DataFrame):
                found[name] = without_details_of_communication(found[name], bucket)
    assert one.keys() == other.keys()
    for name, frame in one.items():
        if isinstance(frame, str):
            assert frame == other[name]
        else:
            assert_frame_equal(frame, other[name])
    first, second = (report.meta for report in reports)
    facts = ("tool_version", "schema_version", "driver_version", "origin_unix_ns", "duration_ns", "end_ns")
    assert [getattr(first, fact) for fact in facts] == [getattr(second, fact) for fact in facts]


def of_files(frames):
    """Modules by their names alone, without folders."""
    return frames.with_columns(module=pl.col("module").cast(pl.String).str.split("/").list.last())


def without_details_of_communication(ledger, bucket):
    """The ledger whose communication is one row a device: what of it is waiting is told by group sizes in payloads."""
    keys, own = ("device", bucket, "detail"), pl.col(bucket) == "communication"
    plain = ledger.with_columns(detail=pl.when(~own).then("detail"))
    return plain.group_by(keys, maintain_order=True).agg(pl.col("ns").sum(), pl.col("share").sum())


@pytest.mark.slow
@pytest.mark.parametrize("report", [*EXPORTS, *sorted((REPORTS / "old").glob("*.sqlite"))], ids=lambda path: path.stem)
def test_every_table_is_the_same(report, tmp_path):
    redact(report, tmp_path / "out.sqlite")
    assert_same_tables(report, tmp_path / "out.sqlite")


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_table_of_other_versions_is_the_same(version, tmp_path):
    report = as_written_by(version, tmp_path, REPORTS / "two_processes.sqlite")
    redact(report, tmp_path / "out.sqlite")
    assert_same_tables(report, tmp_path / "out.sqlite")


@pytest.fixture
def telling(tmp_path):
    """A real report with something in every place that could tell of its machine."""
    return altered(tmp_path, ADD, *(part for planted in PLANTED.values() for part in planted.split("; ")))


def test_nothing_planted_is_left_in_any_byte(telling, tmp_path):
    before = telling.read_bytes().decode("latin-1")
    assert [text for text in TELLING if text not in before] == ["4711"]  # a number in the file, a text in none
    redact(telling, tmp_path / "out.sqlite")
    data = (tmp_path / "out.sqlite").read_bytes().decode("latin-1").lower()
    assert [text for text in TELLING if text.lower() in data] == []


def test_what_stays_of_planted_texts_and_what_went(telling, tmp_path, gold):
    """What stays is what an analysis needs; counting alone counts the same."""
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    counted = redact(telling, None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert counted == redact(telling, tmp_path / "out.sqlite")
    lines = [f"{count} {what}" for what, count in sorted(counted.counts.items())]
    with closing(sqlite3.connect(tmp_path / "out.sqlite")) as database:
        for rows in (
            *("StringIds WHERE id > 900000", "META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV"),
            *("DIAGNOSTIC_EVENT WHERE severity > 1", "PROCESSES", "TARGET_INFO_GPU", "TARGET_INFO_SESSION_START_TIME"),
        ):
            lines += [f"## {rows}", *map(str, database.execute(f"SELECT * FROM {rows}"))]
    gold("\n".join([*lines, ""]), "redacted_nsys.txt")


def test_a_redacted_report_stays_as_it_is(tmp_path):
    redact(ADD_UM, tmp_path / "once.sqlite")
    again = redact(tmp_path / "once.sqlite", tmp_path / "twice.sqlite")
    assert (tmp_path / "once.sqlite").read_bytes() == (tmp_path / "twice.sqlite").read_bytes()
    assert again.counts == {}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
def test_pages_keep_their_size_and_rows_their_ids(page_bytes, tmp_path):
    lost = "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE rowid = 3"
    source = altered(tmp_path, ADD, f"PRAGMA page_size = {page_bytes}", "VACUUM", lost)
    redact(source, tmp_path / "out.sqlite")
    with closing(sqlite3.connect(tmp_path / "out.sqlite")) as database:
        assert database.execute("PRAGMA page_size").fetchone() == (page_bytes,)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert 3 not in {row[0] for row in database.execute("SELECT rowid FROM CUPTI_ACTIVITY_KIND_RUNTIME")}
    assert kanalyze.health(kanalyze.read(tmp_path / "out.sqlite")).equals(kanalyze.health(kanalyze.read(source)))


@pytest.mark.slow
def test_bytes_that_are_no_text_stay_in_names(tmp_path):
    source = altered(tmp_path, ADD, "UPDATE StringIds SET value = CAST(x'ff61' AS TEXT) WHERE value LIKE 'add(%'")
    redact(source, tmp_path / "out.sqlite")
    assert_same_tables(source, tmp_path / "out.sqlite")


def test_names_may_be_kept_and_others_removed(telling, tmp_path):
    redact(telling, tmp_path / "out.sqlite", keep=[HOST], remove=["Epoch of"])
    with closing(sqlite3.connect(tmp_path / "out.sqlite")) as database:
        names = {row[0] for row in database.execute("SELECT value FROM StringIds WHERE id > 900000")}
    assert names == {f"[removed] [user] on {HOST}, [ip], a.bin"}


def test_text_where_numbers_belong_is_damage(tmp_path):
    source = altered(tmp_path, ADD, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = 'sixteen'")
    with pytest.raises(DamagedReportError, match="KERNEL: text where numbers belong"):
        redact(source, tmp_path / "out.sqlite")
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name]


@pytest.mark.parametrize("share", [0.001, 0.3, 0.999])
def test_a_file_that_was_cut_is_damaged_and_another_database_is_refused(share, tmp_path):
    source = Path(tmp_path, "cut.sqlite")
    source.write_bytes(ADD.read_bytes()[: int(ADD.stat().st_size * share)])
    with pytest.raises(DamagedReportError):
        redact(source, tmp_path / "out.sqlite")
    assert [path.name for path in tmp_path.iterdir()] == ["cut.sqlite"]
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as database, database:
        database.execute("CREATE TABLE mine (x TEXT)")
    with pytest.raises(UnknownFormatError, match="an SQLite database that nsys did not write"):
        redact(tmp_path / "other.sqlite", tmp_path / "out.sqlite")


@pytest.mark.parametrize(("off", "damaged"), [(0, True), (1, False)])
def test_the_number_of_pages_is_believed_where_the_header_says_that_it_is_of_the_last_writer(off, damaged, tmp_path):
    raw = bytearray(ADD.read_bytes())
    raw[28:32] = (int.from_bytes(raw[28:32], "big") + 1).to_bytes(4, "big")
    raw[92:96] = (int.from_bytes(raw[24:28], "big") + off).to_bytes(4, "big")
    source, target = tmp_path / "add.sqlite", tmp_path / "out.sqlite"
    source.write_bytes(raw)
    if damaged:
        with pytest.raises(DamagedReportError, match="the file ends after"):
            redact(source, target)
    else:
        redact(source, target)
        assert kanalyze.read(target).kind("kernel").height == kanalyze.read(ADD).kind("kernel").height > 0


def test_counters_in_generic_events_stay_and_nothing_else_of_them(tmp_path):
    path, copied = altered(tmp_path, ADD), tmp_path / "copy.sqlite"
    counters = [{"SMs Active [Throughput %]": str(value), "Timestamp": 7} for value in (5, 9)]
    others = [{"comm": "secret", "GPC Clock Frequency [MHz]": "secret"}, ["secret"], {"secret Active": 5}]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE GENERIC_EVENTS (timestamp INTEGER, typeId INTEGER, data TEXT)")
        rows = [(at * 10, 256, json.dumps(told)) for at, told in enumerate(counters + others)]
        database.executemany("INSERT INTO GENERIC_EVENTS VALUES (?, ?, ?)", [*rows, (90, 1, "{secret"), (91, 1, None)])
    removed = redact(path, copied).counts
    assert b"secret" not in copied.read_bytes()
    assert removed["values of generic events that are no counters of a GPU"] == 7
    shown = kanalyze.read(copied).table("gpu_metrics").select("metric", "unit", "value").rows()
    assert shown == [("SMs Active", "Throughput %", 5), ("SMs Active", "Throughput %", 9)]


@pytest.mark.slow
def test_samples_of_profiled_processes_stay_with_their_functions(tmp_path):
    """Their modules by the last part of the path; those of other programs of the machine go."""
    copied, most = tmp_path / "copy.sqlite", "SELECT max(id) + 1"
    path = altered(
        *(tmp_path, REPORTS / "sampled_host.sqlite"),
        "INSERT INTO StringIds VALUES (990001, 'secret_function'), (990002, '/home/jane/secret')",
        f"INSERT INTO COMPOSITE_EVENTS {most}, 451800000, 0, 1, (4242 << 24) + 4242, 1 FROM COMPOSITE_EVENTS",
        "INSERT INTO SAMPLING_CALLCHAINS (id, symbol, module, stackDepth) "
        "SELECT max(id), 990001, 990002, 0 FROM COMPOSITE_EVENTS",
    )
    removed = redact(path, copied).counts
    assert removed["samples of processes that were not profiled"] == 1
    assert removed["functions in samples of processes that were not profiled"] == 1
    assert b"secret" not in copied.read_bytes()
    before, after = (kanalyze.read(one) for one in (REPORTS / "sampled_host.sqlite", copied))
    assert after.table("cpu_samples").equals(before.table("cpu_samples"))
    found = kanalyze.culprits(after, by="function")
    assert found.get_column("module").unique().drop_nulls().to_list() == ["host"]
    told = ["function", "state", "chain", "samples", "ns"]
    assert found.select(told).equals(kanalyze.culprits(before, by="function").select(told))


@pytest.mark.slow
def test_python_stacks_stay_with_the_kind_of_folder_of_their_files(tmp_path):
    """So that they tell the same; nothing else of a payload stays, nor the payloads of other ranges."""
    path, copied = tmp_path / "sampled.sqlite", tmp_path / "copy.sqlite"
    shutil.copyfile(REPORTS / "sampled_python.sqlite", path)
    with closing(sqlite3.connect(path)) as database:
        (wide,) = database.execute(
            "SELECT max(hex(binaryData) LIKE '%1E050000%') FROM NVTX_EVENTS WHERE binaryData NOT NULL"
        ).fetchone()
        assert wide, "memory of the program in what fills frames up"
        columns = "start, eventType, globalTid, domainId, text, binaryData"
        sql = f"INSERT INTO NVTX_EVENTS ({columns}) VALUES (?, ?, ?, ?, ?, ?)"
        (thread,) = database.execute("SELECT globalTid FROM NVTX_EVENTS WHERE eventType = 75").fetchone()
        database.execute(sql, (451_800_000, 34, thread, 77, "own", b"secret payload" * 9))
        database.execute(sql, (451_800_000, 34, thread, 1, "own", b"secret payload" * 9))
        database.commit()
    assert redact(path, copied).counts["payloads of ranges"] == 2
    with closing(sqlite3.connect(copied)) as database:
        held = [row[0] for row in database.execute("SELECT binaryData FROM NVTX_EVENTS WHERE binaryData NOT NULL")]
    assert held
    assert not [data for data in held if b"secret" in data or b"\x1e\x05\x00\x00" in data]
    before, after = (kanalyze.read(one) for one in (REPORTS / "sampled_python.sqlite", copied))
    one, other = (found.table("python_samples").drop_nulls("stack_id") for found in (before, after))
    assert one.equals(other)
    told = ["function", "state", "waits_on", "call", "chain", "evidence", "samples", "ns"]
    one, other = (kanalyze.culprits(found, by="function").select(told) for found in (before, after))
    assert one.equals(other)
    assert kanalyze.culprits(after, by="function").get_column("module").drop_nulls().unique().to_list() == ["train.py"]


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        ("interrupted", KeyboardInterrupt),
        ("database or disk is full", OSError),
        ("user-defined function raised exception", DamagedReportError),
        ("malformed", DamagedReportError),
    ],
)
def test_what_sqlite_says_is_an_error_of_its_kind(said, raised):
    with pytest.raises(raised) as told, failed(ADD, "NVTX_EVENTS"):
        raise sqlite3.OperationalError(said)
    assert raised is not DamagedReportError or "table NVTX_EVENTS" in str(told.value)
