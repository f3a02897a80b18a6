"""The table of operations has, by name, what a walk through the list of events finds for each of them."""

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.device._operations import (
    FACTS,
    RESOURCES,
    SHAPE,
    device_operations,
    exclusive_operations,
    facts_of,
    launch_calls,
    launch_shapes,
    launches_of,
    nearest_launches,
    operations,
    with_facts,
)
from kanalyze.model import COPY_DETAIL, DEVICE_KINDS, GRAPH_DETAIL, KERNEL_CONFIG
from kanalyze.window import Window
from support.build import call, kernel, memcpy, report
from support.large import as_if_large
from support.strategies import EVENTS, WINDOWS

#: What the table knows of an operation by itself.
OWN = ("event_id", "kind", "name", "process_id")


@st.composite
def varied(draw):
    """Events whose copies and kernels differ in what their side tables say."""
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
    shape = dict(zip(SHAPE, (*event.grid, *event.block), strict=True)) if event.kind == "kernel" else {}
    known = {**shape, "direction": event.direction, "size_bytes": event.size_bytes, **event.side}
    table = {"kernel": KERNEL_CONFIG, "memcpy": COPY_DETAIL, "memset": COPY_DETAIL, "graph": GRAPH_DETAIL}[event.kind]
    found |= {name: known.get(name) for name in table.schema}
    found |= {"event_id": number, "kind": event.kind, "name": event.name, "process_id": event.process}
    return {name: found.get(name) for name in (*OWN, *FACTS) if name != "shape"}


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
        found = operations(made, *FACTS)
        shapes = launch_shapes(made).select("shape", *SHAPE, *RESOURCES)
    expected = [told(event, numbered) for event in own]
    assert found.select([name for name in (*OWN, *FACTS) if name != "shape"]).to_dicts() == expected
    assert found.get_column("row").to_list() == list(range(len(own)))
    by_number = found.join(shapes, on="shape", how="left", suffix="_of", maintain_order="left")
    for name in (*SHAPE, *RESOURCES):
        kernels = by_number.filter(kind="kernel")
        assert kernels.get_column(f"{name}_of").to_list() == kernels.get_column(name).to_list()
    assert found.filter(pl.col("kind") != "kernel").get_column("shape").null_count() == len(own) - kernels.height


@given(varied(), WINDOWS, st.booleans(), st.data())
def test_facts_of_some_rows_are_those_of_the_table(events, window, large, data):
    made = report(events)
    part = made.narrow(window=Window(*window))
    with pytest.MonkeyPatch.context() as patch:
        if large:
            as_if_large(patch)
        whole = operations(made, *FACTS)
        rows = st.lists(st.none() | st.integers(0, whole.height - 1), max_size=8) if whole.height else st.just([None])
        chosen = pl.Series(data.draw(rows), dtype=pl.UInt32)
        facts = data.draw(st.lists(st.sampled_from([*OWN, *FACTS]), unique=True, min_size=1))
        found = facts_of(made, chosen, *facts)
        assert found.columns == facts
        nothing = dict.fromkeys(facts)
        by_row = whole.select(facts).to_dicts()
        assert found.to_dicts() == [nothing if row is None else by_row[row] for row in chosen]
        for work in (device_operations(part, *facts), exclusive_operations(part, *facts)):
            assert work.select(facts).to_dicts() == [by_row[row] for row in work.get_column("row")]


def test_facts_replace_columns_of_the_same_name_and_a_report_without_operations_has_none():
    made = report([call("cudaLaunchKernel", 0, 2, correlation=1), kernel(5, 9, correlation=1)])
    work = operations(made, "call_start").with_columns(call_start=pl.lit(7), stream=pl.lit(7))
    assert with_facts(made, work, "call_start", "stream").select("call_start", "stream").rows() == [(0, 7)]
    assert with_facts(made, work) is work
    assert operations(report([]), *FACTS).height == 0
    assert facts_of(report([]), pl.Series([None], dtype=pl.UInt32), "call_start", "name").rows() == [(None, None)]


def test_calls_that_launched_something_are_those_of_the_operations():
    events = [
        call("cudaMemcpyAsync", 5, 7, correlation=2, thread=2),
        call("cudaLaunchKernel", 0, 3, correlation=1),
        call("cudaMalloc", 3, 4, correlation=9),
        kernel(10, 20, correlation=1),
        memcpy(8, 9, correlation=2),
    ]
    made = report(events)
    assert launch_calls(made, "thread_id", "call_row", "call_end").rows() == [(1, 2, 0, 7), (1, 1, 1, 3)]
    assert launches_of(made, 1, "thread_id", "call_start").rows() == [(1, 0), (2, 5)]
    assert launches_of(made, 1, "call_start", thread=2).rows() == [(5,)]
    assert launches_of(made, 7, "call_start").is_empty()


def test_the_nearest_launch_of_a_point_is_that_of_its_process_or_thread():
    events = [
        call("cudaLaunchKernel", 0, 3, correlation=1),
        call("cudaLaunchKernel", 5, 7, correlation=2, thread=2),
        kernel(10, 20, correlation=1),
        kernel(20, 30, correlation=2),
    ]
    made, points = report(events), pl.DataFrame({"process_id": [1, 1, 1, 9, 1], "at": [-1, 5, 6, 6, None]})
    assert nearest_launches(made, points, "call_row", "call_end").rows() == [
        (None, None), (0, 3), (1, 7), (None, None), (None, None),
    ]  # fmt: skip
    assert nearest_launches(made, points, "call_row", equal=True).to_series().to_list() == [None, 1, 1, None, None]
    assert nearest_launches(made, points, "call_row", later=True).to_series().to_list() == [0, None, None, None, None]
    here = points.with_columns(thread_id=pl.lit(1))
    assert nearest_launches(made, here, "call_row").to_series().to_list() == [None, 0, 0, None, None]
