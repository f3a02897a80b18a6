"""What nsys sampled of the host: stacks, Python's payloads, the scheduler, counters of GPUs and networks."""

import json
import shutil
import sqlite3
import struct
from contextlib import closing

import polars as pl
import pytest

import kanalyze
from kanalyze.readers.storage import table_files, table_scan
from support.command import REPORTS
from support.exports import altered


@pytest.fixture
def made(tmp_path):
    """A function that gives a report with the tables of `script` in it; the next free name."""

    def make(script, *rows):
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.sqlite"
        shutil.copyfile(REPORTS / "empty.sqlite", path)
        with closing(sqlite3.connect(path)) as database:
            database.executescript(script)
            for statement, values in rows:
                database.execute(statement, values)
            database.commit()
        return kanalyze.read(path)

    return make


STRINGS = (
    "INSERT INTO StringIds VALUES (900001, 'main'), (900002, 'work'), (900003, '0x7f12'), (900004, '/home/me/app'),"
)
STRINGS += "(900005, '[Broken backtraces]'), (900006, '&lt;module&gt;'), (900007, '/home/me/run.py');"
THREAD = (5 << 24) + 6

SAMPLED = f"""{STRINGS}
CREATE TABLE COMPOSITE_EVENTS (id INTEGER, start INTEGER, cpu INTEGER, state INTEGER, globalTid INTEGER, cycles);
CREATE TABLE SAMPLING_CALLCHAINS (id INTEGER, symbol INTEGER, module INTEGER, specialEntry, stackDepth INTEGER);
INSERT INTO COMPOSITE_EVENTS VALUES
    (7, 300, 1, 1, {THREAD}, 1), (8, 100, 2, 1, {THREAD}, 1), (9, 200, 2, 1, {THREAD}, 1);
INSERT INTO SAMPLING_CALLCHAINS VALUES (7, 900002, 900004, NULL, 0), (7, 900001, 900004, NULL, 1),
    (8, 900003, 900004, NULL, 0), (8, 900005, 900005, NULL, 1), (9, 900002, 900004, NULL, 0),
    (9, 900001, 900004, NULL, 1);
"""


def test_equal_stacks_are_one_and_a_function_without_a_symbol_has_no_name(made):
    report = made(SAMPLED)
    samples = report.table("cpu_samples").select("time_ns", "process_id", "thread_id", "cpu", "stack_id").rows()
    assert samples == [(100, 5, 6, 2, 1), (200, 5, 6, 2, 0), (300, 5, 6, 1, 0)]
    frames = report.table("stack_frames").select("stack_id", "depth", "function", "module").rows()
    assert frames == [(0, 0, "work", "/home/me/app"), (0, 1, "main", "/home/me/app"), (1, 0, None, "/home/me/app")]


@pytest.mark.parametrize("odd", [-1, 1 << 33])
def test_a_stack_by_an_id_that_no_sample_can_have_belongs_to_none(made, odd):
    report = made(f"{SAMPLED} INSERT INTO SAMPLING_CALLCHAINS VALUES ({odd}, 900001, 900004, NULL, 0);")
    assert report.table("cpu_samples").get_column("time_ns").to_list() == [100, 200, 300]
    stacks = report.table("cpu_samples").select("time_ns", "stack_id")
    named = stacks.join(report.table("stack_frames"), on="stack_id").sort("time_ns", "depth")
    assert named.get_column("function").to_list() == [None, "work", "main", "work", "main"]


def payload(state, *frames):
    body = struct.pack("<QiI", 0, state, len(frames)) + b"".join(struct.pack("<QQI4x", *one) for one in frames)
    return struct.pack("<4Q", 1, 2, len(body), 32) + body


NVTX = f"""{STRINGS}
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER,
    domainId INTEGER, binaryData);
INSERT INTO NVTX_EVENTS VALUES (1, NULL, 75, 'Python Periodic Sampling', {THREAD}, NULL, 1, NULL),
    (2, NULL, 75, 'Python Backtrace on CUDA', {THREAD}, NULL, 2, NULL), (10, 90, 59, 'step', {THREAD}, NULL, 0, NULL),
    (15, NULL, 34, 'a mark', {THREAD}, NULL, 0, NULL);
"""
ADDED = f"INSERT INTO NVTX_EVENTS VALUES (?, NULL, 34, NULL, {THREAD}, NULL, ?, ?)"


def test_python_stacks_are_samples_and_no_ranges(made):
    stack = ((900002, 900007, 3), (900006, 900007, 9))
    rows = [(ADDED, (20, 1, payload(1, *stack))), (ADDED, (40, 2, payload(2, *stack))), (ADDED, (30, 1, None))]
    report = made(NVTX, *rows)
    assert report.kind("range").get_column("name").to_list() == ["step"]
    samples = report.table("python_samples")
    shown = samples.select("time_ns", "thread_id", "periodic", "state").rows()
    assert shown == [(20, 6, True, "Running"), (30, 6, True, None), (40, 6, False, "Blocking Wait")]
    first, lost, same = samples.get_column("stack_id")
    assert (first, lost) == (same, None)
    frames = report.table("stack_frames").filter(stack_id=first).select("depth", "function", "module", "line").rows()
    assert frames == [(0, "work", "/home/me/run.py", 3), (1, "<module>", "/home/me/run.py", 9)]


@pytest.mark.parametrize(
    "blob", [b"", b"short", payload(1, (1, 2, 3))[:-4], struct.pack("<4Q", 1, 2, 1 << 40, 32), "x"]
)
def test_a_damaged_payload_is_a_sample_without_a_stack(made, blob):
    samples = made(NVTX, (ADDED, (20, 1, blob))).table("python_samples")
    assert samples.select("time_ns", "stack_id").rows() == [(20, None)]


def test_stacks_of_calls_are_joined_to_the_events_of_their_calls():
    report = kanalyze.read(REPORTS / "sampled_lock.sqlite")
    calls = report.kind("osrt").select("event_id", "name", "dur_ns")
    stacks = report.table("call_stacks").join(calls, on="event_id")
    long = calls.filter(pl.col("dur_ns") > 80_000).height  # nsys takes stacks of calls from 80 µs on
    assert stacks.filter(pl.col("dur_ns") > 80_000).height == long > 20
    own = report.table("stack_frames").filter(function="update_table()").get_column("stack_id")
    assert stacks.filter(pl.col("stack_id").is_in(own.implode())).get_column("name").unique().to_list() == [
        "pthread_mutex_lock"
    ]


METRICS = """
CREATE TABLE GPU_METRICS (rawTimestamp INTEGER, timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER);
CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, sourceId, typeName TEXT, metricId INTEGER, metricName TEXT);
INSERT INTO TARGET_INFO_GPU_METRICS VALUES (281479271677953, 0, '', 0, 'SMs Active [Throughput %]'),
    (281479271677953, 0, '', 1, 'Compute Warps in Flight [Avg Warps per Cycle]'), (281479271677953, 0, '', 2, 'Plain');
"""


def test_samples_of_equal_value_are_one_row_up_to_a_hole(made):
    """A sample counts until the next; where that is late, for the usual distance."""
    rows = [(-10, 5), (0, 5), (10, 7), (20, 7), (60, 7), (70, 0)]
    values = ", ".join(f"(0, {time}, 281479271677953, 0, {value})" for time, value in rows)
    values += ", (0, 0, 281479271677953, 1, -128), (0, 10, 281479271677953, 1, 127), (0, 5, 281479271677953, 9, 1)"
    found = made(f"{METRICS} INSERT INTO GPU_METRICS VALUES {values};").table("gpu_metrics")
    assert found.drop("device").rows() == [
        ("SMs Active", "Throughput %", -10, 20, 2, 5),
        ("SMs Active", "Throughput %", 10, 20, 2, 7),
        ("SMs Active", "Throughput %", 60, 10, 1, 7),
        ("SMs Active", "Throughput %", 70, 10, 1, 0),
        ("Compute Warps in Flight", "Avg Warps per Cycle", 0, 10, 1, 128),
        ("Compute Warps in Flight", "Avg Warps per Cycle", 10, 10, 1, 127),
    ]
    assert found.get_column("device").unique().to_list() == [1]


def test_counters_of_generic_events_are_read_alike(made):
    told = [{"SMs Active [Throughput %]": "5", "Timestamp": "1"}, {"SMs Active [Throughput %]": 7}, {"Name": "other"}]
    texts = [*map(json.dumps, told), "{not JSON"]
    rows = [("INSERT INTO GENERIC_EVENTS VALUES (?, 256, ?)", (at * 10, text)) for at, text in enumerate(texts)]
    report = made("CREATE TABLE GENERIC_EVENTS (timestamp INTEGER, typeId INTEGER, data TEXT);", *rows)
    expected = [(0, "SMs Active", "Throughput %", 0, 10, 1, 5.0), (0, "SMs Active", "Throughput %", 10, 10, 1, 7.0)]
    assert report.table("gpu_metrics").rows() == expected
    notes = report.table("notes").select("check", "count").rows()
    assert ("samples of counters that cannot be decoded", 1) in notes


def test_network_counters_have_adapter_name_and_unit():
    found = kanalyze.read(REPORTS / "network.sqlite").table("network_metrics")
    wanted = [("nic", "mlx5_0", "IB: Bytes received", "B/ms", 400), ("nic", "mlx5_0", "IB: Bytes sent", "B/ms", 300)]
    assert found.select("source", "adapter", "metric", "unit", "value").rows()[:2] == wanted
    assert found.row(-1, named=True)["adapter"] == "55"


def told(path):
    """What is made of samples: tables, and host time by function."""
    read = kanalyze.read(path)
    names = ("function", "module", "state", "waits_on", "call", "chain", "evidence", "samples", "ns")
    tables = {name: read.table(name) for name in ("cpu_samples", "call_stacks", "stack_frames")}
    return tables | {"culprits": kanalyze.culprits(read, by="function").select(names)}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rows"), [("sampled_host", 101), ("sampled_lock", 1000)])
def test_samples_in_parts_tell_what_they_tell_at_once(monkeypatch, name, rows):
    """Wherever the parts end: between the functions of a stack, too."""
    whole = told(REPORTS / f"{name}.sqlite")
    monkeypatch.setattr(table_files, "PAGES_FROM_ROWS", 0)
    monkeypatch.setattr(table_scan, "_ROWS", rows)
    taken = table_scan._together  # noqa: SLF001 - what cuts a table into parts

    def cut(parts):
        return (part.slice(at, rows) for part in taken(parts) for at in range(0, part.height, rows))

    monkeypatch.setattr(table_scan, "_together", cut)
    found = told(REPORTS / f"{name}.sqlite")
    assert [key for key, frame in found.items() if not frame.equals(whole[key])] == []


def test_samples_out_of_order_are_sorted(tmp_path):
    """Of equal times in the report's order; the report has some at each, in no order."""
    mixed = "UPDATE COMPOSITE_EVENTS SET start = (start / 3000000 + id * 7919 % 5) * 3000000"
    report, parts = kanalyze.read(altered(tmp_path, REPORTS / "sampled_host.sqlite", mixed)), []
    report.mapped("cpu_samples", lambda part: parts.append(part) or part)
    whole = report.table("cpu_samples")
    assert not pl.concat(parts).get_column("time_ns").is_sorted()
    assert whole.equals(pl.concat(parts).sort("time_ns", maintain_order=True))


@pytest.mark.slow
def test_stacks_out_of_order_are_the_same(tmp_path):
    source, table = REPORTS / "sampled_host.sqlite", "SAMPLING_CALLCHAINS"
    path = altered(
        *(tmp_path, source, f"CREATE TABLE mixed AS SELECT * FROM {table} ORDER BY stackDepth, id * 7919 % 1009"),
        *(f"DELETE FROM {table}", f"INSERT INTO {table} SELECT * FROM mixed ORDER BY rowid", "DROP TABLE mixed"),
    )
    one, other = told(REPORTS / "sampled_host.sqlite"), told(path)
    assert [key for key, frame in one.items() if not frame.equals(other[key])] == []
