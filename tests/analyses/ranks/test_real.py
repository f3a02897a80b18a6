"""Identities that hold in every job, on a report of two ranks."""

from pathlib import Path

import polars as pl
import pytest

from kanalyze import read
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.ranks._job_findings import causes, lateness
from kanalyze.several.jobs import Asked, job

REPORT = Path(__file__).parents[2] / "reports" / "nccl.sqlite"


@pytest.fixture(scope="module")
def found():
    return job([REPORT], Asked())


def test_waiting_and_transfer_sum_to_the_duration(found):
    rows = found.table("collectives").drop_nulls("id")
    assert rows.height == 94
    assert rows.select((pl.col("wait_ns") + pl.col("transfer_ns") == pl.col("dur_ns")).all()).item()
    assert rows.get_column("match").unique().to_list() == ["ordinal"]


def test_exposed_parts_sum_to_the_bucket_of_the_ledger(found):
    with read(REPORT) as report:
        sums = ledger(report).filter(pl.col("bucket") == "communication").group_by("device").agg(pl.col("ns").sum())
    own = found.table("collectives").group_by("device").agg(
        ns=pl.col("exposed_wait_ns").sum() + pl.col("exposed_transfer_ns").sum()
    )  # fmt: skip
    assert dict(own.iter_rows()) == dict(sums.iter_rows())


def test_the_parts_of_a_rank_sum_to_its_time(found):
    rows = found.table("ranks")
    parts = [name for name in rows.columns if name.endswith("_ns") and name not in ("hidden_ns", "late_ns", "cost_ns")]
    assert rows.select((pl.col("ns") == pl.sum_horizontal(parts)).all()).item()
    assert rows.get_column("steps").to_list() == [8, 8]


def test_causes_sum_to_what_is_new_of_lateness(found):
    late = lateness(found)
    sums = causes(found, late).group_by("match").agg(pl.col("ns").sum())
    both = late.filter(pl.col("new_ns") > 0).join(sums, on="match", how="left")
    assert both.height > 5
    assert both.get_column("new_ns").to_list() == both.get_column("ns").to_list()
