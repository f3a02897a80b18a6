"""Drift of clocks: told and taken off where the ends of collectives show it, and left alone where they do not."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.ranks._job import job_of
from support.strategies import FEWER
from support.synthetic_job import Op, Plan, Straggler, play

#: Some 1.2 s on two hosts, with collectives of 4 ms between them.
LONG = Plan(
    ranks=4,
    hosts=2,
    steps=40,
    ops=(Op("all_reduce", bytes=800_000, compute_ns=15_000_000), Op("all_gather", "dp", 800_000, 15_000_000)),
    jitter=0.001,
    offsets_ns=(0, 300_000),
    drifts=(0.0, 2e-5),
)


def errors(plan):
    """By how much waits are off, and the drifts that are told, by rank."""
    made = play(plan)
    job = job_of([*made.reductions()])
    truth = made.truth().drop_nulls("number").select("rank", "number", true="wait_ns")
    rows = job.rows.drop_nulls("match").join(truth, on=["rank", "number"])
    off = rows.select((pl.col("wait_ns") - pl.col("true")).abs().max()).item()
    return off, dict(job.table("clocks").group_by("rank").agg(pl.col("drift_ppm").first()).rows())


def test_a_drift_of_20_ppm_is_told_and_waits_are_without_it():
    off, told = errors(LONG)
    assert off < 1_000  # 20 ppm of 1.2 s are 24 µs
    assert {rank: round(ppm) for rank, ppm in told.items()} == {0: 0, 1: 0, 2: 20, 3: 20}


@pytest.mark.parametrize("drifts", [(0.0, 0.0), (2e-5, 2e-5)])
def test_clocks_that_run_alike_have_none(drifts):
    off, told = errors(replace(LONG, drifts=drifts))
    assert off < 1_000
    assert set(told.values()) == {0}


def test_of_few_collectives_no_drift_is_told():
    _, told = errors(replace(LONG, steps=4))
    assert set(told.values()) == {0}


def test_a_clock_that_is_set_is_no_drift():
    made = [*play(replace(LONG, drifts=(0.0, 0.0))).reductions()]
    later = [
        replace(
            one,
            collectives=one.collectives.with_columns(start_ns=pl.col("start_ns") + 20_000 * (pl.col("number") > 30)),
        )
        for one in made[2:]
    ]
    told = job_of([*made[:2], *later]).table("clocks")
    assert told.get_column("drift_ppm").unique().to_list() == [0]


@pytest.mark.slow
@FEWER
@given(
    st.lists(st.floats(-5e-5, 5e-5), min_size=2, max_size=2),
    st.integers(20, 80),
    st.sampled_from([0.0, 0.001, 0.05, 0.3]),
    st.none() | st.integers(1, 18),
    st.integers(0, 1_000),
)
def test_waits_are_true_whatever_the_clocks_do(drifts, steps, jitter, sleeps, seed):
    """Of 30 collectives and more; in one step a rank sleeps for 20 ms."""
    late = () if sleeps is None else (Straggler(1, sleeps, sleeps, 20_000_000, "host"),)
    plan = replace(LONG, drifts=tuple(drifts), steps=steps, jitter=jitter, stragglers=late, seed=seed)
    off, told = errors(plan)
    assert off < 2_000
    true = (drifts[1] - drifts[0]) * 1e6
    assert all(np.isclose(ppm, true, atol=1.5) for ppm in (told[2], told[3]))
    assert (told[0], told[1]) == (0, 0)
