"""Gradients of rows that no index takes."""

import pytest

from kanalyze.analyses.findings.rules.needless_work import dense_gradients
from support.build import host
from support.measures import assert_told
from support.steps import in_steps, operator

FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, X>(int)"
ADAM = (
    "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>, "
    "at::native::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)0, false>, float*>(X)"
)
STEP = 1_000_000
DENSE = "aten::embedding_dense_backward"
SUM = "torch::autograd::AccumulateGrad"


def looked_up(at, rows, indices, took):
    """Backward of an embedding, and the shapes of its operators."""
    events = [host("op", "aten::embedding_backward", at, at + 20_000), host("op", DENSE, at + 500, at + 19_000)]
    events += operator("aten::zero_", at + 1000, of=FILL, took=took)
    return events, [None, f"[[2, {indices // 2}, 16], [2, {indices // 2}], [], [], []]", f"[[{rows}, 16]]", None, None]


def training(*tables, product="[[8, 16], [16, 16], []]", sums=((1000, 16), (500, 32)), steps=5):
    """Five passes that look up tables (rows, indices, ns of the fill); the optimizer's steps follow the first ones."""
    events, shapes = [], []

    def add(more, *told):
        events.extend(more)
        shapes.extend([*told, *[None] * (len(more) - len(told))])

    for at in range(0, 5 * STEP, STEP):
        add(operator("aten::linear", at, took=50_000), product)
        for number, table in enumerate(tables):
            more, told = looked_up(at + 100_000 + 120_000 * number, *table)
            add(more, *told)
        for number, shape in enumerate(sums):
            begin = at + 500_000 + 10_000 * number
            add([host("op", SUM, begin, begin + 5000)], str([list(shape)]) if shape else None)
        if at < steps * STEP:
            add([host("op", "Optimizer.step#Adam.step", at + 600_000, at + 640_000)])
            add(operator("aten::_fused_adam_", at + 601_000, of=ADAM, took=200_000))
    details = [{"event_id": at, "input_shapes": text} for at, text in enumerate(shapes) if text]
    return in_steps(events, 5, op_detail=details)


TABLE = (1000, 10, 100_000)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("of", "stake"),
    [
        (training(TABLE), 5 * (99_000 + 99_000)),
        (training((1000, 130, 100_000)), 0),  # many rows are looked up
        (training(TABLE, steps=1), 5 * 95_000 + 95_000),  # five passes a step
        (training((1000, 30, 100_000), steps=1), 0),  # of which each looks up others
        (training(TABLE, TABLE), 5 * (98_000 + 98_000 + 98_000)),  # one table that is looked up twice
        (training(TABLE, (70, 10, 7_000), sums=[(1000, 16), (70, 16)]), 5 * (92_523 + 6_476 + 185_046)),  # of elements
        (training(TABLE, product="[[8, 16], [1000, 16], []]"), 0),  # a layer's weights, of which all have gradients
        (training(TABLE, product="[[8, 16], [16, 1000]]"), 0),
        (training(TABLE, sums=[None, None]), 0),
        (training(TABLE, steps=0), 0),
    ],
)
def test_rows_without_an_index_are_neither_filled_nor_updated(of, stake):
    found = dense_gradients(of)
    assert_told(found, [stake] * bool(stake), *(["Gradients of embeddings are dense"] * bool(stake)))
    assert [one.at_most for one in found] == [True] * bool(stake)
