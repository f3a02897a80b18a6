"""Roofs, the budget and MFU: they close, whatever is recorded."""

import json
from collections import Counter
from dataclasses import replace
from math import ceil

import polars as pl
import pytest
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.host._captures import with_captures
from kanalyze.analyses.work._configuration import Configuration, factors
from kanalyze.analyses.work.roofs import against_roofs
from kanalyze.analyses.work.work import calls_with_work, gpu_called, most_elements, peaks
from kanalyze.errors import CannotTellError
from kanalyze.report import ReachedRates
from support.build import call, host, kernel, launched, nvtx, report
from support.command import REPORTS, SAMPLES
from support.real_reports import real_report
from support.strategies import few_given, slow_given

GEMM = "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT"
OTHER = "my_kernel(float *)"
KINDS = ("kernel", "memcpy", "memset", "api", "op", "range")
PEAK, BANDWIDTH = 989.4e12, 3.35e12
H100 = {"name": "NVIDIA H100 80GB HBM3", "memory_bandwidth_bytes_per_s": int(BANDWIDTH), "l2_bytes": 50 << 20}
ONE = {"grid": (1, 1, 1), "block": (1, 1, 1)}
TYPES = json.dumps(["c10::BFloat16"] * 2)


def program(calls, *, operators=True, types="c10::BFloat16", **limits):
    """One operator after another, each with one kernel, or several, on an H100; its shapes are recorded or not."""
    events, details = [], []
    for number, (shapes, name, length) in enumerate(calls):
        at, row = 10_000_000 * number, len(events)
        parent = row if operators else None
        events += [host("op", "aten::mm", at, at + 50)] * operators
        for later, one in enumerate(name.split(" + ")):
            ran = kernel(at + 5 + later * length, at + 5 + (later + 1) * length, name=one, parent=parent, **ONE)
            events += launched(at + 1 + 2 * later, at + 2 + 2 * later, ran, parent=parent)
        kinds = types and json.dumps([types] * 2 if isinstance(types, str) else types)
        details.append({"event_id": row, "input_shapes": shapes and json.dumps(shapes), "input_types": kinds})
    tables = {"kinds": KINDS, "op_detail": details} if operators else {"kinds": ("kernel", "api")}
    return report(events, **tables, limits=H100 | limits)


BIG, SMALL = [[4096, 4096], [4096, 4096]], [[1, 16384], [16384, 16384]]
AT_PEAK = ceil(2 * 4096**3 / PEAK * 1e9)
MOVED, CACHE = 2 * (16384 + 16384**2 + 16384), 50 << 20
OF_MEMORY = {"bound": "memory", "bytes": MOVED, "roof_ns": ceil(((MOVED - CACHE) / BANDWIDTH + CACHE / 5.5e12) * 1e9)}


@pytest.mark.parametrize(
    ("shapes", "took", "told"),
    [
        (BIG, 200_000, {"bound": "compute", "type": "bf16", "group": "products", "roof_ns": AT_PEAK}),
        (BIG, 200_000, {"at_roof_ns": AT_PEAK, "distance_ns": 200_000 - AT_PEAK}),
        (BIG, 1000, {"at_roof_ns": 1000, "distance_ns": 0}),  # faster than its roof
        (SMALL, 300_000, OF_MEMORY | {"executed_flop": 8 * 2 * 16384**2}),
    ],
)
def test_a_product_is_bound_by_its_peak_or_by_the_bytes_of_its_weights(shapes, took, told):
    row = kanalyze.work(program([(shapes, GEMM, took)])).row(0, named=True)
    assert row.items() >= told.items()


def test_of_an_operator_within_one_of_its_name_the_inner_has_the_inputs():
    """As DTensor calls the operator of a tensor's part within that of the whole."""
    events = [
        host("op", "aten::mm", 0, 50),
        host("op", "aten::mm", 10, 40),
        *launched(20, 25, kernel(30, 200_030, name=GEMM, correlation=1, parent=1, **ONE), parent=1),
    ]
    sides = [[[4096, 4096], [4096, side]] for side in (4096, 2048)]
    details = [
        {"event_id": row, "input_shapes": json.dumps(one), "input_types": TYPES} for row, one in enumerate(sides)
    ]
    row = kanalyze.work(report(events, kinds=KINDS, op_detail=details, limits=H100)).row(0, named=True)
    assert row["flop"] == 2 * 4096**2 * 2048


SHAPES = st.sampled_from([None, [[64, 64], [64, 64]], [[4096, 4096], [4096, 4096]], [[3, 4], [5, 6]]])
CALLS = st.lists(st.tuples(SHAPES, st.sampled_from([GEMM, OTHER]), st.integers(1, 300_000)), min_size=1, max_size=6)


@few_given(CALLS)
def test_the_budget_is_the_window_and_roofs_are_its_kernels(calls):
    made = program(calls)
    budget, ledger, roofs = kanalyze.budget(made), kanalyze.ledger(made), kanalyze.roofs(made)
    assert budget.get_column("ns").sum() == ledger.get_column("ns").sum()
    kernels = ledger.filter(pl.col("bucket") == "kernel").get_column("ns").sum()
    assert roofs.get_column("exclusive_ns").sum() == kernels == kanalyze.work(made).get_column("exclusive_ns").sum()
    known = roofs.filter(pl.col("bound").is_not_null())
    assert known.select((pl.col("at_roof_ns") + pl.col("distance_ns") == pl.col("exclusive_ns")).all()).item()
    assert budget.filter(pl.col("part") == "at the roof").get_column("ns").sum() == known.get_column("at_roof_ns").sum()
    assert roofs.get_column("count").sum() == len(calls)


CLOSED = ["torch/memory.json.gz", "emit_nvtx.sqlite", "gpu_metrics.sqlite", "../../sample_reports/cdist"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CLOSED)
def test_the_budget_of_a_real_report_is_its_window(name):
    report = real_report(REPORTS / name)
    for device, ns in kanalyze.ledger(report).group_by("device").agg(pl.col("ns").sum()).iter_rows():
        assert kanalyze.budget(report, device=device).get_column("ns").sum() == ns


def test_mfu_is_the_time_at_the_peak_of_the_window():
    made = program([([[4096, 4096], [4096, 4096]], GEMM, 200_000), (None, OTHER, 100_000)])
    row = kanalyze.mfu(made).row(0, named=True)
    assert (row["flop"], row["executed_flop"]) == (2 * 4096**3, 2 * 4096**3)
    assert row["flop_share"] == pytest.approx(2 * 4096**3 / PEAK * 1e9 / row["window_ns"])
    assert row["known_share"] == pytest.approx(2 / 3)


def test_what_has_no_shapes_has_no_flops_rather_than_none():
    assert kanalyze.mfu(program([(None, GEMM, 200_000)])).select(
        "flop", "flop_share", "executed_flop", "known_share"
    ).row(0) == (None, None, None, 0.0)


def test_a_sparse_product_has_not_the_flops_of_its_shapes():
    sparse = "void cusparse::csrmm_alg2_kernel<long, long, float>(cusparse::KernelCoeff<float>, int)"
    made = program([([[65536, 65536], [65536, 256]], sparse, 200_000), ([[4096, 4096], [4096, 4096]], GEMM, 200_000)])
    assert kanalyze.mfu(made).item(0, "flop") == 2 * 4096**3
    assert kanalyze.work(made).get_column("flop").to_list() == [None, 2 * 4096**3]


def test_an_unknown_gpu_has_work_and_no_roof_and_tells_nothing_of_another():
    made = program([([[64, 64], [64, 64]], GEMM, 10_000)], name="Some GPU", memory_bandwidth_bytes_per_s=None)
    row = kanalyze.roofs(made).row(0, named=True)
    assert (row["known"], row["bound"], row["distance_ns"]) == ("model", None, None)
    assert kanalyze.budget(made).row(0, named=True)["part"] == "no model"
    assert kanalyze.mfu(made).get_column("flop_share").to_list() == [None]
    with pytest.raises(CannotTellError, match="bandwidth of the recorded one"):
        factors(made, Configuration("NVIDIA H200"))


GPT = REPORTS / "work/gpt.json.gz"


def test_the_flops_of_a_training_step_are_those_of_flop_counter():
    """But for the half of the causal attention that the mask leaves out, which FlopCounter counts."""
    layers, batch, heads, length, width = 6, 8, 12, 1024, 64
    masked = layers * batch * heads * length * (length - 1) // 2 * width * 2 * (2 + 5)
    steps = 3
    assert kanalyze.mfu(real_report(GPT)).get_column("flop").to_list() == [steps * (4_527_432_400_896 - masked)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gpt", "19.7 % MFU: products at 73.1 %, attention at 23.0 %, the rest at 52.8 % of their roof;"),
        ("remedies/tf32_mlp", "70.0 % MFU: products at 76.2 % of their roof; 1.704 ms of 7.010 ms"),
    ],
)
def test_the_page_tells_how_far_operators_are_from_their_roofs(name, sentence):
    assert sentence in kanalyze.overview(real_report(REPORTS / f"work/{name}.json.gz")).answer


def test_where_nothing_is_to_do_the_largest_distance_has_its_operator():
    sentence = against_roofs(program([(BIG, GEMM, 200_000)]), farthest=True)
    assert sentence.endswith("are the distance to it, 61.09 µs of that aten::mm at 69.5 % (show roofs).")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "calls", [[(None, GEMM, 90_000), ([[64, 64], [64, 64]], GEMM, 10_000)], [(None, GEMM, 10_000)]]
)
def test_the_page_says_nothing_of_roofs_where_most_kernels_have_no_model(calls):
    assert "roof" not in kanalyze.overview(program(calls)).answer


@pytest.mark.parametrize(
    "name", ["work/operators.json.gz", "torch/memory.json.gz", "work/recomputed/manual_plain.json.gz"]
)
def test_tiles_and_grids_bound_the_results_of_products(name):
    """As known by their shapes: m, n, k and batch."""
    made = real_report(REPORTS / name)
    calls = calls_with_work(made).filter(pl.col("group") == "products").drop_nulls("sides")
    known = calls.join(most_elements(made, calls), on="event_id").drop_nulls("result_elements")
    m, n, _, batch = (pl.col("sides").list.get(place) for place in range(4))
    assert known.filter(m * n * batch > pl.col("result_elements")).is_empty()


def test_a_product_without_its_shape_has_a_bound_by_tile_and_grid():
    tiled = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_nn_align8>(Params)"
    grid = {"grid": (3, 5, 2), "block": (128, 1, 1)}
    names = (tiled, GEMM, "my_kernel")
    events = [kernel(1000 * place, 1000 * place + 500, name=name, **grid) for place, name in enumerate(names)]
    rows = kanalyze.work(report([*events, nvtx("all", 0, 9000)], kinds=("kernel", "range", "api"), limits=H100))
    assert rows.get_column("result_elements").to_list() == [30 * 256 * 128, None, None]


@pytest.mark.slow
def test_roofs_that_were_measured_stand_beside_those_of_the_datasheet():
    products, copies = ([[4096, 4096], [4096, 4096]], GEMM, 9_000_000), ([[1, 16384], [16384, 16384]], GEMM, 9_000_000)
    made = program([products, copies])
    assert kanalyze.roofs(made).get_column("reached_share").to_list() == [None, None]
    rates = {"bf16": 0.8 * PEAK, "tf32": 1.0, "copy": 0.9 * BANDWIDTH}
    measured = replace(made, reached=lambda: ReachedRates(H100["name"], rates))
    shares = kanalyze.roofs(measured).select("bound", "reached_share").rows()
    assert sorted(shares) == [("compute", pytest.approx(0.8)), ("memory", pytest.approx(0.9))]
    assert "of their roof (large products reach 80.0 % here)" in kanalyze.overview(measured).answer
    other = replace(made, reached=lambda: ReachedRates("NVIDIA A100", rates))
    assert kanalyze.roofs(other).get_column("reached_share").null_count() == 2


@few_given(CALLS)
def test_on_the_same_gpu_nothing_changes(calls):
    sides = factors(program(calls, l2_bytes=None), Configuration("NVIDIA H100 80GB HBM3"))
    assert sides.height == len(calls)
    assert sides.select(pl.col("usual", "low", "high").is_between(1 - 1e-9, 1 + 1e-9).all()).row(0) == (True,) * 3


@slow_given(CALLS, st.sampled_from(["NVIDIA B200", "NVIDIA L4", "NVIDIA H200"]))
def test_what_another_gpu_takes_is_between_its_bounds(calls, gpu):
    sides = factors(program(calls), Configuration(gpu))
    assert sides.select((pl.col("low") <= pl.col("usual") + 1e-9).all()).item()
    assert sides.select((pl.col("usual") <= pl.col("high") + 1e-9).all()).item()


def test_more_bandwidth_shortens_what_bytes_bound_by_the_part_at_the_roof():
    made = program([(BIG, GEMM, 200_000), (SMALL, GEMM, 300_000), (None, OTHER, 100_000)], l2_bytes=None)
    roof = kanalyze.work(made).get_column("roof_ns").to_list()[1]
    compute, memory, unknown = factors(made, Configuration("NVIDIA H200")).rows(named=True)
    assert compute["usual"] == compute["low"] == compute["high"] == 1.0
    moved, cache = 2 * (16384 + 16384**2 + 16384), 60 << 20
    ratio = ceil(((moved - cache) / 4.8e12 + cache / 7e12) * 1e9) / roof
    assert memory["low"] == pytest.approx(ratio)
    assert memory["usual"] == memory["high"] == pytest.approx(1 - roof / 300_000 * (1 - ratio))
    slower = BANDWIDTH / 4.8e12
    assert (unknown["low"], unknown["usual"], unknown["high"]) == pytest.approx((slower, (1 + slower) / 2, 1.0))


def test_products_of_a_type_that_another_gpu_has_not_are_not_told_for_it_but_those_of_tf32_run_in_full():
    for shapes in (BIG, None):
        with pytest.raises(CannotTellError, match="Tesla V100 has no units for products in bf16"):
            factors(program([(shapes, GEMM, 200_000)]), Configuration("Tesla V100"))
    full = program([(BIG, "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", 500_000)], types="float")
    row = factors(full, Configuration("Tesla V100")).row(0, named=True)
    assert row["low"] * 500_000 >= 2 * 4096**3 / 15.7e12 * 1e9


def test_a_step_on_an_h200_is_told_from_an_h100():
    """18.41 and 16.18 ms were measured, without a profiler."""
    told = kanalyze.whatif(real_report(GPT).narrow(window="steady"), gpu="h200", measured="18.41ms")
    assert told.changes == ("--gpu 'NVIDIA H200'",)
    least, usual, most = (ns / told.iterations / 1e6 for ns in (told.low_ns, told.then_ns, told.high_ns))
    assert least < 16.18 < most
    assert usual == pytest.approx(16.18, rel=0.05)


def test_a_gpu_has_names():
    assert gpu_called("a100") == "NVIDIA A100-SXM4-40GB"
    assert gpu_called("nvidia l4") == "NVIDIA L4"


def test_kernels_of_graphs_have_the_work_of_their_capture():
    """The same batches ran once in each, while they were captured and from the graphs."""
    folder = SAMPLES / "inside_graphs"
    decode, capture = (real_report(folder / f"{name}.json.gz") for name in ("decode", "capture"))
    assert kanalyze.mfu(decode).get_column("known_share").to_list() == [0.0]
    replayed, captured = kanalyze.mfu(with_captures(decode, capture)), kanalyze.mfu(capture)
    sums = ("flop", "executed_flop")
    assert replayed.select(sums).rows() == captured.select(sums).rows() == [(73_433_088_000, 82_644_566_016)]
    assert replayed.get_column("known_share").to_list() == [1.0]


def test_of_a_kernel_that_a_window_cuts_the_part_inside_counts():
    made = program([(BIG, GEMM, 200_000)])
    start = kanalyze.work(made).row(0, named=True)["start_ns"]
    row = kanalyze.mfu(made, window=f"{start + 50_000}ns..{start + 150_000}ns").row(0, named=True)
    assert row["flop"] == 4096**3
    assert row["flop_share"] < 1.0


def test_sums_that_no_number_holds_are_not_told():
    made = program([([[1 << 20, 1 << 20], [1 << 20, 1 << 20]], GEMM, 200_000)] * 5)
    assert kanalyze.mfu(made).get_column("flop").to_list() == [None]


def test_a_type_without_a_peak_is_left_out_where_it_is_little():
    fp8 = "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x64_stage3_warpsize2x2x1_execute_kernel"
    made = program([(BIG, GEMM, 200_000), ([[2, 2], [2, 2]], fp8, 1_000)], name="NVIDIA A10")
    assert kanalyze.roofs(made).filter(type="fp8").get_column("bound").to_list() == [None]
    assert kanalyze.mfu(made).get_column("flop_share").to_list()[0] > 0


def test_what_a_report_without_operators_launches_has_the_work_of_the_trace_beside_it():
    """The same program, once with operators and once with their launches alone."""
    calls = [(BIG, GEMM, 200_000), (SMALL, GEMM, 300_000), (None, OTHER, 100_000)] * 4
    trace = program(calls)
    bare = program([(None, name, 2 * length) for _, name, length in calls], operators=False)
    found = kanalyze.work(replace(bare, beside=lambda: trace))
    assert found.select("name", "flop", "bytes").rows() == kanalyze.work(trace).select("name", "flop", "bytes").rows()
    assert found.get_column("exclusive_ns").to_list() == [2 * length for _, _, length in calls]
    with pytest.raises(CannotTellError):
        kanalyze.work(bare)


def test_a_call_of_which_a_launch_has_no_partner_in_the_trace_has_no_work():
    def of(*others, **kinds):
        return program([(BIG, f"{GEMM} + {other}", 200_000) for other in others], **kinds)

    found = kanalyze.work(replace(of(*"paaa", operators=False), beside=lambda: of(*"aaaa")))
    assert found.get_column("flop").to_list() == [None, None, *[2 * 4096**3] * 3]


def in_ranges(*ranges):
    """What emit_nvtx records of operators one after another, each with a kernel, on an H100."""
    events = []
    for number, (text, name) in enumerate(ranges):
        at = 1_000_000 * number
        events += [nvtx(text, at, at + 100), *launched(at + 1, at + 2, kernel(at + 200, at + 90_200, name=name))]
    return kanalyze.work(report(events, limits=H100))


CONVOLVES = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_g1_execute_kernel"
ADDS = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16> >(int)"
)
CONVOLUTION = (
    "aten::cudnn_convolution, op_id = 9, sizes = [[64, 3, 56, 56], [128, 3, 3, 3], []], input_op_ids = [(1,0), "
)


@pytest.mark.parametrize(
    ("user", "flop"),
    [
        ("aten::relu, op_id = 10, sizes = [[64, 128, 28, 28]], input_op_ids = [(6,0)]", 2 * 64 * 28**2 * 128 * 27),
        ("aten::relu, op_id = 10, sizes = [[64, 128, 28, 28]], input_op_ids = [(5,0)]", None),
        ("aten::relu, op_id = 10, sizes = [[64, 99, 28, 28]], input_op_ids = [(6,0)]", None),
        ("aten::relu, op_id = 10, sizes = [[64, 128]], input_op_ids = [(9,0)]", None),
    ],
    ids=["of conv2d around it", "of another", "of other channels", "flat"],
)
def test_a_convolution_in_ranges_has_the_result_that_its_user_takes(user, flop):
    rows = in_ranges((f"{CONVOLUTION}(2,0), (0,-1)]", CONVOLVES), (user, ADDS))
    assert rows.filter(name="aten::cudnn_convolution").get_column("flop").to_list() == [flop]


@pytest.mark.parametrize(("makers", "tensors"), [("(7,0), (7,0)", 2), ("(7,0), (8,0)", 3), ("(0,-1), (0,-1)", 3)])
def test_a_tensor_that_is_given_twice_is_read_once(makers, tensors):
    rows = in_ranges((f"aten::mul, op_id = 9, sizes = [[4096, 64], [4096, 64]], input_op_ids = [{makers}]", ADDS))
    assert rows.get_column("bytes").to_list() == [tensors * 2 * 4096 * 64]


@pytest.mark.parametrize("size", ["(unsigned int)4", "(int)4", "4u", "4"])
def test_elements_of_no_type_have_the_size_that_each_tool_writes(size):
    name = f"void at::native::CatArrayBatchedCopy<at::native::OpaqueType<{size}>, unsigned int, (int)4, (int)64>(X)"
    work = in_ranges(("aten::cat, op_id = 9, sizes = [[[3, 4], [3, 4]], []]", name))
    assert work.item(0, "bytes") == 4 * 48 + 4  # of the axis


@pytest.mark.parametrize(("gpu", "rates"), [("Tesla V100-SXM2-32GB", (None, 125e12)), ("NVIDIA A10", (125e12, 125e12))])
def test_before_ampere_there_is_no_bf16(gpu, rates):
    devices = pl.DataFrame({"device": 0, "name": gpu, "sm_count": 80, "clock_hz": 1.5e9})
    known = dict(peaks(devices)["type", "flop_per_s"].iter_rows())
    assert (known["bf16"], known["fp16"]) == rates


def checkpointed(*nodes, numbered):
    """Of each node of autograd the operators that it runs, each of which launches a product for 1 ms.

    Those are `numbered` if autograd records them for another pass backward.
    """
    events, details, at = [], [], 0
    for names in nodes:
        events.append(host("op", "autograd::engine::evaluate_function: MulBackward0", at, at + 1000 * len(names) - 1))
        for name in names:
            row = len(events)
            events += [
                host("op", name, at + 10, at + 900),
                host("op", "aten::mm", at + 20, at + 800),
                call("cudaLaunchKernel", at + 30, at + 31, correlation=row + 1, parent=row + 1),
                kernel(10_000_000 + 1_000_000 * row, 11_000_000 + 1_000_000 * row, name=GEMM, correlation=row + 1),
            ]
            details.append({"event_id": row + 1, "input_shapes": json.dumps(BIG), "input_types": TYPES})
            details += [{"event_id": row, "sequence_number": row}] * numbered
            at += 1000
    return report(events, kinds=KINDS, op_detail=details, limits=H100)


@pytest.mark.parametrize(
    ("nodes", "numbered", "again"),
    [
        ([("aten::layer_norm", "aten::mul", "aten::linear", "aten::mul"), ("aten::mul",)], False, 3),
        ([("aten::linear", "aten::linear", "aten::mul")], False, 0),  # one kind of operator is no layer
        ([("aten::mul", "aten::mul")], False, 0),
        ([("aten::matmul", "aten::softmax", "aten::mul")], False, 0),
        ([("aten::mul", "aten::matmul", "aten::softmax", "aten::mul")], True, 4),
        # gradients of gradients, of which nodes record that call no layer
        ([("aten::matmul", "aten::softmax"), ("aten::mul",)], True, 0),
    ],
)
def test_what_backward_computes_again_is_a_part_of_the_budget_and_no_model_flops(nodes, numbered, again):
    made = checkpointed(*nodes, numbered=numbered)
    budget, whole = kanalyze.budget(made), kanalyze.ledger(made).get_column("ns").sum()
    assert budget.get_column("ns").sum() == whole
    assert budget.filter(part="recomputed").get_column("ns").sum() == again * 1_000_000
    used = kanalyze.mfu(made).row(0, named=True)
    every = sum(map(len, nodes))
    assert used["model_flop_share"] == pytest.approx(used["flop_share"] * (every - again) / every)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("model", "how"), [("cnn", "not"), ("llama", "reentrant"), ("manual", "attention")])
def test_kernels_of_checkpointing_are_those_that_the_model_without_it_does_not_launch(model, how):
    """Also where norms and attention are written by hand; FLOPs are FlopCounter's but for half of causal attention."""
    folder = REPORTS / "work" / "recomputed"
    names = (f"{model}_plain", f"{model}_{how}")
    calls = [calls_with_work(real_report(folder / f"{name}.json.gz")) for name in names]
    kernels = [Counter(dict(one.group_by("kernel").agg(pl.col("kernels").sum()).rows())) for one in calls]
    again = calls[1].filter("again")
    assert Counter(dict(again.group_by("kernel").agg(pl.col("kernels").sum()).rows())) == kernels[1] - kernels[0]
    flops = json.loads((folder / "flops.json").read_text())
    causal = again.filter(group="attention").get_column("flop").sum()
    more = flops[names[1]] - flops[names[0]]
    assert again.get_column("flop").sum() + causal == pytest.approx(more, rel=0.01)
