"""Ranges that a program forgot to close: all end together, each inside all before it, and there may be thousands."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.host._range_lines import named_ranges, ranges_at
from kanalyze.analyses.ranges.range_gpu import range_gpu
from kanalyze.analyses.ranges.range_kernels import range_kernels
from support.build import call, kernel, launched, nvtx, report
from support.slow_ranges import OPEN_UNTIL, SlowRanges
from support.strategies import FEWER


def left_open(count, *, every=10):
    """A thread that opens a range and launches a kernel in it, again and again, and closes none."""
    events = []
    for number in range(count):
        at = every * number
        events += [
            nvtx("step", at, None, open_until_ns=every * count),
            *launched(at + 1, at + 2, kernel(at + 3, at + 7, correlation=number)),
        ]
    return [*events, nvtx("last", every * count - 1, every * count)]


def test_each_holds_the_operations_of_all_after_it():
    columns = (
        "start_ns",
        "projected_start_ns",
        "projected_ns",
        "busy_ns",
        "gpu_ops",
        "operations",
        "level",
        "children",
    )
    assert range_gpu(report(left_open(3)), trace=True).select(columns).rows() == [
        (0, 3, 24, 12, 3, 3, 0, 1),
        (10, 13, 14, 8, 2, 2, 1, 1),
        (20, 23, 4, 4, 1, 1, 2, 0),
    ]


def test_kernels_count_in_all_ranges_around_them():
    (row,) = range_kernels(report(left_open(3))).to_dicts()
    assert (row["range_count"], row["count"], row["kernel_ns"], row["total_ns"]) == (3, 3, 12, 4 * (1 + 2 + 3))


def test_thousands_of_them():
    """Range by range this takes minutes, more than tests may: 16 million pairs, and as many layers as ranges."""
    made, count = report(left_open(4000)), 4000
    found = range_gpu(made)
    points = pl.DataFrame({"process_id": 1, "thread_id": 1, "at": [10 * 77 + 5]}, schema_overrides={"at": pl.Int64})
    inside = ranges_at(made, points).item()
    assert found.select("count", "operations", "busy_ns").rows() == [
        (count, count * (count + 1) // 2, 4 * count * (count + 1) // 2)
    ]
    assert named_ranges(made)["start"].item(inside) == 770


@st.composite
def forgetful(draw):
    """Up to eight ranges, most of them left open, in threads that launch kernels which overlap."""
    times, events = st.integers(0, 40), []
    for number in range(draw(st.integers(1, 8))):
        start, closed = draw(times), draw(st.sampled_from([False, False, True]))
        end = start + draw(st.integers(0, 29)) if closed else None
        side = {"style": "PushPop", "open_until_ns": OPEN_UNTIL}
        events.append(nvtx(f"r{number}", start, end, thread=draw(st.sampled_from([1, 1, 2])), **side))
    for number in range(draw(st.integers(0, 8))):
        at, start = draw(times), draw(st.integers(0, 60))
        thread, same = draw(st.sampled_from([1, 1, 2])), draw(st.booleans())
        events.append(call("cudaLaunchKernel", at, at + draw(st.integers(0, 9)), correlation=number, thread=thread))
        for stream in (7, 8) if same else (7,):
            end = start + draw(st.integers(0, 25))
            events.append(kernel(start, end, correlation=number, stream=stream, device=draw(st.sampled_from([0, 1]))))
    return events


@given(forgetful())
def test_every_instance_against_the_model(events):
    expected = SlowRanges(events).trace(("kernel",))
    assert range_gpu(report(events), trace=True).to_dicts() == expected


@FEWER
@given(forgetful())
def test_every_kernel_against_the_model(events):
    expected = SlowRanges(events).kernels()
    rows = range_kernels(report(events)).to_dicts()
    keys = ("range", "style", "process_id", "thread_id", "kernel")
    assert len(rows) == len(expected)
    for row in rows:
        told = expected[tuple(row[key] for key in keys)]
        assert {name: row[name] for name in told} == pytest.approx(told)


@given(forgetful())
def test_every_instant_against_the_model(events):
    made, model = report(events), SlowRanges(events)
    points = [(1, thread, at) for thread in (1, 2) for at in range(-1, OPEN_UNTIL + 2)]
    found = ranges_at(made, pl.DataFrame(points, schema=["process_id", "thread_id", "at"], orient="row"))
    ids = named_ranges(made)["event_id"].gather(found).to_list()
    assert ids == [model.line(*point) for point in points]
