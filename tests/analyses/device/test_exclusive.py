"""Exclusive time: every busy instant belongs to one operation, so that tables of them sum to the ledger."""

import polars as pl
from hypothesis import given

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.device.copies import copies
from kanalyze.analyses.device.kernels import kernels
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.model import DEVICE_KINDS
from kanalyze.window import Window
from support.build import graph, kernel, memcpy, memset, report
from support.slow_model import SlowModel
from support.strategies import EVENTS, FEWER, WINDOWS


def exclusive(of):
    """The exclusive time of each operation, in the order of the list of events."""
    return exclusive_operations(of).sort("event_id").get_column("exclusive_ns").to_list()


def test_the_winning_kind_owns_the_instant():
    events = [memset(0, 40), memcpy(0, 30), kernel(0, 20, name="ncclDevKernel_AllReduce"), kernel(5, 10)]
    assert exclusive(report(events)) == [10, 10, 15, 5]


def test_a_whole_graph_is_a_kernel_among_kernels():
    assert exclusive(report([kernel(5, 15), graph(0, 10), kernel(20, 25)])) == [5, 10, 5]


def test_among_equals_the_one_that_started_first_owns_the_instant():
    assert exclusive(report([kernel(5, 15, stream=8), kernel(0, 10), kernel(2, 12)])) == [3, 10, 2]


def test_among_those_that_start_together_the_lower_event_id_owns_the_instant():
    assert exclusive(report([kernel(0, 10), kernel(0, 15), kernel(0, 5)])) == [10, 5, 0]


def test_devices_do_not_share_instants():
    assert exclusive(report([kernel(0, 10, device=0), kernel(0, 10, device=1)])) == [10, 10]


def test_what_has_no_duration_owns_nothing():
    assert exclusive(report([kernel(5, 5), kernel(0, 10)])) == [0, 10]


def test_a_window_cuts_what_is_owned_and_leaves_the_owner():
    events = [kernel(2, 20), kernel(0, 10), kernel(12, 30), kernel(40, 50)]
    assert exclusive(report(events).narrow(window=Window(5, 25))) == [10, 5, 5]


def test_no_operations_is_an_empty_table():
    assert exclusive(report([])) == []
    assert exclusive(report([]).narrow(window=Window(0, 10))) == []


@given(EVENTS, WINDOWS)
def test_exclusive_time_equals_the_model(events, window):
    found = exclusive_operations(report(events).narrow(window=Window(*window)))
    expected = SlowModel(events, window).exclusive()
    rows = found.select("event_id", "exclusive_ns").rows()
    assert {event_id: ns for event_id, ns in rows if ns} == expected
    assert len(dict(rows)) == len(rows)


@given(EVENTS, WINDOWS)
def test_exclusive_time_is_listed_for_what_the_window_shows(events, window):
    narrowed = report(events).narrow(window=Window(*window))
    seen = [event_id for kind in DEVICE_KINDS for event_id in narrowed.seen(kind).get_column("event_id")]
    assert exclusive_operations(narrowed).get_column("event_id").sort().to_list() == sorted(seen)


@FEWER
@given(EVENTS, WINDOWS)
def test_tables_of_operations_sum_to_the_ledger(events, window):
    narrowed = report(events).narrow(window=Window(*window))
    buckets = dict(ledger(narrowed).group_by("bucket").agg(pl.col("ns").sum()).iter_rows())
    graphs = exclusive_operations(narrowed).filter(pl.col("kind") == "graph")
    whole_graphs = graphs.get_column("exclusive_ns").sum()
    kernel_ns = buckets.get("kernel", 0) + buckets.get("communication", 0)
    copy_ns = buckets.get("memcpy", 0) + buckets.get("memset", 0)
    assert kernels(narrowed).get_column("exclusive_ns").sum() + whole_graphs == kernel_ns
    shaped = kernels(narrowed, by="launch-shape").get_column("exclusive_ns").sum()
    assert shaped + whole_graphs == kernel_ns
    assert copies(narrowed).get_column("exclusive_ns").sum() == copy_ns
