"""The table of operations has, by name, what a walk through the list of events finds for each of them."""

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.device import _operations
from kanalyze.analyses.device.kernels import copies, kernels
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.model import COPY_DETAIL, DEVICE_KINDS, GRAPH_DETAIL, KERNEL_CONFIG
from kanalyze.window import Window
from support.build import report
from support.large import as_if_large
from support.slow_model import SlowModel
from support.strategies import EVENTS, WINDOWS, few_given, slow_given

#: What the table knows of an operation by itself.
OWN = ("event_id", "kind", "name", "process_id")


@st.composite
def varied(draw):
    sizes, sides = st.integers(0, 3), st.none() | st.integers(1, 3)
    memory = st.sampled_from(["Pageable", "Pinned", None])
    found = []
    for event in draw(EVENTS):
        side = {"graph_exec_id": draw(sides), "graph_node_id": draw(sides), "registers_per_thread": draw(sides)}
        side |= {"graph_id": draw(sides)}
        side |= {"source_memory": draw(memory), "migration_cause": draw(memory), "static_shared_bytes": draw(sides)}
        given = {"side": side, "grid": (draw(sizes), 1, 1), "size_bytes": draw(sizes), "parent": draw(sides)}
        found.append(replace(event, **given) if event.kind in DEVICE_KINDS else event)
    return found


def told(event, events):
    """Every fact of one operation, by a walk through the list."""
    number = events.index(event)
    found = {"context_id": event.context, "stream": event.stream}
    found |= {"correlation_id": event.correlation, "parent_id": event.parent}
    calls = [one for one in events if one.kind == "api"]
    key = (event.process, event.correlation)
    mine = [one for one in calls if None not in key and (one.process, one.correlation) == key]
    if mine:
        made = min(mine, key=lambda one: (one.start, calls.index(one)))
        found |= {"call_row": calls.index(made), "thread_id": made.thread, "call_id": events.index(made)}
        found |= {"call_start": made.start, "call_end": made.end, "call_ns": made.end - made.start}
        found |= {"call_name": made.name}
    shape = dict(zip(_operations.SHAPE, (*event.grid, *event.block), strict=True)) if event.kind == "kernel" else {}
    known = {**shape, "direction": event.direction, "size_bytes": event.size_bytes, **event.side}
    table = {"kernel": KERNEL_CONFIG, "memcpy": COPY_DETAIL, "memset": COPY_DETAIL, "graph": GRAPH_DETAIL}[event.kind]
    found |= {name: known.get(name) for name in table.schema}
    found |= {"event_id": number, "kind": event.kind, "name": event.name, "process_id": event.process}
    return {name: found.get(name) for name in (*OWN, *_operations.FACTS) if name != "shape"}


@given(varied(), st.booleans())
def test_facts_are_those_of_a_walk_through_the_events(listed, large):
    listed = [replace(event, side={**event.side, "direction": event.direction}) for event in listed]
    numbered = [
        replace(event, start=event.start * 100 + at, end=event.end * 100 + at) for at, event in enumerate(listed)
    ]
    own = [event for event in numbered if event.kind in DEVICE_KINDS]
    with pytest.MonkeyPatch.context() as patch:
        if large:
            as_if_large(patch)
        made = report(numbered)
        found = _operations.operations(made, *_operations.FACTS)
        shapes = _operations.launch_shapes(made).select("shape", *_operations.SHAPE, *_operations.RESOURCES)
    expected = [told(event, numbered) for event in own]
    assert found.select([name for name in (*OWN, *_operations.FACTS) if name != "shape"]).to_dicts() == expected
    assert found.get_column("row").to_list() == list(range(len(own)))
    by_number = found.join(shapes, on="shape", how="left", suffix="_of", maintain_order="left")
    for name in (*_operations.SHAPE, *_operations.RESOURCES):
        kernels = by_number.filter(kind="kernel")
        assert kernels.get_column(f"{name}_of").to_list() == kernels.get_column(name).to_list()
    assert found.filter(pl.col("kind") != "kernel").get_column("shape").null_count() == len(own) - kernels.height


@slow_given(varied(), WINDOWS, st.booleans(), st.data())
def test_facts_of_some_rows_are_those_of_the_table(events, window, large, data):
    made = report(events)
    part = made.narrow(window=Window(*window))
    with pytest.MonkeyPatch.context() as patch:
        if large:
            as_if_large(patch)
        whole = _operations.operations(made, *_operations.FACTS)
        rows = st.lists(st.none() | st.integers(0, whole.height - 1), max_size=8) if whole.height else st.just([None])
        chosen = pl.Series(data.draw(rows), dtype=pl.UInt32)
        facts = data.draw(st.lists(st.sampled_from([*OWN, *_operations.FACTS]), unique=True, min_size=1))
        found = _operations.facts_of(made, chosen, *facts)
        assert found.columns == facts
        nothing = dict.fromkeys(facts)
        by_row = whole.select(facts).to_dicts()
        assert found.to_dicts() == [nothing if row is None else by_row[row] for row in chosen]
        for work in (_operations.device_operations(part, *facts), _operations.exclusive_operations(part, *facts)):
            assert work.select(facts).to_dicts() == [by_row[row] for row in work.get_column("row")]


@given(EVENTS, WINDOWS)
def test_exclusive_time_equals_the_model_and_is_listed_for_what_the_window_shows(events, window):
    narrowed = report(events).narrow(window=Window(*window))
    rows = _operations.exclusive_operations(narrowed).select("event_id", "exclusive_ns").rows()
    assert {event_id: ns for event_id, ns in rows if ns} == SlowModel(events, window).exclusive()
    seen = [event_id for kind in DEVICE_KINDS for event_id in narrowed.seen(kind).get_column("event_id")]
    assert sorted(event_id for event_id, _ in rows) == sorted(seen)


@few_given(EVENTS, WINDOWS)
def test_tables_of_operations_sum_to_the_ledger(events, window):
    narrowed = report(events).narrow(window=Window(*window))
    buckets = dict(ledger(narrowed).group_by("bucket").agg(pl.col("ns").sum()).iter_rows())
    graphs = (
        _operations.exclusive_operations(narrowed).filter(pl.col("kind") == "graph").get_column("exclusive_ns").sum()
    )
    for by in (None, "launch-shape"):
        own = kernels(narrowed, by=by).get_column("exclusive_ns").sum()
        assert own + graphs == buckets.get("kernel", 0) + buckets.get("communication", 0)
    moved = copies(narrowed).get_column("exclusive_ns").sum()
    assert moved == buckets.get("memcpy", 0) + buckets.get("memset", 0)
