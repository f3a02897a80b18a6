"""The critical path over ranks: it waits for the late one."""

from pathlib import Path

import polars as pl
import pytest

from kanalyze import read
from kanalyze.analyses.ranks._job import job_of
from kanalyze.analyses.ranks._reducing import reduced
from kanalyze.analyses.ranks.tables import rank_path
from kanalyze.analyses.replay.critical_path import critical_path
from kanalyze.several import Asked
from kanalyze.several.jobs import path_of_ranks
from support.build import call, kernel, report
from support.command import run

ROOT = Path(__file__).parents[3]
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def _rank(process, launched, start, end, device=0):
    return [
        call("cudaLaunchKernel", 0, 5, process=process, correlation=1),
        call("cudaLaunchKernel", launched, launched + 5, process=process, correlation=2),
        kernel(6, 9, name="own", process=process, device=device, correlation=1),
        kernel(start, end, name=ALL_REDUCE, process=process, device=device, correlation=2),
        kernel(end, end + 10, name="next", process=process, device=device),
    ]


def _said(*rows):
    told = {"collective": "allreduce", "group_size": 2, "group": "0", "in_elements": 8, "type": "Float"}
    return [{"event_id": row, **told} for row in rows]


@pytest.mark.slow
def test_of_two_reports():
    first = report(_rank(1, 5, 12, 100), collective_detail=_said(3))
    second = report(_rank(2, 60, 66, 100), collective_detail=_said(3))
    job = job_of([reduced(first), reduced(second)], one_host=True)
    rows = rank_path(job, zip(job.ranks["rank"], (first, second), strict=True))
    told = rows.select("rank", "ns", "device_ns", "mostly", "mostly_ns").rows()
    # until 66 the host of rank 1, then the transfer of rank 0, since both end at once and it is the first
    assert told == [(1, 66, 0, "host", 55), (0, 44, 44, "transfer", 34)]
    assert rows["ns"].sum() == 110


def test_of_one_report():
    events = [*_rank(1, 5, 12, 100), *_rank(2, 60, 66, 100, device=1)]
    rows = critical_path(report(events, collective_detail=_said(3, 8)), segments=True)
    assert rows.select("cause", "process_id", "start_ns", "dur_ns").rows() == [
        ("launch", 2, 0, 5),
        ("host", 2, 5, 55),
        ("launch", 2, 60, 5),
        ("launch latency", 2, 65, 1),
        ("transfer", 1, 66, 34),
        ("kernel", 1, 100, 10),
    ]


@pytest.mark.slow
def test_the_ranks_of_a_sample():
    rows = path_of_ranks([ROOT / "sample_reports" / "ddp_late"], Asked(cache=False))
    assert rows["rank"].sort().to_list() == [0, 1]
    assert abs(rows["share"].sum() - 1) < 1e-12
    # rank 1 sleeps for 30 ms in one of the steps, rank 0 waits for it
    alone = critical_path(read(ROOT / "sample_reports" / "ddp_late" / "rank0.json.gz"))
    talks = alone.filter(pl.col("cause") == "communication")["ns"].sum()
    assert talks > 26_000_000
    assert rows.filter(pl.col("rank") == 1)["ns"].item() > 29_000_000


@pytest.mark.slow
def test_the_command():
    ran = run("show", "critical_path", ROOT / "sample_reports" / "ddp_late", "--by", "rank", "--format", "csv")
    assert ran.status == 0
    assert ran.lines[0].startswith("rank,process_id,ns,share")
    assert len(ran.lines) == 3
