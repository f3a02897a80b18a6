"""Jobs of four ranks on four GPUs with known delays, and a pipeline of four stages with a known number of messages."""

from pathlib import Path

import polars as pl
import pytest

from kanalyze.analyses.ranks._job_findings import job_findings, late_ranks
from kanalyze.renderers.page.job import answer
from kanalyze.several import Asked
from kanalyze.several.jobs import job

SAMPLES = Path(__file__).parents[3] / "sample_reports"

#: What rank 2 multiplied in steps 8 to 10, by CUDA events, and what rank 1 slept in step 12, by its own clock.
MULTIPLIED_NS = (11_309_000, 11_588_000, 11_935_000)
SLEPT_NS = 30_179_000

STAGES, MICROBATCHES, STEPS = 4, 8, 2


@pytest.fixture(scope="module")
def found():
    return job([SAMPLES / "ddp_four"], Asked())


@pytest.fixture(scope="module")
def pipeline():
    return job([SAMPLES / "pipeline_four"], Asked())


@pytest.mark.slow
def test_late_ranks_their_steps_causes_and_sizes_are_told(found):
    multiplies, sleeps = sorted(late_ranks(found)[:2], key=lambda one: one.first)
    assert (multiplies.rank, multiplies.first, multiplies.last) == (2, 8, 10)
    assert (sleeps.rank, sleeps.first, sleeps.last) == (1, 12, 12)
    mean = sum(MULTIPLIED_NS) // 3
    assert (multiplies.causes[0][0], sleeps.causes[0][0]) == ("kernel", "host")
    assert multiplies.late_ns == pytest.approx(mean, rel=0.05)
    assert multiplies.causes[0][1] == pytest.approx(mean, rel=0.05)
    assert sleeps.late_ns == pytest.approx(SLEPT_NS, rel=0.05)
    assert sleeps.causes[0][1] == pytest.approx(SLEPT_NS, rel=0.05)


@pytest.mark.slow
def test_each_step_has_its_own_size(found):
    rows = found.table("rank_steps").filter((pl.col("rank") == 2) & pl.col("step").is_between(8, 10)).sort("step")
    for told, ns in zip(rows.get_column("late_ns"), MULTIPLIED_NS, strict=True):
        assert told == pytest.approx(ns, rel=0.05)


def test_nobody_else_is_late_by_more_than_a_millisecond(found):
    assert {one.rank for one in late_ranks(found) if one.late_ns > 1_000_000} == {1, 2}


def test_waits_sum_with_transfer_to_the_duration_on_all_four(found):
    rows = found.table("collectives")
    assert rows.get_column("id").null_count() == 0
    assert rows.group_by("id").len().get_column("len").unique().to_list() == [4]
    assert rows.select((pl.col("wait_ns") + pl.col("transfer_ns") == pl.col("dur_ns")).all()).item()


@pytest.mark.slow
def test_clocks_of_one_host_are_one_within_their_bounds(found, pipeline):
    for one in (found, pipeline):
        rows = one.table("clocks")
        assert rows.height == 4
        assert rows.select(((pl.col("low_ns") <= 0) & (pl.col("high_ns") >= 0)).all()).item()


def test_the_answer_names_the_late_rank(found):
    assert "Rank 2 is 11.48 ms late in steps 8 to 10: kernel +11.78 ms" in answer(found)


@pytest.mark.slow
def test_messages_of_a_pipeline_are_all_matched_between_neighbours(pipeline):
    rows = pipeline.table("collectives")
    assert rows.get_column("id").null_count() == 0
    assert rows.get_column("size").unique().to_list() == [2]
    pairs = rows.group_by("id").agg(ranks=pl.col("rank").sort(), kind=pl.col("kind").cast(pl.String).sort())
    assert all(high - low == 1 for low, high in pairs.get_column("ranks").to_list())
    # a send_recv is a message each way
    kinds = pairs.get_column("kind").to_list()
    assert {*map(tuple, kinds)} == {("recv", "send"), ("send_recv", "send_recv")}
    messages = sum(2 if kind[0] == "send_recv" else 1 for kind in kinds)
    assert messages == 2 * (STAGES - 1) * MICROBATCHES * STEPS
    assert rows.get_column("bytes").unique().to_list() == [4096 * 4096 * 2]


@pytest.mark.slow
def test_the_slow_stage_of_a_pipeline_is_found(pipeline):
    assert late_ranks(pipeline) == []
    first = job_findings(pipeline)[0]
    assert (first.finding, first.text[:6]) == ("other-work", "Rank 2")
