"""Exclusive time: every busy instant belongs to one operation, so that tables of them sum to the ledger."""

import polars as pl
import pytest
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


@pytest.mark.parametrize(
    ("events", "window", "exclusive"),
    [
        # the winning kind owns the instant; a whole graph is a kernel among kernels
        ([memset(0, 40), memcpy(0, 30), kernel(0, 20, name="ncclAllReduce"), kernel(5, 10)], None, [10, 10, 15, 5]),
        ([kernel(5, 15), graph(0, 10), kernel(20, 25)], None, [5, 10, 5]),
        # among equals the one that started first, then the lower event_id
        ([kernel(5, 15, stream=8), kernel(0, 10), kernel(2, 12)], None, [3, 10, 2]),
        # a window cuts what is owned and leaves the owner
        ([kernel(2, 20), kernel(0, 10), kernel(12, 30), kernel(40, 50)], Window(5, 25), [10, 5, 5]),
        ([], Window(0, 10), []),
    ],
)
def test_whose_an_instant_is(events, window, exclusive):
    found = exclusive_operations(report(events).narrow(window=window)).sort("event_id")
    assert found.get_column("exclusive_ns").to_list() == exclusive


@given(EVENTS, WINDOWS)
def test_exclusive_time_equals_the_model_and_is_listed_for_what_the_window_shows(events, window):
    narrowed = report(events).narrow(window=Window(*window))
    rows = exclusive_operations(narrowed).select("event_id", "exclusive_ns").rows()
    assert {event_id: ns for event_id, ns in rows if ns} == SlowModel(events, window).exclusive()
    seen = [event_id for kind in DEVICE_KINDS for event_id in narrowed.seen(kind).get_column("event_id")]
    assert sorted(event_id for event_id, _ in rows) == sorted(seen)


@FEWER
@given(EVENTS, WINDOWS)
def test_tables_of_operations_sum_to_the_ledger(events, window):
    narrowed = report(events).narrow(window=Window(*window))
    buckets = dict(ledger(narrowed).group_by("bucket").agg(pl.col("ns").sum()).iter_rows())
    graphs = exclusive_operations(narrowed).filter(pl.col("kind") == "graph").get_column("exclusive_ns").sum()
    for by in (None, "launch-shape"):
        own = kernels(narrowed, by=by).get_column("exclusive_ns").sum()
        assert own + graphs == buckets.get("kernel", 0) + buckets.get("communication", 0)
    moved = copies(narrowed).get_column("exclusive_ns").sum()
    assert moved == buckets.get("memcpy", 0) + buckets.get("memset", 0)
