"""NVTX ranges on the GPU: by hand, then against a model that joins every range with every operation.

Ranges may be nested hundreds deep, and a program may forget to close thousands.
"""

from collections import defaultdict
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.host._range_lines import named_ranges, ranges_at
from kanalyze.analyses.ranges import _projection
from kanalyze.analyses.ranges._projection import nest, outermost_first, pairs, parents
from kanalyze.analyses.ranges.range_gpu import range_gpu, range_kernels
from kanalyze.model import DEVICE_KINDS
from kanalyze.window import Window
from support.build import call, graph, kernel, launched, nvtx, report, rows_of
from support.slow_ranges import OPEN_UNTIL, SlowRanges, reports, spread
from support.strategies import FEWER, WINDOWS

TRACED_KINDS = tuple(kind for kind in DEVICE_KINDS if kind != "graph")


def launch(at, start, end, *, correlation, make=kernel, **keys):
    """A call from `at` on, 2 ns long, and what it launched."""
    thread = keys.pop("thread", 1)
    return launched(at, at + 2, make(start, end, correlation=correlation, **keys), thread=thread)


#: A step with two inner ranges, of which one launches; two kernels that overlap, then one after a pause.
STEP = [
    nvtx("step", 0, 20),
    nvtx("forward", 2, 12),
    nvtx("host only", 13, 15),
    *launch(3, 30, 40, correlation=1),
    *launch(6, 35, 45, correlation=2, stream=8),
    *launch(16, 60, 70, correlation=3),
]


def test_a_range_and_what_is_inside_it():
    assert range_gpu(report(STEP)).to_dicts() == rows_of(
        "range style count total_ns projected_ns avg_ns median_ns min_ns max_ns stddev_ns gpu_ops avg_gpu_ops "
        "avg_level avg_children busy_ns operations whole_graphs process_busy_ns process_operations",
        (":step", "PushPop", 1, 20, 40, 40.0, 40.0, 40, 40, 0.0, 3, 3.0, 0.0, 1.0, 25, 3, 0, 25, 3),
        (":forward", "PushPop", 1, 10, 15, 15.0, 15.0, 15, 15, 0.0, 2, 2.0, 1.0, 0.0, 15, 2, 0, 15, 2),
    )
    assert range_gpu(report(STEP), trace=True).to_dicts() == rows_of(
        "range style projected_start_ns projected_ns start_ns dur_ns process_id thread_id gpu_ops level "
        "children event_id parent_id stack busy_ns operations whole_graphs process_busy_ns process_operations",
        (":step", "PushPop", 30, 40, 0, 20, 1, 1, 3, 0, 1, 0, None, ":0", 25, 3, 0, 25, 3),
        (":forward", "PushPop", 30, 15, 2, 10, 1, 1, 2, 1, 0, 1, 0, ":0:1", 15, 2, 0, 15, 2),
    )


def traced(events, *columns, **options):
    return range_gpu(report(events), trace=True, **options).select("range", *columns).rows()


def test_whole_graphs_count_when_asked_for():
    events = [
        nvtx("replay", 0, 10),
        *launch(1, 20, 30, correlation=1, make=graph),
        nvtx("mixed", 20, 30),
        *launch(21, 40, 45, correlation=2),
        *launch(25, 50, 60, correlation=3, make=graph),
    ]
    columns = ("projected_ns", "busy_ns", "gpu_ops", "whole_graphs")
    assert traced(events, *columns) == [(":mixed", 5, 5, 1, 1)]
    assert traced(events, *columns, graphs=True) == [(":replay", 10, 10, 1, 1), (":mixed", 20, 15, 2, 1)]


def test_many_requests_at_once_on_one_thread():
    """As a server's event loop makes them: none contains another, many share an instant."""
    requests = [nvtx(f"request {n}", 10 * n, 10 * n + 95, style="StartEnd") for n in range(30)]
    work = [event for n in range(60) for event in launch(5 * n, 5 * n + 400, 5 * n + 403, correlation=n)]
    # request n is open for the calls at 10 n, 10 n + 5, … 10 n + 90
    expected = [(f":request {n}", min(19, 60 - 2 * n), 0) for n in range(30)]
    assert sorted(traced([*requests, *work], "gpu_ops", "level")) == sorted(expected)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ({"window": Window(14, 18)}, [(":step", 3, 1)]),  # with all their operations
        ({"window": Window(25, 80)}, []),
        ({"process": 2}, []),
        ({"process": 1}, [(":step", 3, 1), (":forward", 2, 0)]),
    ],
)
def test_a_part_of_the_report(where, rows):
    assert traced([*STEP, nvtx("elsewhere", 0, 20, process=2)], "operations", "children", **where) == rows


@given(reports(), st.booleans(), WINDOWS, st.sampled_from([None, None, 0, 1]))
def test_every_instance_against_the_model(events, graphs, window, device):
    low, high = window
    made, kinds = report(events), DEVICE_KINDS if graphs else TRACED_KINDS
    if device not in (None, *made.devices["device"].to_list()):
        return
    expected = [
        row
        for row in SlowRanges(events).trace(kinds, device)
        if low is None or row["start_ns"] + row["dur_ns"] > low or row["start_ns"] == low
        if high is None or row["start_ns"] < high
    ]
    assert range_gpu(made, trace=True, graphs=graphs, window=Window(low, high), device=device).to_dicts() == expected


SUMMED = ("projected_ns", "gpu_ops", "busy_ns", "operations", "whole_graphs", "process_busy_ns", "process_operations")


@FEWER
@given(reports())
def test_sums_are_those_of_the_instances(events):
    groups = defaultdict(list)
    for row in SlowRanges(events).trace(TRACED_KINDS):
        groups[row["range"], row["style"]].append(row)
    found = range_gpu(report(events))
    assert found["projected_ns"].is_sorted(descending=True)
    rows = {(row["range"], row["style"]): row for row in found.to_dicts()}
    assert rows.keys() == groups.keys()
    for key, group in groups.items():
        assert rows[key] == pytest.approx({
            **dict(zip(("range", "style"), key, strict=True)),
            "count": len(group),
            "total_ns": sum(row["dur_ns"] for row in group),
            **{name: sum(row[name] for row in group) for name in SUMMED},
            **{f"avg_{of}": sum(row[of] for row in group) / len(group) for of in ("gpu_ops", "level", "children")},
            **spread([row["projected_ns"] for row in group]),
        })  # fmt: skip


# Nested deeply


SPAN = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted)
RANGES = st.lists(SPAN, min_size=1, max_size=12)


def framed(ranges):
    frame = pl.DataFrame(ranges, schema={"start": pl.Int64, "end": pl.Int64}, orient="row").with_row_index("row")
    return outermost_first(frame)


def deep():
    """Lets any ranges count as deep."""
    return patch.object(_projection, "DEEP", 0)


@given(RANGES, st.lists(SPAN, max_size=8))
def test_the_ranges_around_an_interval_are_those_that_hold_it_however_deep(ranges, stretches):
    line = framed(ranges)
    schema = {"since": pl.Int64, "until": pl.Int64}
    asked = pl.DataFrame(stretches, schema=schema, orient="row").with_row_index("row")
    expected = [
        (row, at)
        for row, (since, until) in enumerate(stretches)
        for at, (start, end) in enumerate(line.select("start", "end").iter_rows())
        if start <= since and until <= end
    ]
    layers = nest(line)
    with deep():
        tree = nest(line)
    for nested in (layers, tree):
        found = [inside.select("row").with_columns(place.alias("at")) for inside, place in pairs(nested, asked)]
        assert sorted(row for frame in found for row in frame.rows()) == expected
    assert parents(tree, line).equals(parents(layers, line))


@given(reports(), st.sampled_from([0, 64]))
def test_sums_and_kernels_are_the_same_however_deep(made, pieces):
    if {"range", "api", "kernel"} <= {event.kind for event in made}:
        expected = range_gpu(report(made), graphs=True), range_kernels(report(made))
        with deep(), patch.object(_projection, "_MOST_PIECES", pieces):
            assert range_gpu(report(made), graphs=True).equals(expected[0])
            assert range_kernels(report(made)).equals(expected[1])


@pytest.mark.parametrize("ranges", [[(0, 3), (2, 5)], [(0, 3), (3, 5), (3, 3)], [(0, 3), (2, 1)]])
def test_crossing_ranges_are_layers(ranges):
    with deep():
        assert not nest(framed([*ranges, (0, 9)])).trees


def test_thousands_deep():
    """Range by range this takes minutes, more than tests may: 12 million pairs, and as many layers as ranges."""
    depth, events = 5000, []
    for number in range(depth):  # a function that calls itself, and launches a kernel on each way in
        at, ran = 10 * number, {"correlation": number, "stream": 7 + number % 2}
        events.append(nvtx(f"f{number % 7}", at, 10 * (3 * depth - number)))
        events += launched(at + 1, at + 2, kernel(at + 3, at + 15, **ran))
    found = range_gpu(report(events), trace=True)
    assert found.get_column("operations").to_list() == [*range(depth, 0, -1)]
    assert found.get_column("level").to_list() == [*range(depth)]
    assert found.get_column("busy_ns").to_list() == [10 * (depth - number - 1) + 12 for number in range(depth)]


# Never closed


def left_open(count, *, every=10):
    """A thread that opens a range and launches a kernel in it, again and again, and closes none."""
    events = []
    for number in range(count):
        at = every * number
        events.append(nvtx("step", at, None, open_until_ns=every * count))
        events += launched(at + 1, at + 2, kernel(at + 3, at + 7, correlation=number))
    return [*events, nvtx("last", every * count - 1, every * count)]


def test_each_holds_the_operations_of_all_after_it():
    columns = ("start_ns", "projected_start_ns", "projected_ns", "busy_ns", "gpu_ops", "level", "children")
    assert range_gpu(report(left_open(3)), trace=True).select(columns).rows() == [
        (0, 3, 24, 12, 3, 0, 1),
        (10, 13, 14, 8, 2, 1, 1),
        (20, 23, 4, 4, 1, 2, 0),
    ]


def test_thousands_that_were_never_closed():
    """Range by range this takes minutes, more than tests may: 16 million pairs, and as many layers as ranges."""
    made, count = report(left_open(4000)), 4000
    found = range_gpu(made)
    points = pl.DataFrame({"process_id": 1, "thread_id": 1, "at": [10 * 77 + 5]}, schema_overrides={"at": pl.Int64})
    inside = ranges_at(made, points).item()
    sums = count * (count + 1) // 2
    assert found.select("count", "operations", "busy_ns").rows() == [(count, sums, 4 * sums)]
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
def test_what_was_never_closed_against_the_model(events):
    made, model = report(events), SlowRanges(events)
    assert range_gpu(report(events), trace=True).to_dicts() == model.trace(("kernel",))
    points = [(1, thread, at) for thread in (1, 2) for at in range(-1, OPEN_UNTIL + 2)]
    found = ranges_at(made, pl.DataFrame(points, schema=["process_id", "thread_id", "at"], orient="row"))
    assert named_ranges(made)["event_id"].gather(found).to_list() == [model.line(*point) for point in points]
    expected, rows = model.kernels(), range_kernels(made).to_dicts()
    assert len(rows) == len(expected)
    for row in rows:
        told = expected[tuple(row[key] for key in ("range", "style", "process_id", "thread_id", "kernel"))]
        assert {name: row[name] for name in told} == pytest.approx(told)


# Kernels by the NVTX range that launched them: by hand, then against a model that joins everything with everything.


def ran(at, dur, *, thread=1, **keys):
    """A call from `at` on, 2 ns long, and the kernel that it launched, 100 ns later."""
    return launch(at, at + 100, at + 100 + dur, thread=thread, **keys)


def test_a_kernel_counts_in_every_range_around_its_launch_and_without_one_it_is_in_none():
    events = [
        nvtx("outer", 0, 50),
        nvtx("inner", 10, 30),
        *ran(1, 5, correlation=1),
        *ran(11, 7, correlation=2),
        *ran(60, 4, correlation=3, name="alone"),
        kernel(0, 9, name="no launch"),
    ]
    assert range_kernels(report(events)).to_dicts() == rows_of(
        "range style process_id thread_id kernel range_count count total_ns avg_ns median_ns min_ns max_ns stddev_ns "
        "kernel_ns",
        (None, None, None, None, "no launch", 0, 1, 9, 9.0, 9.0, 9, 9, 0.0, 9),
        (None, None, 1, 1, "alone", 0, 1, 4, 4.0, 4.0, 4, 4, 0.0, 4),
        (":inner", "PushPop", 1, 1, "k", 1, 1, 7, 7.0, 7.0, 7, 7, 0.0, 7),
        (":outer", "PushPop", 1, 1, "k", 1, 2, 12, 6.0, 6.0, 5, 7, pytest.approx(2**0.5), 12),
    )


WORK = nvtx("work", 0, 50)


@pytest.mark.parametrize(
    ("events", "columns", "where", "rows"),
    [
        # ranges of one name that nest count a kernel again, but kernel_ns does not
        (
            [WORK, nvtx("work", 5, 40), *ran(10, 8, correlation=1)],
            ("range_count", "count", "total_ns", "kernel_ns"),
            {},
            [(":work", 2, 1, 16, 8)],
        ),
        # threads are told apart
        (
            [WORK, nvtx("work", 0, 50, thread=2), *ran(1, 5, correlation=1), *ran(1, 6, correlation=2, thread=2)],
            ("thread_id", "total_ns"),
            {},
            [(":work", 1, 5), (":work", 2, 6)],
        ),
        # the heaviest kernel of a range first
        (
            [WORK, *ran(1, 5, correlation=1, name="light"), *ran(4, 50, correlation=2, name="heavy")],
            ("kernel",),
            {},
            [(":work", "heavy"), (":work", "light")],
        ),
        # a range that another thread ended launched nothing
        ([nvtx("a", 0, 50, style="StartEnd", end_thread_id=2), *ran(1, 5, correlation=1)], (), {}, [(None,)]),
        # kernels that overlap the window count whole, in ranges before it
        ([WORK, *ran(1, 5, correlation=1)], ("total_ns",), {"window": Window(103, 120)}, [(":work", 5)]),
        (
            [WORK, *ran(1, 5, correlation=1), *ran(30, 9, correlation=2, device=1)],
            ("total_ns",),
            {"device": 1},
            [(":work", 9)],
        ),
    ],
)
def test_which_kernels_count_where(events, columns, where, rows):
    assert range_kernels(report(events), **where).select("range", *columns).rows() == rows


@given(reports())
def test_kernels_against_the_model(events):
    keys = ("range", "style", "process_id", "thread_id", "kernel")
    found = {tuple(row.pop(key) for key in keys): row for row in range_kernels(report(events)).to_dicts()}
    expected = SlowRanges(events).kernels()
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert found[key] == pytest.approx(row)


def test_many_kernels_are_joined_name_by_name_and_those_without_a_name_as_well(monkeypatch):
    names = ["a", None, "b", None, "a", "c"]
    launches = [one for at, name in enumerate(names) for one in ran(10 * at + 1, 5 + at, correlation=at, name=name)]
    events = [nvtx("outer", 0, 90), nvtx("inner", 0, 25), *launches]
    whole = range_kernels(report(events))
    assert whole.get_column("kernel").null_count() == 2
    monkeypatch.setattr("kanalyze.analyses.ranges.range_gpu._MOST_PAIRS", 3)
    assert range_kernels(report(events)).equals(whole)
