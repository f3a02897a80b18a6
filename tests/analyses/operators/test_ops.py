"""The table of operators: against a slow second statement of torch's rules, on traces made by hand, and torch's own."""

import json
from collections import defaultdict

import polars as pl
import pytest
from hypothesis import assume, strategies as st

import kanalyze
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.operators._host_tree import forward_rows
from kanalyze.analyses.operators.ops import op_kernels, ops
from kanalyze.errors import CannotTellError, UnknownNameError
from support.build import host, kernel, launched, timeline
from support.command import REPORTS, ROOT, SAMPLES
from support.key_averages import parsed
from support.real_reports import real_report
from support.slow_ops import host_nodes, key_averages, trace_report, traces
from support.strategies import few_given, slow_given

TORCH = ("count", "self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns")
BUSY = ("kernel", "communication", "memcpy", "memset")


@slow_given(traces())
def test_operators_are_summed_as_torch_sums_them(trace):
    nodes, found = host_nodes(*trace), trace_report(*trace)
    torchs = ops(found, as_torch=True).filter(pl.col("side") == "host").to_dicts()
    assert {(row["name"], row["annotation"]): sums(row) for row in torchs} == key_averages(nodes)
    own = ops(found).filter(pl.col("name").is_not_null()).to_dicts()
    operators = key_averages([node for node in nodes if node.event.kind in ("op", "range")])
    assert {(row["name"], row["kind"] == "range"): sums(row) for row in own} == operators
    phases = ops(found, by="phase").get_column("self_cpu_ns")
    assert phases.sum() == sum(node.self_ns for node in host_nodes(*trace, python=True))


def sums(row):
    return tuple(row[name] for name in TORCH)


@few_given(traces(), st.sampled_from([{}, {"window": kanalyze.Window(5, 25)}, {"device": 0}]))
def test_exclusive_device_time_sums_to_the_busy_time_in_every_form(trace, where):
    assume(any(event.device == 0 for event in trace[0]))
    part = trace_report(*trace).narrow(**where)
    for by in (None, "shape", "phase"):
        busy_ns = ledger(part).filter(pl.col("bucket").is_in(BUSY)).get_column("ns").sum()
        assert ops(part, by=by).get_column("exclusive_device_ns").sum() == busy_ns
    assert op_kernels(part).get_column("exclusive_ns").sum() == busy_ns


def training():
    """A step of training: an operator that calls another, its backward on a thread of its own, and an optimizer."""
    events = [
        host("range", "ProfilerStep#4", 0, 100),
        host("op", "aten::square", 10, 30),
        host("op", "aten::pow", 12, 28),
        *launched(15, 20, kernel(40, 50, name="pow_kernel", correlation=9, parent=2), parent=2),
        host("op", "autograd::engine::evaluate_function: PowBackward0", 50, 70, thread=2),
        host("op", "PowBackward0", 52, 68, thread=2),
        host("op", "aten::mul", 55, 65, thread=2),
        *timeline("56-60 cudaLaunchKernel #10 ^7 t2; 60-75 kernel:mul_kernel #10 ^7; 70-80 memcpy #11 ^7"),
        host("range", "Optimizer.step#SGD.step", 80, 95),
        *timeline("82-86 cudaLaunchKernel #12; 90-96 kernel:triton_step #12; 97-99 kernel:of_nobody #77"),
    ]
    ids = {0: 1, 1: 2, 2: 3, 5: 4, 6: 5, 7: 6, 11: 7}
    details = {
        "of_2": {"sequence_number": 3, "input_shapes": "[[2, 3]]", "input_types": '["float"]'},
        "of_5": {"sequence_number": 3, "forward_thread_id": 1},
        "of_6": {"sequence_number": 3, "forward_thread_id": 1, "forward_id": 2},
    }
    return trace_report(events, ids, **details)


def test_a_step_of_training():
    found = ops(training()).select("name", "kind", *TORCH, "exclusive_device_ns", "operations")
    assert found.rows() == [
        ("aten::mul", "op", 1, 6, 10, 25, 25, 20, 2),
        ("aten::pow", "op", 1, 11, 16, 10, 10, 10, 1),
        ("Optimizer.step#SGD.step", "range", 1, 11, 15, 0, 0, 6, 1),
        (None, None, 0, 0, 0, 0, 0, 2, 1),
        ("ProfilerStep*", "range", 1, 65, 100, 0, 10, 0, 0),
        ("PowBackward0", "op", 1, 6, 16, 0, 25, 0, 0),
        ("aten::square", "op", 1, 4, 20, 0, 10, 0, 0),
        ("autograd::engine::evaluate_function: PowBackward0", "op", 1, 4, 20, 0, 25, 0, 0),
    ]
    phases = ("phase", "count", "self_cpu_ns", "cpu_ns", "self_device_ns", "exclusive_device_ns")
    assert ops(training(), by="phase").select(phases).rows() == [
        ("backward", 3, 20, 20, 25, 20), ("forward", 2, 20, 20, 10, 10), ("optimizer", 0, 15, 15, 6, 6),
        ("other", 0, 65, 100, 2, 2),
    ]  # fmt: skip
    shapes = ops(training(), by="shape").filter(pl.col("name") == "aten::pow")
    assert shapes.select("input_shapes", "input_types", "count").rows() == [("[[2, 3]]", '["float"]', 1)]


def test_a_window_takes_operators_whole_and_cuts_device_time():
    found = ops(training(), window="45ns..58ns").select("name", "count", "cpu_ns", "exclusive_device_ns")
    assert dict(zip(found["name"], found.drop("name").rows(), strict=True)) == {
        "aten::pow": (0, 0, 5),  # its kernel still runs
        "ProfilerStep*": (1, 100, 0),
        "autograd::engine::evaluate_function: PowBackward0": (1, 20, 0),
        "PowBackward0": (1, 16, 0),
        "aten::mul": (1, 10, 0),
    }


def modules():
    """Two calls of a module that calls another, and a backward operator of the inner one's."""
    events = [
        host("python", "train.py(3): main", 0, 100), host("python", "nn.Module: Net_0", 10, 40),
        host("python", "nn.Module: Linear_0", 12, 30), host("op", "aten::addmm", 15, 25),
        kernel(30, 40, name="gemm", parent=3), host("op", "aten::relu", 32, 38), kernel(40, 42, name="relu", parent=5),
        host("op", "AddmmBackward0", 60, 70, thread=2), kernel(70, 90, name="gemm", parent=7),
        host("python", "<built-in method step of object at 0x7f01>", 92, 95), host("op", "aten::add_", 93, 94),
        kernel(96, 97, name="add", parent=10),
    ]  # fmt: skip
    details = {"of_3": {"sequence_number": 1}, "of_7": {"sequence_number": 1, "forward_thread_id": 1}}
    return trace_report(events, {3: 1, 5: 2, 7: 3, 10: 4}, **details)


def test_modules_with_what_their_backward_operators_launched_and_stacks():
    columns = ("path", "count", "self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns", "backward_device_ns")
    assert ops(modules(), by="module").select("module", *columns).rows() == [
        ("Linear_0", "Net_0 → Linear_0", 1, 18, 18, 30, 30, 20),
        ("Net_0", "Net_0", 1, 12, 30, 2, 32, 0),
        (None, None, 0, 80, 0, 1, 1, 0),
    ]
    # stacks have no addresses
    assert ops(modules(), by="stack").select("name", "stack", "count").sort("name").rows() == [
        ("AddmmBackward0", None, 1),
        ("aten::add_", "train.py(3): main;<built-in method step of object>", 1),
        ("aten::addmm", "train.py(3): main;nn.Module: Net_0;nn.Module: Linear_0", 1),
        ("aten::relu", "train.py(3): main;nn.Module: Net_0", 1),
    ]


def test_modules_cannot_be_told_without_functions_and_an_unknown_grouping_names_those_that_there_are():
    with pytest.raises(CannotTellError, match="kind python"):
        ops(training(), by="module")
    with pytest.raises(UnknownNameError) as refused:
        ops(training(), by="name")
    assert "shape, module, phase, stack" in refused.value.remedy


def test_a_call_whose_number_is_an_operators_by_chance_and_rows_of_equal_times():
    events = timeline(
        "0-20 op:aten::add; 5-9 kernel ^0; 30-50 op:aten::item; 31-49 cudaStreamSynchronize #7; 60-61 kernel ^2"
    )
    found = trace_report(events, {0: 7, 2: 8})
    told = ops(found).select("name", "self_device_ns", "device_ns", "exclusive_device_ns").rows()
    assert told == [("aten::add", 4, 4, 4), ("aten::item", 1, 5, 1)]
    synchronise = ops(found, as_torch=True).filter(pl.col("name") == "cudaStreamSynchronize")
    assert synchronise.get_column("self_device_ns").to_list() == [4]
    alike = trace_report(timeline("0-5 op:aten::b; 10-15 op:aten::c; 20-25 op:aten::a"), {})
    assert ops(alike, as_torch=True).get_column("name").to_list() == ["aten::a", "aten::b", "aten::c"]


SQUARE = """
    0-20 op:aten::square; 2-18 op:aten::pow; 30-40 kernel:p ^1; 50-70 op:aten::square; 52-68 op:aten::pow
    80-95 kernel:p ^4; 100-110 op:aten::pow; 120-121 kernel:p ^6; 130-132 memcpy ^0
"""
BACKWARD = """
    0-20 op:aten::linear; 2-18 op:aten::addmm; 20-30 kernel:gemm ^1; 30-50 op:AddmmBackward0 t2; 35-45 op:aten::mm t2
    50-70 kernel:gemm ^4
"""
LED_BACK = [
    ("aten::mm", "AddmmBackward0 → aten::mm", "gemm", 1, 20, "aten::addmm", "aten::linear → aten::addmm"),
    ("aten::addmm", "aten::linear → aten::addmm", "gemm", 1, 10, None, None),
]
OF_THREADS = """
    0-5 op:on one; 6-9 op:on one; 0-5 op:on two t2; 20-25 op:Backward of one t3; 26-30 op:Backward of one t3
    40-42 kernel ^3
"""
GRAPHS = """
    0-50 [step]; 5-20 op:graph_step; 8-12 cudaGraphLaunch #4; 20-25 kernel:a #4; 25-31 kernel:b #4
    30-34 cudaGraphLaunch #5; 40-42 graph #5; 60-61 kernel:of nobody #99; 70-80 op:add; 90-91 kernel ^8
"""
NUMBERS = {f"of_{place}": {"sequence_number": number} for place, number in ((0, 1), (1, 2), (2, 1))}
LATER = {f"of_{place}": {"sequence_number": place - 2, "forward_thread_id": 7} for place in (3, 4)}
OF_BACKWARD = [("Backward of one", "Backward of one", "k", 1, 2, "on one", "on one")]
FORWARD_IDS = {"of_3": {"forward_id": 1, "sequence_number": 9, "forward_thread_id": 1}, "of_1": {"sequence_number": 4}}


@pytest.mark.parametrize(
    ("events", "ids", "details", "rows"),
    [
        # under the operators that led to them
        (
            SQUARE, {0: 1, 1: 2, 3: 3, 4: 4, 6: 5}, {},
            [
                ("aten::pow", "aten::square → aten::pow", "p", 2, 25, None, None),
                ("aten::square", "aten::square", "[CUDA memcpy Host-to-Device]", 1, 2, None, None),
                ("aten::pow", "aten::pow", "p", 1, 1, None, None),
            ],
        ),
        # backward ones under their forward operator: by torch's link, and by autograd's number
        (BACKWARD, {0: 1, 1: 2, 3: 3, 4: 4}, FORWARD_IDS, LED_BACK),
        (
            BACKWARD, {0: 1, 1: 2, 3: 3, 4: 4},
            {
                "of_0": {"sequence_number": 0}, "of_1": {"sequence_number": 0},
                "of_3": {"sequence_number": 0, "forward_thread_id": 1},
            },
            LED_BACK,
        ),
        # each thread counts its own operators: the one that has most of the numbers that are asked for is meant
        (OF_THREADS, {place: place + 1 for place in range(5)}, NUMBERS | LATER, OF_BACKWARD),
        # those of a graph under what launched the graph
        (
            GRAPHS, {0: 1, 1: 2, 8: 3}, {},
            [
                ("graph_step", "graph_step", "b", 1, 6, None, None),
                ("graph_step", "graph_step", "a", 1, 5, None, None),
                ("step", None, "[CUDA graph 1]", 1, 2, None, None), (None, None, "of nobody", 1, 1, None, None),
                ("add", "add", "k", 1, 1, None, None),
            ],
        ),
        # torch's own table takes a call to be on the thread that ended the profiling
        (
            "0-50 [here]; 0-50 [beside] t2; 8-12 cudaGraphLaunch #4 t2; 20-25 kernel #4; 60-61 op:add; 70-71 kernel ^4",
            {0: 1, 1: 2, 4: 3}, {}, [("beside", None, "k", 1, 5, None, None), ("add", "add", "k", 1, 1, None, None)],
        ),
    ],
)  # fmt: skip
def test_kernels_by_operator(events, ids, details, rows):
    found = op_kernels(trace_report(timeline(events), ids, **details))
    assert found.select("name", "path", "kernel", "count", "exclusive_ns", "forward", "forward_path").rows() == rows


def test_kernels_of_one_device_and_a_window():
    made = trace_report(timeline("0-5 op:a; 10-20 kernel ^0; 10-30 kernel ^0 d1"), {0: 1})
    columns = ("count", "total_ns", "avg_ns", "exclusive_ns", "share")
    assert op_kernels(made, device=1).select(columns).rows() == [(1, 20, 20.0, 20, 1.0)]
    assert op_kernels(made, window="15ns..18ns").select(columns).rows() == [(2, 30, 15.0, 6, 1.0)]


PRINTED = sorted(path.parent for path in SAMPLES.glob("*/torch.key_averages.txt"))
EXACT = sorted((ROOT / "tests" / "reports" / "torch").glob("*.key_averages.json"))
MEMORY = ("self_cpu_bytes", "cpu_bytes", "self_device_bytes", "device_bytes")

#: What the old profiler, torch.autograd.profiler, measures with CUDA events is in its table, and not in its trace.
WITHOUT_DEVICE_TIMES = "autograd_profiler"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("folder", PRINTED, ids=lambda folder: folder.name)
def test_every_row_that_torch_printed(folder):
    printed = parsed(folder / "torch.key_averages.txt")
    ours = kanalyze.ops(real_report(folder / "torch.json.gz"), as_torch=True).to_dicts()
    assert len(printed) == len(ours) > 40
    for row in printed:
        found = next((one for one in ours if row.is_of(one)), None)
        assert found is not None, row
        ours.remove(found)


def trace_of(table):
    return real_report(table.with_name(table.name.replace(".key_averages.json", ".json.gz")))


@pytest.mark.parametrize("table", EXACT, ids=lambda table: table.name.partition(".")[0])
def test_every_row_to_the_last_digit(table):
    """Of traces with what is hard to count: stacks, collectives, annotations that overlap, pauses of the collector…"""
    theirs = json.loads(table.read_text())["by_name"]
    ours = kanalyze.ops(trace_of(table), as_torch=True)
    ours = ours.with_columns(pl.col(MEMORY).fill_null(0)).select("name", "side", "annotation", *TORCH, *MEMORY)
    if table.name.startswith(WITHOUT_DEVICE_TIMES):
        ours, theirs = ours.drop(("self_device_ns", "device_ns")), [row[:6] + row[8:] for row in theirs]
    assert sorted(ours.rows()) == sorted(map(tuple, theirs))


def test_shapes_to_the_last_digit():
    """To torch's table a list of tensors has no shape, and types tell nothing apart."""
    (table,) = (path for path in EXACT if path.name.startswith("memory"))
    operators = {row["name"] for row in kanalyze.ops(trace_of(table)).to_dicts()}
    theirs = json.loads(table.read_text())["by_shape"]
    theirs = {
        (row[0], row[3], json.dumps(row[1]), *row[4:]) for row in theirs if row[0] in operators and row[2] == "host"
    }
    ours = defaultdict(lambda: [0] * len((*TORCH, *MEMORY)))
    for row in kanalyze.ops(trace_of(table), by="shape").drop_nulls("name").to_dicts():
        shapes = json.loads(row["input_shapes"] or "[]")
        flat = [[] if any(isinstance(size, list) for size in shape) else shape for shape in shapes]
        sums = ours[row["name"], row["kind"] == "range", json.dumps(flat)]
        for place, column in enumerate((*TORCH, *MEMORY)):
            sums[place] += row[column]
    assert {(*key, *sums) for key, sums in ours.items()} == theirs


class Unlinked:
    """A report's tables without torch's own links from backward operators to forward ones."""

    def __init__(self, report):
        self.kinds, self.events, self._table = report.source.kinds, report.source.events, report.table

    def table(self, name):
        found = self._table(name)
        return found.with_columns(pl.lit(None, dtype=pl.Int64).alias("forward_id")) if name == "op_detail" else found


@pytest.mark.parametrize(
    "path",
    [SAMPLES / "mlp_train" / "torch.json.gz", EXACT[0].with_name("ddp.json.gz")],
    ids=lambda path: path.parts[-2],
)
def test_autograds_numbers_lead_where_torchs_own_links_lead(path):
    report = real_report(path)
    assert report.table("op_detail")["forward_id"].is_not_null().sum() > 10
    assert forward_rows(kanalyze.Report(report.meta, Unlinked(report))).equals(forward_rows(report))


@pytest.mark.parametrize("table", [ops, op_kernels])
def test_operators_that_are_ranges_are_told_by_other_tables(table):
    with pytest.raises(CannotTellError, match="operators are ranges of NVTX"):
        table(real_report(REPORTS / "emit_nvtx.sqlite"))
