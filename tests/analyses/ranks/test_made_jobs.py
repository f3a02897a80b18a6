"""What the analysis of a job says of jobs that are made up, held against what is true of them."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, strategies as st

from kanalyze.analyses.ranks._job import causes, job_of, lateness
from kanalyze.analyses.ranks._job_findings import job_findings, late_ranks
from kanalyze.errors import BadReductionError
from kanalyze.reduction.tables import BEFORE, PIECES
from kanalyze.renderers.page.job import answer
from support.strategies import few_given, slow_given
from support.synthetic_job import DATA_PARALLEL_OPS, MIXED_OPS, PAIR, Op, Plan, Straggler, play

#: A step in which some leave before others have come.
ROOTED_OPS = (
    Op("broadcast", "tp", 100_000, eager=True),
    Op("reduce", "dp", 100_000, eager=True),
    Op(PAIR, "pp", 400_000, eager=True),
    Op("all_to_all", "world", 2_000_000, 50_000, overlapped=True),
    Op("barrier", "world", 1),
)

SHAPES = st.sampled_from([(2, 2, 2), (4, 1, 2), (4, 2, 2), (8, 4, 2), (8, 2, 4), (12, 3, 2)])
NUMBERS = (st.integers(0, 1), st.integers(0, 4), st.integers(3, 8), st.integers(50_000, 8_000_000))
DELAYS = st.builds(Straggler, *NUMBERS, st.sampled_from(["kernel", "host", "memcpy"]))


@st.composite
def plans(draw, hosts=None, recorded=("id", "seq", "coalesced", "order"), jitters=(0.0, 0.001, 0.05, 0.5)):
    ranks, some, tp = draw(SHAPES)
    return Plan(
        ranks=ranks,
        hosts=hosts or some,
        tp=tp,
        steps=draw(st.integers(1, 24)),
        ops=draw(st.sampled_from([MIXED_OPS, DATA_PARALLEL_OPS, ROOTED_OPS])),
        stragglers=tuple(draw(st.lists(DELAYS, max_size=2))),
        jitter=draw(st.sampled_from(jitters)),
        recorded=draw(st.sampled_from(recorded)),
        numbered=draw(st.booleans()),
        seed=draw(st.integers(0, 10_000)),
    )


@st.composite
def losses(draw, plan):
    """Lost heads and tails: whole steps, or any number of collectives."""
    each = len(plan.ops)
    lost = st.integers(0, 3).map(lambda steps: steps * each) | st.integers(0, 2 * each)
    ranks = st.integers(0, plan.ranks - 1)
    return draw(st.dictionaries(ranks, lost, max_size=3)), draw(st.dictionaries(ranks, lost, max_size=3))


@st.composite
def damaged(draw, **which):
    plan = draw(plans(**which))
    heads, tails = draw(losses(plan))
    return replace(plan, heads=heads, tails=tails)


def known(made, job):
    rows = job.rows_at(job.found.order).select(
        "rank", "number", "match", "wait_ns", "offset_ns", "doubt_ns", "last_rank", "lateness_ns", "present", "class"
    )
    return rows.join(
        made.truth().drop_nulls("number").rename({"wait_ns": "true_wait_ns"}), on=["rank", "number"], how="left"
    )


def assert_only_true_matches(made, job):
    """Each match is one true collective, and all of it that was recorded and matched at all."""
    rows = known(made, job).drop_nulls("match")
    wrong = rows.filter(pl.col("true").n_unique().over("match") > 1)
    assert wrong.is_empty(), wrong
    split = rows.filter(pl.col("match").n_unique().over("true") > 1)
    assert split.is_empty(), split


def assert_clocks_hold(made, job):
    """The true offset is within its bounds."""
    table = job.table("clocks").drop_nulls("low_ns")
    assert not job.clocks.broken
    first = made.host(0)
    origin = int(next(made.reductions())["ranks"].item(0, "origin_ns")) - 1_760_000_000_000_000_000
    for rank, low, high, begin, end in table.select("rank", "low_ns", "high_ns", "start_ns", "end_ns").iter_rows():
        at = np.array([begin, end]) + origin - made.offsets[first]
        true = made.offset(made.host(rank), at) - made.offset(first, at)
        assert (low <= true + 10).all()
        assert (true - 10 <= high).all()


def assert_sums(job):
    rows = job.rows_at(job.found.order).drop_nulls("match")
    assert rows.select((pl.col("wait_ns") + pl.col("transfer_ns") == pl.col("dur_ns")).all()).item()
    assert rows.select((pl.col("exposed_wait_ns") + pl.col("exposed_transfer_ns") == pl.col("exposed_ns")).all()).item()
    assert rows.select((pl.col("exposed_wait_ns") <= pl.col("wait_ns")).all()).item()
    table = job.table("ranks")
    parts = [name for name in table.columns if name.endswith("_ns") and name not in ("hidden_ns", "late_ns", "cost_ns")]
    assert table.select((pl.col("ns") == pl.sum_horizontal(parts)).all()).item()
    steps = job.table("rank_steps")
    shares = pl.col("wait_ns") + pl.col("transfer_ns") + pl.col("unmatched_ns")
    assert steps.select((shares == pl.col("busy_ns") - pl.col("compute_ns")).all()).item()
    late = lateness(job)
    sums = causes(job, late).group_by("match").agg(pl.col("ns").sum())
    both = late.filter(pl.col("new_ns") > 0).join(sums, on="match", how="left")
    assert both.get_column("new_ns").to_list() == both.get_column("ns").to_list()


@slow_given(damaged())
def test_what_is_told_is_true_and_adds_up(plan):
    made = play(plan)
    job = job_of([*made.reductions()])
    assert_only_true_matches(made, job)
    unmatched = job.rows_at(job.found.order).get_column("match").null_count()
    assert sum(count for check, count, _ in job.doubts if check == "collectives without a partner") == unmatched
    assert_clocks_hold(made, job)
    assert_sums(job)
    rows = known(made, job)
    # waits err by no more than the doubt of clocks
    off = (pl.col("wait_ns") - pl.col("true_wait_ns")).abs()
    far = off > 2 * pl.col("doubt_ns").clip(0, 1 << 50) + 1_000
    wrong = rows.filter(pl.col("present") == pl.col("members")).drop_nulls("match").filter(far)
    assert wrong.is_empty(), wrong
    other = (pl.col("last_rank") != pl.col("last")) & (pl.col("late_ns") > 1_000)
    wrong = rows.drop_nulls("last_rank").filter(other)
    assert wrong.is_empty(), wrong


@few_given(damaged(hosts=1, jitters=(0.001, 0.05, 0.5)))
def test_all_that_was_recorded_is_matched_on_one_host(plan):
    made = play(plan)
    rows = known(made, job_of([*made.reductions()]))
    least = len(made.played.start) * 3 // 4
    assume(all(len(made.kept(rank)) >= least for rank in range(plan.ranks)))
    assume(plan.recorded != "coalesced" or not (plan.heads or plan.tails))
    shared = rows.filter(pl.len().over("true") > 1)
    # receives that never waited do not tell which sends they are of, nor who left a broadcast or reduction at once
    one_way = {op.kind for op in plan.ops if op.eager and op.kind in ("broadcast", "reduce")}
    kinds = pl.Series([plan.ops[at % len(plan.ops)].kind for at in shared.get_column("op")], dtype=pl.String)
    shared = shared.filter(~kinds.is_in([PAIR, *one_way]))
    if plan.steps > 4:
        assert shared.get_column("match").null_count() == 0


@slow_given(
    plans(hosts=1, jitters=(0.001,)),
    st.integers(1, 3),
    st.integers(2_000_000, 8_000_000),
    st.sampled_from(["kernel", "host"]),
)
def test_a_straggler_is_named_with_its_delay_and_cause(plan, step, delay, bucket):
    """In a data parallel job, where nobody else is late."""
    late = Straggler(1, step, step + 1, delay, bucket)
    made = play(replace(plan, ops=DATA_PARALLEL_OPS, stragglers=(late,), steps=8))
    steps = job_of([*made.reductions()]).table("rank_steps").filter(pl.col("late_ns") > delay // 2)
    assert set(steps.get_column("rank")) == {1}
    assert set(steps.get_column("step")) == {step + 1, step + 2}
    assert set(steps.get_column("cause")) == {bucket}
    assert steps.select(((pl.col("late_ns") - delay).abs() < 0.05 * delay).all()).item()


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("left_out", ["", "pp"])
def test_a_delay_counts_once_where_its_rank_is_in_several_groups_and_is_not_passed_on(ranks, left_out):
    ops = tuple(op for op in MIXED_OPS if op.group != left_out)
    late = Straggler(1, 2, 3, 4_000_000)
    made = play(Plan(ranks=ranks, hosts=1, steps=6, ops=ops, stragglers=(late,), jitter=0.001))
    found = late_ranks(job_of([*made.reductions()], one_host=True))
    assert [(one.rank, one.first, one.last) for one in found] == [(1, 3, 4)]
    assert abs(found[0].late_ns - late.delay_ns) < 0.05 * late.delay_ns
    assert found[0].causes[0][0] == "kernel"
    assert sum(ns for _, ns in found[0].causes) == pytest.approx(found[0].late_ns, abs=len(found[0].causes))


def test_nobody_is_late_for_the_waits_of_a_pipeline():
    """The first stage takes 4 ms longer in each step, for which the second one waits."""
    first = Straggler(0, 0, 9, 4_000_000)
    plan = Plan(ranks=2, hosts=1, steps=10, ops=(Op(PAIR, "pp"),), stragglers=(first,), jitter=0.001)
    job = job_of([*play(plan).reductions()])
    assert job.matches.select((pl.col("lateness_ns") > 3_900_000).sum()).item() == 10
    assert not late_ranks(job)
    assert not [one for one in job_findings(job) if one.finding == "straggler"]
    assert job.table("rank_steps").select("late_ns", "cost_ns").sum().row(0) == (0, 0)
    assert ("sends and receives", 10) in [(check, count) for check, count, _ in job.doubts]


def test_in_a_pipeline_too_a_rank_is_named_that_all_wait_for():
    first = Straggler(0, 4, 4, 4_000_000)
    plan = Plan(ranks=4, hosts=1, steps=10, ops=(Op(), Op(PAIR, "pp")), stragglers=(first,), jitter=0.001)
    job = job_of([*play(plan).reductions()], one_host=True)
    assert [(one.rank, one.first, one.last) for one in late_ranks(job)] == [(0, 5, 5)]


def test_a_clock_that_jumps_does_not_hold_up_the_other_parts():
    """Pairs of hosts in a row: it takes several rounds to come from the first to the last."""
    ops = (Op("all_reduce", "tp"), Op("all_reduce", "dp"))
    made = play(Plan(ranks=8, hosts=8, steps=100, ops=ops, tp=2))
    found = [*made.reductions()]
    jumps = pl.col("start_ns") + pl.when(pl.col("number").is_between(4, 12)).then(3_000_000 * (pl.col("number") % 2))
    rows = found[1]["collectives"].with_columns(start_ns=pl.coalesce(jumps, "start_ns"))
    job = job_of([found[0], found[1] | {"collectives": rows}, *found[2:]])
    assert job.clocks.broken == (0,)
    later = job.table("clocks").filter(pl.col("part") > 0)
    assert later.height > 8
    assert later.get_column("low_ns").null_count() == 0


@pytest.mark.parametrize(
    ("table", "number"),
    [("collectives", "number"), ("steps", "index"), ("ledgers", "index"), ("pieces", "number"), ("before", "number")],
)
@pytest.mark.parametrize("other", [-1_000, 1, 1 << 40])
def test_rows_of_no_collective_or_step_are_damage(table, number, other):
    found = [*play(Plan(ranks=2, hosts=1, steps=2)).reductions()]
    wrong = found[1][table].with_columns(pl.col(number) + other)
    with pytest.raises(BadReductionError, match=f"rank1.json: a damaged reduction .*{number}"):
        job_of([found[0], found[1] | {table: wrong}])


def test_rows_of_a_reduction_may_have_any_order():
    found = [*play(Plan(ranks=4, hosts=2, steps=4, heads={1: 3}, tails={2: 5})).reductions()]
    turned = [{name: table.reverse() for name, table in one.items()} for one in found]
    one, other = job_of(found), job_of(turned[::-1])
    assert one.doubts == other.doubts
    for name in one.tables:
        assert one.table(name).equals(other.table(name)), name


@slow_given(damaged())
def test_waits_equal_those_of_a_plain_loop(plan):
    job = job_of([*play(plan).reductions()])
    told = [*job.rows_at(job.found.order).drop_nulls("match").iter_rows(named=True)]
    for row in told:
        own = [one for one in told if one["match"] == row["match"]]
        came = sorted((one["corrected_ns"] for one in own), reverse=True)
        assert row["wait_ns"] == max(0, min(came[0], row["corrected_ns"] + row["dur_ns"]) - row["corrected_ns"])
        assert row["present"] == len(own)
        last = next(one for one in own if one["corrected_ns"] == came[0])
        doubts = [
            0 if one["clock"] == last["clock"] else one["error_ns"] + last["error_ns"] for one in own if one is not last
        ]
        others = [one["corrected_ns"] for one in own if one is not last]
        sure = all(came[0] > ns + doubt for ns, doubt in zip(others, doubts, strict=True)) and len(own) >= max(
            row["size"], 2
        )
        assert row["last_rank"] == (last["rank"] if sure else None)
        assert row["lateness_ns"] == (came[0] - came[1] if sure else None)


@pytest.mark.parametrize("further", [0, 1, 2])
def test_more_ranks_than_the_job_has_are_a_doubt(further):
    """Reports without a rank of their own, as of another tool, are numbered behind the others."""
    made = [*play(Plan(ranks=4, hosts=1, steps=3)).reductions()]
    unknown = [
        one | {"ranks": one["ranks"].with_columns(pl.lit(None, dtype=pl.Int64).alias("rank"))} for one in made[:further]
    ]
    told = {check: count for check, count, _ in job_of([*made, *unknown]).doubts}
    assert told.get("more ranks than the job has", 0) == further


NO_GROUP = "collectives whose group is not recorded"
LOST = "collectives of which a rank lost some"


@pytest.mark.parametrize(
    ("plan", "doubt"),
    [
        # several collectives of one number are not matched by place where a rank lost one
        (Plan(ranks=2, hosts=1, steps=4, ops=DATA_PARALLEL_OPS, recorded="coalesced", heads={1: 1}), LOST),
        (Plan(ranks=4, hosts=1, steps=4, ops=DATA_PARALLEL_OPS, recorded="order", grouped=False), NO_GROUP),
        # sends between ranks that are not recorded are not matched
        (Plan(ranks=4, hosts=1, steps=4, recorded="order", grouped=False, ops=(Op(PAIR, "pp"), Op())), None),
    ],
)
def test_what_cannot_be_matched_is_a_doubt(plan, doubt):
    made = play(plan)
    job = job_of([*made.reductions()])
    assert_only_true_matches(made, job)
    assert doubt in [None, *(check for check, _, _ in job.doubts)]
    rows, alike = job.rows_at(job.found.order), pl.col("kind") == "all_reduce"
    assert doubt or rows.filter(alike)["match"].null_count() == 0
    assert doubt or rows.filter(~alike)["match"].drop_nulls().is_empty()


def test_waits_of_expert_parallel_kernels_are_those_that_are_true():
    """DeepEP and pplx record neither group nor number: what is one is known by order."""
    kinds = ("notify", "dispatch", "notify", "combine")
    plan = Plan(ranks=8, hosts=1, steps=20, ops=tuple(map(Op, kinds)), recorded="order", grouped=False, jitter=0.5)
    made = play(replace(plan, stragglers=(Straggler(5, 4, 9, 2_000_000),)))
    job = job_of([*made.reductions()])
    rows = known(made, job)
    assert rows.get_column("match").null_count() == 0
    assert_only_true_matches(made, job)
    assert_sums(job)
    assert rows.select(
        ((pl.col("wait_ns") - pl.col("true_wait_ns")).abs() <= 2 * pl.col("doubt_ns") + 1_000).all()
    ).item()
    assert rows.filter(pl.col("late_ns") > 1_000_000).get_column("last_rank").unique().to_list() == [5]


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


@few_given(
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
    assert rows.drop_nulls("match").select((pl.col("true").n_unique().over("match") == 1).all()).item()
    assert ring.select((pl.col("match").n_unique().over("true") == 1).all()).item()


STREAM = Plan(ranks=4, hosts=1, steps=20, ops=(Op(), Op("all_to_all"), Op()), recorded="order", grouped=False)


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
BOTH = (Op("all_reduce", bytes=800_000, compute_ns=15_000_000), Op("all_gather", "dp", 800_000, 15_000_000))
LONG = Plan(ranks=4, hosts=2, steps=40, ops=BOTH, jitter=0.001, offsets_ns=(0, 300_000), drifts=(0.0, 2e-5))


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
    assert job_of([*made[:2], *later]).table("clocks").get_column("drift_ppm").unique().to_list() == [0]


@few_given(
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


def cycles():
    plan = Plan(ranks=4, hosts=2, steps=3)
    first = [*play(plan).reductions()]
    return first, [moved_later(one) for one in play(replace(plan, seed=7)).reductions()]


def moved_later(one):
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
