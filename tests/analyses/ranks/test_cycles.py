"""Several reports of one rank, as of cycles of a profiler: those of one time are put together."""

from dataclasses import fields, replace

import polars as pl

from kanalyze.analyses.ranks._job import job_of
from support.synthetic_job import Plan, play

#: How much later the second cycle runs.
LATER_NS = 60_000_000_000

PLAN = Plan(ranks=4, hosts=2, steps=3)


def cycles(plan=PLAN):
    """The reductions of each rank in two cycles."""
    first = [*play(plan).reductions()]
    return first, [later(one) for one in play(replace(plan, seed=7)).reductions()]


def later(one):
    """A reduction with all its times later."""
    moved = {}
    for of in fields(one):
        table = getattr(one, of.name)
        times = [name for name in ("start_ns", "end_ns") if name in table.columns]
        moved[of.name] = table.with_columns(pl.col(times) + LATER_NS)
    return replace(one, **moved)


def doubts(job):
    return {check: count for check, count, _ in job.doubts if check != "sends and receives"}


def test_the_first_cycle_is_read_whatever_the_order_of_the_reports():
    first, second = cycles()
    alone = job_of(first)
    for given in ([*first, *second], [second[0], first[0], second[1], first[1], *first[2:], *second[2:]]):
        job = job_of(given)
        assert job.table("collectives").equals(alone.table("collectives"))
        assert doubts(job) == {"further reports of ranks": 4}


def test_the_time_of_what_is_read_is_told():
    first, second = cycles()
    (effect,) = [effect for check, _, effect in job_of([*first, *second]).doubts if check == "further reports of ranks"]
    # the clock of the first host is some ms behind
    assert effect.endswith("those are read that ran at 2025-10-09 08:53:19 UTC")


def test_a_cycle_that_more_ranks_have_is_read_in_place_of_the_first():
    first, second = cycles()
    job = job_of([first[0], *second])
    assert job.table("collectives").equals(job_of(second).table("collectives"))
    assert job.rows.get_column("match").null_count() == 0
    assert doubts(job) == {"further reports of ranks": 1}


def test_a_rank_of_another_cycle_alone_is_missing():
    first, second = cycles()
    job = job_of([*first[:3], second[0], second[3]])
    assert job.ranks.get_column("rank").to_list() == [0, 1, 2]
    assert job.missing == [3]
    told = doubts(job)
    assert (told["further reports of ranks"], told["ranks recorded at other times only"]) == (1, 1)


def test_a_report_that_is_given_twice_is_read_once():
    first, _ = cycles()
    job = job_of([*first, first[2]])
    assert job.table("collectives").equals(job_of(first).table("collectives"))
    assert doubts(job) == {"further reports of ranks": 1}
