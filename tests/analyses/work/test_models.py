"""FLOPs and bytes of operators: formulas on small inputs, what FlopCounter counts, what ncu and samples measured."""

import json
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, strategies as st

import kanalyze
from analyses.work.test_roofs import OTHER, program
from kanalyze.analyses.counters.roofline import _CORES, BUSY
from kanalyze.analyses.work._models import _MODELS, Pairs, Product, executed_flop, work_of
from kanalyze.columns import LARGEST
from kanalyze.decoder.decode import decode
from kanalyze.decoder.fields import KernelName
from kanalyze.readers.capture.reports import counters_at
from support.command import REPORTS, SAMPLES
from support.counters import measured
from support.real_reports import real_report
from support.strategies import few_given

FLOAT, HALF = "float", "c10::BFloat16"
PLAIN = KernelName()
ELEMENTWISE = decode(
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
)

#: Operator, shapes, types, values: FLOPs and bytes by hand.
BY_HAND = [
    ("aten::mm", [[3, 4], [4, 5]], [FLOAT] * 2, ["", ""], 2 * 3 * 4 * 5, 4 * (12 + 20 + 15)),
    ("aten::mm", [[3, 4], [4, 5]], [HALF] * 2, ["", ""], 120, 2 * 47),
    ("aten::addmm", [[5], [3, 4], [4, 5], [], []], [FLOAT] * 3 + ["Scalar"] * 2, [""] * 5, 120, 4 * (5 + 47)),
    ("aten::addmm", [[5], [3, 4], [4, 5], [], []], [FLOAT] * 3 + ["Scalar"] * 2, ["", "", "", "0", "1"], 120, 4 * 47),
    ("aten::bmm", [[7, 3, 4], [7, 4, 5]], [FLOAT] * 2, ["", ""], 7 * 120, 7 * 4 * 47),
    ("aten::linear", [[2, 3, 4], [5, 4], []], [FLOAT] * 2 + [""], [""] * 3, 2 * 120, 4 * (24 + 20 + 30)),
    ("aten::mv", [[3, 4], [4]], [FLOAT] * 2, ["", ""], 24, 4 * (12 + 4 + 3)),
    (
        "aten::convolution",  # 6 × 6 in 3 × 3 with stride 2 and padding 1 is 3 × 3
        [[2, 4, 6, 6], [8, 2, 3, 3], [], [], [], [], [], [], []],
        [FLOAT] * 2 + [""] + ["ScalarList"] * 3 + ["Scalar", "ScalarList", "Scalar"],
        ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "2"],
        2 * (2 * 3 * 3) * 8 * (2 * 9),
        4 * (2 * 4 * 36 + 8 * 2 * 9 + 2 * 8 * 9),
    ),
    (
        "aten::convolution_backward",  # of the data's gradient alone
        [[2, 8, 3, 3], [2, 4, 6, 6], [8, 4, 3, 3], [], [], [], [], [], [], [], []],
        [FLOAT] * 3 + ["ScalarList"] * 4 + ["Scalar", "ScalarList", "Scalar", "ScalarList"],
        ["", "", "", "[0]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, False, False]"],
        2 * (2 * 9) * 8 * (4 * 9),
        4 * (2 * 8 * 9 + 2 * 4 * 36 + 8 * 4 * 9),
    ),
    (
        "aten::_flash_attention_forward",  # four queries of a causal mask see 1 + 2 + 3 + 4 keys
        [[1, 4, 2, 8]] * 3 + [[]] * 6,
        [HALF] * 3 + [""] * 6,
        [""] * 8 + ["True"],
        2 * 2 * 2 * 10 * 8,
        4 * 2 * 64,
    ),
    (
        "flash_attn::_flash_attn_varlen_forward",  # twelve queries of two sequences: two causal masks of six, or more
        [[12, 2, 8]] * 3 + [[3], [3]],
        [HALF] * 3 + ["int"] * 2,
        [""] * 5,
        2 * 2 * 2 * 36 * 8,
        4 * 2 * 192 + 2 * 4 * 3,
    ),
    (
        "aten::_flash_attention_forward",  # each query of a window has at least a key
        [[3, 4, 2, 8]] * 3 + [[]] * 10,
        [HALF] * 3 + [""] * 10,
        [""] * 8 + ["True", "", "", "2", "0"],
        2 * 2 * 3 * 2 * 4 * 8,
        4 * 2 * 192,
    ),
    ("aten::addbmm", [[3, 5], [7, 3, 4], [7, 4, 5]], [FLOAT] * 3, [""] * 3, 7 * 120, 4 * (15 + 7 * 32 + 15)),
    ("aten::_grouped_mm", [[6, 4], [2, 4, 5], [2]], [HALF, HALF, "int"], [""] * 3, 2 * 6 * 4 * 5, 2 * (24 + 30)),
    ("aten::_grouped_mm", [[3, 6], [6, 5], [2]], [HALF, HALF, "int"], [""] * 3, 2 * 3 * 6 * 5, 2 * (18 + 30 + 30)),
    ("aten::_grouped_mm", [[2, 3, 4], [4, 6], [2]], [HALF, HALF, "int"], [""] * 3, 2 * 3 * 4 * 6, 2 * (24 + 18)),
    ("aten::index_add_", [[9, 4], [], [5], [5, 4]], [FLOAT, "Scalar", "long int", FLOAT], [""] * 4, 0, 8 * 5 + 4 * 20),
    ("aten::_softmax", [[3, 4], [], []], [FLOAT, "Scalar", "Scalar"], ["", "-1", "False"], 0, 4 * 24),
    ("aten::sum", [[3, 4], [], [], []], [FLOAT, "ScalarList", "Scalar", ""], ["", "[0]", "False", ""], 0, 4 * 12),
    ("aten::normal_", [[3, 4], [], []], [FLOAT, "Scalar", "Scalar"], ["", "0", "1"], 0, 4 * 12),
    ("aten::add", [[3, 4], [4], []], [FLOAT, FLOAT, "Scalar"], ["", "", "1"], 0, 4 * (12 + 4 + 12)),
    ("aten::mul", [[], [3, 4], [3, 4]], ["double", FLOAT, FLOAT], ["", "", ""], 0, 8 + 4 * 24),  # its result, too
    ("aten::gt", [[3, 4], []], [FLOAT, "Scalar"], ["", "0"], 0, 4 * 12 + 12),
    ("aten::ne", [[3, 4], [3, 4]], [FLOAT] * 2, ["", ""], 0, 4 * 12 + 12),  # of one tensor with itself: isnan
    ("aten::ne", [[3, 4], [4]], [FLOAT] * 2, ["", ""], 0, 4 * (12 + 4) + 12),
    ("aten::embedding", [[9, 4], [5], []], [FLOAT, "long int", "Scalar"], ["", "", "-1"], 0, 8 * 5 + 4 * 20),
    ("aten::index_select", [[9, 4], [], [2]], [FLOAT, "Scalar", "long int"], ["", "1", ""], 0, 8 * 2 + 4 * 18),
    ("aten::_foreach_copy_", [[[3, 4]], [[3, 4]], []], ["TensorList"] * 2 + ["Scalar"], ["", "", ""], 0, 4 * 24),
    ("aten::add_", [[3, 4], [3, 4], []], [HALF, FLOAT, "Scalar"], ["", "", "1"], 0, 12 * (2 + 4 + 2)),
    ("_C::silu_and_mul", [[3, 4], [3, 8]], [HALF] * 2, ["", ""], 0, 2 * 36),
    ("_C::fused_add_rms_norm", [[3, 4], [3, 4], [4], []], [HALF] * 3 + ["Scalar"], [""] * 4, 0, 2 * (4 * 12 + 4)),
    (
        "_C::rotary_embedding",
        [[3], [3, 8], [3, 4], [], [99, 4]],
        ["long int", HALF, HALF, "Scalar", HALF],
        ["", "", "", "4"],
        0,
        8 * 3 + 2 * 2 * 36,
    ),
    (
        "_C_cache_ops::reshape_and_cache_flash",  # two of three tokens have a slot
        [[3, 2, 4], [3, 2, 4], [9, 16, 2, 4], [9, 16, 2, 4], [2]],
        [HALF] * 2 + ["c10::Float8_e4m3fn"] * 2 + ["long int"],
        [""] * 5,
        0,
        8 * 2 + 2 * 16 * (2 + 1),
    ),
    ("_vllm_fa3_C::fwd", [[3, 2, 4]] + [[9, 16, 1, 4]] * 2, [HALF] * 3, [""] * 3, 4 * 24, 2 * 2 * 24),
    ("aten::cat", [[[3, 4], [3, 4]], []], ["TensorList", "Scalar"], ["", "0"], 0, 4 * 48),
]


@pytest.mark.parametrize(("name", "shapes", "types", "values", "flop", "moved"), BY_HAND)
def test_an_operator_has_the_work_of_its_definition(name, shapes, types, values, flop, moved):  # noqa: PLR0913
    inputs = (json.dumps(shapes), json.dumps(types), None, json.dumps(values))
    work = work_of(name, inputs, ELEMENTWISE, 4)
    assert (work.flop, work.bytes) == (flop, moved)


@pytest.mark.parametrize(
    ("name", "shapes", "values"),
    [
        ("aten::unheard_of", [[3, 4]], [""]),
        ("aten::mm", None, None),
        ("aten::mm", [[3, 4], [5, 6]], ["", ""]),
        ("aten::convolution", [[2, 4, 6, 6], [8, 4, 3, 3]], None),
        ("aten::convolution", [[2, 4, 6, 6], [8, 4, 9, 9]], ["", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "False"]),
        ("aten::_flash_attention_forward", [[4, 2, 8]] * 3, None),
        ("aten::_flash_attention_forward", [[4, 2, 8], [8], [4, 2, 8]], None),
        ("aten::_flash_attention_forward", [[1, 4, 2, 8]] + [[1, 5, 2, 8]] * 2 + [[]] * 9, [""] * 11 + ["2", "0"]),
        ("flash_attn::_flash_attn_varlen_forward", [[4, 2, 8]] + [[9, 16, 2, 8]] * 2 + [[3], [3]], [""] * 5),
        ("_C::rotary_embedding", [[3], [3, 8], [3, 4], [], [99, 2]], ["", "", "", "4"]),
        ("triton_poi_fused_embedding_0", [[9, 4], [3]], ["", ""]),
        ("aten::mm", [[1 << 40, 1 << 40], [1 << 40, 4]], ["", ""]),
    ],
    ids=[
        *("no model", "no shapes", "no product", "no strides", "no room", "packed"),
        *("keys of another rank", "keys of a window", "pages of a cache", "a part of each head"),
        *("chosen rows", "beyond any memory"),
    ],
)
def test_what_cannot_be_told_is_no_work(name, shapes, values):
    written = [each and json.dumps(each) for each in (shapes, shapes and [FLOAT] * len(shapes), values)]
    assert work_of(name, (*written[:2], None, written[2]), PLAIN, 4) is None


def test_without_values_attention_has_at_least_the_work_of_a_causal_mask():
    inputs = (json.dumps([[1, 4, 2, 8]] * 3), None, None, None)
    work = work_of("aten::_flash_attention_forward", inputs, PLAIN, 2)
    assert (work.flop, work.known) == (2 * 2 * 2 * 10 * 8, "bound")
    full = work_of("aten::_flash_attention_forward", inputs, PLAIN._replace(causal=False), 2)
    assert (full.flop, full.known) == (2 * 2 * 2 * 16 * 8, "model")


def test_a_mask_whose_end_is_aligned_keeps_all_keys_of_the_last_query():
    assert [Pairs(2, 5, 1, causal=True, at_end=at_end).kept for at_end in (False, True)] == [1 + 2, 4 + 5]
    assert [Pairs(1, 4096, 1, causal=True, at_end=at_end).kept for at_end in (False, True)] == [1, 4096]


#: What a damaged or hostile trace may have in the place of shapes, types or values.
ANYTHING = st.recursive(
    st.none() | st.integers(-3, 1 << 62) | st.sampled_from(["", "True", "[1, 1]", "9" * 5000, FLOAT, "TensorList"]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(_MODELS)), st.lists(st.lists(ANYTHING, max_size=12), min_size=4, max_size=4))
def test_whatever_stands_in_a_trace_is_no_crash(name, inputs):
    work = work_of(name, tuple(map(json.dumps, inputs)), PLAIN, 2)
    assert work is None or (0 <= work.flop <= LARGEST and 0 <= work.bytes <= LARGEST)


def test_nesting_without_end_is_no_crash():
    assert work_of("aten::mm", ("[" * 50_000, None, None, None), PLAIN, 2) is None


def test_tiles_are_filled_up_and_clusters_have_whole_tiles():
    said = PLAIN._replace(tile=(64, 8, 16))
    assert executed_flop(Product(4096, 1, 100), said) == 2 * 4096 * 8 * 112
    assert executed_flop(Product(65, 1, 100, 3), said._replace(cluster=(4, 1))) == 3 * 2 * 256 * 8 * 112
    assert executed_flop(Product(65, 1, 100), PLAIN) is None


def test_blocks_of_a_causal_mask_are_whole():
    said = PLAIN._replace(tile=(128, 64))
    assert executed_flop(Pairs(256, 256, 1, causal=True), said) == 128 * 128 + 128 * 256
    assert executed_flop(Pairs(1, 300, 1, causal=False), said) == 128 * 384
    assert executed_flop(Pairs(1, 300, 1, causal=True, at_end=True), said) == 128 * 384


@pytest.fixture(scope="module")
def operators():
    """What each case of the recording did, beside what FlopCounter and ncu counted of it."""
    truth = json.loads((REPORTS / "work/operators.truth.json").read_text())
    report = real_report(REPORTS / "work/operators.json.gz")
    calls = kanalyze.work(report)
    ranges = report.kind("range").with_columns(pl.col("name").cast(pl.String))
    cases = ranges.filter(pl.col("name").str.starts_with("case:"))
    rows = []
    for name, start, length in cases.select("name", "start_ns", "dur_ns").iter_rows():
        ran = calls.filter(pl.col("start_ns").is_between(start, start + length))
        rows.append({"case": name.removeprefix("case:"), "ran": ran, **truth.get(name.removeprefix("case:"), {})})
    return rows


def test_flops_are_those_of_flop_counter_but_of_masks(operators):
    """FlopCounter counts all pairs of a causal mask."""
    compared = 0
    for row in operators:
        flop = row["ran"].get_column("flop").sum()
        if row.get("counted_flop") and flop:
            masked = any(word in row["case"] for word in ("causal", "backward")) and "sdpa" in row["case"]
            expected = row["counted_flop"] * (0.5 if masked and "full" not in row["case"] else 1)
            assert flop == pytest.approx(expected, rel=0.002 if masked else 1e-9), row["case"]
            compared += 1
    assert compared >= 45


def test_executed_flops_are_those_that_ncu_counts_on_tensor_cores(operators):
    compared, apart = 0, []
    for row in operators:
        executed = row["ran"].select(pl.coalesce("executed_flop", "flop").sum()).item()
        if row.get("tensor_flop") and executed:
            compared += 1
            apart += [row["case"]] if abs(executed / row["tensor_flop"] - 1) > 0.01 else []
    assert compared >= 40
    # what a kernel pads a group's channels to is not in its name
    assert apart == ["conv_grouped_bf16"]


MEMORY_BOUND = (
    *("add_bf16", "add_fp32_scalar", "mul_broadcast_bf16", "gelu_bf16", "gelu_backward_bf16", "cast_bf16_fp32"),
    *("copy_transposed_bf16", "cat_bf16", "where_bf16", "fill_bf16", "sum_fp32", "sum_dim_bf16", "mean_fp32"),
    *("argmax_fp32", "masked_fill_bf16", "adamw_fused", "softmax_bf16", "softmax_backward_bf16", "log_softmax_fp32"),
    *("mm_bf16_m1_nt", "mm_bf16_m8_nt", "mm_bf16_skinny", "sdpa_flash_decode", "sdpa_efficient_mask", "mv_bf16"),
)


def test_bytes_of_what_memory_bounds_are_those_that_ncu_counts(operators):
    bound = [row for row in operators if row["case"] in MEMORY_BOUND]
    shares = {row["case"]: row["ran"].get_column("bytes").sum() / row["dram_bytes"] for row in bound}
    assert sorted(shares) == sorted(MEMORY_BOUND)
    assert {name: share for name, share in shares.items() if not 0.9 < share < 1.1} == {}


def test_no_operator_is_faster_than_its_roof(operators):
    for row in operators:
        assert row["ran"].filter(pl.col("roof_ns") > 1.02 * pl.col("dur_ns")).is_empty(), row["case"]


CYCLES, OPS = 1000, [op for ops, _ in _CORES.values() for op in ops]


def counted(*launches, name=OTHER):
    """What ncu counts of launches of one kernel: products in fp32, and bytes, of each."""
    zero = {f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed": 0 for op in OPS} | {BUSY: 0}
    ffma = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed"
    return measured(
        *(
            zero
            | {"smsp__cycles_elapsed.avg": CYCLES, ffma: flop / CYCLES / 2}
            | {"dram__bytes_read.sum": moved, "dram__bytes_write.sum": 0}
            for flop, moved in launches
        ),
        names=[name] * len(launches),
    )


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["add", "add_parallel", "square", "launch_bound_plain"])
def test_a_launch_that_ncu_counted_has_its_figures(name):
    report = real_report(SAMPLES / name)
    joined = kanalyze.joined(report, counters_at(SAMPLES / name)).drop_nulls(["launch_event_id", "dram_bytes_per_s"])
    work = kanalyze.work(report).filter(measured="exact", kernels=1)
    both = work.join(joined, left_on="event_id", right_on="launch_event_id")
    assert both.height
    counts = kanalyze.roofline(counters_at(SAMPLES / name)).select("event_id", "dram_bytes", "flop")
    told = both.join(counts, left_on="event_id_right", right_on="event_id", suffix="_ncu")
    assert told.get_column("dram_bytes").to_list() == told.get_column("dram_bytes_ncu").to_list()
    assert told.get_column("flop").to_list() == pytest.approx(told.get_column("flop_ncu").to_list(), abs=1)


SHAPES = st.sampled_from([None, [[64, 32], [32, 64]], [[64, 96], [96, 64]]])
COUNTS = st.tuples(st.sampled_from([2_000, 4_000]), st.sampled_from([10_000, 30_000]))


@few_given(st.lists(st.tuples(SHAPES, st.sampled_from([100_000, 101_000, 200_000])), min_size=1, max_size=5),
       st.lists(COUNTS, min_size=1, max_size=3))  # fmt: skip
def test_counts_of_others_are_taken_where_inputs_or_times_are_the_same(launches, counts):
    made = program([(shapes, OTHER, ns) for shapes, ns in launches])
    ncu = counted(*counts)
    found = kanalyze.work(replace(made, counted=lambda: ncu))
    shapes, times = {str(one) for one, _ in launches}, [ns for _, ns in launches]
    alike = None
    if len({flop for flop, _ in counts}) == len({moved for _, moved in counts}) == 1:
        if len(counts) == len(launches) or (len(shapes) == 1 and "None" not in shapes):
            alike = "exact"
        elif max(times) <= 1.2 * min(times):
            alike = "alike"
    assert set(found.get_column("measured")) == {alike}
    assert set(found.get_column("dram_bytes")) == {counts[0][1] if alike else None}
    rows = found.filter(known="model").select("flop", "bytes").rows()
    assert rows == kanalyze.work(made).filter(known="model").select("flop", "bytes").rows()
    assert {*found.filter(known=alike or "none").get_column("flop")} <= {counts[0][0]}


def test_what_compute_bounds_counts_whatever_it_is_called():
    made = replace(program([(None, OTHER, 200_000)]), counted=lambda: counted((10**9, 1000)))
    assert kanalyze.mfu(made).select("flop", "known_share").row(0) == (10**9, 1.0)
    assert kanalyze.budget(made).get_column("detail").to_list()[:2] == ["other kernels"] * 2


def test_products_by_gpu_metrics_are_those_of_their_shape():
    """17 products of 8,192 × 8,192, under a clock that falls."""
    row = kanalyze.work(real_report(REPORTS / "metrics_matmul.sqlite")).row(0, named=True)
    assert (row["known"], row["measured"], row["type"], row["group"]) == ("sampled", "sampled", "bf16", "products")
    assert row["flop"] == pytest.approx(17 * 2 * 8192**3, rel=0.03)
    assert row["roof_ns"] == pytest.approx(0.94 * row["dur_ns"], rel=0.01)  # the share of time of its tensor cores


def test_copies_by_gpu_metrics_move_what_they_copy():
    row = kanalyze.work(real_report(REPORTS / "gpu_metrics.sqlite")).row(0, named=True)
    assert (row["flop"], row["bound"]) == (0, "memory")
    assert row["dram_bytes"] == row["bytes"] == pytest.approx(11 * 2 * (4 << 30), rel=0.01)


def test_shares_that_whole_percents_cannot_tell_are_not_told():
    work = kanalyze.work(real_report(REPORTS / "metrics_phases.sqlite"))
    assert work.select("dram_bytes", "measured", "known").null_count().row(0) == (work.height,) * 3
