"""A job in which one rank sleeps for a known time in a known step."""

from pathlib import Path

import polars as pl
import pytest

from kanalyze.analyses.ranks._job_findings import job_findings, late_ranks
from kanalyze.renderers.page.job import answer, timeline
from kanalyze.several import Asked
from kanalyze.several.jobs import job

SAMPLE = Path(__file__).parents[3] / "sample_reports" / "ddp_late"

#: What rank 1 slept in step 11, by its own clock.
SLEPT_NS = 30_330_000


@pytest.fixture(scope="module")
def found():
    return job([SAMPLE], Asked())


@pytest.mark.slow
def test_the_late_rank_its_step_its_cause_and_the_size_are_told(found):
    late = late_ranks(found)[0]
    assert (late.rank, late.first, late.last) == (1, 11, 11)
    assert late.late_ns == pytest.approx(SLEPT_NS, rel=0.05)
    cause, ns = late.causes[0]
    assert cause == "host"
    assert ns == pytest.approx(SLEPT_NS, rel=0.05)
    assert sum(ns for _, ns in late.causes) == late.late_ns


def test_matching_is_told_and_complete(found):
    rows = found.table("collectives")
    assert rows.get_column("match").unique().to_list() == ["ordinal"]
    assert rows.get_column("id").null_count() == 0
    assert rows.group_by("id").len().get_column("len").unique().to_list() == [2]


@pytest.mark.parametrize("width", [70, 80, 200])
def test_a_timeline_has_a_bar_per_rank_within_the_width(found, width):
    lines = timeline(found.table("collectives").filter(pl.col("id") == 14), width).splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) <= width
    assert lines[2].endswith("░▓")
    assert lines[3].endswith(" ▓")
    assert lines[4].endswith("rank 1 came last, by 29.23 ms")


def test_findings_are_of_the_mean_step_and_name_the_rank_that_the_answer_names(found):
    told = job_findings(found)
    assert [one.finding for one in told] == ["straggler", "exposed-transfer"]
    assert told[0].text.startswith("Rank 1 is 29.23 ms late in 1 step, most for its host")
    assert "Rank 1 is 29.23 ms late in step 11" in answer(found)
    assert "5 steps, not all of them steady; 1 left out" in answer(found)  # that with the sleep is one of them
    step = found.table("rank_steps").get_column("ns").median()
    assert all(0 < one.at_stake_ns < step for one in told)


def test_nothing_is_told_of_one_rank_alone():
    alone = job([SAMPLE / "rank1.json.gz"], Asked())
    assert job_findings(alone) == []
    assert answer(alone).startswith("Only one rank was read")
    assert alone.missing == [0]
    rows = alone.table("collectives")
    assert rows.get_column("id").null_count() == rows.height
    assert rows.get_column("wait_ns").null_count() == rows.height
