"""Sharing out the time of a device: no piece belongs to two findings, and none that any claims is lost."""

import ast
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze import intervals
from kanalyze.analyses.findings._claims import ORDER, place_in_order, shared_out
from kanalyze.analyses.findings.rules import Finding

RULES = Path("analyzer/analyses/findings/rules")


def one(rule, *spans, device=0, ns=None, **other):
    claims = pl.DataFrame(spans, intervals.SPANS, orient="row") if spans else None
    length = sum(end - start for start, end in spans) if ns is None else ns
    return Finding(rule, device, length, f"{rule}.", "…", "…", claims=claims, **other)


class Everything(defaultdict):
    def __init__(self, ns=1):
        super().__init__(lambda: ns)


def told(found, least=1):
    return [(each.rule, each.at_stake_ns) for each in shared_out(found, Everything(least))]


def test_time_goes_to_the_most_specific_finding_and_the_others_keep_the_rest():
    found = [one("host-computes", (0, 100), (200, 300)), one("data-loading", (50, 250))]
    assert told(found) == [("data-loading", 200), ("host-computes", 100)]
    _, left = shared_out(found, Everything())
    assert left.claims.rows() == [(0, 50), (250, 300)]
    assert left.text == "host-computes. Other findings tell of 50.0 % of that."


def test_what_is_at_stake_shrinks_as_the_claims_do_that_overlap_among_themselves():
    found = [one("small-grid", (0, 60), (30, 100), ns=40), one("no-tf32", (75, 200))]
    assert told(found) == [("no-tf32", 125), ("small-grid", 30)]


def test_devices_have_times_of_their_own_and_findings_without_claims_keep_theirs():
    found = [one("data-loading", (0, 10)), one("host-computes", (0, 10), device=1), one("clock-drop", ns=7)]
    assert told(found) == [("data-loading", 10), ("clock-drop", 7), ("host-computes", 10)]


def test_a_finding_that_says_how_is_told_anew_of_what_is_left():
    def retold(left):
        return one("host-computes", *left.rows())._replace(text="anew") if left.height > 1 else None

    found = [one("data-loading", (10, 20)), one("host-computes", (0, 30), retold=retold)]
    assert shared_out(found, Everything())[1].text == "anew"
    assert told([found[0], one("host-computes", (0, 20), retold=retold)]) == [("data-loading", 10)]


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda span: (span[0], sum(span))), max_size=5)
some = st.tuples(st.sampled_from([*ORDER[::6], "not named"]), st.integers(0, 1), spans)


@given(st.lists(some, max_size=6), st.integers(1, 6))
def test_each_piece_belongs_to_one_finding_and_none_that_is_worth_it_is_lost(found, least):
    """Against a model that goes through the instants one by one."""
    given_ = [one(rule, *own, device=device) for rule, device, own in found if own]
    kept = shared_out(given_, Everything(least))
    owners = defaultdict(list)
    for at, each in enumerate(kept):
        for start, end in each.claims.rows():
            for instant in range(start, end):
                owners[each.device, instant].append(at)
    assert all(len(own) == 1 for own in owners.values())
    taken = set()
    order = sorted(given_, key=lambda each: (place_in_order(each.rule), -each.at_stake_ns))
    for each in order:
        own = {(each.device, instant) for span in each.claims.rows() for instant in range(*span)}
        if own - taken and each.at_stake_ns * len(own - taken) // len(own) >= least:
            taken |= own
    assert owners.keys() == taken


def test_the_order_names_each_rule_once_and_the_explanations_are_in_it():
    assert len({*ORDER}) == len(ORDER)
    apart = {"exposed-transfer", "far-from-roof", "other-work", "overhead", "slow-group", "small-collectives"}
    apart |= {"straggler", "uneven-all-to-all"}  # of jobs and counters, which share no device's time out
    assert {*ORDER} <= {page.stem for page in Path("analyzer/explanations").glob("*.md")} - apart
    assert place_in_order("small-grid") > place_in_order("not named") > place_in_order("no-tf32")
    assert all(earlier < later for earlier, later in pairwise(map(place_in_order, ORDER)))


def test_what_is_worth_a_row_on_one_device_is_said_of_that_device_alone():
    found = [one("small-grid", (0, 4)), one("small-grid", (0, 4), device=1)]
    assert [each.device for each in shared_out(found, {("small-grid", 0): 5, ("small-grid", 1): 4})] == [1]


@pytest.mark.parametrize("module", sorted(RULES.glob("[!_]*.py")), ids=lambda path: path.stem)
def test_no_rule_imports_another(module):
    """What rules share are queries, in modules of their own; what one says of another's time, claims say."""
    imported = [node.module for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.ImportFrom)]
    rules = "kanalyze.analyses.findings.rules."
    assert [name for name in imported if name.startswith(rules) and not name.startswith(f"{rules}_")] == []
