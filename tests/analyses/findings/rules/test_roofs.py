"""Kernels by their distance to the roof: each cause by itself, and no gain beyond the distance."""

import json

import polars as pl
import pytest
from hypothesis import given, strategies as st

import kanalyze
from kanalyze import intervals
from kanalyze.analyses.findings.findings import _SAME_WORK, by_gain, ranked
from kanalyze.analyses.findings.rules.laws import below_roofs
from kanalyze.analyses.work.work import least_times
from support.build import kernel, launched, report
from support.command import REPORTS
from support.real_reports import real_report
from support.steps import shaped
from support.strategies import FEWER

pytestmark = pytest.mark.slow

TILE, SMALL = "nvjet_sm90_tst_{}x{}_64x4_1x1_v_bz_TNT", "nvjet_sm90_tst_64x8_64x16_1x1_v_bz_TNT"
UNALIGNED = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>(Params)"
FLOAT = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)"
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float>(c10::BFloat16*, int)"
PEAK, BANDWIDTH = 989.4e12, 3.35e12


def program(calls, *, op="aten::mm", kind="c10::BFloat16"):
    """Operators one after another on an H100, each with one kernel: shapes of its inputs, kernel and time in ns."""
    events, at = [], 0
    for shapes, name, length in calls:
        row, at = len(events), at + 10_000
        made = kernel(at + 5, at + 5 + length, name=name, parent=row, grid=(16, 1, 1))
        types = json.dumps([kind] * max(len(shapes), 2))
        own = shaped(op, at, at + 50, json.dumps(shapes), input_types=types)
        events += [own, *launched(at + 1, at + 2, made, parent=row)]
        at += length
    limits = {"name": "NVIDIA H100 80GB HBM3", "memory_bandwidth_bytes_per_s": int(BANDWIDTH), "l2_bytes": 50 << 20}
    limits |= {"sm_count": 132, "compute_capability": "9.0"}
    return report(events, kinds=("kernel", "memcpy", "memset", "api", "op", "range"), limits=limits)


def found(made):
    return {one.rule: one for one in ranked(made)}


def test_a_product_whose_columns_hardly_fill_a_tile_is_padded():
    """300 columns in tiles of 256 are 512."""
    one = found(program([([[8192, 8192], [8192, 300]], TILE.format(256, 128), 90_000)] * 8))["padded-products"]
    assert one.headline == "Products compute 1.71 times what they need, in padding"
    floor = 2 * (8192 * 8192 + 2 * 8192 * 300) / BANDWIDTH * 1e9
    padded = 2 * 8192 * 8192 * 512 / PEAK * 1e9
    assert floor > 2 * 8192 * 8192 * 300 / PEAK * 1e9  # of the products alone
    assert one.at_stake_ns == pytest.approx(8 * 90_000 * (1 - floor / padded), rel=1e-3)


def test_a_long_product_with_two_tiles_is_skinny():
    one = found(program([([[128, 1 << 18], [1 << 18, 256]], TILE.format(128, 128), 900_000)] * 4))["skinny-products"]
    assert "2 tiles of a product for 132 SMs" in one.headline
    assert "[128, 262144] × [262144, 256]" in one.text
    floor = 2 * (128 * (1 << 18) + (1 << 18) * 256 + 128 * 256) / BANDWIDTH * 1e9  # what the bytes take
    assert one.at_stake_ns == pytest.approx(4 * (900_000 - floor / 0.75 - 2000), rel=1e-3)
    cut = TILE.format(128, 128) + "_splitK"
    assert "skinny-products" not in found(program([([[128, 1 << 18], [1 << 18, 256]], cut, 900_000)] * 4))


def test_weights_that_are_read_at_the_bandwidth_are_at_their_floor_and_no_finding_on_blocks_is_made():
    weights = 2 * 16384 * 16384
    made = program([([[1, 16384], [16384, 16384]], SMALL, int(weights / BANDWIDTH * 1e9 / 0.8))] * 6)
    told = found(made)
    assert told["memory-floor"].headline == "Products of few rows read weights at 80.0 % of the bandwidth"
    assert told["memory-floor"].vague
    assert not {"small-grid", "low-occupancy", "tail", "padded-products", "far-from-roof"} & told.keys()


def test_what_is_far_from_its_roof_is_named_with_its_shapes():
    made = program([([[8192, 8192], []], SOFTMAX, 500_000)] * 4, op="aten::_softmax")
    one = found(made)["far-from-roof"]
    floor = 2 * 2 * 8192 * 8192 / BANDWIDTH * 1e9
    assert one.general
    assert "[8192, 8192]" in one.text
    assert one.at_stake_ns == pytest.approx(4 * (500_000 - floor / 0.8), rel=2e-3)


NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)"
NORMED = [[65536, 1024], [], [1024], [1024], []]
LONG = [[64, 1 << 19], [1 << 19, 64]]
QUICK = [([[4096, 4096], [4096, 4096]], TILE.format(128, 128), 180_000), ([[64, 64], [64, 64]], SMALL, 4000)]


@pytest.mark.parametrize(
    ("calls", "of", "rules"),
    [
        ([(NORMED, NORM, 2_000_000)], {"op": "aten::native_layer_norm", "kind": "float"}, {"far-from-roof"}),
        # of gradients of norms nobody knows what others reach
        ([([NORMED[0], *NORMED], NORM, 2_000_000)], {"op": "aten::native_layer_norm_backward", "kind": "float"}, set()),
        # what chooses values passes over them more than once
        ([([[8192, 8192], []], SOFTMAX, 500_000)], {"op": "aten::topk"}, set()),
        # a sum over many rows reads no weights: of gradients of small ones both matrices are as long
        ([(LONG, SMALL, int(2 * 2 * 64 * (1 << 19) / BANDWIDTH * 1e9 / 0.8))], {}, set()),
        (QUICK, {}, set()),  # short ones, and those near their roof
    ],
)
def test_which_kernels_are_far_from_their_roof(calls, of, rules):
    told = found(program(calls * 4, **of)).keys()
    assert told & {"padded-products", "skinny-products", "memory-floor", "far-from-roof"} == rules


def test_products_of_an_operator_without_a_model_have_all_of_their_time_at_stake():
    """Beside others, of which the roof of TF32 bounds what it saves."""
    (other,) = found(program([([[4096, 4096]], FLOAT, 900_000)], op="mine::mm", kind="float")).values()
    assert (other.rule, other.at_stake_ns) == ("no-tf32", 900_000)


SIDE = st.sampled_from([1, 8, 100, 1024, 4097])
CALL = st.tuples(
    st.tuples(SIDE, SIDE, SIDE).map(lambda mkn: [[mkn[0], mkn[1]], [mkn[1], mkn[2]]]),
    st.sampled_from([SMALL, UNALIGNED, FLOAT, TILE.format(128, 128), "my_kernel(float*)"]),
    st.integers(2000, 2_000_000),
)


@FEWER
@given(st.lists(CALL, min_size=1, max_size=5), st.sampled_from(["float", "c10::BFloat16"]))
def test_no_gain_of_kernels_of_the_same_work_exceeds_their_distance_to_the_roof(calls, kind):
    made = program(calls * 2, kind=kind)
    work = kanalyze.work(made).with_columns(end=pl.col("start_ns") + pl.col("dur_ns"))
    for one in ranked(made):
        if _SAME_WORK.get(one.rule) == "":
            starts = one.claims.get_column("start") if one.claims is not None else []
            inside = [(pl.col("start_ns") <= at) & (pl.col("end") > at) for at in starts]
            own = work.filter(pl.any_horizontal(pl.lit(value=False), *inside))
            distance = own.select(pl.coalesce("distance_ns", "exclusive_ns").sum()).item()
            assert one.at_stake_ns <= distance + len(work)
            change = one.change(made)
            if change is not None:
                assert change.shorter.get_column("saved_ns").sum() <= distance + len(work)


REAL = [
    *("work/gpt.json.gz", "work/operators.json.gz", "torch/memory.json.gz", "torch/ddp.json.gz", "emit_nvtx.sqlite"),
    *("torch/with_modules.json.gz", "torch/compile_reduce_overhead.json.gz", "torch/cuda_graph.json.gz"),
]


@pytest.mark.parametrize("name", REAL)
def test_no_gain_in_a_real_report_exceeds_the_distance_to_the_roof(name):
    made = real_report(REPORTS / name)
    for one in by_gain(made):
        if one.rule not in _SAME_WORK or one.claims is None or "The same cause" in one.text:
            continue
        kernels = least_times(made, _SAME_WORK[one.rule]).filter(device=one.device)
        claims = intervals.union(one.claims)
        part = intervals.overlap(kernels["start"], kernels["end"], claims) / (kernels["end"] - kernels["start"])
        beyond = kernels["exclusive_ns"] * (1 - kernels["least_ns"].fill_null(0) / kernels["dur_ns"]).clip(0)
        assert one.gain_ns <= (beyond * part).sum() + kernels.height


def test_what_others_tell_of_is_left_out():
    slow = [([[8192, 8192], []], SOFTMAX, 500_000), ([[4096, 8192], []], SOFTMAX, 600_000)]
    made = program(slow * 2, op="aten::_softmax")
    one = found(made)["far-from-roof"]
    assert "[4096, 8192]" in one.text  # of which most is lost
    rows = one.claims.sort("start")
    whole = next(each for each in below_roofs(made))
    left = whole.retold(rows.gather([0, 2]))
    assert "[8192, 8192]" in left.text
    assert left.at_stake_ns < one.at_stake_ns / 2
    assert whole.retold(rows.gather([0, 2]).with_columns(end=pl.col("end") - 1)) is None
    assert whole.retold(rows.head(0)) is None
