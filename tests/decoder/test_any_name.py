"""Any text is a name: none raises, none takes long, and what is no library's name is other."""

import re
from time import process_time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kanalyze.decoder.decode import decode
from kanalyze.decoder.fields import spelled, taken_apart
from kanalyze.decoder.pytorch import operators
from support.kernel_families import FAMILIES

#: Pieces of real names, to get near to them, and what may stand between.
PIECES = st.sampled_from(
    re.findall(
        r"\S+",
        "void at::native:: vectorized_elementwise_kernel < > ( ) { } [ ] , 4 :: reduce_kernel ReduceOp<float cutlass:: "
        "device_kernel cutlass_80_tensorop_ s16816gemm _256x128_32x3 _tn sm80_xmma_gemm_ f32f32_ tilesize 99999999999 "
        "triton_poi_fused_ _to_copy add nvjet_ tst_ 1x2 ncclDevKernel_ AllReduce Flash_fwd_kernel_traits<64,  _Z 4 N I "
        "<unnamed>:: (anonymous namespace):: lambda(float) operator() cute::C<1> fmha_cutlassF_ sm80 cub:: Device "
        "multi_tensor_apply_kernel distribution_ normal_kernel ampere_ -> - _ 9 x ² ٣ \0 \n",
    )
)
NAMES = st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join), st.lists(PIECES, max_size=30).map(" ".join))

#: What, repeated, has made one of the patterns slow, or might.
REPEATED = (
    *("a<", "<", "(", "a, ", "a::", "1", "1x1x", "_", "-", "->", "aA", "x64_", "_add", "triton_poi_fused", "f32_"),
    *("<unnamed>::", "(unsigned ", "lambda(", "Flash_fwd_kernel_traits<64, 64, 64, 4, false, ", "MainloopSm9", "_Z1aI"),
    *("cute::tuple<cute::C<1>, cute::C<1>, cute::C<1>>, ", "ReduceOp<float<", "cudnn_generated_fort_native_sdpa_"),
)
AROUND = (
    *("%s", "void %s>(int)", "void cutlass::device_kernel<%s>", "void at::native::reduce_kernel<512, 1, %s", "_Z%s"),
    *(
        "void at::native::vectorized_elementwise_kernel<4, %s",
        "triton_poi_fused_%s",
        "cutlass3x_sm90_tensorop_gemm_%s ",
    ),
    *("sm80_xmma_gemm_%s ", "nvjet_tst_%s", "void flash::x<%s", "void multi_tensor_apply_kernel<A, %s"),
)


@settings(max_examples=10 * settings.default.max_examples, deadline=None)
@given(NAMES)
@example("nvjet_tst_" + "9" * 5000 + "x1_1x1")
@example("cutlass_80_simt_sgemm_" + "1" * 5000 + "x1")
@example("triton_poi_fused_add_" + "1" * 5000)
@pytest.mark.slow
def test_no_name_raises(name):
    assert decode(name).family in FAMILIES


@pytest.mark.parametrize("around", AROUND)
def test_a_long_name_takes_no_longer_than_its_length_asks(around):
    """Seconds for ten thousand characters, quadratic patterns took; this allows for a slow and busy machine."""
    for piece in REPEATED:
        name = around % (piece * (10_000 // len(piece)))
        start = process_time()
        decode.__wrapped__(name)
        assert process_time() - start < 0.3, (around, piece)


@pytest.mark.parametrize(
    "name", ["", " ", "kernel", "my_kernel", "foo(int)", "a::b<c>", "矩阵乘法", "[CUDA memset]", "_Z"]
)
def test_an_unknown_name_is_other(name):
    found = decode(name)
    assert (found.family, found.library, found.operation) == ("other", None, None)


@pytest.mark.parametrize(
    ("name", "function", "args"),
    [
        ("void at::native::f<(int)4, (bool)1>(int, T2)", "at::native::f", ("4", "true")),
        ("void (anonymous namespace)::f<a<b, c>, 4ul>(int)", "f", ("a<b, c>", "4ul")),
        ("void <unnamed>::f<<unnamed>::g<1>>(T1)", "f", ("g<1>",)),
        ("std::enable_if<!T7, void>::type internal::gemvx::kernel<int>(T13)", "internal::gemvx::kernel", ("int",)),
        ("std::enable_if<T2>(int)0&&a::b<T1>::c, void>::type d::e<f>(T1 *)", "d::e", ("f",)),
        ("f", "f", ()),
        ("unsigned int f(int)", "f", ()),
        ("void a<b>::c(int)", "a::c", ("b",)),
    ],
)
def test_a_name_is_taken_apart(name, function, args):
    found = spelled(name)
    assert (found.function, found.args, found.word) == (function, args, function.rpartition("::")[2])


def test_a_functor_s_call_is_the_functor():
    found = taken_apart("at::sum_functor<float, float>::operator ()(at::TensorIterator &)::[lambda(float)]")
    assert (found.function, found.args) == ("at::sum_functor", ("float", "float"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("add_mul_tanh", ("add", "mul", "tanh")),
        ("_to_copy_native_layer_norm", ("_to_copy", "native_layer_norm")),
        ("_softmax__to_copy_add", ("_softmax", "_to_copy", "add")),
        ("mine_of_old_add_yours", ("mine_of_old", "add", "yours")),
        ("", ()),
        ("___", ()),
    ],
)
def test_operators_are_told_apart_by_the_longest_name(text, told):
    assert operators(text, {"add", "mul", "tanh", "_to_copy", "native_layer_norm", "norm", "_softmax", "layer"}) == told
