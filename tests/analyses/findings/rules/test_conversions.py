"""Findings about kernels that convert layouts and types."""

from pathlib import Path

import pytest

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.needless_kernels import layout_conversions, recurring_casts
from kanalyze.window import Window
from support.build import call, host, kernel, report
from support.real_reports import real_report

REPORTS = Path(__file__).parents[3] / "reports"
SAMPLES = Path(__file__).parents[4] / "sample_reports"

THERE = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, (bool)0, (bool)1, (cudnnKernelDataType_t)0>(T3)"
BACK = "void cudnn::ops::nhwcToNchwKernel<__half, __half, float, (bool)1, (bool)0, (cudnnKernelDataType_t)0>(T3)"
ROUND = "void cudnn::engines_precompiled::convertTensor_kernel<float, float, float, (cudnnKernelDataType_t)2>(T3)"
COPY = "void at::native::{}<{}direct_copy_kernel_cuda(at::TensorIteratorBase&)::{{lambda(float)#1}}, std::array<X>, {}"
DOWN = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda(float)#1}, std::array<char*, 2ul> >(int)"
)
UP = COPY.format("unrolled_elementwise_kernel", "at::native::", "LoadWithCast<1>, StoreWithCast<1>>(int)")
SAME = COPY.format("elementwise_kernel", "128, 4, at::native::gpu_kernel_impl_nocast<at::native::", "4>>(int)")
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
SCALE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<X> >(int)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)"
WORK = "void at::native::f()"


def test_conversions_of_images_are_told_with_their_time_and_what_may_follow():
    (found,) = layout_conversions(
        report([kernel(0, 10, name=THERE), kernel(10, 25, name=BACK), kernel(25, 100, name=WORK)])
    )
    assert (found.at_stake_ns, found.at_most) == (25, False)
    assert "2 conversions of images between NCHW and NHWC by cuDNN (most {0}): 25 ns, 25.0 % of" in found.text
    assert found.action == "model.to(memory_format=torch.channels_last)"
    assert found.names == (BACK,)


def test_programs_without_pytorch_are_told_of_nhwc():
    (found,) = layout_conversions(report([kernel(0, 10, name=THERE)]))
    assert found.action == "tensors in NHWC"


@pytest.mark.parametrize("events", [[kernel(0, 9, name=THERE), kernel(9, 1000)], [kernel(0, 100, name=ROUND)]])
def test_few_conversions_and_those_of_types_are_none(events):
    assert layout_conversions(report(events)) == []


def casts(many, name, *, rest=1000):
    return [*(kernel(10 * at, 10 * at + 10, name=name) for at in range(many)), kernel(10 * many, 10 * many + rest)]


@pytest.mark.parametrize(("name", "to"), [(DOWN, "to bfloat16 from float32"), (UP, "to float32")])
def test_casts_that_recur(name, to):
    (found,) = recurring_casts(report(casts(32, name)))
    assert (found.at_stake_ns, found.at_most) == (320, False)
    assert f"32 casts between types, most {to} ({{0}}): 320 ns, 24.2 % of kernel time; the GPU" in found.text


@pytest.mark.parametrize(
    ("name", "headline"), [(DOWN, "32 casts between bfloat16 and float32"), (UP, "32 casts from type to type")]
)
def test_the_headline_names_both_types_where_they_are_known(name, headline):
    (found,) = recurring_casts(report(casts(32, name)))
    assert found.headline == headline


@pytest.mark.parametrize("events", [casts(32, SAME), casts(31, UP), casts(32, UP, rest=20_000)])
def test_copies_of_one_type_and_few_casts_are_none(events):
    assert recurring_casts(report(events)) == []


def attention(at):
    """Attention under autocast that is not fused: its scores are cast to float32 and back."""
    names = (GEMM, SCALE, UP, SOFTMAX, DOWN, GEMM)
    return [kernel(at + 10 * place, at + 10 * place + 10, name=name) for place, name in enumerate(names)]


def test_casts_of_attention_are_left_to_the_finding_about_it():
    alone = [event for number in range(32) for event in attention(100 * number)]
    assert [one.rule for one in ranked(report(alone)) if one.table == "kernels --by operation"] == []
    beside = [kernel(10_000 + 10 * number, 10_007 + 10 * number, name=DOWN) for number in range(40)]
    every = ranked(report([*alone, kernel(9_000, 9_200, name=WORK), *beside]))
    (found,) = (one for one in every if one.rule == "recurring-casts")
    assert found.at_stake_ns == 40 * 7
    assert found.text.endswith("their share. Other findings tell of 69.6 % of that.")


def test_casts_rarer_than_steps_do_not_recur():
    whole = report(casts(32, UP))
    assert recurring_casts(whole.narrow(window=Window(0, 1320, count=33, each="step"))) == []
    (found,) = recurring_casts(whole.narrow(window=Window(0, 1320, count=16, each="step")))
    assert "2 casts a step between types, most" in found.text


def test_what_the_gpu_waited_for_casts_is_theirs_but_no_more_than_in_the_median():
    """Each begins 14 after the end of the one before, which itself ends after the launch before; one is late."""
    events = []
    for number in range(32):
        at = 20 * number + (1000 if number > 16 else 0)
        events.append(call("cudaLaunchKernel", at, at + 4, correlation=number))
        events.append(kernel(at + 4, at + 10, name=UP, correlation=number))
    (found,) = recurring_casts(report(events))
    assert found.at_stake_ns == 32 * 6 + 31 * 14
    assert "the GPU idled 434 ns until they were launched" in found.text


def test_a_compiled_program_is_not_told_to_compile():
    actions = [
        recurring_casts(report([*casts(32, DOWN), *more]))[0].action
        for more in ([], [kernel(90_000, 90_001, name="triton_poi_fused_add_mul_0")])
    ]
    assert actions == [
        "keep weights in bfloat16, or torch.compile(model)",
        "keep weights in bfloat16, or cast them once",
    ]


@pytest.mark.parametrize(
    ("more", "to"),
    [
        ([], "half precision"),
        (
            [kernel(90_000, 90_001, name="void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>(T)")],
            "bfloat16",
        ),
    ],
    ids=["inference", "training"],
)
def test_weights_of_a_training_are_not_kept_in_float16(more, to):
    (found,) = recurring_casts(report([*casts(32, DOWN.replace("bfloat16", "float16")), *more]))
    assert found.action.startswith(f"keep weights in {to}, or ")


def test_the_outermost_operator_of_most_casts_is_named():
    events = [
        host("op", "autograd::engine::evaluate_function: ToCopyBackward0", 0, 100),
        host("op", "aten::to", 5, 90),
        call("cudaLaunchKernel", 10, 20, correlation=1, parent=1),
        kernel(30, 1000, name=UP, correlation=1, parent=1),
        *(kernel(1000 + at, 1001 + at, name=UP) for at in range(31)),
    ]
    (found,) = recurring_casts(report(events))
    assert "most in ToCopyBackward0; the GPU" in found.text


def test_a_convolutional_network_in_nchw():
    (found,) = layout_conversions(real_report(REPORTS / "torch" / "memory.json.gz"))
    assert "24 conversions of images" in found.text


@pytest.mark.parametrize("name", ["mlp_train/nsys.sqlite", "gelu/torch.json.gz", "cdist/nsys.sqlite"])
def test_real_programs_without(name):
    assert layout_conversions(real_report(SAMPLES / name)) == []
    assert recurring_casts(real_report(SAMPLES / name)) == []
