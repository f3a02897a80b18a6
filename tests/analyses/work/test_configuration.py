"""Other configurations of a program: its shapes by brute force, and steps that were measured in each."""

import math
from statistics import median

import polars as pl
import pytest
from hypothesis import given, strategies as st

import kanalyze
from analyses.work.test_roofs import GEMM, GPT, program as programs
from kanalyze.analyses.work import _configuration
from kanalyze.analyses.work._configuration import Configuration, Size, _batch_of, _Call, _length_of, _Sizes
from kanalyze.errors import CannotTellError
from support.real_reports import real_report

pytestmark = pytest.mark.slow


def transformer(batch, length, heads, width, depth):
    """Operators of a layer with the shapes of their inputs, forward and backward; the vocabulary is odd."""
    rows, hidden, words = batch * length, heads * width, depth
    images = [batch, heads, length, width]
    return {
        "norm": ("aten::native_layer_norm", [[batch, length, hidden], [], [hidden], [hidden], []]),
        "up": ("aten::addmm", [[4 * hidden], [rows, hidden], [hidden, 4 * hidden], [], []]),
        "weights": ("aten::mm", [[hidden, rows], [rows, 4 * hidden]]),
        "rows": ("aten::mm", [[rows, 4 * hidden], [4 * hidden, hidden]]),
        "attention": ("aten::_cudnn_attention_forward", [images, images, images, []]),
        "scores": ("aten::bmm", [[batch * heads, length, width], [batch * heads, width, length]]),
        "softmax": ("aten::_softmax", [[batch, heads, length, length], [], []]),
        "heads": ("aten::cat", [[images, images], []]),
        "embedding": ("aten::embedding", [[words, hidden], [batch, length], []]),
        "loss": ("aten::_log_softmax", [[rows, words], [], []]),
        "targets": ("aten::nll_loss_forward", [[rows, words], [rows], []]),
        "optimizer": ("aten::add_", [[hidden, 4 * hidden], [hidden, 4 * hidden]]),
    }


LAYERS = st.fixed_dictionaries(
    {
        "batch": st.sampled_from([2, 3, 4, 6]),
        "length": st.sampled_from([101, 128, 509]),
        "heads": st.sampled_from([5, 7]),
        "width": st.sampled_from([64, 13]),
        "depth": st.sampled_from([977, 1009]),
    }
)


@given(LAYERS, st.integers(1, 16), st.sampled_from([64, 128, 1000]))
def test_shapes_are_those_of_the_program_with_another_batch_and_length(now, batch, length):
    before, after = transformer(**now), transformer(**now | {"batch": batch, "length": length})
    calls = [_Call(name, inputs, 1) for name, inputs in before.values()]
    assert _batch_of(calls) == now["batch"]
    assert _length_of(calls, now["batch"]) == now["length"]
    sizes = _Sizes.of(calls, Size(now["batch"], batch), Size(now["length"], length))
    found = {key: sizes.inputs(one) for key, one in zip(before, calls, strict=True)}
    assert found == {key: inputs for key, (_, inputs) in after.items()}


def test_weights_of_a_convolution_are_no_batch():
    images = [_Call("aten::cudnn_convolution", [[64, 3, 224, 224], [64, 3, 7, 7], []], 9)]
    images += [_Call("aten::relu_", [[64, 64, 112, 112]], 5), _Call("aten::addmm", [[10], [64, 512], [512, 10]], 1)]
    assert _batch_of(images) == 64
    sizes = _Sizes.of(images, Size(64, 16), None)
    shown = [sizes.inputs(one) for one in images]
    assert shown == [[[16, 3, 224, 224], [64, 3, 7, 7], []], [[16, 64, 112, 112]], [[10], [16, 512], [512, 10]]]


def test_what_few_activations_have_is_no_batch_and_products_with_it_of_any_length_change():
    rows = [_Call("aten::mm", [[16384, 2048], [2048, 96]], 90), _Call("aten::add", [[4, 2048], [4, 2048]], 1)]
    assert _batch_of([*rows, _Call("aten::randn", [[4, 1, 1]], 1)]) == 16384
    assert _batch_of([*rows[:1], _Call("aten::add", [[8, 2048, 2048]], 1)]) == 8  # of which these are the rows
    words = [_Call("aten::mm", [[9216, 512], [512, 32000]], 90), _Call("aten::mul", [[9216, 512]], 9)]
    assert _batch_of([*words, _Call("aten::add", [[128, 72, 512]], 4), _Call("aten::randn", [[8, 1, 1]], 9)]) == 128
    updates = [_Call("aten::_foreach_add_", [[[768, 2304], [50257, 768]]], 90), _Call("aten::mul", [[4 * 128, 768]], 9)]
    assert _batch_of([*updates, _Call("aten::add", [[4, 128, 768]], 9)]) == 4
    cells = [_Call("aten::mul", [[96, 43, 576, 16]], 9), _Call("aten::bmm", [[96 * 43 * 576, 16, 1]], 90)]
    sizes = _Sizes.of([*cells, _Call("aten::zero_", [[96 * 43 * 576 * 16]], 1)], Size(96, 24), None)
    assert [sizes.then((96 * 43 * 576, *more)) for more in ((16, 1), ())] == [[24 * 43 * 576, 16, 1], [24 * 43 * 576]]
    assert sizes.then((16, 96 * 43)) == [16, 24 * 43]


def test_a_size_is_one_number_or_two():
    assert [Size.of(text) for text in (2, "2", "8=2")] == [Size(None, 2), Size(None, 2), Size(8, 2)]
    for text in ("", "0", "-1", "8=", "=2", "8=0", "two", "1.5"):
        with pytest.raises(ValueError, match="is not a size"):
            Size.of(text)
    with pytest.raises(ValueError, match="dtype is of fp64, fp32"):
        Configuration.of(None, None, None, "int4")


def program(inputs, **more):
    """Products, each by one kernel of 100 µs on an H100."""
    return programs([(shapes, GEMM, 100_000) for shapes in inputs], **more)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**400) | st.sampled_from(["", "float", "TensorList"]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.lists(ANYTHING, max_size=4), min_size=1, max_size=4), st.lists(ANYTHING, max_size=4))
def test_whatever_stands_in_a_trace_is_no_crash(inputs, types):
    made = program(inputs, types=types)
    for asked in (Configuration(batch=Size(None, 3)), Configuration(length=Size(64, 3)), Configuration(dtype="fp16")):
        try:
            sides = _configuration.factors(made, _configuration.resolved(made, asked))
        except CannotTellError:
            continue
        assert sides.select((pl.col("low") <= pl.col("usual")) & (pl.col("usual") <= pl.col("high"))).to_series().all()


ROWS = st.sampled_from([256, 1024, 4096])


@given(st.lists(st.tuples(ROWS, ROWS, ROWS), min_size=1, max_size=4), st.sampled_from([64, 1024, 8192]))
def test_a_kernel_changes_as_its_work_does_between_its_bounds(products, batch):
    made = program([[[m, k], [k, n]] for m, k, n in products])
    sides = _configuration.factors(made, Configuration(batch=Size(1024, batch)))
    ratio = batch / 1024
    assert sides.height == len(products)
    for side, product in zip(sides.iter_rows(named=True), products, strict=True):
        assert side["low"] <= side["usual"] <= side["high"]
        if 1024 not in product:
            assert side["usual"] == pytest.approx(1.0)
        else:
            assert min(ratio, 1.0) - 1e-9 <= side["usual"] <= max(ratio, 1.0) + 1e-9


def test_what_a_cast_casts_to_its_own_type_is_gone_and_products_have_the_rate_of_their_type():
    made = program([[[2048, 2048], [2048, 2048]]])
    (row,) = _configuration.factors(made, Configuration(dtype="fp32")).rows(named=True)
    assert row["usual"] == pytest.approx(989.4 / 66.9 * 0.98 + 0.02, rel=1e-3)  # 2 of 100 µs are whatever the work is
    assert _configuration.factors(made, Configuration(dtype="bf16")).row(0, named=True)["usual"] == pytest.approx(1.0)
    casts = kanalyze.work(real_report(GPT)).filter(
        name="aten::copy_", input_shapes="[[8192, 50304], [8192, 50304], []]"
    )
    gone = _configuration.factors(real_report(GPT), Configuration(dtype="fp32")).filter(pl.col("usual") == 0)
    assert gone.height == casts.height == 2 * 3  # of logits to float32, and of their gradient back, in three steps


def test_fp8_is_of_products_alone():
    made = program([[[4096, 4096], [4096, 64]]])  # whose weights bound it
    half = _configuration.factors(made, Configuration(dtype="fp8")).row(0, named=True)
    assert half["low"] < half["usual"] < half["high"]
    assert half["usual"] == pytest.approx(0.5 * 0.98 + 0.02, rel=0.01)
    copies = _configuration.factors(real_report(GPT), Configuration(dtype="fp8"))
    kernels = kanalyze.work(real_report(GPT)).group_by("group").agg(pl.len())
    products = kernels.filter(group="products").item(0, "len")
    assert copies.filter(pl.col("usual") < 0.9).height <= products


def test_a_configuration_on_another_gpu_is_both_changes():
    """What is at its roof changes as the roof does, and all as the work does."""
    made = program([[[1024, 16384], [16384, 16384]]])
    took = kanalyze.work(made).row(0, named=True)
    share = min(took["roof_ns"] / took["dur_ns"], 1.0)
    sizes, gpu = Configuration(batch=Size(1024, 4096)), "NVIDIA B200"
    larger, both = (
        _configuration.factors(made, asked).row(0, named=True) for asked in (sizes, sizes._replace(gpu=gpu))
    )
    faster = 989.4 / 2250  # both are bound by their arithmetic
    assert larger["usual"] == pytest.approx(4 - 3 * min(1 - share, 0.02), rel=1e-3)
    assert both["usual"] == pytest.approx(larger["usual"] - 4 * share * (1 - faster), rel=1e-3)


def test_nothing_is_told_without_shapes():
    made = program([None], types="")
    for asked in ({"batch": 2}, {"length": 512}, {"dtype": "fp32"}, {"batch": "8=2", "length": 512}):
        with pytest.raises(CannotTellError, match=r"no (?:shapes|types) of operators"):
            kanalyze.whatif(made, **asked)
    told = kanalyze.whatif(made, batch="8=2")  # anything from none of it to all
    assert told.changes == ("--batch 8=2",)
    assert math.floor(25_000 * 0.97) <= told.low_ns < told.then_ns < told.high_ns


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"batch": "7=3"}, "Calls that change with 7 hold 0.0 % of the time"),
        ({"length": "77=3"}, "None has a dimension of 77, which was given"),
        ({"batch": "11"}, ""),
    ],
)
def test_a_recorded_size_that_no_shape_has_is_refused(asked, why):
    report, configuration = real_report(GPT), Configuration.of(None, asked.get("batch"), asked.get("length"), None)
    if not why:
        assert _configuration.resolved(report, configuration).batch == Size(8, 11)
        assert kanalyze.whatif(report, batch=8).remark == "The recorded batch is 8: nothing changes."
        assert not kanalyze.whatif(report, batch=8, length=512).remark
    else:
        with pytest.raises(CannotTellError, match="no shapes of operators tell") as refused:
            _configuration.resolved(report, configuration)
        assert why in refused.value.remedy


#: Steps of the GPT on one H100 (and an H200), without a profiler: batch, length, type, GPU, ms.
MEASURED = [
    *((4, 1024, "bf16", None, 10.29), (12, 1024, "bf16", None, 26.60), (16, 1024, "bf16", None, 34.58)),
    *((8, 512, "bf16", None, 10.03), (4, 2048, "bf16", None, 19.01), (1, 2048, "bf16", None, 6.44)),
    *((32, 512, "bf16", None, 34.04), (8, 1024, "fp32", None, 102.5), (8, 1024, "tf32", None, 36.13)),
    *((8, 1024, "fp16", None, 18.04), (32, 512, "bf16", "H200", 29.96), (8, 1024, "fp32", "H200", 100.5)),
    (8, 1024, "tf32", "H200", 33.08),
]


def test_steps_in_thirteen_configurations_are_told_from_one():
    view, apart = real_report(GPT).narrow(window="steady"), []
    for batch, length, dtype, gpu, ms in MEASURED:
        told = kanalyze.whatif(view, batch=batch, length=length, dtype=dtype, gpu=gpu, measured="18.41ms")
        least, usual, most = (ns / told.iterations / 1e6 for ns in (told.low_ns, told.then_ns, told.high_ns))
        apart.append(abs(usual / ms - 1))
        assert least < ms < most, (batch, length, dtype, gpu)
    assert max(apart) < 0.08
    assert median(apart) < 0.04
