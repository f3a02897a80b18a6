"""The table of operators against torch's own: every row of every table that the samples have, and exact sums of one."""

import json
from collections import defaultdict
from functools import cache

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.operators._host_tree import forward_rows
from support.command import ROOT
from support.key_averages import parsed
from support.real_reports import real_report

SAMPLES = ROOT / "sample_reports"
PRINTED = sorted(path.parent for path in SAMPLES.glob("*/torch.key_averages.txt"))
EXACT = sorted((ROOT / "tests" / "reports" / "torch").glob("*.key_averages.json"))
COLUMNS = ("count", "self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns")
MEMORY = ("self_cpu_bytes", "cpu_bytes", "self_device_bytes", "device_bytes")

#: What the old profiler, torch.autograd.profiler, measures with CUDA events is in its table, and not in its trace.
WITHOUT_DEVICE_TIMES = "autograd_profiler"


@cache
def trace(path):
    return real_report(path)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("folder", PRINTED, ids=lambda folder: folder.name)
def test_every_row_that_torch_printed(folder):
    printed = parsed(folder / "torch.key_averages.txt")
    ours = kanalyze.ops(trace(folder / "torch.json.gz"), as_torch=True).to_dicts()
    assert len(printed) == len(ours) > 40
    for row in printed:
        found = next((one for one in ours if row.is_of(one)), None)
        assert found is not None, row
        ours.remove(found)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("folder", PRINTED, ids=lambda folder: folder.name)
def test_the_default_rows_are_among_them_and_sum_to_the_busy_time(folder):
    report = trace(folder / "torch.json.gz")
    columns = ("name", "count", "self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns")
    everything = set(kanalyze.ops(report, as_torch=True).select(columns).rows())
    found = kanalyze.ops(report)
    assert set(found.drop_nulls("name").filter(found["count"] > 0).select(columns).rows()) <= everything
    ledger = kanalyze.ledger(report)
    busy = ledger.filter(ledger["bucket"].is_in(["kernel", "communication", "memcpy", "memset"]))["ns"].sum()
    for by in (None, "shape", "phase"):
        assert kanalyze.ops(report, by=by)["exclusive_device_ns"].sum() == busy
    launched = kanalyze.op_kernels(report)
    assert launched["exclusive_ns"].sum() == busy
    assert launched["share"].sum() == pytest.approx(1)


def trace_of(table):
    return trace(table.with_name(table.name.replace(".key_averages.json", ".json.gz")))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("table", EXACT, ids=lambda table: table.name.partition(".")[0])
def test_every_row_to_the_last_digit(table):
    """Of traces with what is hard to count: stacks, collectives, annotations that overlap, pauses of the collector…"""
    theirs = json.loads(table.read_text())["by_name"]
    ours = kanalyze.ops(trace_of(table), as_torch=True)
    ours = ours.with_columns(pl.col(MEMORY).fill_null(0)).select("name", "side", "annotation", *COLUMNS, *MEMORY)
    if table.name.startswith(WITHOUT_DEVICE_TIMES):
        ours, theirs = ours.drop(("self_device_ns", "device_ns")), [row[:6] + row[8:] for row in theirs]
    assert sorted(ours.rows()) == sorted(map(tuple, theirs))


def test_shapes_to_the_last_digit():
    """To torch's table a list of tensors has no shape, and types tell nothing apart."""
    (table,) = (path for path in EXACT if path.name.startswith("memory"))
    operators = {row["name"] for row in kanalyze.ops(trace_of(table)).to_dicts()}
    theirs = json.loads(table.read_text())["by_shape"]
    theirs = {
        (row[0], row[3], json.dumps(row[1]), *row[4:]) for row in theirs if row[0] in operators and row[2] == "host"
    }
    ours = defaultdict(lambda: [0] * len((*COLUMNS, *MEMORY)))
    for row in kanalyze.ops(trace_of(table), by="shape").drop_nulls("name").to_dicts():
        shapes = json.loads(row["input_shapes"] or "[]")
        flat = [[] if any(isinstance(size, list) for size in shape) else shape for shape in shapes]
        sums = ours[row["name"], row["kind"] == "range", json.dumps(flat)]
        for place, column in enumerate((*COLUMNS, *MEMORY)):
            sums[place] += row[column]
    assert {(*key, *sums) for key, sums in ours.items()} == theirs


class Unlinked:
    """A report's tables without torch's own links from backward operators to forward ones."""

    def __init__(self, report):
        self.kinds, self.events, self._table = report.source.kinds, report.source.events, report.table

    def table(self, name):
        found = self._table(name)
        return found.with_columns(pl.lit(None, dtype=pl.Int64).alias("forward_id")) if name == "op_detail" else found


@pytest.mark.parametrize(
    "path",
    [SAMPLES / "mlp_train" / "torch.json.gz", EXACT[0].with_name("ddp.json.gz")],
    ids=lambda path: path.parts[-2],
)
def test_autograds_numbers_lead_where_torchs_own_links_lead(path):
    report = trace(path)
    assert report.table("op_detail")["forward_id"].is_not_null().sum() > 10
    assert forward_rows(kanalyze.Report(report.meta, Unlinked(report))).equals(forward_rows(report))
