"""Each finding on a job, on one that has the fault and one that does not; which steps count, and which causes."""

from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.ranks._job import EARLIER, _without_carried, details, job_of
from kanalyze.analyses.ranks._job_findings import RULES, job_findings
from kanalyze.analyses.ranks._reducing import reduced
from kanalyze.analyses.ranks.tables import common_steps
from kanalyze.renderers.page.job import answer
from kanalyze.renderers.tables.descriptions import names
from support.build import kernel, report
from support.synthetic_job import Op, Plan, Straggler, play

#: All that ranks exchange runs beside kernels, and they compute alike.
HIDDEN = Op("all_reduce", "world", 4_000_000, compute_ns=900_000, overlapped=True)
END = Op("all_reduce", "world", 64, compute_ns=900_000)
SOUND = Plan(ops=(HIDDEN, HIDDEN, END), jitter=0, kernels=(100, 100, 100, 100))


def found(plan, name):
    """The findings of one kind."""
    return [one for one in job_findings(job_of([*play(plan).reductions()])) if one.finding == name]


def changed(**keys):
    return replace(SOUND, **keys)


def test_a_sound_job_has_no_finding():
    assert job_findings(job_of([*play(SOUND).reductions()])) == []


def test_straggler():
    late = Straggler(2, 1, 4, 500_000, "kernel")
    (one,) = found(changed(stragglers=(late,)), "straggler")
    assert one.at_stake_ns == pytest.approx(500_000 * 4 / 6, rel=0.02)
    assert one.text.startswith("Rank 2 is 500.0 µs late in 4 steps, most for its kernel: another one waits 500.0 µs")
    assert one.action.startswith("Give ranks equal work")
    (one,) = found(changed(stragglers=(late._replace(bucket="host"),)), "straggler")
    assert "most for its host" in one.text
    assert found(SOUND, "straggler") == []


def test_exposed_transfer():
    alone = HIDDEN._replace(bytes=40_000_000, overlapped=False)
    (one,) = found(changed(ops=(alone, END)), "exposed-transfer")
    assert one.at_stake_ns == pytest.approx(40_000_000 / 200 * 1.05, rel=0.15)  # BYTES_PER_NS, and up to 10 % more
    assert found(changed(ops=(alone._replace(overlapped=True), END)), "exposed-transfer") == []


def test_small_collectives():
    large = Op("all_reduce", "world", 100_000_000, compute_ns=100_000)
    small = Op("all_reduce", "world", 100_000, compute_ns=10_000)
    (one,) = found(changed(ops=(large, *[small] * 12)), "small-collectives")
    assert "12 all_reduce a step of at most 100.0 kB each" in one.text
    assert 0.5 * 12 * 10_000 < one.at_stake_ns < 12 * 11_000  # their latencies
    assert found(changed(ops=(large, *[small] * 7)), "small-collectives") == []
    assert found(changed(ops=(large, *[large] * 12)), "small-collectives") == []


def test_slow_group():
    op = Op("all_reduce", "tp", 10_000_000, compute_ns=50_000)
    plan = Plan(ranks=8, ops=(op, op), jitter=0)
    (one,) = found(replace(plan, slow={"tp2": 0.5}), "slow-group")
    assert one.text.startswith("Group tp2 reaches ")
    assert one.at_stake_ns == pytest.approx(2 * 10_000_000 / 200, rel=0.2)  # as long again as at full speed
    assert found(plan, "slow-group") == []
    two_groups = Plan(ranks=4, ops=(op, op), jitter=0, slow={"tp1": 0.5})
    assert found(two_groups, "slow-group") == []  # of two, none is usual


def test_uneven_all_to_all():
    op = Op("all_to_all", "world", 20_000_000, compute_ns=100_000, uneven=2)
    (one,) = found(changed(ops=(op, END)), "uneven-all-to-all")
    assert one.text == "Parts of 6 all_to_all are uneven: up to 2.00 × the mean of the ranks."
    assert one.at_stake_ns == pytest.approx(20_000_000 / 200, rel=0.2)  # half of what it takes
    for even in (1, 1.2, 0):
        assert found(changed(ops=(op._replace(uneven=even), END)), "uneven-all-to-all") == []


def test_other_work():
    more = {"kernels": (100, 110, 100, 100), "stragglers": (Straggler(1, 0, 5, 300_000, "kernel"),)}
    (one,) = found(changed(**more), "other-work")
    assert one.text == "Rank 1 runs 1.10 × as many kernels as the others, and computes 299.9 µs longer in a step."
    assert one.at_stake_ns == pytest.approx(300_000, rel=0.01)
    assert found(changed(**{**more, "kernels": (100, 101, 100, 100)}), "other-work") == []
    assert found(changed(**{**more, "stragglers": ()}), "other-work") == []  # more kernels, and no longer


def test_of_a_rank_whose_kernels_are_not_known_nothing_is_told():
    assert found(changed(kernels=(100, 150, 0, 0), stragglers=()), "other-work") == []


def test_each_finding_is_explained():
    told = {"straggler", "exposed-transfer", "small-collectives", "slow-group", "uneven-all-to-all", "other-work"}
    assert len(RULES) == len(told)
    assert told <= {*names()}


def with_kinds(kinds):
    """The page's answer and the ranks that are named in what to do, of steps of these kinds; rank 2 sleeps in one."""
    plan = changed(steps=40, stragglers=(Straggler(2, 20, 20, 400_000, "host"),))
    made = [
        replace(one, steps=one.steps.with_columns(kind=pl.Series([kinds.get(at, "steady") for at in range(40)])))
        for one in play(plan).reductions()
    ]
    job = job_of(made)
    told = [one.text for one in job_findings(job) if one.finding == "straggler"]
    return answer(job), told


@pytest.mark.parametrize("kind", ["steady", "odd"])
def test_the_step_in_which_a_rank_sleeps_counts_whatever_it_is_called(kind):
    """A sleep of 400 µs in one step of 40: much of that step, and little of a mean one."""
    said, told = with_kinds({20: kind})
    assert "40 steps" in said
    assert "left out" not in said
    assert "Rank 2 is 399.9 µs late in step 21: host" in said
    assert [text[:8] for text in told] == ["Rank 2 i"]


def test_of_an_odd_step_at_the_end_both_say_the_same_too():
    said, told = with_kinds({20: "odd", 39: "odd"})
    assert "40 steps" in said
    assert len(told) == 1


def test_what_another_rank_hardly_waits_for_is_named_in_neither():
    plan = changed(steps=40, stragglers=(Straggler(2, 20, 20, 5_000, "host"),))
    job = job_of([*play(plan).reductions()])
    assert answer(job).endswith("none is late for long.")
    assert [one for one in job_findings(job) if one.finding == "straggler"] == []


# Which steps count, and what of a cause was told of an earlier collective.


BUCKETS = ("kernel", "host", "communication", EARLIER)
PARTS = st.dictionaries(st.sampled_from(BUCKETS), st.integers(-1_000, 1_000))


def parts(told):
    rows = [(match, bucket, ns) for match, own in enumerate(told) for bucket, ns in own.items()]
    return pl.DataFrame(rows, schema={"match": pl.Int64, "bucket": pl.String, "ns": pl.Int64}, orient="row")


def test_kernels_that_the_other_ran_while_it_waited_are_no_cause():
    """FSDP: the rank before it computed 6 while it waited in an earlier collective, which was told there."""
    found = _without_carried(parts([{"host": 30, "kernel": 7, EARLIER: -6}]))
    assert dict(found.select("bucket", "ns").iter_rows()) == {"host": 30, "kernel": 1, EARLIER: 0}


@given(st.lists(PARTS, max_size=4))
def test_causes_keep_their_sum_and_no_part_changes_its_sign(told):
    before, after = parts(told), _without_carried(parts(told))
    for match, own in enumerate(told):
        left = dict(after.filter(pl.col("match") == match).select("bucket", "ns").iter_rows())
        assert sum(left.values()) == sum(own.values())
        for bucket, ns in own.items():
            assert ns * left[bucket] >= 0
            assert abs(left[bucket]) <= abs(ns)
        if own.get(EARLIER, 0) < 0 < own.get("kernel", 0):
            assert 0 in (left["kernel"], left[EARLIER])
    assert before.height == after.height


def test_details_are_less_those_of_the_rank_before_it_in_the_same_step():
    rows = [(member, number, "host", detail, ns) for member, number, detail, ns in BEFORE]
    schema = ("member", "number", "bucket", "detail", "ns")
    before = pl.DataFrame(rows, schema=schema, orient="row")
    late = pl.DataFrame({"match": [0, 1, 2], "rank": [1] * 3, "step": [3, 4, 4], "member": [1] * 3, "number": [5, 6, 7],
        "second": [0] * 3, "second_number": [7, 9, 8], "new_ns": [18, 3, 0]})  # fmt: skip
    found = details(SimpleNamespace(before=before), late)
    assert found.rows() == [(0, 1, 3, "host", "loader", 20 - 2), (1, 1, 4, "host", "loader", 3)]


#: Time in the loader before collectives of two ranks: member, number, detail, ns.
BEFORE = [
    (1, 5, "loader", 20),
    (1, 6, "loader", 3),
    (1, 7, "loader", 9),
    (1, 5, None, 1),
    (0, 7, "loader", 2),
    (0, 8, "loader", 2),
]


def steps(*told):
    """Two ranks with the same steps, each its kind and time."""
    rows = [(rank, step, kind, ns) for rank in (0, 1) for step, (kind, ns) in enumerate(told)]
    return pl.DataFrame(rows, schema=["rank", "step", "kind", "ns"], orient="row")


def kept(*told):
    return common_steps(steps(*told)).get_column("step").unique().sort().to_list()


@pytest.mark.parametrize(
    ("told", "used"),
    [
        ([("warm-up", 900), ("steady", 10), *[("steady", 100)] * 4, ("steady", 10), ("cut", 50)], [2, 3, 4, 5]),
        ([("odd", 900), ("steady", 100), ("odd", 300), ("steady", 100), ("odd", 900)], [0, 1, 2, 3, 4]),
        ([("steady", 20), ("steady", 1), ("steady", 22), ("steady", 20)], [0, 1, 2, 3]),
        ([("steady", 12), ("steady", 20), ("steady", 20)], [0, 1, 2]),
        ([("steady", 20)], [0]),
    ],
)
def test_steps_at_both_ends_that_are_no_usual_ones_are_left_out_of_means(told, used):
    assert kept(*told) == used


def test_ranks_without_collectives_are_a_doubt_and_no_ranks_that_never_wait():
    """As with gloo on GPUs, whose collectives are no kernels."""
    made = report([kernel(10, 60, device=rank, process=1 + rank) for rank in (0, 1)])
    doubts = {check: count for check, count, _ in job_of([reduced(made)]).doubts}
    assert doubts["ranks without collectives"] == 2
