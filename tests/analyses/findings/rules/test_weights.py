"""Weights and tables that are made anew in each pass, and gradients that nothing uses."""

import pytest

from kanalyze.analyses.findings.rules import needless_products, weights
from support.build import host, kernel, launched, memcpy
from support.measures import assert_told, measures
from support.steps import NODE, alike, in_steps, of_shapes, operator, shaped

STEP = 2_000_000
TRAINS = (f"{NODE}X", "[]", 5)


NORM = ("aten::linalg_vector_norm", "[[9000, 64], []]", 30_000)
DIVIDED = ("aten::div", "[[9000, 64], [9000, 64]]", 50_000)
NEAREST = ("aten::matmul", "[[16, 64], [64, 9000]]", 20_000)


@pytest.mark.parametrize(
    ("each", "stake"),
    [
        ((NORM, DIVIDED, NEAREST), 5 * 80_000),
        ((NORM, DIVIDED, ("aten::linear", "[[16, 64], [9000, 64], []]", 20_000)), 5 * 80_000),
        ((NORM, DIVIDED, ("aten::index", "[[9000, 64], [16, 9]]", 9000), NEAREST), 5 * 80_000),  # rows that are near
        ((("aten::mm", "[[9000, 8], [8, 64]]", 9000), NORM, DIVIDED, NEAREST), 0),  # made in the pass
        ((("aten::embedding", "[[99, 64], [9]]", 9000), NORM, DIVIDED, NEAREST), 0),  # maybe of 9,000 rows
        ((NORM, DIVIDED, ("aten::matmul", "[[9000, 64], [64, 9000]]", 20_000)), 0),  # all pairs
        ((NORM, DIVIDED, NEAREST, ("aten::mm", "[[5, 5], [5, 5]]", 4_000_000)), 0),
        ((NORM, DIVIDED, NEAREST, ("autograd::engine::evaluate_function: X", "[]", 5)), 0),  # in training
    ],
)
def test_tables_that_are_normalized_in_each_pass(each, stake):
    assert_told(weights.normalized_tables(of_shapes(*each)), [stake] * bool(stake), *(["table of 9,000"] * bool(stake)))


@pytest.mark.parametrize(("before", "spared"), [(6_000, 15_000), (300_000, 18_000)])  # at most as long as the operator
def test_python_before_weights_that_are_normalized_goes_with_them(before, spared):
    norm, at = "at::native::weight_norm_fwd_first_dim_kernel<float>", before + 9_000
    layer = operator("aten::conv1d", at + 14_000)
    of = alike(*operator("aten::leaky_relu", 0), *operator("aten::_weight_norm", at, of=norm), *layer)
    assert [measures(one, of)[1:] for one in weights.weight_norm(of)] == [(5, 0, 5 * spared)]


UPDATE = ("aten::matmul", "[[1024, 16], [16, 512]]", 4_000)
SCALE = ("aten::mul", "[[1024, 512], []]", 3_000)
CHANGE = ("aten::add", "[[1024, 512], [1024, 512], []]", 5_000)
CHANGED = ("aten::linear", "[[32, 512], [1024, 512], []]", 16_000)
OTHER = ("aten::mm", "[[16, 16], [16, 16]]", 16_000)


@pytest.mark.parametrize(
    ("each", "stake"),
    [
        ((UPDATE, SCALE, CHANGE, CHANGED), 12_000),
        ((UPDATE, CHANGE, CHANGED, TRAINS), 9_000),
        ((UPDATE, ("aten::mul", "[[1024, 512], [1024, 512]]", 3_000), CHANGE, CHANGED), 0),  # by a matrix
        (((UPDATE[0], "[[1024, 256], [256, 512]]", 4_000), CHANGE, CHANGED), 0),  # not narrow
        ((UPDATE, ("aten::add_", *CHANGE[1:]), CHANGED), 0),  # the weight stays changed
        ((UPDATE, CHANGE, OTHER, CHANGED), 0),
        ((UPDATE, CHANGE, ("aten::linear", "[[8192, 512], [1024, 512], []]", 16_000)), 0),  # as much for so many rows
        ((UPDATE, CHANGE, ("aten::linear", "[[1024, 512], [1024, 512], []]", 16_000)), 0),  # which one it is given
    ],
)
def test_weights_that_narrow_matrices_change(each, stake):
    told = needless_products.low_rank_updates(of_shapes(*each))
    assert_told(told, [5 * stake] * bool(stake), *["1,024 × 512 is made of ones with 16 columns"] * bool(stake))
    assert all((one.mending.shorter["saved_ns"] >= 3_000 // 2).all() for one in told)
    assert not weights.computed_weights(of_shapes(*each))


LAYER = ("aten::linear", "[[8, 4, 512], [1024, 512], [1024]]", 16_000)
DOWN = ("aten::linear", "[[8, 4, 512], [16, 512], []]", 5_000)
UP = ("aten::linear", "[[8, 4, 16], [1024, 16], []]", 4_000)
SUMMED = ("aten::add", "[[8, 4, 1024], [8, 4, 1024], []]", 3_000)
HALVED = ("aten::mul", "[[8, 4, 1024], []]", 2_000)
RELU = ("aten::relu", "[[8, 4, 16]]", 2_000)
GATED = ("aten::mul", "[[8, 4, 1024], [8, 4, 1]]", 2_000)
ADAPTED = (LAYER, DOWN, UP, HALVED, SUMMED)
PLAIN = [
    ("aten::addmm", "[[1024], [32, 512], [512, 1024], [], []]", 16_000),
    *(("aten::matmul", "[[32, 512], [512, 16]]", 5_000), ("aten::mm", "[[32, 16], [16, 1024]]", 4_000)),
    ("aten::add_", "[[32, 1024], [32, 1024], []]", 3_000),
]


@pytest.mark.parametrize(
    ("each", "gone"),
    [
        ((*ADAPTED, *ADAPTED), 8),
        ((*ADAPTED, LAYER, DOWN, UP, SUMMED), 7),
        (PLAIN * 2, 6),
        ((DOWN, UP, LAYER, SUMMED) * 2, 6),  # each in two parts
        (ADAPTED, 0),  # a single layer
        ((DOWN, UP, HALVED, LAYER, SUMMED), 0),
        ((*ADAPTED, *ADAPTED[1:]), 0),
        ((*ADAPTED, *ADAPTED[:3], ("autograd::engine::evaluate_function: X", "[]", 5)), 0),  # in training
        ((LAYER, DOWN, RELU, UP, SUMMED) * 2, 0),
        ((LAYER, DOWN, UP, GATED, SUMMED) * 2, 0),  # as much as each row says
        ((DOWN, UP, SUMMED) * 3, 0),  # of what the narrow products were given, say
        ((LAYER, ("aten::linear", "[[8, 4, 512], [128, 512], []]", 5_000), UP, SUMMED) * 2, 0),
        ((LAYER, ("aten::linear", "[[8, 4, 256], [16, 256], []]", 5_000), UP, SUMMED) * 2, 0),  # of something else
        ((LAYER, DOWN, UP, ("aten::add", "[[8, 4, 1024], [1024], []]", 3_000)) * 2, 0),
    ],
)
def test_adapters_beside_layers(each, gone):
    told = needless_products.unmerged_adapters(of_shapes(*each))
    assert [len(one.mending.gone) for one in told] == [5 * gone] * bool(gone)
    assert all("of 16 columns at most" in one.text for one in told)


CAST = ("aten::to", "[[1024, 512], [], [], []]", 4_000)
SCALED = ("aten::mul", "[[1024, 512], [1024, 1]]", 5_000)
FILTER = ("aten::conv2d", "[[8, 64, 32, 32], [128, 64, 3, 3], []]", 16_000)


@pytest.mark.parametrize(
    ("each", "stake"),
    [
        ((CAST, SCALED, CHANGED), 9_000),
        ((("aten::where", "[[1024, 512], [1024, 512], []]", 5_000), CHANGED), 5_000),
        ((("aten::mul", "[[128, 64, 3, 3], [128, 64, 3, 3]]", 5_000), FILTER), 5_000),
        ((CAST, CHANGED), 0),  # casts alone are told as these
        ((CAST, SCALED, CHANGED, TRAINS), 0),
        ((CAST, SCALED, OTHER, CHANGED), 0),  # something else may take them
        ((("aten::mul", "[[32, 512], [512]]", 5_000), CHANGED), 0),  # of what the layer is given
        ((SCALED, ("aten::linear", "[[1024, 512], [1024, 512], []]", 16_000)), 0),  # which of both
        ((("aten::normal_", "[[1024, 512]]", 4_000), SCALED, CHANGED), 0),  # others each time
        ((("aten::linear", "[[1024, 64], [512, 64], []]", 4_000), SCALED, CHANGED), 0),
        ((("aten::mul_", "[[1024, 512], []]", 4_000), CHANGED), 0),
        ((("aten::mul", "[[128, 64, 3, 3], [1, 64, 1, 1]]", 5_000), FILTER), 0),  # by the style of a sample
    ],
)
def test_weights_that_are_computed_before_each_layer(each, stake):
    told = weights.computed_weights(of_shapes(*each))
    assert_told(told, [5 * stake] * bool(stake), *["Weights are computed anew"] * bool(stake))
    assert [len(one.mending.gone) for one in told] == [5 * (len(each) - 1)] * bool(stake)


HOLDS = ("aten::to", "[[1024, 512], [], []]", 50_000)  # copies of weights, and of a bias
INPUT = ("aten::to", "[[32, 512], [], []]", 30_000)
TAKEN = ("aten::linear", "[[32, 512], [1024, 512], [1024]]", 16_000)
#: Two other layers of the model.
FURTHER = (
    *(("aten::to", "[[2048, 1024], [], []]", 50_000), ("aten::linear", "[[32, 1024], [2048, 1024], []]", 16_000)),
    *(("aten::to", "[[512, 2048], [], []]", 50_000), ("aten::linear", "[[32, 2048], [512, 2048], []]", 16_000)),
)


def copied(*each, passes=5, at_once=False):
    """Passes of operators (name, shapes, ns), of which `to` copies, of less than 0 ns to the host.

    They are `at_once` beside a kernel of another stream.
    """
    events = []
    for number, (name, shapes, took) in enumerate(each * passes):
        at = number // len(each) * 1_000_000 + number % len(each) * 100_000
        until, way = at + 10_000 + abs(took), "Host-to-Device" if took > 0 else "Device-to-Host"
        work = memcpy(at + 10_000, until, size_bytes=1 << 20, direction=way)
        work = work if name == "aten::to" else kernel(at + 10_000, until)
        events.append(shaped(name, at, at + 90_000, shapes))
        events += launched(at + 1000, at + 8000, work) if took else []
        if at_once and name == "aten::to":
            events.append(kernel(at, at + 99_000, stream=8))
    return in_steps(events, passes)


@pytest.mark.parametrize(
    ("each", "stake"),
    [
        ((HOLDS, TAKEN), 90_000),
        ((HOLDS, ("aten::to", "[[1024], [], []]", 10_000), TAKEN, OTHER), 190_000),
        ((HOLDS, HOLDS, TAKEN, TAKEN), 190_000),
        ((INPUT, HOLDS, TAKEN), 90_000),
        ((("aten::to", "[[128, 64, 3, 3], [], []]", 50_000), FILTER), 90_000),
        ((INPUT, TAKEN), 0),
        ((HOLDS, ("aten::linear", "[[1024, 512], [1024, 512], []]", 16_000)), 0),  # which of both
        ((HOLDS, ("aten::mul", "[[1024, 512], []]", 9_000), TAKEN), 0),  # inputs of the same shape
        ((("aten::copy_", "[[1024, 512], [1024, 512]]", 0), HOLDS, TAKEN), 0),  # another checkpoint
        ((HOLDS, TAKEN, TRAINS), 0),  # an optimizer on the host
        ((("aten::view", "[[1024, 512], []]", 0), HOLDS, TAKEN), 0),  # inputs that are seen in another shape
        ((("aten::to", "[[1024, 512], []]", -50_000), TAKEN), 0),  # results of that shape, copied to the host
        ((HOLDS, ("aten::embedding", "[[1024, 512], [9]]", 9_000)), 0),
        ((HOLDS, ("aten::matmul", "[[32, 512], [512, 1024]]", 9_000)), 0),  # rows of a table that is too large
    ],
)
def test_weights_that_are_copied_in_each_pass(each, stake):
    told = weights.offloaded_weights(copied(*each, *FURTHER))
    assert not weights.offloaded_weights(copied(*each, *FURTHER[2:]))  # of so few shapes it may be data
    assert_told(
        told, [5 * (stake + 180_000)] * bool(stake), *["Weights are copied to the GPU in each pass"] * bool(stake)
    )
    assert all(len(one.mending.gone) >= 5 for one in told)


def test_weights_that_are_copied_once_or_ahead():
    assert weights.offloaded_weights(copied(HOLDS, TAKEN, *FURTHER, at_once=False))
    assert not weights.offloaded_weights(copied(HOLDS, TAKEN, *FURTHER, at_once=True))
    assert not weights.offloaded_weights(copied(HOLDS, *[TAKEN] * 5, *FURTHER, passes=1))


GIVEN = "torch::autograd::AccumulateGrad"
#: The operators of a step: name, operators within, and the ns of what it launches.
OPERATORS = {
    "Z": ("aten::_foreach_zero_", (), 9_000),
    "z": ("aten::zero_", (), 1_000),
    "o": ("aten::zeros", ("aten::zero_",), 1_000),
    "T": ("aten::conv2d", (), 9_000),  # the teacher
    "S": ("aten::linear", (), 9_000),  # the student
    "L": ("aten::ones_like", ("aten::fill_",), 1_000),
    "G": ("aten::mul", (), 1_000),
    "C": ("aten::clone", (), 1_000),
    "s": (f"{NODE}AddmmBackward0", ("aten::mm",), 9_000),
    "t": (f"{NODE}ConvolutionBackward0", ("aten::convolution_backward",), 30_000),
    "d": (f"{NODE}TBackward0", ("aten::t",), 1_000),  # of what backward ran
    "n": (f"{NODE}{GIVEN}", (GIVEN, "aten::detach"), 0),
    "a": (f"{NODE}{GIVEN}", (GIVEN, "aten::add_"), 2_000),
    "h": (f"{NODE}{GIVEN}", (GIVEN, "aten::detach aten::add_"), 2_000),  # with a hook that adds
    "k": (f"{NODE}CheckpointFunctionBackward", (f"{NODE}{GIVEN}", GIVEN, "aten::add_"), 2_000),
}


def trained(*steps):
    """A step of a training for each text, in which each letter is one of OPERATORS, and U an update."""
    events = []
    for place, letters in enumerate(steps):
        at = place * STEP
        for letter in letters:
            at += 50_000
            if letter == "U":
                events.append(host("range", "Optimizer.step#SGD.step", at, at + 40_000))
                continue
            name, within, took = OPERATORS[letter]
            thread, number = 1 + name.startswith(NODE), {"T": 1, "S": 2, "t": 1, "s": 2}.get(letter)
            known = {"sequence_number": number and number + 10 * place}
            if letter in "std":
                known = {"sequence_number": 10 * place + (number or 1), "forward_thread_id": 1 + (letter == "d")}
            events.append(host("op", name, at, at + 40_000, thread=thread, side=known))
            for depth, names in enumerate(within, 1):
                for turn, inner in enumerate(names.split()):
                    start, end = at + 1_000 * depth + 15_000 * turn, at + 39_000 - 1_000 * depth
                    events.append(host("op", inner, start, end, thread=thread))
            if took:
                events += launched(at + 20_000, at + 21_000, kernel(at + 25_000, at + 25_000 + took), thread=thread)
        events += launched(at + 50_000, at + 51_000, kernel(at + 60_000, at + 160_000))
    return in_steps(events, len(steps), STEP)


FRESH, STALE = "TSLsntnU", "TSLsntaU"


@pytest.mark.parametrize(
    ("steps", "stake"),
    [
        ((FRESH, *[STALE] * 4), 4 * 32_000),
        # set up; zeros of a new tensor; not the last update
        (("zTSLsntnU", *["oTSLsntaU"] * 3, "TSLsnta"), 4 * 32_000),
        ((FRESH, *["TSLsnttatU"] * 4), 4 * 62_000),  # none after the last gradient
        ((FRESH, *["STLtasnU"] * 4), 0),  # what is trained may need it, as a generator its discriminator
        ((FRESH, *[FRESH] * 4), 0),
        ((FRESH, *["ZTSLsntaU"] * 4), 0),  # zero_grad(set_to_none=False) of another optimizer
        ((FRESH, *["TSLsnLtaU"] * 4), 0),  # two losses with the same parameters
        ((FRESH, *["TSLsntnUTSLsntaU"] * 4), 0),  # networks that are trained in turn
        ((FRESH, *["TSLsnta", "TSLsntaU"] * 2), 0),  # of several batches
        ((FRESH, *["TSLsntaUU"] * 4), 0),  # an optimizer that resets, and one that does not
        ((FRESH, *["TSGsntaU"] * 4), 0),  # backward of given gradients, perhaps of several
        ((FRESH, *["TSLsnktaU"] * 4), 0),  # a parameter of two parts whose layers run again
        ((FRESH, *["TSLsnthU"] * 4), 0),
        ((FRESH, *["TSLsataU"] * 4), 0),  # nothing is reset
        ((FRESH.replace("U", ""), *["TSLsnta"] * 4), 0),
        ((FRESH, STALE), 0),  # too few to tell
        (("TSLsnnU", *["TSLsnaU"] * 4), 0),  # little: no more than the sums
    ],
)
def test_backward_of_what_is_not_trained(steps, stake):
    of = trained(*steps)
    found = [*weights.unneeded_gradients(of)]
    assert_told(found, [stake] * bool(stake), *["to 1 parameter whose", "not trained", "no_grad"] * bool(stake))
    # no more is gone than what follows the last gradient that is reset
    assert [measures(one, of)[1:3] for one in found] == [(stake // 30_000 + 4, 0)] * bool(stake)


@pytest.mark.parametrize(
    ("step", "stake"),
    [
        ("TSLsntaUTSLstnU", 4 * 32_000),  # a critic's loss, and a generator's
        ("TSLsntaUTSLsntaUTSLstnU", 9 * 32_000),  # two steps of the critic for one
        ("TSLsntaUTSLstnnU", 0),  # a network of which each second pass is another's second batch
        ("TSLsntaUTSLsnntaU", 0),  # a generator's loss that goes through its critic, which needs it
        ("TSLsntaTSLstnU", 0),  # no step that ends the critic's gradients
        ("TSLstnTSLsntaU", 0),  # gradients of two losses, which are added on purpose
        ("TSLtasnUTSLstnU", 0),  # the critic's gradients come last
        ("TSLsntaUZTSLstnU", 0),
    ],
)
def test_backward_to_gradients_that_are_reset_before_a_step(step, stake):
    found = weights.unneeded_gradients(trained(*[step] * 5))
    assert_told(found, [stake] * bool(stake), *["to 1 parameter whose", "fake.detach()"] * bool(stake))


@pytest.mark.parametrize(
    ("step", "stake", "words"),
    [
        ("TSLstaULstnU", 41_000, "fake.detach()"),  # a generator: its critic is updated before it
        ("TSLstaUGULstnU", 41_000, "fake.detach()"),
        ("TLtaULtnU", 0, ""),  # a first layer, whose weights may have been updated
        ("TLtnULtaU", 0, ""),
        ("TLtnCLtaU", 0, ""),  # gradients of each loss are copied
        ("TLtnLtaU", 30_000, "(loss_a + loss_b).backward() once"),
        ("TLtnLtaLtaU", 62_000, "(loss_a + loss_b).backward() once"),
        ("TLtaU", 0, ""),
        ("TLtnLtnU", 0, ""),  # gradients of each loss, which are read between
        ("TLtnZLtaU", 0, ""),
        ("TLtLtnU", 0, ""),  # torch.autograd.grad()
        ("TLtnLdtaU", 0, ""),  # a penalty of gradients
        ("TLtnLsaU", 0, ""),  # other nodes
    ],
)
def test_backward_that_goes_through_a_graph_again(step, stake, words):
    of = trained(*[step] * 5)
    assert_told(weights.repeated_backward(of), [5 * stake] * bool(stake), *[words] * bool(stake))
    assert not weights.repeated_backward(trained(step))


FILLS = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, X>(int)"
ADAM = (
    "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>, "
    "at::native::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)0, false>, float*>(X)"
)
PASS_NS = 1_000_000
DENSE = "aten::embedding_dense_backward"


def training(*tables, product="[[8, 16], [16, 16], []]", sums=((1000, 16), (500, 32)), steps=5):
    """Five passes that look up tables (rows, indices, ns of the fill); the optimizer's steps follow the first ones."""
    events = []
    for at in range(0, 5 * PASS_NS, PASS_NS):
        events += operator("aten::linear", at, took=50_000, input_shapes=product)
        for number, (rows, indices, took) in enumerate(tables):
            begin = at + 100_000 + 120_000 * number
            inputs = f"[[2, {indices // 2}, 16], [2, {indices // 2}], [], [], []]"
            events.append(host("op", "aten::embedding_backward", begin, begin + 20_000))
            events.append(shaped(DENSE, begin + 500, begin + 19_000, inputs))
            events += operator("aten::zero_", begin + 1000, of=FILLS, took=took, input_shapes=f"[[{rows}, 16]]")
        for number, shape in enumerate(sums):
            begin = at + 500_000 + 10_000 * number
            events.append(shaped(GIVEN, begin, begin + 5000, str([list(shape)]) if shape else None))
        if at < steps * PASS_NS:
            events.append(host("op", "Optimizer.step#Adam.step", at + 600_000, at + 640_000))
            events += operator("aten::_fused_adam_", at + 601_000, of=ADAM, took=200_000)
    return in_steps(events, 5)


TABLE = (1000, 10, 100_000)


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
    found = weights.dense_gradients(of)
    assert_told(found, [stake] * bool(stake), *(["Gradients of embeddings are dense"] * bool(stake)))
    assert [one.at_most for one in found] == [True] * bool(stake)


def orders(*entries, sides="[[900, 900]]", kernels=("sums",)):
    """Five steps with so many calls of coalesce, of square tensors with such numbers of entries, a kernel in each."""
    step = []
    for place, number in enumerate(entries):
        begin = 100_000 * place
        step.append(shaped("aten::coalesce", begin, begin + 9000, sides))
        step.append(shaped("aten::narrow", begin + 100, begin + 8900, f"[[2, {number}], []]"))
        for at, name in enumerate(kernels, begin):
            step += launched(at + 1000, at + 8000, kernel(begin + 10_000, begin + 30_000, name=name))
    return alike(*step)


@pytest.mark.parametrize(
    ("each", "left"),
    [
        (orders(8000, 8000, 8000), 1 / 3),
        (orders(8000, 8000, 9000), 1 / 2),
        (orders(8000), 1),  # which may be another one in each step
        (orders(8000, 9000, 7000), 1),
        (orders(8000, 8000, sides="[[900, 16]]"), 1),  # gradients of embeddings
        (orders(8000, 8000, kernels=["sums", "void at::native::sbtopk::gatherTopK<float, unsigned int>(float*)"]), 1),
    ],
)
def test_matrices_that_are_put_in_order_again(each, left):
    told = weights.coalesced_again(each)
    work = 5 * 20_000 * round(1 / left)
    assert_told(told, [int(work * (1 - left))] * (left < 1))
    assert [len(one.mending.gone) for one in told] == [5 * round(1 / left - 1)] * (left < 1)


LINEAR = ("aten::linear", "[[900, 64], [64, 64]]", "", 1)
PRODUCT = ("aten::matmul", "[[900, 900], [900, 64]]", "", 1)
CAT = ("aten::cat", "[[[2, 4000], [2, 4000]], []]", "", 0)
MATRIX = ("aten::sparse_coo_tensor", "[[2, 8000], [8000], []]", '["", "", "[900, 900]"]', 0)
ORDER = ("aten::coalesce", "[[900, 900]]", "", 0)
SCALE = ("aten::mul", "[[7990], [7990]]", "", 0)
DEGREES = [CAT, MATRIX, ORDER, ("aten::rsqrt", "[[900]]", "", 0), SCALE]


def layers(*own, entries=7990, numbered=True):
    """Five steps of three layers of operators of 20 µs: name, shapes and values of inputs, how many nodes they make.

    Coalesce takes twice as long, and within are the numbers of entries before and after.
    """
    events, number = [], 0
    for step in range(0, 15_000_000, 3_000_000):
        for place, (name, shapes, values, nodes) in enumerate([*own] * 3):
            begin = step + 60_000 * place
            known = {"sequence_number": number} if numbered else {}
            known["input_values"] = values.format(layer=place // len(own))
            made = kernel(begin + 10_000, begin + (50_000 if name == ORDER[0] else 30_000), name=name)
            events += [shaped(name, begin, begin + 9000, shapes, **known), *launched(begin + 1000, begin + 8000, made)]
            for at, text in enumerate(("[[8000], [], []]", f"[[2, {entries}], []]") * (name == ORDER[0])):
                events.append(shaped("aten::narrow", begin + 100 + 100 * at, begin + 150 + 100 * at, text))
            number += nodes
    return in_steps(events, 5, 3_000_000)


@pytest.mark.parametrize(
    ("each", "operators", "gone"),
    [
        (layers(LINEAR, *DEGREES, PRODUCT), 5, 3),
        (layers(LINEAR, *DEGREES, PRODUCT, entries=8000), 5, 2),  # as many of any graph
        (layers(LINEAR, *DEGREES, PRODUCT, ("aten::mul_", "[[4000], [1]]", "", 0)), 5, 2),  # weights that change
        (layers(LINEAR, *DEGREES, PRODUCT, numbered=False), 1, 2),  # vectors may be of features
        (layers(LINEAR, *DEGREES[:-1], (*SCALE[:3], 1), PRODUCT), 4, 3),  # by a parameter
        (layers(LINEAR, CAT, ("aten::mv", "[[900, 64], [64]]", "", 0), *DEGREES[1:], PRODUCT), 4, 3),
        (layers(LINEAR, *DEGREES[:2], (*ORDER[:3], 1), *DEGREES[3:], PRODUCT), 0, 0),  # attention's weights
        (layers(LINEAR, ("aten::bernoulli", "[[4000], []]", "", 0), *DEGREES, PRODUCT), 0, 0),
        (layers(LINEAR, *DEGREES[:-1], ("aten::dropout", "[[7990], []]", "", 0), SCALE, PRODUCT), 4, 3),
        # masks of layers
        (layers(LINEAR, ("aten::select", "[[3, 8000], []]", '["", "0", "{layer}"]', 0), *DEGREES[1:], PRODUCT), 1, 2),
    ],
)
def test_matrices_that_are_made_again_with_all_that_is_around(each, operators, gone):
    """Nothing is left where no step makes others."""
    told = weights.coalesced_again(each)
    assert_told(told, [5 * gone * (operators + 1) * 20_000] * bool(gone))
    assert [len(one.mending.gone) for one in told] == [5 * gone * operators] * bool(gone)
    assert all((" once, before the loop" in one.action) == (gone == 3) for one in told)
