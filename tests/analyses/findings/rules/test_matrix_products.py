"""Findings about matrix products and convolutions by the wrong kernels."""

from pathlib import Path

import pytest

from kanalyze.analyses.findings.rules.slower_kernels import (
    no_tensor_cores,
    no_tf32,
    old_architecture_gemm,
    unaligned_gemm,
)
from kanalyze.window import Window
from support.build import call as launch
from support.build import host, kernel, nvtx, report
from support.kernel_names import GEMM
from support.real_reports import real_report

REPORTS = Path(__file__).parents[3] / "reports"
SAMPLES = Path(__file__).parents[4] / "sample_reports"

HOPPER = {"compute_capability": "9.0", "name": "NVIDIA H200"}
ALIGN1 = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(T1::Params)"
ALIGN8 = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn_align8>(T1::Params)"
FLOAT = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel"
TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x256x32_warpgroupsize2x1x1_execute_segment_k_off_kernel"
IMAGES = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_stage3_warpsize1x2x1_g1_ffma"
IMAGES_TF32 = "sm90_xmma_dgrad_implicit_gemm_indexed_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32"
HALF = "maxwell_fp16_sgemm_fp16_128x32_nn"


def told(rule, *events, limits=None, **tables):
    return rule(report(events, limits=limits or HOPPER, **tables))


def saved(found):
    """What the remedy takes off each kernel."""
    return found.mending(report([])).shorter["saved_ns"].to_list()


def product(at, start, end, name, operator="aten::mm"):
    """An operator, its launch and its kernel; `at` is the place of the operator in the list of events."""
    return (
        host("op", operator, start, start + 2),
        launch("cudaLaunchKernel", start, start + 1, correlation=at, parent=at),
        kernel(start + 2, end, name=name, correlation=at, parent=at),
    )


def test_products_of_unaligned_data_are_at_stake_whole_where_no_shapes_are_known():
    (found,) = told(unaligned_gemm, kernel(0, 300, name=ALIGN1), kernel(300, 1000, name=GEMM))
    assert (found.at_stake_ns, found.at_most, found.names) == (300, False, (ALIGN1,))
    assert saved(found) == [120]
    assert "1 matrix product by kernels for unaligned data (align1, most {0}): 300 ns, 30.0 % of kernel" in found.text
    assert found.action == "Pad dimensions to multiples of 64"


def test_with_shapes_the_odd_dimension_is_named_and_what_aligned_ones_take_is_no_loss():
    """The aligned product does 64 × 64 × 64 in 128 ns; the unaligned one 64 × 64 × 65 in 1298 ns."""
    events = [*product(0, 0, 130, GEMM), *product(3, 200, 1500, ALIGN1)]
    shapes = [
        {"event_id": 0, "input_shapes": "[[64, 64], [64, 64]]"},
        {"event_id": 3, "input_shapes": "[[64, 64], [64, 65]]"},
    ]
    (found,) = told(unaligned_gemm, *events, op_detail=shapes)
    assert found.at_stake_ns == 1298 - 130
    assert "Most for [64, 64] × [64, 65]: 65 is no multiple of 8. At the best rate of the aligned" in found.text
    assert found.action == "Pad 65 to a multiple of 64"


FLOAT64 = "sm80_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize64x32x16_stage4_tensor8x8x4"
VECTOR = "void gemv2T_kernel_val<int, int, __half, __half, __half, float>(X)"


@pytest.mark.parametrize(
    ("rule", "name", "limits"),
    [
        *(
            (unaligned_gemm, name, HOPPER)
            for name in (ALIGN8, GEMM, FLOAT, "cutlass_80_simt_sgemm_256x128_8x4_tn_align1")
        ),
        *((old_architecture_gemm, ALIGN8, {"compute_capability": one}) for one in ("8.0", "8.9", "12.0")),
        *((old_architecture_gemm, name, HOPPER) for name in (GEMM, FLOAT, FLOAT64)),
        *((no_tf32, FLOAT, {"compute_capability": one}) for one in ("7.5", None, "gfx942")),
        *((no_tensor_cores, name, HOPPER) for name in (GEMM, FLOAT, VECTOR)),
        (no_tensor_cores, HALF, {"compute_capability": "6.1"}),
    ],
)
def test_products_that_are_right(rule, name, limits):
    assert told(rule, kernel(0, 100, name=name), limits=limits) == []


def test_counts_and_times_are_per_step_in_a_window_of_steps():
    steps = [kernel(at, at + 60, name=ALIGN1) for at in range(0, 400, 100)]
    whole = report([*steps, nvtx("forward", 0, 400)], limits=HOPPER)
    (found,) = unaligned_gemm(whole.narrow(window=Window(0, 400, count=4, each="step")))
    assert "1 matrix product a step" in found.text
    assert "60 ns a step" in found.text
    assert found.at_stake_ns == 240


def test_the_range_of_most_of_the_launches_is_where():
    events = [nvtx("head", 0, 10), launch("cudaLaunchKernel", 1, 2, correlation=1)]
    (found,) = told(unaligned_gemm, *events, kernel(5, 100, name=ALIGN1, correlation=1))
    assert found.where == "head"


@pytest.mark.parametrize(
    ("end", "shape", "ns"),
    [
        (250, {}, [125]),
        (249, {}, []),  # a part that is not sizable
        (250, {"grid": (132, 1, 1), "block": (128, 1, 1)}, [125]),
        (250, {"grid": (131, 1, 1), "block": (128, 1, 1)}, []),  # small products gain nothing by newer kernels
    ],
)
def test_products_for_older_tensor_cores(end, shape, ns):
    assert len(told(old_architecture_gemm, kernel(0, 100, name=GEMM), limits={"compute_capability": "10.0"})) == 1
    events = [kernel(0, end, name=ALIGN8, **shape), kernel(end, 1000, name=GEMM)]
    limits = HOPPER | ({"sm_count": 132} if shape else {})
    assert [found.at_stake_ns for found in told(old_architecture_gemm, *events, limits=limits)] == ns


@pytest.mark.parametrize("rule", [unaligned_gemm, no_tf32, no_tensor_cores])
@pytest.mark.parametrize(("end", "count"), [(9, 0), (10, 1)])
def test_other_kernels_are_told_from_a_hundredth_on(rule, end, count):
    events = [kernel(at, at + end, name=name) for at, name in ((0, ALIGN1), (10, FLOAT), (20, HALF))]
    assert len(told(rule, *events, kernel(30, 1030 - 3 * end, name=GEMM))) == count


def test_float32_products_could_use_tf32():
    (found,) = told(no_tf32, kernel(0, 100, name=FLOAT), kernel(100, 200, name=TF32))
    assert (found.at_stake_ns, found.at_most) == (100, False)
    assert "cublasSetMathMode" in found.remedy
    assert saved(found) == [86]
    (found,) = told(no_tf32, kernel(0, 100, name=FLOAT), kernel(100, 200, name="void at::native::f()"))
    assert found.action == 'torch.set_float32_matmul_precision("high")'


def test_float32_convolutions_are_told_unless_others_run_in_tf32():
    (found,) = told(no_tf32, kernel(0, 100, name=IMAGES))
    assert (found.at_stake_ns, found.at_most) == (100, False)
    assert found.action == "torch.backends.cudnn.allow_tf32 = True"
    assert told(no_tf32, kernel(0, 100, name=IMAGES), kernel(100, 110, name=IMAGES_TF32)) == []


def test_16_bit_products_without_tensor_cores():
    (found,) = told(no_tensor_cores, kernel(0, 100, name=HALF), kernel(100, 200, name=GEMM))
    assert (found.at_stake_ns, found.at_most) == (100, True)
    assert found.headline == "f16 products without tensor cores: 50.0 % of kernels"
    assert saved(found) == [86]
    assert len(told(no_tensor_cores, kernel(0, 100, name=HALF), limits={"compute_capability": "7.0"})) == 1


def test_the_training_loop_in_float32_could_use_tf32():
    """All of its 546 products, as `kernels --by arch` sums them."""
    (found,) = no_tf32(real_report(SAMPLES / "mlp_train" / "nsys.sqlite"))
    assert found.at_stake_ns == 8_090_834
    assert found.where == "backward"
    assert "546 matrix products in full float32" in found.text


def test_the_dimension_that_is_padded_is_the_one_that_rows_begin_at():
    """Of a prompt of 227 tokens and a vocabulary of 50257 it is the latter; backward it is k, and m of the weights."""
    for shapes, side in (
        ("[[227, 768], [768, 50257]]", 50257),
        ("[[1024, 50257], [50257, 768]]", 50257),
        ("[[50257, 1024], [1024, 768]]", 50257),
        ("[[8], [65, 64], [64, 64]]", 65),
        ("[[2, 65, 64], [2, 64, 64]]", 65),
    ):
        shape = [{"event_id": 0, "input_shapes": shapes}]
        (found,) = told(unaligned_gemm, *product(0, 0, 100, ALIGN1, "aten::addmm"), op_detail=shape)
        assert found.action == f"Pad {side} to a multiple of 64"
    assert "Most for [2, 65, 64] × [2, 64, 64]: 65 is no multiple of 8." in found.text


@pytest.mark.parametrize("shapes", ["", "[", "[[]]", "[[1, 2]]", "[[1, 2], [3, 4]]", "[[true, 2], [2, 1]]", "7"])
def test_shapes_that_are_none_say_nothing(shapes):
    shape = [{"event_id": 0, "input_shapes": shapes}]
    (found,) = told(unaligned_gemm, *product(0, 0, 100, ALIGN1), op_detail=shape)
    assert found.action == "Pad dimensions to multiples of 64"


def test_convolutions_run_as_products_in_the_wrong_layout():
    converts = (
        "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, (bool)0, (bool)1, (cudnnKernelDataType_t)0>(T3)"
    )
    (found,) = told(unaligned_gemm, kernel(0, 100, name=ALIGN1), kernel(100, 200, name=converts))
    assert found.action == "model.to(memory_format=torch.channels_last)"
    assert found.remedy.startswith("Keep images in channels_last")


def test_products_by_cublas_that_are_few_are_left_to_it():
    assert old_architecture_gemm(real_report(REPORTS / "libraries.sqlite")) == []
