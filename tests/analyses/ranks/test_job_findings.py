"""Each finding on a job: on a made-up job that has the fault, and on one that does not."""

from dataclasses import replace

import polars as pl
import pytest

from kanalyze.analyses.ranks._job import job_of
from kanalyze.analyses.ranks._job_findings import RULES, job_findings
from kanalyze.renderers.page.job import answer
from kanalyze.renderers.tables.descriptions import names
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
