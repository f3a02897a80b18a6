"""Names for what runs inside CUDA graphs: by hand, and against the eager twins of recorded programs."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, strategies as st

import kanalyze
from kanalyze.analyses.comparing._digesting import digests_of
from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.host._captures import ADDED, CAPTURED, LIKELY, MARKED, OLDER, capture_rows, with_captures
from kanalyze.analyses.idle.code import code
from kanalyze.analyses.operators.ops import op_kernels, ops
from kanalyze.analyses.ranges.captured import captured, captured_names, names_around
from kanalyze.analyses.ranges.ranges import range_gpu, range_kernels
from kanalyze.analyses.replay._changes import _in_ranges
from kanalyze.analyses.timeline._tracks import timeline as tracks
from kanalyze.columns import gathered
from kanalyze.errors import OtherCaptureError, UnknownNameError
from kanalyze.readers.nsys.read_sqlite_folder import graph_nodes
from kanalyze.window import operator_of
from support.build import again, call, host, in_line, kernel, launched, nvtx, report, timeline
from support.command import REPORTS, SAMPLES
from support.real_reports import real_report
from support.strategies import slow_given

FOLDER, GRAPHS = SAMPLES / "inside_graphs", REPORTS / "graphs"
DECODER, NATIVE = FOLDER / "decoder.sqlite", FOLDER / "native.sqlite"
CAPTURE, DECODE = FOLDER / "capture.json.gz", FOLDER / "decode.json.gz"

#: Ranges that say how a pass of the program ran, and not in which part of the model it was.
VARIANT = r"^(?:eager|graph|capture) b=\d+$|^iteration$"


def node(process, exec_id, number, made, captured_at, thread):  # noqa: PLR0913 - what a node has
    return {
        "process_id": process, "graph_exec_id": exec_id, "graph_node_id": (exec_id << 32) + number,
        "original_node_id": (1 << 32) + number, "graph_id": 1, "made_ns": made, "captured_ns": captured_at,
        "captured_thread_id": thread,
    }  # fmt: skip


def of_graph(start, end, correlation, exec_id, number, **keys):
    side = {"graph_exec_id": exec_id, "graph_node_id": (exec_id << 32) + number}
    return kernel(start, end, correlation=correlation, side=side, **keys)


def launch(start, end, correlation, **keys):
    return call("cudaGraphLaunch_v10000", start, end, correlation=correlation, **keys)


def picked(of, *names, **where):
    return captured(of, **where).sort(names, nulls_last=True).select(names).rows()


#: A capture of two kernels, of which one is launched by a call inside a call, and two launches of their graph.
ONCE = [
    *timeline("0-50 [capture]; 5-40 [layer]; 8-20 [aten::mm, op_id = 7, sizes = [[2, 3], [3, 4]]]"),
    *timeline("10-14 cudaLaunchKernel_v7000; 22-30 cudaLaunchKernel_v7000; 24-28 cuLaunchKernel; 100-200 [decode]"),
    launch(110, 120, 1),
    of_graph(130, 140, 1, 2, 0, name="a"),
    of_graph(140, 145, 1, 2, 1, name="b"),
    launch(150, 160, 2),
    of_graph(170, 180, 2, 2, 0, name="a"),
    of_graph(180, 185, 2, 2, 1, name="b"),
]
NODES = [node(1, 2, 0, 60, 12, 1), node(1, 2, 1, 61, 26, 1)]


def test_names_come_from_the_capture_and_times_from_the_launches():
    of = report(ONCE, graph_nodes=NODES)
    names = ("kernel", "path", "operator", "shapes", "call", "how", "launched_in", "count", "total_ns", "share")
    path, by = "capture → layer", "cudaLaunchKernel_v7000"
    assert picked(of, *names) == [
        ("a", path, "aten::mm", "[[2, 3], [3, 4]]", by, CAPTURED, "decode", 2, 20, 2 / 3),
        ("b", path, None, None, by, CAPTURED, "decode", 2, 10, 1 / 3),
    ]
    assert captured(of, by="place").select("place", "operators", "count", "exclusive_ns").rows() == [
        ("layer", "aten::mm", 4, 30)
    ]
    assert picked(of, "kernel", "count", "exclusive_ns", window="135ns..175ns") == [("a", 2, 10), ("b", 1, 5)]
    rows = {row["range"]: row for row in range_gpu(of).to_dicts()}
    assert {name: row["captured_busy_ns"] for name, row in rows.items()} == {
        ":decode": 0, ":capture": 30, ":layer": 30, ":aten::mm, op_id = 7, sizes = [[2, 3], [3, 4]]": 20,
    }  # fmt: skip
    assert (rows[":layer"]["count"], rows[":layer"]["avg_ns"], rows[":decode"]["operations"]) == (0, None, 4)
    kernels = range_kernels(of).filter(kernel="b").select("range", "via", "count", "kernel_ns").rows()
    shown = sorted(kernels)
    assert shown == [(":capture", "capture", 2, 10), (":decode", "launch", 2, 10), (":layer", "capture", 2, 10)]


def test_compiled_kernels_lead_to_operators_and_lines():
    def made(name, operators, lines, key):
        return {"name": name, "source": "inductor", "hash": key, "operators": operators, "lines": lines}

    rows_of = [made("a", "aten::relu", "model.py:3", "1"), made("b", "aten::mul", "model.py:4", "l2")]
    of = report(ONCE, graph_nodes=NODES, compiled_kernels=rows_of)
    # the operator around the call that captured it is better known
    wanted = [("a", "aten::mm", "model.py:3"), ("b", "aten::mul", "model.py:4")]
    assert picked(of, "kernel", "operator", "lines") == wanted
    # the time of a graph is that of the line that launched it; what it ran is captured in the line that it is made of
    stretched = [in_line(0, 50, 9, file="model.py"), in_line(50, 500, 1, file="run.py")]
    placed = code(report(ONCE, graph_nodes=NODES, compiled_kernels=rows_of[:1], source_lines=stretched))
    known = [("model.py:3", 0, 20), ("model.py:9", 0, 10), ("run.py:1", 30, 0)]
    assert sorted(placed.select("place", "work_ns", "captured_ns").rows()) == known
    several = report(ONCE, graph_nodes=NODES, compiled_kernels=[*rows_of, made("b", "aten::add", "model.py:4", "3")])
    assert picked(several, "kernel", "operator", "lines")[1] == ("b", None, "model.py:4")


def test_processes_that_number_alike_have_their_own_captures():
    second = [
        nvtx("elsewhere", 0, 50, process=5, thread=9),
        call("cudaGraphAddKernelNode_v10000", 10, 14, process=5, thread=9),
        launch(110, 120, 1, process=5, thread=9),
        of_graph(130, 140, 1, 2, 0, name="c", process=5, device=1),
    ]
    of = report([*ONCE, *second], graph_nodes=[*NODES, node(5, 2, 0, 60, 12, 9)])
    expected = [("a", "layer", CAPTURED), ("b", "layer", CAPTURED), ("c", "elsewhere", ADDED)]
    assert picked(of, "kernel", "range", "how") == expected


@pytest.mark.parametrize("nodes", [[], [node(1, 2, 0, -50, -60, 1), node(1, 2, 1, -50, -60, 1)]])
def test_what_was_captured_before_the_recording_has_no_names(nodes):
    of = report(ONCE, graph_nodes=nodes)
    assert picked(of, "kernel", "path", "call", "how") == [("a", None, None, OLDER), ("b", None, None, OLDER)]
    assert captured(of, by="place").select("place", "share").rows() == [(None, 1.0)]


def program(steps):
    """A program of CUDA graphs, and the range in which each kernel was captured, by its name: the kernel's launch.

    A step is a thread, a number of nodes, whether it updates, and two graphs. The thread captures so many nodes in a
    range of its own and launches one graph; it updates the first graph of as many nodes, or makes a new one; and it
    launches the other.
    """
    events, nodes, graphs, names = [], [], [], {}

    def launched(thread, pick):
        if graphs:
            exec_id, size, name = graphs[pick % len(graphs)]
            correlation, at = len(names) + 1, 100 * len(events)
            events.append(launch(at, at + 5, correlation, thread=thread))
            for place in range(size):
                kernel_at = 10**6 + at + 10 * place
                side = {"name": str(correlation), "stream": 7 + exec_id}
                events.append(of_graph(kernel_at, kernel_at + 5, correlation, exec_id, place, **side))
            names[str(correlation)] = name

    for turn, (thread, size, updates, before, after) in enumerate(steps):
        at, template, name = 100 * len(events), 2 * turn + 100, f"range {turn}"
        events.append(nvtx(name, at, at + 90, thread=thread))
        events += [
            call("cudaLaunchKernel_v7000", at + 10 * one, at + 10 * one + 5, thread=thread) for one in range(size)
        ]
        origin = [node(1, template, one, at + 10 * one + 2, at + 10 * one + 2, thread) for one in range(size)]
        nodes += [{**one, "original_node_id": None, "graph_id": None} for one in origin]
        launched(thread, before)
        fitting = [graph for graph in graphs if graph[1] == size]
        at = 100 * len(events)
        if updates and fitting:
            events += [
                call(name, at, at + 5, thread=thread) for name in ("cudaGraphExecUpdate_v10020", "cuGraphExecUpdate")
            ]
            fitting[before % len(fitting)][2] = name
        else:
            copies = [node(1, template + 1, one, at, origin[one]["captured_ns"], thread) for one in range(size)]
            nodes += [{**one, "graph_id": template} for one in copies]
            events.append(call("cudaGraphInstantiate_v12000", at, at + 5, thread=thread))
            graphs.append([template + 1, size, name])
        launched(thread, after)
    return report(events, graph_nodes=nodes), names, len({size for _, size, _ in graphs}) == len(graphs)


_STEP = st.tuples(st.integers(1, 2), st.integers(1, 3), st.booleans(), st.integers(0, 3), st.integers(0, 3))


@slow_given(st.lists(_STEP, min_size=1, max_size=7))
@example([(1, 2, False, 0, 0), (1, 2, True, 0, 0)])
@example([(1, 2, False, 0, 0), (1, 2, False, 0, 0), (1, 2, True, 1, 0)])
def test_an_updated_graph_has_the_names_of_what_updated_it_or_none_that_are_sure(steps):
    of, names, told_apart = program(steps)
    found = captured(of)
    sure = found.filter(how=CAPTURED)
    assert sure["range"].to_list() == [names[kernel] for kernel in sure["kernel"]]
    # of graphs of as many nodes nobody can tell which one an update is of
    assert not told_apart or sure.height == found.height
    assert {*found["how"]} <= {CAPTURED, LIKELY}


@pytest.mark.slow
def test_pictures_and_comparisons_have_the_names_of_the_capture():
    of = report(ONCE, graph_nodes=NODES)
    events = tracks(of, 1000).events.filter(pl.col("name").cast(pl.String) == "a")
    assert "grid 1,1,1 × block 32,1,1 captured in capture → layer" in {*events["note"].cast(pl.String)}
    (digest,) = digests_of(of)
    assert {*digest.slots.filter(pl.col("name").cast(pl.String) == "a")["range"].cast(pl.String)} == {"layer"}


def test_what_if_takes_what_was_captured_in_a_range():
    assert _in_ranges(report(ONCE, graph_nodes=NODES), "lay*").to_list() == [True] * 4
    with pytest.raises(UnknownNameError, match="nothing"):
        _in_ranges(report(ONCE, graph_nodes=NODES), "nothing")
    assert _in_ranges(report(ONCE, graph_nodes=NODES), "decode").all()


def rows(*made):
    """Rows (node, origin) of one thread, a nanosecond apart; a node is a pair of graph and number."""
    number = {None: None} | {(graph, place): (graph << 32) + place for graph in range(20) for place in range(20)}
    table = [(at, 0x1000005000005, number[one], number[origin]) for at, (one, origin) in enumerate(made)]
    return pl.DataFrame(table, schema=["start", "globalTid", "graphNodeId", "originalGraphNodeId"], orient="row")


def captured_at(*made):
    """When what each node of an executable graph goes back to was captured."""
    found = graph_nodes(rows(*made).cast(pl.Int64)).filter(pl.col("original_node_id").is_not_null())
    return {divmod(node, 1 << 32): at for node, at in found.select("graph_node_id", "captured_ns").iter_rows()}


def copied(graph, origin, count):
    return [row for place in range(count) for row in (((graph, place), None), ((graph, place), (origin, place)))]


def test_a_copy_goes_back_to_what_was_captured_also_through_a_child():
    captures = [((1, 0), None), ((1, 1), None)]
    assert captured_at(*captures, *copied(2, 1, 2)) == {(2, 0): 0, (2, 1): 1}
    assert captured_at(*copied(2, 1, 2)) == {(2, 0): None, (2, 1): None}
    # a graph with a kernel and a child, made of the first one; the child's nodes come behind its own
    parent = [((3, 0), None), *copied(4, 1, 2), ((3, 1), None)]
    copies = [*copied(5, 3, 1), *copied(6, 4, 2), ((5, 1), None), ((5, 1), (3, 1))]
    found = captured_at(*captures, *parent, *copies, ((5, 4), None))
    assert {place: at for place, at in found.items() if place[0] == 5} == {(5, 0): 2, (5, 1): 7, (5, 2): 0, (5, 3): 1}
    assert captured_at(*captures, *parent, *copies, ((5, 5), None), ((5, 4), None)) == found
    # where no row is that of the next node there are more than are known: nobody can tell
    places = captured_at(*captures, *parent, *copies, ((5, 5), None))
    assert {place for place in places if place[0] == 5} == {(5, 0), (5, 1)}


def test_nodes_of_several_and_nested_children_have_the_names_of_their_captures():
    found = captured(real_report(GRAPHS / "nested.sqlite")).filter(kind="kernel")
    numbers = found["kernel"].cast(pl.String).str.extract(r"w<\(int\)(\d+)>")
    assert (found["range"] == "w" + numbers).all()
    assert ({*numbers.cast(pl.Int64)}, found["count"].sum()) == ({*range(46)}, 100)


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        (":aten::addmm, seq = 3, op_id = 5, sizes = [[2], [3, 4]]", ("aten::addmm", "[[2], [3, 4]]")),
        (":AddmmBackward0, seq = 3, op_id = 5", ("AddmmBackward0", None)),
        (":layers.0, op_id = 5", None),
        (":triton_poi_fused_add_mul_0, op_id = 5", ("triton_poi_fused_add_mul_0", None)),
        (":aten::addmm", None),
        ("TSL:Thunk:#name=jit(f)/dot,hlo_op=fusion.3,unique_hlo_op_id=7#", ("jit(f)/dot fusion.3", None)),
        ("TSL:Thunk:#name=jit(f)/bqhd,bkhd->bhqk/dot,hlo_op=f.3#", ("jit(f)/bqhd,bkhd->bhqk/dot f.3", None)),
        ("TSL:Thunk:#hlo_op=fusion.3,unique_hlo_op_id=7#", ("fusion.3", None)),
        ("TSL:XlaModule:#hlo_module=jit_f#", None),
    ],
)
def test_operators_in_the_names_of_ranges(name, operator):
    assert operator_of(name) == operator


def test_a_program_of_cuda_with_child_updated_and_twice_instantiated_graphs():
    found = captured(real_report(NATIVE)).filter(kind="kernel")
    counts = found.group_by("path", "launched_in").agg(pl.col("count").sum())
    told = {(path, launched.split(" → ")[0]): count for path, launched, count in counts.iter_rows()}
    layers = {
        f"layer {layer} → {part}": 2 if part == "attention" else 1 for layer in (0, 1) for part in ("attention", "mlp")
    }
    expected = {
        **{(f"capture two layers → {path}", graph): 3 * kernels
           for graph in ("captured", "second instance", "first instance") for path, kernels in layers.items()},
        **{(f"capture for update → {path}", "updated"): 3 * kernels for path, kernels in layers.items()},
        **{(f"nodes by hand → capture child → layer 0 → {part}", graph): times * kernels
           for graph, times in (("with child", 3), ("with set parameters", 2))
           for part, kernels in (("attention", 2), ("mlp", 1))},
        ("nodes by hand", "with child"): 6, ("nodes by hand", "with set parameters"): 4,
        ("left", "forked"): 3, ("right", "forked"): 3, ("joined", "forked"): 3,
        **{(f"other thread → layer 0 → {part}", "captured elsewhere"): 3 * kernels
           for part, kernels in (("attention", 2), ("mlp", 1))},
        **{(f"short {number} → layer 0 → {part}", "short"): kernels
           for number in range(3) for part, kernels in (("attention", 2), ("mlp", 1))},
    }  # fmt: skip
    assert told == expected
    assert {*found.filter(path="nodes by hand")["how"]} == {ADDED}


def twins(of):
    """Pairs of operations of a graph and of the eager pass before it, by order: name and place of both."""
    work = operations(of, "call_row", "thread_id", "call_start", "call_end").sort("call_start", "start")
    calls = work.select("process_id", "thread_id", since="call_start", until="call_end")
    of_capture = captured_names(of)[gathered(capture_rows(of), work["row"]).fill_null(0)]
    launched = names_around(of, calls)
    both = work.select("kind", "name", "call_row", graph=gathered(capture_rows(of), work["row"]).is_not_null())
    both = both.hstack([part["path"].alias(name) for part, name in ((launched, "path"), (of_capture, "captured"))])
    both = both.with_columns(batch=pl.col("path").str.extract(r"^(?:eager|graph) b=(\d+)")).drop_nulls("batch")
    for (_, _), graph in both.filter("graph").group_by("batch", "call_row"):
        eager = both.filter(~pl.col("graph"), batch=graph["batch"][0]).head(graph.height)
        places = {"eager": place(eager["path"]), "captured": place(graph["captured"])}
        yield pl.DataFrame({"eager_name": eager["name"], "name": graph["name"], **places})


def place(paths):
    """The modules in the path of each row."""
    parts = paths.str.split(" → ").list.eval(pl.element().filter(~pl.element().str.contains(VARIANT)))
    return parts.list.join(" → ")


def test_replayed_kernels_have_the_names_of_their_eager_twins():
    found = [*twins(real_report(DECODER))]
    every = pl.concat(found)
    assert (len(found), every.height) == (4 * 3, 4 * 3 * 52)
    assert (every["name"].cast(pl.String) == every["eager_name"].cast(pl.String)).all()
    assert (every["eager"] == every["captured"]).all()


@pytest.mark.slow
def test_a_trace_has_the_names_of_captures_in_another_one_of_the_same_program():
    before = real_report(DECODE)
    assert {*digests_of(before)[0].slots["op"]} == {None}  # what was looked at before has no names
    of = with_captures(before, real_report(CAPTURE))
    (_, _, expected), *_ = (one.select("name", "eager_name", "eager") for one in twins(real_report(DECODER)))
    found = operations(of, "call_row").sort("call_row", "start")
    names = captured_names(of)[gathered(capture_rows(of), found["row"])]
    paths = found.select("call_row", "name").hstack([names["path"], names["operator"], names["shapes"]])
    launches = paths.partition_by("call_row")
    assert [one.height for one in launches] == [52] * 12
    for number, one in enumerate(launches):
        assert place(one["path"]).to_list() == expected.to_list()
        batch = 2 ** (number // 3)
        assert {*one["path"].str.extract("^capture b=([0-9]+)")} == {str(batch)}
        assert f"[[{batch}, 64, 2048], []]" in one.filter(operator="aten::gelu")["shapes"]
    table = ops(of).filter(name="aten::gelu").select("count", "operations", "captured_operations").row(0)
    assert table == (0, 0, 4 * 12)
    inside = op_kernels(of).filter(captured_name="aten::gelu")
    assert ({*inside["name"]}, inside["count"].sum()) == ({"iteration"}, 48)
    assert range_gpu(of).filter(range=":layers.0.mlp")["captured_operations"].sum() == 3 * 12
    assert range_kernels(of).filter(range=":layers.0.mlp.up", via="capture")["count"].sum() == 12
    assert ops(of, by="shape").filter(name="aten::gelu")["captured_operations"].to_list() == [12] * 4
    (digest,) = digests_of(of)
    assert "aten::gelu" in {*digest.slots["op"].cast(pl.String)}
    gelu = digest.ops.filter(pl.col("path").str.ends_with(" → aten::gelu"))
    assert gelu["path"].to_list() == ["capture b=# → layers.# → layers.#.mlp → aten::gelu"]
    assert gelu["device_ns"].sum() == digest.slots.filter(op="aten::gelu")["exclusive_ns"].sum() > 0
    assert digest.ops["device_ns"].sum() == digests_of(before)[0].ops["device_ns"].sum()


def test_a_trace_of_captures_without_shapes_tells_by_what_ran_before_each(tmp_path):
    content = json.loads(gzip.decompress(CAPTURE.read_bytes()))
    for event in content["traceEvents"]:
        event.get("args", {}).pop("Input Dims", None)
    (tmp_path / "bare.json").write_text(json.dumps(content))
    of = with_captures(real_report(DECODE), kanalyze.read(tmp_path / "bare.json"))
    sizes = captured(of).select(pl.col("path", "launched_in").str.extract(r"b=(\d+)"))
    assert (sizes["path"] == sizes["launched_in"]).all(ignore_nulls=False)
    content["traceEvents"] = [event for event in content["traceEvents"] if event.get("cat") != "kernel"]
    (tmp_path / "bare.json").write_text(json.dumps(content))
    with pytest.raises(OtherCaptureError, match="or several fit, as where it has no shapes"):
        with_captures(real_report(DECODE), kanalyze.read(tmp_path / "bare.json"))


def test_captures_of_other_shapes_are_refused():
    with pytest.raises(OtherCaptureError, match="numbers, kinds or kernels differ"):
        with_captures(real_report(DECODE), real_report(SAMPLES / "mlp_train" / "torch.json.gz"))


def graphs(*launched, names=True, kernels=("a", "b")):
    """Executable graphs of two kernels each, captured in a range of its number, and launched in this order."""
    events, nodes = [], []
    for number in sorted({*launched}):
        at = 10 * number
        events += [nvtx(f"layer {number}", at, at + 9)] * names
        events += [call("cudaLaunchKernel_v7000", at + 2 * side + 1, at + 2 * side + 2) for side in (0, 1)] * names
        captured_at = at if names else -1000
        nodes += [node(1, number, side, at + 8, captured_at + 2 * side + 1, 1) for side in (0, 1)]
    for turn, number in enumerate(launched):
        at, correlation = 1000 + 100 * turn, turn + 1
        events += [launch(at, at + 10, correlation)]
        for side, start in enumerate((at + 20, at + 30)):
            events += [of_graph(start, start + 5, correlation, number, side, name=kernels[side])]
    return report(events, graph_nodes=nodes)


@pytest.mark.parametrize(("folders", "how"), [("aa", CAPTURED), ("ab", LIKELY)])
def test_a_run_for_names_alone_has_the_names_of_the_same_graphs(folders, how):
    # graphs alike are told apart by the order of their first launches, whatever their numbers are: surely in one folder
    both = graphs(3, 4, 3, names=False), graphs(8, 6)
    of = with_captures(
        *(replace(one, meta=replace(one.meta, capture=Path(name))) for one, name in zip(both, folders, strict=True))
    )
    rows = [("layer 6", "a", 1), ("layer 6", "b", 1), ("layer 8", "a", 2), ("layer 8", "b", 2)]
    assert picked(of, "range", "kernel", "count", "how") == [(*row, how) for row in rows]


@pytest.mark.parametrize(
    ("of", "names"),
    [
        (graphs(3, names=False), graphs(3, kernels=("a", "other"))),
        (graphs(3, names=False), graphs(3, 4)),  # which of the two it is, nobody can tell
        (graphs(3, 4), graphs(3)),  # its own captures tell more
    ],
)
def test_a_run_of_other_graphs_is_refused_and_own_captures_stay(of, names):
    with pytest.raises(OtherCaptureError):
        with_captures(of, names)
    assert captured(replace(of, captured_in=lambda: names)).equals(captured(of))


#: A trace: an operator that launches one kernel, a capture of it, and a launch of the graph.
def trace(*, warm_up="gemm", ran="gemm", shapes=("[[2]]", "[[2]]"), captures=1, end=30):
    events = [
        host("op", "aten::mm", 0, 5),
        *launched(1, 2, kernel(6, 7, correlation=1, name=warm_up), parent=0),
        *(call("cudaStreamBeginCapture", 10, 11), host("op", "aten::mm", 12, 15)),
        call("cudaLaunchKernel", 13, 14, correlation=2, parent=4),
        call("cudaStreamEndCapture", end, end + 1),
        launch(40, 41, 3),
        kernel(42, 50, correlation=3, name=ran),
    ]
    more = timeline("31-32 cudaStreamBeginCapture; 33-34 cudaLaunchKernel #9; 35-36 cudaStreamEndCapture")
    events += again(range(0, 6 * captures - 6, 6), *more)
    details = [{"event_id": number, "input_shapes": shape} for number, shape in zip((0, 4), shapes, strict=True)]
    return report(events, meta={"tool": "torch.profiler"}, op_detail=details)


def test_graphs_of_nsys_have_the_operators_of_the_trace_beside_where_no_range_names_them():
    events = [call("cudaLaunchKernel", 11, 12), launch(100, 110, 1), of_graph(120, 125, 1, 3, 0, name="gemm<(int)4>")]
    for ranges, operator in ([], "aten::mm"), ([nvtx("layer", 10, 13)], "gemm"):
        made = report([*ranges, *events], graph_nodes=[node(1, 3, 0, 18, 11, 1)])
        beside = replace(made, beside=lambda: trace(warm_up="gemm<4>", ran="gemm<4>"))
        assert picked(beside, "operator", "how") == [(operator, CAPTURED)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("of", "how"),
    [
        (trace(), CAPTURED),
        (trace(warm_up="other"), OLDER),  # what the operator launched outside of the capture is another kernel
        (trace(warm_up="other", shapes=("[[2]]", "[[3]]")), LIKELY),  # of other shapes: nothing is known
        (trace(captures=2), "several fit"),  # nobody can tell which of the two it is
        (trace(end=45), OLDER),  # it ended after the launch
    ],
)
def test_by_order_and_identity(of, how):
    # else what the kernel's name says
    assert captured(of).select("operator", "how").rows() == [("aten::mm" if how in (CAPTURED, LIKELY) else "gemm", how)]
    assert ops(of).filter(name="aten::mm")["captured_operations"].to_list() == [int(how == CAPTURED)]


@pytest.mark.parametrize(
    ("steps", "graphs", "wanted"),
    [
        ("w8 c8 w4 c4", "l8 l4 l8", [("capture 8", CAPTURED), ("capture 4", CAPTURED), ("capture 8", CAPTURED)]),
        ("w8 w4 c8 c4", "l8 l4", [(None, "several fit")] * 2),  # all came before the first capture
        ("w8 c8 w8 c4", "l8 l4", [(None, "several fit"), (None, OLDER)]),  # nothing outside of captures ran as in 4
        ("w8 c8 w4 c4", "l2", [(None, OLDER)]),  # captured before the recording
    ],
)
def test_without_shapes_it_is_the_capture_before_which_the_same_ran(steps, graphs, wanted):
    events = []
    for turn, step in enumerate((steps + " " + graphs).split()):
        at, number, size = 100 * turn, len(events), step[1:]
        made = host("op", "aten::mm", at + 20, at + 50)
        ran = kernel(at + 60, at + 70, correlation=turn, name=f"gemm<{size}, {size}>")
        if step[0] == "w":
            events += [made, *launched(at + 30, at + 40, ran, parent=number)]
        elif step[0] == "c":
            sides = call("cudaStreamBeginCapture", at, at + 5), call("cudaStreamEndCapture", at + 60, at + 65)
            inside = call("cudaLaunchKernel", at + 30, at + 40, correlation=turn, parent=number)
            events += [made, inside, *sides, nvtx(f"capture {size}", at, at + 70)]
        else:
            events += [launch(at + 30, at + 40, turn), ran]
    of = report(events, meta={"tool": "torch.profiler"})
    names = captured_names(of)[capture_rows(of).drop_nulls()]
    assert names.select("range", "how").rows() == wanted


def of_graphs(captures, launched, *, numbers):
    """A trace of a program that captures graphs of operators, and which operators each launch of them ran.

    An operator launches the kernel that its number tells; every third one ran outside of captures as well. Graphs that
    are launched and were not captured here are older than the trace.
    """
    events, details, names = [], [], {}

    def now():
        return 100 * len(events)

    def operator(number):
        details.append({"event_id": len(events), "input_shapes": f"[[{number % 4}]]"})
        events.append(host("op", f"op {number // 4}", now(), now() + 50))
        parent = len(events) - 1
        events.append(call("cudaLaunchKernel", now() - 90, now() - 80, correlation=1000 + now(), parent=parent))

    for number in {number for graph in captures for number in graph if number % 3}:
        operator(number)
        correlation = events[-1].correlation
        events.append(kernel(now(), now() + 5, correlation=correlation, name=f"kernel {number // 2}"))
    for graph in captures:
        events.append(call("cudaStreamBeginCapture", now(), now() + 5))
        for number in graph:
            operator(number)
        events.append(call("cudaStreamEndCapture", now(), now() + 5))
    for exec_id, graph in launched:
        at, correlation = now(), len(names) + 1
        events.append(launch(at, at + 5, correlation))
        side = {"graph_exec_id": exec_id, "graph_node_id": exec_id << 32} if numbers else {}
        for place, number in enumerate(graph):
            key = {"side": {**side, "graph_node_id": side["graph_node_id"] + place}} if numbers else {}
            events.append(kernel(now(), now() + 5, correlation=correlation, name=f"kernel {number // 2}", **key))
        names[correlation] = [(f"op {number // 4}", f"[[{number % 4}]]") for number in graph]
    return report(events, meta={"tool": "torch.profiler"}, op_detail=details), names


_GRAPH = st.lists(st.integers(0, 11), min_size=1, max_size=3)


@slow_given(st.lists(_GRAPH, min_size=1, max_size=4), st.lists(_GRAPH, max_size=2), st.data(), st.booleans())
def test_names_by_order_are_those_of_the_capture_or_not_sure(captures, older, data, numbers):
    graphs_of = [*enumerate([*older, *captures], 2)]
    launched = data.draw(st.lists(st.sampled_from(graphs_of), max_size=5))
    of, names = of_graphs(captures, launched, numbers=numbers)
    found = operations(of, "correlation_id").filter(pl.col("correlation_id") < 1000)
    rows = gathered(capture_rows(of), found["row"])
    told = captured_names(of)[rows].select("operator", "shapes", "how")
    for (correlation,), part in found.hstack(told).group_by("correlation_id"):
        of_kernels = [number // 2 for number in launched[correlation - 1][1]]
        alike = {exec_id for exec_id, graph in graphs_of if [number // 2 for number in graph] == of_kernels}
        # of graphs of the same operations nobody can tell which one it is; without numbers not that there are two
        if len(alike) > 1 and numbers and alike <= {exec_id for exec_id, _ in launched}:
            assert {*part["how"]} <= {OLDER, "several fit"}
        elif len(alike) == 1 and CAPTURED in {*part["how"]}:
            assert part.sort("start").select("operator", "shapes").rows() == names[correlation]


def test_of_a_compilers_own_operator_its_code_tells_what_it_launched():
    events = [host("op", "CompiledFunction", 0, 9), call("cuLaunchKernel", 1, 2, correlation=1, parent=0)]
    made = {"name": "triton_poi_0", "source": "inductor", "hash": "1", "operators": "aten::relu, aten::mul"}
    of = report([*events, kernel(3, 8, name="triton_poi_0", correlation=1)], compiled_kernels=[made])
    found = ops(of).filter(pl.col("operations") > 0)
    assert found.select("name", "exclusive_device_ns").rows() == [("aten::relu, aten::mul", 5)]
    assert op_kernels(of).select("name", "path").rows() == [("aten::relu, aten::mul", "CompiledFunction")]


def test_a_compilers_own_operator_is_no_answer_where_kernels_say_more():
    of = real_report(REPORTS / "torch" / "compile_reduce_overhead.json.gz")
    table = ops(of)
    busy = table.filter(pl.col("exclusive_device_ns") > 0)
    # but of kernels that say nothing
    assert busy.filter(pl.col("name").str.contains("CompiledFunction"))["exclusive_share"].sum() < 0.01
    assert busy.filter(name="gelu, gelu_backward, sum")["operations"].to_list() == [6]
    assert table["exclusive_device_ns"].sum() == exclusive_operations(of)["exclusive_ns"].sum()
    assert captured(of).filter(operator="gemm")["count"].sum() == 102
    places = captured(of, by="place")  # their capture is not recorded
    assert (places["place"].null_count(), places["count"].sum()) == (places.height, 156)
    assert places.select("operators", "count").rows()[:2] == [("gemm", 102), ("gelu, gelu_backward, sum", 6)]


@pytest.mark.parametrize("path", [DECODER, NATIVE])
def test_all_rows_sum_to_the_time_of_the_graphs(path):
    of = real_report(path)
    work = exclusive_operations(of)
    inside = gathered(capture_rows(of), work["row"]).is_not_null()
    for by in (None, "place"):
        rows = captured(of, by)["exclusive_ns"]
        assert rows.sum() == work.filter(inside)["exclusive_ns"].sum()
        assert rows.is_sorted(descending=True)


@slow_given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 40), st.integers(0, 90)), max_size=8)
)
def test_captures_against_a_model_that_looks_at_every_row(made):
    """Nodes made at any time: a kernel has the last one made by its launch, if its capture is in a call."""
    nodes = [node(1, 2, number, at, captured_at, 1) for number, at, captured_at, _ in made]
    calls = [call("cudaLaunchKernel_v7000", at, at + 3) for at in range(0, 40, 5)]
    ran = [
        one
        for number, (place, _, _, at) in enumerate(made, 1)
        for one in (launch(at, at + 1, number, thread=2), of_graph(200, 210, number, 2, place, name=str(number)))
    ]
    found = dict(captured(report([*calls, *ran], graph_nodes=nodes)).select("kernel", "how").iter_rows())
    for number, (place, _, _, at) in enumerate(made, 1):
        before = [one for one in made if one[0] == place and one[1] <= at]
        last = max(before, key=lambda one: one[1], default=None)
        same = [one for one in before if one[1] == last[1]]
        expected = {CAPTURED if one[2] % 5 <= 3 and one[2] < 40 else OLDER for one in same} or {OLDER}
        assert found[str(number)] in expected


def test_kernels_that_the_program_marked_have_the_modules_of_their_eager_twins():
    """A decoder's steps in two graphs by PyTorch 2.12, its modules in mark_kernels, and the same without graphs."""
    table = captured(kanalyze.read(GRAPHS / "marked.json.gz")).filter(kind="kernel")
    assert table.filter(how=MARKED)["count"].sum() == 2 * 258
    assert table.filter(pl.col("range").is_null())["kernel"].str.contains("ArgMax").all()  # which is in no module
    eager = range_kernels(kanalyze.read(GRAPHS / "marked_eager.json.gz")).select("range", "kernel", "count")
    for name, kernel_name, count in eager.filter(~pl.col("range").str.contains("decode")).iter_rows():
        module = pl.col("range").str.contains(rf"^{name.removeprefix(':')}(?:\.|$)")
        assert table.filter(module, kernel=kernel_name)["count"].sum() == 2 * count  # six passes against three
    places = captured(kanalyze.read(GRAPHS / "marked.json.gz"), by="place")
    assert places.filter(place="layers.#.qkv")["count"].sum() == 2 * 4 * 6


def compiled(*names):
    """A compiler's own operator three times: it launches kernels, captures them, and launches the graph of them."""
    calls = [(10 + 20 * at, 15 + 20 * at) for at in range(len(names))]
    events = [host("op", "CompiledFunction", 0, 90)]
    for number, (name, (start, end)) in enumerate(zip(names, calls, strict=True)):
        events += launched(start, end, kernel(end + 1, end + 5, correlation=1 + number, name=name), parent=0)
    parent = len(events)
    shapes = [{"event_id": at, "input_shapes": "[[8]]"} for at in (0, parent)]
    events += [host("op", "CompiledFunction", 100, 190), call("cudaStreamBeginCapture", 105, 106)]
    events += [
        call("cudaLaunchKernel", 100 + start, 100 + end, correlation=start, parent=parent) for start, end in calls
    ]
    events += [call("cudaStreamEndCapture", 180, 181), host("op", "CompiledFunction", 300, 390)]
    events.append(call("cudaGraphLaunch", 310, 320, correlation=99))
    for number, name in enumerate(names):
        side = {"graph_exec_id": 2, "graph_node_id": (2 << 32) + number}
        events.append(kernel(330 + 50 * number, 370 + 50 * number, correlation=99, name=name, side=side))
    return report(events, meta={"tool": "torch.profiler"}, op_detail=shapes)


def test_captured_kernels_of_a_compiler_are_of_the_operators_that_they_say():
    of = compiled("triton_poi_fused_add_mul_0", "ampere_sgemm_128x64_nn")
    by_name = {row["name"]: row["captured_device_ns"] for row in ops(of).to_dicts()}
    assert by_name == {"add, mul": 40, "gemm": 40, "CompiledFunction": 0}
    assert {*op_kernels(of)["captured_name"]} == {"add, mul", "gemm", None}


def test_a_place_is_around_what_a_compiler_calls_its_code():
    ranges = ("layers.{}", "Torch-Compiled Region: 0/0", "## Call CompiledFxGraph fabc ##")
    events = [
        nvtx(name.format(layer), 100 * layer + depth, 100 * layer + 90 - depth)
        for layer in range(2)
        for depth, name in enumerate(ranges)
    ]
    nodes = [
        {"process_id": 1, "graph_node_id": (3 << 32) + layer, "graph_exec_id": 3, "graph_id": None,
         "captured_ns": 100 * layer + 22, "captured_thread_id": 1, "made_ns": 500}
        for layer in range(2)
    ]  # fmt: skip
    events += [call("cudaLaunchKernel_v7000", 100 * layer + 20, 100 * layer + 25) for layer in range(2)]
    events.append(call("cudaGraphLaunch", 1000, 1010, correlation=1))
    for layer in range(2):
        side = {"graph_exec_id": 3, "graph_node_id": (3 << 32) + layer}
        events.append(kernel(1020 + 10 * layer, 1028 + 10 * layer, correlation=1, name="triton_mul_0", side=side))
    assert captured(report(events, graph_nodes=nodes), by="place")["place"].to_list() == ["layers.#"]


def test_captures_of_two_threads_at_once_have_their_own_calls():
    """A graph of two kernels is none of captures of one each."""
    events = [host("op", "aten::mm", 0, 5), *launched(1, 2, kernel(6, 7, correlation=1, name="gemm"), parent=0)]
    shapes = [{"event_id": 0, "input_shapes": "[[2]]"}]
    for thread, at in ((1, 10), (2, 11)):
        events += [call("cudaStreamBeginCapture", at, at + 1, thread=thread)]
        shapes.append({"event_id": len(events), "input_shapes": "[[2]]"})
        events.append(host("op", "aten::mm", at + 5, at + 9, thread=thread))
        inside = {"correlation": at, "parent": len(events) - 1, "thread": thread}
        events.append(call("cudaLaunchKernel", at + 6, at + 7, **inside))
        events.append(call("cudaStreamEndCapture", at + 30, at + 31, thread=thread))
    events.append(call("cudaGraphLaunch", 140, 141, correlation=20))
    for number in range(2):
        side = {"graph_exec_id": 9, "graph_node_id": (9 << 32) + number}
        start = 150 + 20 * number
        events.append(kernel(start, start + 10, correlation=20, name="gemm", side=side))
    of = report(events, meta={"tool": "torch.profiler"}, op_detail=shapes)
    assert {*captured(of)["how"]} == {OLDER}


@pytest.mark.parametrize(("streams", "how"), [((8, 7), LIKELY), ((7, 7), CAPTURED)])
def test_branches_on_several_streams_without_numbers_of_nodes_have_no_sure_order(streams, how):
    events, inputs = (
        [host("op", "aten::mm", 0, 5), *launched(1, 2, kernel(6, 7, correlation=1, name="gemm"), parent=0)],
        [0],
    )
    events.append(call("cudaStreamBeginCapture", 10, 11))
    for at in (12, 22):
        inputs.append(len(events))
        events.append(host("op", "aten::mm", at + 1, at + 4))
        events.append(call("cudaLaunchKernel", at + 2, at + 3, correlation=at, parent=inputs[-1]))
    events += [call("cudaStreamEndCapture", 32, 33), call("cudaGraphLaunch", 40, 41, correlation=5)]
    for stream, at in zip(streams, (44, 46), strict=True):
        events.append(kernel(at, at + 1, correlation=5, name="gemm", stream=stream))
    shapes = [{"event_id": at, "input_shapes": "[[2]]"} for at in inputs]
    assert {*captured(report(events, meta={"tool": "torch.profiler"}, op_detail=shapes))["how"]} == {how}
