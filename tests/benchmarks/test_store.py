"""Captures made small: all files are cut after the same iteration."""

import gzip
import json
import re
import sqlite3
import tarfile
from contextlib import closing

import pytest
import store

from support.command import SAMPLES


def packed(path, content):
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def test_an_export_loses_later_calls_and_what_they_launched(tmp_path):
    path = tmp_path / "nsys.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, correlationId)")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, correlationId, deviceId)")
        database.execute("CREATE TABLE NVTX_EVENTS (start, end, text)")
        database.execute("CREATE TABLE StringIds (id, value)")
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?)", [(1, 2, 7), (5, 6, 8), (9, 10, 9)]
        )
        kernels = [(3, 4, 7, 0), (11, 12, 8, 0), (13, 14, 9, 0)]
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?)", kernels)
        database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?)", [(1, 20, "run"), (8, 9, "step")])
        database.execute("INSERT INTO StringIds VALUES (1, 'x')")
    store.cut_export(path, 8)
    with closing(sqlite3.connect(path)) as database:
        left = {
            name: len(database.execute(f"SELECT * FROM {name}").fetchall()) for name in ("NVTX_EVENTS", "StringIds")
        }
        assert left == {"NVTX_EVENTS": 1, "StringIds": 1}
        assert database.execute("SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall() == [(7,), (8,)]


def test_a_trace_loses_later_calls_what_they_launched_and_the_arrows_between(tmp_path):
    kernel = {"ph": "X", "cat": "kernel", "ts": 12.0, "dur": 1}
    events = [
        {"ph": "M", "name": "process_name", "ts": 99, "args": {}},
        {"ph": "X", "cat": "cuda_runtime", "ts": 5.0, "dur": 1, "args": {"correlation": 1}},
        {"ph": "X", "cat": "cuda_runtime", "ts": 9.0, "dur": 1, "args": {"correlation": 2}},
        kernel | {"args": {"correlation": 1}},
        kernel | {"args": {"correlation": 2}},
        {"ph": "f", "cat": "ac2g", "ts": 12.0, "id": 1},
        {"ph": "f", "cat": "ac2g", "ts": 12.0, "id": 2},
        {"ph": "X", "cat": "cpu_op", "ts": 7.9, "dur": 9, "name": "aten::add"},
        {"ph": "X", "cat": "cpu_op", "ts": 8.0, "dur": 1, "name": "aten::mul"},
    ]
    path = packed(tmp_path / "torch.json.gz", {"traceEvents": events, "schemaVersion": 1})
    store.cut_trace(path, 8_000)
    trace = json.loads(gzip.decompress(path.read_bytes()))
    assert trace == {"traceEvents": [events[at] for at in (0, 1, 3, 5, 7)], "schemaVersion": 1}


def test_lines_and_passes_end_with_the_recording(tmp_path):
    lines = {"times": [10, 5, 5], "places": [0, 1, 0]}
    noted = {"clocks": [[1000, 0], [1100, 100]], "threads": [{"id": 1, "lines": lines, "loops": lines}]}
    path = packed(tmp_path / "lines-nsys.json.gz", noted)
    store.cut_lines(path, 1020)
    left = json.loads(gzip.decompress(path.read_bytes()))
    kept = {"times": [10, 5], "places": [0, 1]}
    assert left == {"clocks": [[1000, 0], [1020, 20]], "threads": [{"id": 1, "lines": kept, "loops": kept}]}


def test_marks_lose_the_same_part(tmp_path):
    path = tmp_path / "bare.json"
    path.write_text(json.dumps({"schema": 1, "starts_ns": {"step": [*range(20)], "layer": [*range(80)], "once": [1]}}))
    store.cut_marks(path, 0.5)
    assert {mark: len(those) for mark, those in json.loads(path.read_text())["starts_ns"].items()} == {
        "step": 10,
        "layer": 40,
        "once": 0,
    }


@pytest.mark.slow
def test_a_stored_capture_is_smaller_and_says_the_same(tmp_path):
    said = store.store(SAMPLES / "streams", tmp_path, keep=0.5, small_mb=0.01, largest_mb=1)
    with tarfile.open(tmp_path / "streams.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert re.fullmatch(r"streams: 0\.\d\d MB, stored 0\.\d\d MB, cut", said)
    assert store.first_rules(tmp_path / "streams") == store.first_rules(SAMPLES / "streams")
    assert "left out" in store.store(SAMPLES / "streams", tmp_path, keep=0.5, small_mb=1, largest_mb=0.001)
    assert not (tmp_path / "streams.tar.xz").exists()
