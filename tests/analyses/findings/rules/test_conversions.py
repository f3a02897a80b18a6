"""Findings about kernels that convert layouts and types."""

from pathlib import Path

import pytest

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.needless_kernels import layout_conversions, recurring_casts
from kanalyze.window import Window
from support.build import call, host, kernel, report
from support.kernel_names import ADD, DOWN, GEMM, SOFTMAX, STRIDED, UP
from support.real_reports import real_report

REPORTS = Path(__file__).parents[3] / "reports"
SAMPLES = Path(__file__).parents[4] / "sample_reports"

THERE = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, (bool)0, (bool)1, (cudnnKernelDataType_t)0>(T3)"
BACK = "void cudnn::ops::nhwcToNchwKernel<__half, __half, float, (bool)1, (bool)0, (cudnnKernelDataType_t)0>(T3)"
ROUND = "void cudnn::engines_precompiled::convertTensor_kernel<float, float, float, (cudnnKernelDataType_t)2>(T3)"
WORK = "void at::native::f()"


def test_conversions_of_images_are_told_with_their_time_and_what_may_follow():
    (found,) = layout_conversions(
        report([kernel(0, 10, name=THERE), kernel(10, 25, name=BACK), kernel(25, 100, name=WORK)])
    )
    assert (found.at_stake_ns, found.at_most) == (25, False)
    assert "2 conversions of images between NCHW and NHWC by cuDNN (most {0}): 25 ns, 25.0 % of" in found.text
    assert found.action == "model.to(memory_format=torch.channels_last)"
    assert found.names == (BACK,)
    assert layout_conversions(report([kernel(0, 10, name=THERE)]))[0].action == "tensors in NHWC"


@pytest.mark.parametrize("events", [[kernel(0, 9, name=THERE), kernel(9, 1000)], [kernel(0, 100, name=ROUND)]])
def test_few_conversions_and_those_of_types_are_none(events):
    assert layout_conversions(report(events)) == []


def casts(many, name, *, rest=1000):
    return [*(kernel(10 * at, 10 * at + 10, name=name) for at in range(many)), kernel(10 * many, 10 * many + rest)]


@pytest.mark.parametrize(
    ("name", "to", "headline"),
    [
        (DOWN, "to bfloat16 from float32", "32 casts between bfloat16 and float32"),
        (UP, "to float32", "32 casts from type to type"),
    ],
)
def test_casts_that_recur(name, to, headline):
    (found,) = recurring_casts(report(casts(32, name)))
    assert (found.at_stake_ns, found.at_most, found.headline) == (320, False, headline)
    assert f"32 casts between types, most {to} ({{0}}): 320 ns, 24.2 % of kernel time; the GPU" in found.text


@pytest.mark.parametrize("events", [casts(32, STRIDED), casts(31, UP), casts(32, UP, rest=20_000)])
def test_copies_of_one_type_and_few_casts_are_none(events):
    assert recurring_casts(report(events)) == []


def attention(at):
    """Attention under autocast that is not fused: its scores are cast to float32 and back."""
    names = (GEMM, ADD, UP, SOFTMAX, DOWN, GEMM)
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


OPTIMIZER = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>(T)"


@pytest.mark.parametrize(
    ("cast", "beside", "action"),
    [
        (DOWN, None, "keep weights in bfloat16, or torch.compile(model)"),
        (DOWN, "triton_poi_fused_add_mul_0", "keep weights in bfloat16, or cast them once"),
        (DOWN.replace("bfloat16", "float16"), None, "keep weights in half precision, or torch.compile(model)"),
        (DOWN.replace("bfloat16", "float16"), OPTIMIZER, "keep weights in bfloat16, or torch.compile(model)"),
    ],
    ids=["to compile", "compiled", "inference", "training"],
)
def test_where_weights_are_to_be_kept(cast, beside, action):
    more = [kernel(90_000, 90_001, name=beside)] if beside else []
    (found,) = recurring_casts(report([*casts(32, cast), *more]))
    assert found.action == action


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
