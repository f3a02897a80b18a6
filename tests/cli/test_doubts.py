"""Whoever prints figures of a report of which something is in doubt says so on standard error, once for each report."""

import json

import polars as pl
import pytest

import kanalyze
from kanalyze import cli
from kanalyze.cli import _answers
from support.build import call, kernel, report
from support.command import ADD, REPORTS, SAMPLES, run
from support.exports import KERNEL, RUNTIME, altered

TRACE, GRAPH_NODE = SAMPLES / "mlp_train" / "torch.json.gz", REPORTS / "graph_node.sqlite"

#: What prints figures of one report.
ON_TRACES = [
    *(("show", "ops"), ("show", "ops", "--format", "csv"), ("show", "kernels", "--format", "json")),
    *(("show", "tree"), ("summarize",)),
]
ON_EXPORTS = [
    *(("show", "kernels"), ("show", "api", "--format", "csv"), ("show", "copies"), ("show", "launches")),
    *(("show", "gaps", "--window", "..2s"), ("show", "devices"), ("summarize",)),
]


def the_line(ran, path):
    """What one line says of the report at `path`, and nothing else is said."""
    (line,) = ran.said.splitlines()
    begin, end = f"kanalyze: {path}: not all of this can be trusted: ", f". See `kanalyze show health {path}`"
    assert line.startswith(begin)
    assert line.endswith(end)
    return line.removeprefix(begin).removesuffix(end)


@pytest.mark.parametrize("command", ON_EXPORTS, ids=" ".join)
@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (f"DELETE FROM {KERNEL} WHERE rowid IN (3, 4, 5)", f"3 rows missing from {KERNEL}"),
        (f'UPDATE {RUNTIME} SET "end" = "end" + 1000000000000 WHERE rowid = 9', "1 host event outside the recording ("),
    ],
    ids=["rows", "call"],
)
def test_of_a_small_export_everything_is_told_whatever_is_asked_for(tmp_path, command, statement, told):
    path = altered(tmp_path, GRAPH_NODE, statement)
    assert told in the_line(run(*command, path), path)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("command", ON_TRACES, ids=" ".join)
def test_of_a_report_without_doubts_nothing_is_said(command):
    assert run(*command, TRACE).said == ""


def test_a_table_that_was_not_needed_and_cannot_be_read_is_no_error(tmp_path):
    statements = ("CREATE TABLE x AS SELECT 'no number' AS start, * FROM NVTX_EVENTS", "DROP TABLE NVTX_EVENTS")
    path = altered(tmp_path, GRAPH_NODE, *statements, "ALTER TABLE x RENAME TO NVTX_EVENTS")
    ran = run("show", "kernels", path)
    assert ran.status == 0
    assert ran.raw
    (line,) = ran.doubts
    assert line.startswith(f"kanalyze: not all of it can be read: {path}: damaged at table NVTX_EVENTS")
    assert line.endswith(f" See `kanalyze show health {path}`")


def test_of_a_large_report_only_what_was_read_is_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "_SMALL_BYTES", 0)
    statements = f'UPDATE {RUNTIME} SET "end" = start - 7 WHERE rowid = 9', f"DELETE FROM {KERNEL} WHERE rowid = 3"
    path = altered(tmp_path, GRAPH_NODE, *statements)
    assert "1 negative duration (7 ns)" in the_line(run("show", "launches", path), path)
    of_kernels = the_line(run("show", "kernels", path), path)
    assert "negative duration" not in of_kernels
    assert f"1 row missing from {KERNEL}" in of_kernels


def test_a_hostile_name_stays_on_its_line(tmp_path):
    path = tmp_path / "a\n\x1b[31mb.json"
    event = {"ph": "X", "cat": "evil\n\x1b]0;x\x07", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    fine = {**event, "cat": "cpu_op"}
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [fine, event]}))
    ran = run("show", "ops", path)
    assert ran.status == 0
    assert len(ran.said.splitlines()) == 1
    assert "\x1b" not in ran.said


def test_many_doubts_are_counted():
    rows = kanalyze.health(report([call("cudaLaunchKernel", 10, 15, correlation=1), kernel(7, 20, correlation=1)]))
    many = pl.concat([rows.head(9).with_columns(check=pl.format("check {}", pl.int_range(9)), count=2000, ns=None)])
    assert _answers.doubt_line("f", many).endswith("; 2,000 check 5; and 3 more. See `kanalyze show health f`")
    assert _answers.doubt_line("f", many.clear()) == ""
    assert _answers.command("a b") == "kanalyze show health 'a b'"
    assert run("show", "kernels", ADD).said == ""
