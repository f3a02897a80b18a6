"""CUDA graphs: what belongs to a launch and what that costs; captured launches; periods."""

import polars as pl
import pytest
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings.health import health
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches._launch_costs import graph_launches, graph_operations
from kanalyze.analyses.launches.graphs import graphs, launch_series, periodic
from kanalyze.analyses.launches.hot_kernels import hot_kernels
from kanalyze.window import Window
from support.build import call, graph, kernel, memcpy, memset, report, rows_of, timeline
from support.command import REPORTS
from support.real_reports import real_report
from support.slow_model import SlowModel
from support.strategies import WINDOWS, few_given


def launch(start, end, correlation, **keys):
    return call("cudaGraphLaunch_v10000", start, end, correlation=correlation, **keys)


def node(start, end, correlation, *, node=0, exec_id=2, kind=kernel, **keys):  # noqa: PLR0913 - what a node has
    return kind(start, end, correlation=correlation, side={"graph_exec_id": exec_id, "graph_node_id": node}, **keys)


def row(of, **where):
    (found,) = graphs(of, **where).to_dicts()
    return found


def picked(of, *names, **where):
    return graphs(of, **where).select(names).rows()


#: Two launches of three nodes on two streams; a kernel of its own runs in a hole of the second.
TWICE = [
    launch(0, 10, 1),
    node(10, 20, 1, node=1, name="a"),
    node(15, 30, 1, node=2, name="b", stream=8),
    node(34, 40, 1, node=3, kind=memset),
    launch(40, 60, 2),
    node(62, 70, 2, node=1, name="a"),
    node(70, 90, 2, node=2, name="b", stream=8),
    kernel(92, 94),
    node(96, 100, 2, node=3, kind=memset),
]


def test_launches_of_one_graph_traced_node_by_node():
    listed = [{"process_id": 1, "graph_exec_id": 2, "graph_node_id": node} for node in (1, 2, 3, 4)]
    assert graphs(report(TWICE, graph_nodes=listed)).to_dicts() == rows_of(
        "graph process_id device graph_exec_id graph_id launches nodes active_nodes kernels_per_launch "
        "copies_per_launch memsets_per_launch api_total_ns api_avg_ns api_median_ns launch_ns span_total_ns "
        "span_avg_ns span_median_ns busy_ns idle_ns exclusive_ns instantiate_ns capture_ns upload_ns",
        (
            *(1, 1, 0, 2, None, 2, 4, 3, 2.0, 0.0, 1.0, 30, 15.0, 15.0, 10 + 22, 30 + 38, 34.0, 34.0),
            *(26 + 32, 4 + 4, 26 + 32, None, None, None),
        ),
    )
    columns = ("kernel", "count", "total_ns", "share", "avg_ns", "median_ns", "min_ns", "max_ns", "exclusive_ns")
    shown = graphs(report(TWICE), by="kernel").select("graph", *columns).rows()
    assert shown == [(1, "b", 2, 35, 35 / 53, 17.5, 17.5, 15, 20, 30), (1, "a", 2, 18, 18 / 53, 9.0, 9.0, 8, 10, 18)]


def test_without_ids_the_launching_call_tells_and_equal_launches_are_one_graph():
    events = [
        *(launch(0, 5, 1), kernel(5, 9, name="a", correlation=1), kernel(9, 12, name="b", correlation=1)),
        *(launch(20, 25, 2), kernel(25, 29, name="c", correlation=2)),
        *(launch(40, 45, 3), kernel(45, 49, name="b", correlation=3), kernel(49, 52, name="a", correlation=3)),
        *(call("cudaLaunchKernel", 60, 65, correlation=4), kernel(65, 70, name="a", correlation=4)),
    ]
    columns = ("graph", "graph_exec_id", "launches", "span_total_ns", "active_nodes", "kernels_per_launch")
    assert picked(report(events), *columns) == [(1, None, 2, 14, None, 2.0), (2, None, 1, 4, None, 1.0)]


def test_a_graph_on_two_devices_charges_its_call_where_it_begins():
    events = [launch(0, 10, 1), node(12, 20, 1, device=1), node(15, 25, 1, node=1, device=0)]
    columns = ("device", "launches", "api_total_ns", "api_avg_ns", "span_total_ns")
    assert picked(report(events), *columns) == [(0, 1, 0, 10.0, 10), (1, 1, 10, 10.0, 8)]
    assert picked(report(events), *columns, device=0) == [(0, 1, 0, 10.0, 10)]


def test_of_nodes_of_two_graphs_by_one_call_the_lower_id_is_that_of_the_launch():
    events = [launch(0, 5, 1), node(5, 9, 1, exec_id=4), node(9, 12, 1, node=1, exec_id=2)]
    assert picked(report(events), "graph_exec_id", "launches") == [(2, 1)]


def test_a_window_keeps_whole_launches_and_cuts_exclusive_time():
    found = row(report(TWICE), window=Window(35, 66))
    assert (found["launches"], found["span_total_ns"], found["exclusive_ns"]) == (2, 68, 5 + 4)
    inside = graphs(report(TWICE), by="kernel", window=Window(35, 66))
    assert inside.select("kernel", "count", "total_ns", "exclusive_ns").rows() == [("a", 1, 8, 4)]
    assert graphs(report(TWICE), window=Window(30, 33)).is_empty()


def made(*calls, execs=(2,)):
    """instantiate_ns, capture_ns and upload_ns of graphs that were launched after `calls`."""
    launches = []
    for n, exec_id in enumerate(execs):
        launches += [launch(900 + n, 901 + n, n + 1), node(902, 903, n + 1, exec_id=exec_id)]
    of = report([*(call(*each[:3], thread=(*each, 1)[3]) for each in calls), *launches])
    return graphs(of).sort("graph_exec_id").select("instantiate_ns", "capture_ns", "upload_ns").rows()


BEGIN, END = "cudaStreamBeginCapture_v10000", "cudaStreamEndCapture_v10000"
MAKE, UPLOAD, BUILD = "cudaGraphInstantiate_v12000", "cudaGraphUpload_v10000", "cudaGraphAddKernelNode_v10000"
CAPTURE = [(BEGIN, 0, 2), (END, 8, 10)]
UNKNOWN = [(None, None, None)] * 2


@pytest.mark.parametrize(
    ("calls", "costs"),
    [
        ([*CAPTURE, (MAKE, 12, 20), (UPLOAD, 21, 24)], [(8, 10, 3)]),
        ([*CAPTURE, (MAKE, 12, 20), (UPLOAD, 21, 24), (UPLOAD, 30, 31)], [(8, 10, 4)]),
        ([(MAKE, 12, 20)], [(8, None, 0)]),
        # one that was built after a capture, or on another thread, does not come from it
        ([*CAPTURE, (BUILD, 11, 12), (MAKE, 12, 20)], [(8, None, 0)]),
        ([*CAPTURE, (MAKE, 12, 20, 2)], [(8, None, 0)]),
        # two captures at once are not told apart
        ([(BEGIN, 0, 2), (BEGIN, 3, 4), (END, 5, 6), (END, 8, 10), (MAKE, 12, 20)], [(8, None, 0)]),
        # graphs made one after the other are matched in order
        ([*CAPTURE, (MAKE, 12, 20), (UPLOAD, 21, 24), (MAKE, 30, 35), (UPLOAD, 36, 38)], [(8, 10, 3), (5, None, 2)]),
        # where the order does not tell, nothing is guessed: one was made before the recording, one was never launched,
        # two were made at once, one was made after it was launched
        ([(MAKE, 12, 20)], UNKNOWN),
        ([(MAKE, 12, 20), (MAKE, 30, 35), (MAKE, 40, 50)], UNKNOWN),
        ([(MAKE, 12, 20), (MAKE, 15, 25, 2)], UNKNOWN),
        ([(MAKE, 12, 20), (MAKE, 890, 990)], UNKNOWN),
        # uploads that do not follow one by one are not told
        ([(MAKE, 12, 20), (MAKE, 30, 35), (UPLOAD, 36, 38), (UPLOAD, 40, 41)], [(8, None, None), (5, None, None)]),
    ],
)
def test_what_making_graphs_took(calls, costs, capfd):
    assert made(*calls, execs=(2, 4)[: len(costs)]) == costs
    assert capfd.readouterr() == ("", "")  # polars has nothing to warn of, past Python


EXECS = st.sampled_from([None, None, 2, 4])


@st.composite
def operation(draw, process, correlation, exec_id):
    kind, start = draw(st.sampled_from([kernel, kernel, memcpy, memset, graph])), draw(st.integers(0, 40))
    keys = {"process": process, "correlation": correlation, "device": draw(st.sampled_from([0, 0, 1]))}
    if kind is kernel:
        keys["name"] = draw(st.sampled_from(["a", "b", None]))
    return kind(start, start + draw(st.integers(-1, 10)), side={"graph_exec_id": exec_id}, **keys)


@st.composite
def group(draw):
    """A call, one that launches a graph as a rule, and what shares its correlation id."""
    process, correlation = draw(st.sampled_from([1, 1, 2])), draw(st.none() | st.integers(1, 5))
    exec_id, name = draw(EXECS), draw(st.sampled_from(["cudaGraphLaunch_v10000", "cuGraphLaunch", "cudaLaunchKernel"]))
    start = draw(st.integers(0, 40))
    own = call(name, start, start + draw(st.integers(0, 9)), process=process, correlation=correlation)
    return [own, *draw(st.lists(operation(process, correlation, exec_id), max_size=4))]


@few_given(st.lists(group(), max_size=7).map(lambda groups: [event for one in groups for event in one]), WINDOWS)
def test_what_adds_up(events, window):
    of = report(events).narrow(window=Window(*window))
    found, inside = graphs(of), graphs(of, by="kernel")
    exclusive = SlowModel(events, window).exclusive()
    mine = set(graph_operations(of).get_column("event_id"))
    assert found.get_column("exclusive_ns").sum() == sum(ns for event_id, ns in exclusive.items() if event_id in mine)
    launches = graph_launches(of)
    charged = launches.filter("charged")
    calls = launches.get_column("call_row").drop_nulls().n_unique()
    assert charged.get_column("call_row").n_unique() == charged.height == calls
    waited = ledger(of).filter(pl.col("bucket") == "launch").get_column("ns").sum()
    assert found.get_column("launch_ns").sum() <= waited
    kernels = {event_id for event_id in mine if events[event_id].kind == "kernel"}
    assert inside.get_column("exclusive_ns").sum() == sum(exclusive.get(event_id, 0) for event_id in kernels)


def numbers(name, *columns):
    return graphs(real_report(REPORTS / f"{name}.sqlite")).select(columns).rows()


def test_both_granularities_of_one_program():
    counts = ("launches", "nodes", "active_nodes", "kernels_per_launch", "copies_per_launch", "memsets_per_launch")
    assert numbers("graph_node", "graph_exec_id", *counts) == [(2, 30, 12, 12, 10.0, 1.0, 1.0)]
    assert numbers("graph_graph", "graph_exec_id", "graph_id", *counts[:2]) == [(2, 1, 30, None)]
    making = ("instantiate_ns", "capture_ns", "upload_ns")
    assert numbers("graph_node", *making) == [(129383, 181929, 28294)]
    assert numbers("graph_graph", *making) == [(86208, 95558, 30696)]


def line(*stretches, series=0):
    """Stretches of codes, one after the other in one series."""
    codes = [code for stretch in stretches for code in stretch]
    numbers = [number for number, stretch in enumerate(stretches) for _ in stretch]
    frame = pl.DataFrame({"code": codes, "stretch": numbers}, schema={"code": pl.Int64, "stretch": pl.UInt32})
    return frame.with_row_index("place").with_columns(series=pl.lit(series, dtype=pl.UInt32))


@pytest.mark.parametrize(("operations", "found"), [(8, 8), (6, 0)])
def test_a_series_of_twice_the_nodes_is_long_enough(operations, found):
    assert periodic(line([0, 1] * (operations // 2)), fewest=2, nodes=4).height == found


def test_a_long_series_is_looked_at_in_slices(monkeypatch):
    monkeypatch.setattr("kanalyze.analyses.launches.graphs._SLICE", 64)
    noise = [1_000 + place for place in range(500)]
    assert periodic(line([*noise, *[1, 2, 3, 4, 5] * 200, *noise]), fewest=5, nodes=4).height == 1_000


@pytest.mark.parametrize("name", ["torch", "graph_node", "graph_graph", "two_gpus", "two_processes", "add_um"])
@pytest.mark.parametrize("part", [(0.0, 0.4), (0.3, 0.6), (0.55, 1.0)])
def test_a_window_tells_of_its_launches_what_the_whole_recording_does(name, part):
    report = kanalyze.read(REPORTS / f"{name}.sqlite")
    start, end = exclusive_operations(report).select(pl.col("start").min(), pl.col("end").max()).row(0)
    sides = (start + round((end - start) * share) for share in part)
    view = report.narrow(window=Window(*sides))
    own = launch_series(view)
    whole = launch_series(report).join(exclusive_operations(view).select("row"), on="row", how="semi")
    assert own.get_column("row").sort().to_list() == whole.get_column("row").sort().to_list()
    both = own.join(whole, on="row", suffix="_whole")
    assert both.get_column("first").to_list() == both.get_column("first_whole").to_list()
    assert both.get_column("code").to_list() == both.get_column("code_whole").to_list()
    goes_on = pl.col("stretch") == pl.col("stretch").shift(1)
    after = own.filter(goes_on).select("row", "apart").join(whole.select("row", there="apart"), on="row")
    assert after.get_column("apart").to_list() == after.get_column("there").to_list()


def test_launches_that_run_nothing_are_a_doubt_unless_their_thread_captures():
    ran = "50-52 cudaLaunchKernel_v7000 #7; 60-70 kernel #7"
    captured = """0-1 cudaStreamBeginCapture_v10000; 10-13 cudaLaunchKernel_v7000; 20-24 cudaLaunchKernel_v7000 t2
        30-31 cudaStreamEndCapture_v10000; 40-45 cudaLaunchKernel_v7000"""
    checks = ["launches without an operation", "launches captured into graphs"]
    for text, counts in ((f"{captured}; {ran}", [(2, 9, True), (1, 3, False)]), (ran, [(0, 0, False)] * 2)):
        found = health(report(timeline(text))).filter(pl.col("check").is_in(checks))
        assert found.select("check", "count", "ns", "doubt").rows() == [
            (check, *row) for check, row in zip(checks, counts, strict=True)
        ]


def test_every_column_of_a_kernel():
    """Of a window of 100 the device was busy for 80, and 60 of them with this kernel alone."""
    events = [
        *(kernel(0, 20, grid=(4, 1, 1)), kernel(20, 50, grid=(2, 3, 4), block=(5, 6, 7))),
        *(kernel(50, 60, grid=(2, 3, 4), block=(5, 6, 7)), memcpy(55, 70), kernel(90, 100, name="j")),
    ]
    assert hot_kernels(report(events)).to_dicts() == rows_of(
        "name exclusive_ns window_share busy_share count avg_ns shapes grid_x grid_y grid_z block_x block_y "
        "block_z launch_bound family",
        ("k", 60, 0.6, 0.75, 3, 20.0, 2, 2, 3, 4, 5, 6, 7, False, "other"),
        ("j", 10, 0.1, 0.125, 1, 10.0, 1, 1, 1, 1, 32, 1, 1, False, "other"),
    )


SHARES = ("name", "exclusive_ns", "window_share", "busy_share", "count")
WITHOUT_SHAPE = ("name", "exclusive_ns", "count", "shapes", "grid_x", "launch_bound", "family")
GRAPHS = "0-10 graph; 10-20 graph; 20-25 kernel"
TWO_GPUS = "0-20 kernel; 90-100 kernel; 0-40 kernel d1 p2; 50-60 kernel d1 p2"
IN_WINDOW = "0-20 kernel; 30-60 kernel:j; 60-70 memcpy; 90-100 kernel"
OF_TWO = [("[CUDA graph 1] of process 2", 30, 1), ("[CUDA graph 1] of process 1", 20, 2), ("k", 15, 2)]
GRAPH_AND_K = [("[CUDA graph 1]", 20, 2, 0, None, False, None), ("k", 5, 1, 1, 1, False, "other")]


@pytest.mark.parametrize(
    ("events", "columns", "where", "expected"),
    [
        # the heaviest first; while two run, it is the time of the one that began first
        (
            "0-50 kernel:long; 10-70 kernel:hidden s8; 80-110 kernel:short",
            ("name", "exclusive_ns", "avg_ns"), {}, [("long", 50, 50.0), ("short", 30, 30.0), ("hidden", 20, 60.0)],
        ),
        # a graph has neither shape nor family, and is named with its process where others are called so
        (GRAPHS, WITHOUT_SHAPE, {}, GRAPH_AND_K),
        (f"{GRAPHS}; 30-60 graph p2; 60-70 kernel p2", WITHOUT_SHAPE[:3], {}, OF_TWO),
        # a share is of the windows of all devices in scope: process 1 was at work for 100, process 2 for 60
        (TWO_GPUS, SHARES, {}, [("k", 80, 0.5, 1.0, 4)]),
        (TWO_GPUS, SHARES, {"process": 2}, [("k", 50, 50 / 60, 1.0, 2)]),
        # time of its own is that inside of the window
        (IN_WINDOW, SHARES, {"window": Window(10, 60)}, [("j", 30, 0.6, 0.75, 1), ("k", 10, 0.2, 0.25, 1)]),
        ("5-5 kernel", SHARES, {}, [("k", 0, 0.0, 0.0, 1)]),  # a window without length
        # warm launches take longer than it runs: the first takes 90, and each of the two others 10
        *(
            (f"0-90 L #1; 90-91 kernel #1; 0-10 L #2; 30-{30 + ran} kernel #2; 0-10 L #3; 60-{60 + ran} kernel #3",
             ("launch_bound",), {}, [(bound,)])
            for ran, bound in ((9, True), (10, False), (11, False))
        ),
    ],
)  # fmt: skip
def test_heaviest_kernels(events, columns, where, expected):
    assert hot_kernels(report(timeline(events)), **where).select(columns).rows() == expected


def test_of_shapes_that_are_as_common_the_smallest_is_told_and_families_are_those_of_names_or_records():
    shapes = [kernel(0, 9, grid=(8, 1, 1)), kernel(10, 11, grid=(4, 2, 1)), kernel(20, 21, grid=(4, 1, 2))]
    shape = ("shapes", *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"))
    assert hot_kernels(report(shapes)).select(shape).rows() == [(3, 4, 1, 2, 32, 1, 1)]
    gemm, reduce = "sm80_xmma_gemm_f32f32", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [kernel(0, 30, name=gemm), kernel(30, 50, name=reduce), kernel(50, 60, name=None), kernel(60, 65)]
    recorded = [{"event_id": 3, "collective": "allreduce"}]
    for collectives, last in (([], "other"), (recorded, "communication")):
        found = hot_kernels(report(events, collective_detail=collectives)).select("name", "family").rows()
        assert found == [(gemm, "gemm"), (reduce, "communication"), (None, "other"), ("k", last)]
