"""Made-up jobs: sends among collectives of a stream, clocks that drift, and several reports of one rank."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.ranks._job import job_of
from kanalyze.reduction.tables import BEFORE, PIECES
from kanalyze.renderers.page.job import answer
from support.strategies import FEWER
from support.synthetic_job import Op, Plan, Straggler, play

RING = ("all_reduce", "all_gather", "reduce_scatter")
OPS = st.lists(st.sampled_from([*RING, "all_to_all"]), min_size=2, max_size=5).filter(lambda ops: {*ops} & {*RING})


def lossy(one, drop, *, kind="send_recv", sized=True):
    """A reduction whose all_to_all are of `kind`, without some of them: no kernel where a rank sends nothing."""
    rows = one["collectives"]
    is_exchange = pl.col("kind") == "all_to_all"
    nth = is_exchange.cum_sum() - 1
    rows = rows.with_columns(true="number").filter(~(is_exchange & nth.is_in(drop)))
    rows = rows.with_columns(
        kind=pl.when(is_exchange).then(pl.lit(kind)).otherwise("kind").cast(rows.schema["kind"]),
        number=pl.row_index().cast(pl.Int64),
    )
    if not sized:
        rows = rows.with_columns(pl.lit(None, dtype=pl.Int64).alias(name) for name in ("in_bytes", "out_bytes"))
    made = one | {"collectives": rows.drop("true"), "pieces": PIECES.empty(), "before": BEFORE.empty()}
    return made, rows.get_column("true").to_list()


def matches(plan, drops, **keys):
    """The kind, true collective and match of each row of a job."""
    made = play(plan)
    told = [lossy(one, drops.get(rank, []), **keys) for rank, one in enumerate(made.reductions())]
    job = job_of([one for one, _ in told])
    true = {(rank, at): op for rank, (_, ops) in enumerate(told) for at, op in enumerate(ops)}
    rows = job.rows_at(job.found.order).select("kind", "rank", "number", "match")
    return job, rows.with_columns(true=pl.Series([true[rank, at] for rank, at in rows.select("rank", "number").rows()]))


@pytest.mark.slow
@FEWER
@given(
    OPS,
    st.dictionaries(st.integers(0, 3), st.lists(st.integers(0, 20), max_size=4), max_size=3),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from(["send_recv", "all_to_all"]),
    st.integers(0, 1_000),
)
def test_what_ranks_send_each_other_costs_no_collective_its_match(kinds, drops, recorded, kind, seed):
    sized, grouped = recorded
    ops = tuple(Op(one) for one in kinds)
    plan = Plan(ranks=4, hosts=1, steps=8, ops=ops, recorded="order", grouped=grouped, numbered=False, seed=seed)
    _, rows = matches(plan, drops, kind=kind, sized=sized)
    ring = rows.filter(pl.col("kind").is_in(RING))
    assert ring.get_column("match").null_count() == 0
    known = rows.drop_nulls("match")
    assert known.select((pl.col("true").n_unique().over("match") == 1).all()).item()
    assert ring.select((pl.col("match").n_unique().over("true") == 1).all()).item()


STREAM = Plan(ranks=4, hosts=1, steps=20, ops=(Op(), Op("all_to_all"), Op()), recorded="order", grouped=False)


@pytest.mark.parametrize("sized", [True, False])
def test_a_rank_with_fewer_kernels_of_sends_loses_no_other_match(sized):
    job, rows = matches(STREAM, {1: [7], 2: [3, 11]}, sized=sized)
    assert rows.filter(pl.col("kind") == "all_reduce").get_column("match").null_count() == 0
    table = job.table("collective_summary").group_by("kind").agg(pl.col("count").sum())
    assert dict(table.rows())["all_reduce"] == 40


def test_collectives_of_no_match_count_once_and_not_once_per_rank():
    """Clocks of several hosts and equal steps: no shift is surer than another."""
    job, rows = matches(replace(STREAM, hosts=4, numbered=False), {})
    assert rows.get_column("match").drop_nulls().is_empty()
    table = job.table("collective_summary")
    assert sorted(table.select("kind", "count").rows()) == [("all_reduce", 40), ("send_recv", 20)]
    parts = pl.sum_horizontal("skew_bound", "transfer_bound", "mixed", "cannot_tell")
    assert table.select((parts == pl.col("count")).all()).item()


def test_kinds_tell_shifts_apart_where_sizes_are_not_recorded():
    """Small collectives in a row: each is within the error of clocks of the next one."""
    small = (Op(bytes=1_000, compute_ns=3_000),) * 5 + (Op("all_to_all", bytes=1_000, compute_ns=3_000),)
    _, rows = matches(replace(STREAM, ops=small, numbered=False), {}, sized=False)
    assert rows.get_column("match").null_count() == 0


def test_sends_and_receives_of_unknown_purpose_are_not_said_to_be_of_a_pipeline():
    job, _ = matches(STREAM, {})
    (effect,) = [effect for check, _, effect in job.doubts if check == "sends and receives"]
    assert effect == "nobody is called late for their waits, which are by design where they are stages of a pipeline"
    assert answer(job).endswith("none is late for long but for sends and receives, of which that is not told.")
    job, _ = matches(replace(STREAM, grouped=True), {}, kind="all_to_all")
    assert not [check for check, _, _ in job.doubts if check == "sends and receives"]


@pytest.mark.parametrize("hosts", [1, 4])
def test_names_match_where_order_does_not(hosts):
    """Only the all_to_all have names, which tell no more than themselves."""
    made = [*play(replace(STREAM, hosts=hosts, numbered=False, recorded="id")).reductions()]
    job = job_of(made)
    assert job.rows_at(job.found.order).select("match", "how").null_count().row(0) == (0, 0)
    assert {*job.rows_at(job.found.order).get_column("how")} == {"id"}
    named = pl.when(pl.col("kind") == "all_to_all").then("id")
    some = [one | {"collectives": one["collectives"].with_columns(id=named)} for one in made]
    job = job_of(some)
    rows = job.rows_at(job.found.order)
    assert {*rows.filter(pl.col("kind") == "all_to_all").get_column("how")} == {"id"}
    assert {*rows.filter(pl.col("kind") != "all_to_all").get_column("how")} == ({"ordinal"} if hosts == 1 else {None})


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
    rows = job.rows_at(job.found.order).drop_nulls("match").join(truth, on=["rank", "number"])
    off = rows.select((pl.col("wait_ns") - pl.col("true")).abs().max()).item()
    return off, dict(job.table("clocks").group_by("rank").agg(pl.col("drift_ppm").first()).rows())


def test_a_clock_that_is_set_is_no_drift():
    made = [*play(replace(LONG, drifts=(0.0, 0.0))).reductions()]
    set_ns = pl.col("start_ns") + 20_000 * (pl.col("number") > 30)
    later = [one | {"collectives": one["collectives"].with_columns(start_ns=set_ns)} for one in made[2:]]
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


#: How much moved_later the second cycle runs.
LATER_NS = 60_000_000_000

PLAN = Plan(ranks=4, hosts=2, steps=3)


def cycles(plan=PLAN):
    """The reductions of each rank in two cycles."""
    first = [*play(plan).reductions()]
    return first, [moved_later(one) for one in play(replace(plan, seed=7)).reductions()]


def moved_later(one):
    """A reduction with all its times moved_later."""
    moved = {}
    for name, table in one.items():
        times = [time for time in ("start_ns", "end_ns") if time in table.columns]
        moved[name] = table.with_columns(pl.col(times) + LATER_NS)
    return moved


def doubts(job):
    return {check: count for check, count, _ in job.doubts if check != "sends and receives"}


@pytest.mark.parametrize(
    ("chosen", "alike", "told"),
    [
        # the first cycle is read, whatever the order of the reports
        (lambda a, b: [*a, *b], 0, {"further reports of ranks": 4}),
        (lambda a, b: [b[0], a[0], b[1], a[1], *a[2:], *b[2:]], 0, {"further reports of ranks": 4}),
        # a cycle that more ranks have is read in place of the first, and a report that is given twice once
        (lambda a, b: [a[0], *b], 1, {"further reports of ranks": 1}),
        (lambda a, _: [*a, a[2]], 0, {"further reports of ranks": 1}),
    ],
)
def test_of_several_reports_of_a_rank_those_of_one_time_are_read(chosen, alike, told):
    both = cycles()
    job = job_of(chosen(*both))
    assert job.table("collectives").equals(job_of(both[alike]).table("collectives"))
    assert doubts(job) == told
    (effect,) = [effect for check, _, effect in job.doubts if check == "further reports of ranks"]
    # the clock of the first host is some ms behind
    assert effect.endswith(f"those are read that ran at 2025-10-09 08:{('53:19', '54:20')[alike]} UTC")


def test_a_rank_of_another_cycle_alone_is_missing():
    first, second = cycles()
    job = job_of([*first[:3], second[0], second[3]])
    assert (job.ranks.get_column("rank").to_list(), job.missing) == ([0, 1, 2], [3])
    assert doubts(job).items() >= {"further reports of ranks": 1, "ranks recorded at other times only": 1}.items()


@pytest.mark.parametrize(
    ("plan", "drifts", "most_ns"),
    [
        ({}, [0, 0, 20, 20], 1_000),  # 20 ppm of 1.2 s are 24 µs, and waits are without it
        # of clocks that run alike, or of few collectives, no drift is told
        ({"drifts": (0.0, 0.0)}, [0] * 4, 1_000),
        ({"drifts": (2e-5, 2e-5)}, [0] * 4, 1_000),
        ({"steps": 4}, [0] * 4, 1 << 60),
    ],
)
def test_a_drift_is_told_where_the_ends_of_collectives_show_it(plan, drifts, most_ns):
    off, told = errors(replace(LONG, **plan))
    assert off < most_ns
    assert [round(told[rank]) for rank in range(4)] == drifts
