"""Gradients of rows that no index takes, and of weights that no optimizer updates."""

import pytest

from kanalyze.analyses.findings.on_host import NODE
from kanalyze.analyses.findings.rules.gradients import dense_gradients, unused_gradients
from kanalyze.window import Window
from support.build import host, kernel, launched, report
from support.measures import assert_told, measures

LAUNCH = "cudaLaunchKernel_v7000"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, X>(int)"
ADAM = (
    "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>, "
    "at::native::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)0, false>, float*>(X)"
)
STEP = 1_000_000


def run(name, at, *, took=20_000, of="k", blocks=1):
    """A kernel launched within an operator."""
    made = kernel(at + 10_000, at + 10_000 + took, name=of, grid=(blocks, 1, 1))
    return [host("op", name, at, at + 9000), *launched(at + 1000, at + 8000, made, LAUNCH)]


def with_shapes(events, shapes, steps=5):
    details = [
        {"event_id": at, "input_shapes": shapes[one.name]} for at, one in enumerate(events) if one.name in shapes
    ]
    window = Window(0, steps * STEP, count=steps, each="step")
    return report(events, op_detail=details).narrow(window=window)


def embedding(rows=1000, indices=10, *, tied=False, took=100_000):
    """Steps whose backward fills a table, and whose optimizer updates it and as much again."""
    events = []
    for at in range(0, 5 * STEP, STEP):
        events += run("aten::linear", at, took=50_000)
        events.append(host("op", "aten::embedding_dense_backward", at + 100_000, at + 120_000))
        events += run("aten::zero_", at + 101_000, of=FILL, took=took)
        events.append(host("op", "torch::autograd::AccumulateGrad", at + 130_000, at + 140_000))
        events.append(host("op", "AccumulateGrad", at + 141_000, at + 142_000))
        events += run("aten::_fused_adam_", at + 300_000, of=ADAM, took=200_000)
    shapes = {
        "aten::linear": f"[[8, 16], [{rows}, 16], []]" if tied else "[[8, 16], [16, 16], []]",
        "aten::embedding_dense_backward": f"[[2, {indices // 2}, 16], [2, {indices // 2}], [], [], []]",
        "aten::zero_": f"[[{rows}, 16]]",
        "torch::autograd::AccumulateGrad": f"[[{2 * rows}, 16]]",
    }
    return with_shapes(events, shapes)


@pytest.mark.parametrize(
    ("of", "stake"),
    [
        (embedding(), 5 * (99_000 + 99_000)),
        (embedding(100, 10), 5 * (90_000 + 90_000)),
        (embedding(70, 10), 0),  # many rows are looked up
        (embedding(tied=True), 0),  # a layer's weights, of which all have gradients
    ],
)
def test_rows_without_an_index_are_neither_filled_nor_updated(of, stake):
    found = dense_gradients(of)
    assert_told(found, [stake] * bool(stake), *(["Gradients of embeddings are dense"] * bool(stake)))
    assert not stake or measures(found[0], of)[1:] == (0, stake, 0)


def training(*, updates=(3,) * 5, gradients=20, steps=5, singly=False, of="k"):
    """Steps whose backward has gradients of a last layer and of others, of which the optimizer updates some blocks."""
    events = []
    for at in range(0, 5 * STEP, STEP):
        events += run("aten::linear", at, took=15_000)
        events += run("aten::ones_like", at + 20_000)
        for number in range(gradients):
            begin = at + 50_000 + 20_000 * number
            name = "torch::autograd::AccumulateGrad" if number else "first"
            events.append(host("op", f"{NODE}: AddmmBackward0", begin, begin + 12_000, thread=2))
            events.append(host("op", name, begin + 10_000, begin + 11_000, thread=2))
            made = kernel(begin + 3000, begin + 18_000, name=of)
            events += launched(begin + 1000, begin + 2000, made, LAUNCH, thread=2)
        if at < steps * STEP:
            events.append(host("op", "Optimizer.step#AdamW.step", at + 700_000, at + 730_000))
            update = "void at::native::vectorized_elementwise_kernel<4, X>(int)" if singly else ADAM
            events += run("aten::_fused_adamw_", at + 701_000, of=update, blocks=updates[at // STEP])
    return [
        one if one.name != "first" else host("op", "torch::autograd::AccumulateGrad", one.start, one.end, thread=2)
        for one in events
    ]


@pytest.mark.parametrize(
    ("how", "rest"),
    [
        ({}, 18),
        ({"updates": (11,) * 5}, 10),
        ({"updates": (12,) * 5}, 0),  # most are updated
        ({"updates": (21,) * 5}, 0),
        ({"gradients": 9}, 0),
        ({"steps": 4}, 0),  # gradients are summed up over passes
        ({"singly": True}, 0),
        ({"updates": (11, 1, 1, 1, 1)}, 0),  # of two models
        ({"of": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(X)"}, 0),  # each GPU updates a part
    ],
)
def test_backward_goes_on_after_what_is_updated(how, rest):
    events, details, last = training(**how), [], -STEP
    for at, one in enumerate(events):
        if one.name == "torch::autograd::AccumulateGrad":
            details.append({"event_id": at, "input_shapes": "[[70000]]" if one.start - last > 300_000 else "[[1]]"})
            last = one.start
    of = report(events, op_detail=details).narrow(window=Window(0, 5 * STEP, count=5, each="step"))
    found = unused_gradients(of)
    assert [one.rule for one in found] == ["unused-gradients"] * bool(rest)
    assert not rest or measures(found[0], of)[1] == 5 * rest
