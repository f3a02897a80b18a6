"""The table `phases`: the recording, split by what the process did."""

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.iterations.phases import steady_part
from support.build import call, kernel, launched, nvtx, report
from support.command import SAMPLES
from support.real_reports import real_report

MLP = SAMPLES / "mlp_train" / "nsys.sqlite"
TRACE = SAMPLES / "mlp_train" / "torch.json.gz"


@pytest.mark.parametrize("path", [MLP, TRACE], ids=lambda path: path.name)
def test_phases_add_up_to_the_recording(path):
    found = real_report(path)
    start, end = found.recorded
    rows = kanalyze.phases(found)
    assert rows.get_column("ns").sum() == end - start
    assert rows.filter(pl.col("phase") == "steady").item(0, "ns") == steady_part(found).ns


def test_what_came_before_between_and_after_is_told_by_what_it_was():
    events, number = [], 1
    for start in (1_000, 1_110, 1_220, 2_500, 2_610):
        events += [
            nvtx("step", start, start + 100),
            *launched(start + 1, start + 3, kernel(start + 4, start + 99, correlation=number)),
        ]
        number += 1
    events += [nvtx("load", 600, 700), nvtx("evaluate", 1_400, 2_400), call("cudaMalloc", 500, 510)]
    rows = kanalyze.phases(report(events))
    told = {(phase, part): ns for phase, part, ns in rows.select("phase", "part", "ns").iter_rows()}
    assert told["steady", "step"] == 320
    assert told["before", "before the first CUDA call"] == 500
    assert told["before", "in load"] == 100
    assert told["between", "in evaluate"] == 1_000
    assert told["between", "other step"] == 210
    assert sum(told.values()) == 2_710
    assert rows.filter(pl.col("part") == "other step").item(0, "count") == 2
    assert kanalyze.phases(
        report([call("cudaLaunchKernel", 0, 1, correlation=1), kernel(2, 9, correlation=1)])
    ).is_empty()
