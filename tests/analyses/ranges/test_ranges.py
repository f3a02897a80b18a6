"""NVTX ranges by name on the host, and what any thread of the process launched while they were open; on the GPU."""

import csv
from collections import defaultdict
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import example, given, strategies as st

import kanalyze
from kanalyze.analyses.host._range_lines import ranges_at
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.page.time_page import summarize
from kanalyze.analyses.ranges.ranges import range_gpu, range_kernels, ranges
from kanalyze.analyses.shared.analysis import named_ranges
from kanalyze.errors import UnknownNameError
from kanalyze.model import DEVICE_KINDS
from kanalyze.renderers.page.time import ranges as section
from kanalyze.window import Window, without_ids
from support.build import call, kernel, launched, nvtx, report, rows_of
from support.command import REPORTS, refused, run
from support.real_reports import real_report
from support.slow_ranges import OPEN_UNTIL, SlowRanges, name_of, reports, spread
from support.strategies import FEWER, WINDOWS

pytestmark = pytest.mark.slow

EMIT = REPORTS / "emit_nvtx.sqlite"


def test_ranges_by_domain_name_and_style():
    events = [
        nvtx("step", 0, 100),
        nvtx("step", 200, 260, thread=2),
        nvtx("step", 10, 50, domain="solver"),
        nvtx("step", 0, 20, style="StartEnd"),
    ]
    assert ranges(report(events)).to_dicts() == rows_of(
        "range style count total_ns share avg_ns median_ns min_ns max_ns stddev_ns open_count threads "
        "cross_thread_count process_busy_ns process_operations",
        (":step", "PushPop", 2, 160, 160 / 220, 80.0, 80.0, 60, 100, pytest.approx(28.28427), 0, 2, 0, 0, 0),
        ("solver:step", "PushPop", 1, 40, 40 / 220, 40.0, 40.0, 40, 40, 0.0, 0, 1, 0, 0, 0),
        (":step", "StartEnd", 1, 20, 20 / 220, 20.0, 20.0, 20, 20, 0.0, 0, 1, 0, 0, 0),
    )


@given(reports())
def test_sums_against_the_model(events):
    model = SlowRanges(events)
    work, expected = model.work(DEVICE_KINDS), {}
    for one in model.ranges:
        end = OPEN_UNTIL if one.event.end is None else one.event.end
        told = {"dur_ns": end - one.start, **model.of_process(one, work)}
        expected.setdefault((name_of(one.event), one.event.side["style"]), []).append(told)
    table = ranges(report(events))
    found = {(row["range"], row["style"]): row for row in table.to_dicts()}
    assert found.keys() == expected.keys()
    for key, each in expected.items():
        lengths = [one["dur_ns"] for one in each]
        sums = {name: sum(one[name] for one in each) for name in ("process_busy_ns", "process_operations")}
        told = {"count": len(each), "total_ns": sum(lengths), **sums, **spread(lengths)}
        assert {name: found[key][name] for name in told} == pytest.approx(told)
    assert table["total_ns"].is_sorted(descending=True)


def launch(at, start, end, *, make=kernel, thread=1, **keys):
    """A call from `at` on, 2 ns long, and what it launched."""
    return launched(at, at + 2, make(start, end, **keys), thread=thread, process=keys.get("process", 1))


#: A step: forward on the main thread, backward on that of autograd, while the main thread waits for it.
STEP = [
    nvtx("step", 0, 100),
    nvtx("fwd", 0, 20),
    *launch(2, 30, 40, correlation=1),
    nvtx("bwd", 20, 90),
    *launch(21, 40, 41, correlation=2),
    *launch(30, 50, 60, correlation=3, thread=2),
    *launch(40, 55, 75, correlation=4, thread=2),
    *launch(95, 100, 110, correlation=5, thread=2, process=2),
]


def test_the_page_shows_it_where_it_differs():
    found = section(summarize(report(STEP)).tables, 8)
    heads = [head.title for head in found.grid.heads]
    cells = {row[-1]: dict(zip(heads, row, strict=True)) for row in found.grid.rows}
    assert (cells["bwd"]["GPU busy"], cells["bwd"]["any thread"]) == ("1 ns", "26 ns")
    assert (cells["fwd"]["GPU busy"], cells["fwd"]["any thread"]) == ("10 ns", "10 ns")
    assert found.foot.startswith("any thread: ")
    alone = section(summarize(report([nvtx("step", 0, 20), *launch(2, 30, 40, correlation=1)])).tables, 8)
    assert "any thread" not in [head.title for head in alone.grid.heads]
    assert alone.foot == ""


ADD = "aten::add, seq = 20, op_id = 317126, sizes = [[64, 128], []], input_op_ids = [(0,-1), (6,0)]"
ENGINE = "autograd::engine::evaluate_function: MmBackward0"


def stripped(name):
    return pl.DataFrame({"name": [name]}, schema={"name": pl.String}).select(without_ids(pl.col("name"))).item()


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        *((ADD, "aten::add"), ("aten::add, op_id = 317126", "aten::add"), ("AddBackward0, seq = -1", "AddBackward0")),
        *(("aten::mm, op_id = 5, sizes = [[], [4]]", "aten::mm"), (f"{ENGINE}, op_id = 4", ENGINE)),
        *(("Optimizer.step#SGD.step, op_id = 380", "Optimizer.step#SGD.step"), (", op_id = 5", ""), (None, None)),
        *((same, same) for same in ("step", "a, op_id = x", "read, size = 5", "a, op_id = 5, then b")),
    ],
)
def test_what_is_taken_off_a_name(name, plain):
    assert stripped(name) == plain


@given(st.text(alphabet="ab, :=[]()0-", max_size=20), st.integers(0, 2**40))
def test_what_emit_nvtx_adds_is_taken_off_and_nothing_else(name, number):
    once = stripped(f"{name}, op_id = {number}")
    assert once == stripped(name)
    assert name.startswith(once)


#: Operators that launch a kernel each, as emit_nvtx names them.
OPERATORS = [
    event
    for number in range(1, 6)
    for event in (
        nvtx(f"aten::add, op_id = {number}", 100 * number, 100 * number + 10),
        *launch(100 * number + 2, 100 * number + 5, 100 * number + 9, correlation=number),
    )
]


def test_tables_keep_the_names_unless_told():
    of = report(OPERATORS)
    assert ranges(of).height == range_gpu(of).height == 5
    (row,) = ranges(of, by="name").to_dicts()
    assert (row["range"], row["count"], row["total_ns"], row["median_ns"]) == (":aten::add", 5, 50, 10.0)
    (row,) = range_gpu(of, by="name").to_dicts()
    assert (row["range"], row["count"], row["busy_ns"], row["operations"]) == (":aten::add", 5, 20, 5)
    assert range_gpu(of, by="name", trace=True).get_column("range").n_unique() == 5
    assert culprits(of).get_column("range").drop_nulls().unique().to_list() == ["aten::add"]
    assert refused(run("show", "ranges", EMIT, "--by", "colour"))[1].endswith("[unknown-name]")


def test_a_range_of_the_program_s_own_does_not_count_twice():
    of = report([*OPERATORS, nvtx("aten::add", 90, 600)])
    assert dict(ranges(of, by="name").select("range", "count").rows()) == {":aten::add": 1, ":aten::add, op_id = …": 5}
    assert set(range_gpu(of, by="name")["operations"]) == {5}


def test_a_real_report_is_named_without_ids():
    real = real_report(EMIT)
    for table, columns in ((kanalyze.culprits, ("range", "culprit")), (kanalyze.findings, ("sentence",))):
        for column in columns:
            assert not table(real).get_column(column).str.contains("op_id = ").any()
    text = run("summarize", EMIT, "--full", columns=120).text
    assert "op_id = " not in text
    lines = text.partition("NVTX RANGES")[2].partition("\n\n")[0].splitlines()
    (row,) = [line for line in lines if line.endswith(" aten::linear")]
    assert row.split()[2] == "15"  # three layers, five steps
    assert run("summarize", EMIT, "--window", "aten::linear#*").status == 0


def test_a_window_is_found_by_either_name():
    of = report(OPERATORS)
    assert [window.start_ns for window in of.windows("aten::add#*")] == [100, 200, 300, 400, 500]
    assert [of.window(name).start_ns for name in ("aten::add#2", "aten::add, op_id = 4", "aten::add#5")] == [
        *(200, 400, 500)
    ]
    assert report([*OPERATORS, nvtx("aten::add", 900, 950)]).window("aten::add").start_ns == 900
    with pytest.raises(UnknownNameError, match="aten::mul"):
        of.window("aten::mul")


def test_sums_by_name_are_those_of_the_rows_of_nsys():
    with (REPORTS / "expected" / "emit_nvtx" / "nvtx_sum.csv").open() as file:
        told = [(row["Range"], int(row["Total Time (ns)"]), int(row["Instances"])) for row in csv.DictReader(file)]
    expected = {}
    for name, total, count in told:
        sums = expected.setdefault(stripped(name), [0, 0])
        sums[0] += total
        sums[1] += count
    found = ranges(real_report(EMIT), by="name").select("range", "total_ns", "count").rows()
    assert {name: sums for name, *sums in found} == expected
    assert len(expected) < len(told) / 5


TRACED_KINDS = tuple(kind for kind in DEVICE_KINDS if kind != "graph")


@example([nvtx("a", 0, 10), nvtx("b", 10, 10), *launched(10, 10, kernel(20, 30))], 0, (None, None), None)
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
            "captured_busy_ns": 0,
            "captured_operations": 0,
        })  # fmt: skip


@given(reports(), st.sampled_from([1, 4]))
def test_sums_and_kernels_are_the_same_in_batches(made, most):
    if {"range", "api", "kernel"} <= {event.kind for event in made}:
        expected = range_gpu(report(made), graphs=True), range_kernels(report(made))
        with patch("kanalyze.analyses.ranges.ranges.MOST_PAIRS", most):
            assert range_gpu(report(made), graphs=True).equals(expected[0])
            assert range_kernels(report(made)).equals(expected[1])


def test_thousands_deep():
    """Range by range this takes minutes, more than tests may: 12 million pairs."""
    depth, events = 5000, []
    for number in range(depth):  # a function that calls itself, and launches a kernel on each way in
        at, ran = 10 * number, {"correlation": number, "stream": 7 + number % 2}
        events.append(nvtx(f"f{number % 7}", at, 10 * (3 * depth - number)))
        events += launched(at + 1, at + 2, kernel(at + 3, at + 15, **ran))
    found = range_gpu(report(events), trace=True)
    assert found.get_column("operations").to_list() == [*range(depth, 0, -1)]
    assert found.get_column("level").to_list() == [*range(depth)]
    assert found.get_column("busy_ns").to_list() == [10 * (depth - number - 1) + 12 for number in range(depth)]


def test_thousands_that_were_never_closed():
    """Range by range this takes minutes, more than tests may: 8 million pairs."""
    count, events = 4000, [nvtx("last", 39_999, 40_000)]
    for number in range(count):  # a thread that opens a range and launches a kernel in it, and closes none
        at = 10 * number
        events.append(nvtx("step", at, None, open_until_ns=40_000))
        events += launched(at + 1, at + 2, kernel(at + 3, at + 7, correlation=number))
    made = report(events)
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


@given(reports())
def test_kernels_against_the_model(events):
    keys = ("range", "style", "process_id", "thread_id", "kernel")
    rows = range_kernels(report(events)).drop("via").to_dicts()
    found = {tuple(row.pop(key) for key in keys): row for row in rows}
    expected = SlowRanges(events).kernels()
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert found[key] == pytest.approx(row)
