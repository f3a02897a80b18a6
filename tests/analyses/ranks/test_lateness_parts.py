"""Parts of what is told of late ranks: which steps count, and what of a cause was told of an earlier collective."""

from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.ranks._job import job_of
from kanalyze.analyses.ranks._job_findings import EARLIER, _without_carried, details
from kanalyze.analyses.ranks._reducing import reduced
from kanalyze.analyses.ranks.tables import common_steps
from support.build import kernel, report

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
