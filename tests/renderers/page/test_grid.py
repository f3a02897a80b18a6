"""Text tables fitted to a width, and short names of kernels: what is shown, what tells alike ones apart."""

import pytest
from hypothesis import given, strategies as st

from kanalyze.outlets import short_paths
from kanalyze.renderers.page import Column, Grid, distinct, operation
from kanalyze.renderers.page.kernel_names import NARROWEST, shorten
from kanalyze.renderers.page.time import launch_shape
from support.strategies import slow_given

HEADS = (Column("time"), Column("median", wide=True), Column("count", spare=True), Column("name", left=True))
ROWS = [("1 ms", "5 µs", "1", "short"), ("22 ms", "66 µs", "10", "a name of thirty-six characters here")]


def lines(width, **keys):
    head, rows = Grid(HEADS, ROWS, **keys).lines(width)
    return [head, *rows]


def test_numbers_stand_right_words_left_and_what_is_cut_ends_where_the_line_does():
    assert lines(80) == [
        " time  median  count  name",
        " 1 ms    5 µs      1  short",
        "22 ms   66 µs     10  a name of thirty-six characters here",
    ]
    told = lines(56, cut=True)[1:]
    assert told == [" 1 ms    5 µs      1  short", "22 ms   66 µs     10  a name of thirty-six characters h…"]
    assert lines(25, cut=True) == [" time  name", " 1 ms  short", "22 ms  a name of thirty-…"]  # without spare columns


def test_what_is_broken_goes_on_below_from_its_arrow():
    rows = [("1", "short → new"), ("2", "twenty letters long → quite other")]
    grid = Grid((Column("count"), Column("kernel", left=True)), rows)
    shown = grid._replace(cut=True, broken=True).lines(29)
    assert shown == ("count  kernel", ["    1  short → new", "    2  twenty letters long", "       → quite other"])
    expected = ("count  kernel", ["    1  short → new", "    2  twenty letters…", "       → quite other"])
    assert grid._replace(cut=True, broken=True).lines(22) == expected
    assert grid._replace(cut=True).lines(29)[1] == ["    1  short → new", "    2  twenty letters long →…"]


@pytest.mark.parametrize("keys", [{"cut": True}, {"named": True}, {}])
def test_a_table_without_rows_has_its_heading(keys):
    assert Grid(HEADS, [], **keys).lines(80) == ("time  median  count  name", [])


def test_memory_operations_lose_their_brackets():
    assert [operation(name) for name in ("[CUDA memset]", "f[1]")] == ["memset", "f[1]"]


def test_texts_that_are_cut_do_not_look_alike():
    texts = ["autograd::evaluate_function: AddBackward", "autograd::evaluate_function: MulBackward", "forward"]
    _, lines = Grid((Column("range", left=True),), [(text,) for text in texts], cut=True).lines(24)
    assert lines == ["autograd::e…ddBackward", "autograd::e…ulBackward", "forward"]
    _, lines = Grid((Column("range", left=True),), [(texts[0],), (texts[2],)], cut=True).lines(24)
    assert lines[0] == "autograd::evaluate_fu…"


@pytest.mark.parametrize(
    ("block", "told"), [((8, 1, 1), "grid 4096 × block 8"), ((32, 1, 8), "grid 4096 × block 32,1,8"), (None, "")]
)
def test_a_launch_shape_is_without_trailing_ones(block, told):
    sides = dict(zip(("block_x", "block_y", "block_z"), block or (None,) * 3, strict=True))
    row = {"grid_x": 4096 if block else None, "grid_y": 1, "grid_z": 1, **sides}
    assert launch_shape(row, "grid {} × block {}") == told


@given(st.lists(st.text("ab/", max_size=40), max_size=12), st.integers(8, 40))
def test_texts_fit_and_those_that_differ_still_do(texts, width):
    found = distinct(texts, width)
    assert all(len(text) <= width for text in found)
    assert len({*found}) == len({*texts})
    assert all(new == old for new, old in zip(found, texts, strict=True) if len(old) <= width)
    assert dict(zip(texts, found, strict=True)) == dict(zip(reversed(texts), reversed(found), strict=True))


@pytest.mark.parametrize(
    ("paths", "short"),
    [
        (["a/b/nsys.sqlite"], ["nsys.sqlite"]),
        (["one/nsys.sqlite", "two/nsys.sqlite"], ["one/nsys.sqlite", "two/nsys.sqlite"]),
        (["x/one/n.sqlite", "x/two/n.sqlite", "other.json"], ["one/n.sqlite", "two/n.sqlite", "other.json"]),
        (["/n.sqlite", "n.sqlite", "n.sqlite"], ["/n.sqlite", "n.sqlite", "n.sqlite"]),
        ([], []),
    ],
)
def test_paths_keep_the_end_that_tells_them_apart(paths, short):
    assert short_paths(paths) == short


MUL = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::BinaryFunctor<float, float, float,"
    " at::native::binary_internal::MulFunctor<float>>, std::array<char *, (unsigned long)3>>(int, T2, T3)"
)
MUL_BY_SCALAR = MUL.replace("BinaryFunctor", "AUnaryFunctor").replace("long)3", "long)2")
TANH = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::tanh_kernel_cuda(at::TensorIteratorBase &)"
    "::[lambda() (instance 2)]::operator ()() const::[lambda() (instance 2)]::operator ()() const"
    "::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)"
)
GELU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&,"
    " at::native::GeluType)::{lambda()#1}::operator()() const::{lambda()#2}::operator()() const"
    "::{lambda(float)#1}, std::array<char*, 2ul> >(int, std::array<char*, 2ul>)"
)
POW = (
    "void at::native::vectorized_elementwise_kernel<(int)4, void at::native::<unnamed>::pow_tensor_scalar_kernel_impl"
    "<float, float>(at::TensorIteratorBase &, T2)::[lambda(float) (instance 1)], std::array<char *,"
    " (unsigned long)2>>(int, T2, T3)"
)
SUM = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float,"
    " at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>,"
    " unsigned int, float, 4, 4> >(at::native::ReduceOp<float>)"
)
FOREACH = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)"
    "::TensorListMetadata<1>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 1, 1, 0>,"
    " std::multiplies<float>, float>(at::native::(anonymous namespace)::TensorListMetadata<1>, float)"
)
CAT = (
    "void at::native::<unnamed>::CatArrayBatchedCopy_alignedK_contig<at::native::<unnamed>::OpaqueType<(unsigned int)4>"
    ", unsigned int, (int)2, (int)128, (int)1, (int)16>(T1 *, int, T2)"
)
FLASH = (
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4, false, false, cutlass::bfloat16_t,"
    " Flash_kernel_traits<128, 64, 64, 4, cutlass::bfloat16_t> >, false, true>(flash::Flash_fwd_params)"
)
RMS_NORM = (
    "std::enable_if<T2>(int)0&&vllm::_typeConvert<T1>::exists, void>::type"
    " vllm::fused_add_rms_norm_kernel<c10::BFloat16, (int)8>(T1 *, T1 *, const T1 *, float, int, int)"
)
XMMA = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel"
    "__5x_cublas"
)
CUTLASS = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(T1::Params)"
NVJET = "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        (MUL, 100, "vectorized_elementwise_kernel<4, BinaryFunctor<float, float, float, MulFunctor<float>>, …>"),
        (MUL, 48, "vectorized_elementwise_kernel<4, Binary<Mul>>"),
        (MUL, 32, "vectorized_elementwise<Mul>"),
        (TANH, 80, "vectorized_elementwise_kernel<4, tanh_kernel_cuda::λ2::λ2::λ1(float), …>"),
        (TANH, 32, "vectorized_elementwise<4, tanh>"),
        (GELU, 32, "vectorized_elementwise<4, Gelu>"),
        (POW, 24, "pow_tensor_scalar"),
        (SUM, 32, "reduce_kernel<512, 1, sum>"),
        (FOREACH, 32, "multi_tensor_apply<multiplies>"),
        (CAT, 32, "CatArrayBatchedCopy…contig"),
        (FLASH, 32, "flash_fwd_kernel<128, 64, 64, 4>"),
        (RMS_NORM, 24, "fused_add_rms_norm<8>"),
        (CUTLASS, 24, "cutlass…sgemm_128x64…"),
        (NVJET, 32, "nvjet_tst_256x128_64x4_1x2_h…NNT"),
        (NCCL, 32, "nccl…AllReduce_Sum_bf16_RING_LL"),
        ("triton_red_fused__to_copy__unsafe_view_add_mean_pow_rsqrt_3", 32, "triton_red…to_copy__unsafe…3"),
        ("void elementwise_kernel<OneFunctor<float>, TwoFunctor<float>>(int, int)", 32, "elementwise_kernel<One, Two>"),
        ("void cub::DeviceScanKernel<int *, thrust::plus<void>, SomeInput<int>, long>(T1)", 20, "DeviceScan<plus>"),
        ("smem_transpose(float *, const float *, int)", 24, "smem_transpose"),
        ("void axpy<double, (int)64>(T1 *, const T1 *, T1, unsigned long)", 24, "axpy<double, 64>"),
        ("void f<(bool)1, (int)-2, 3ul, unsigned long, T1 *>(T1 *)", 36, "f<true, -2, 3, unsigned long, T1*>"),
        ("void my::ns::Conv<float>::operator()<3>(int, int, float *) const", 24, "my::ns::Conv<3>"),
        ("Memcpy DtoD (Device -> Device)", 24, "Memcpy DtoD (Device ->…)"),
    ],
)  # fmt: skip
def test_a_name_is_shortened_by_meaning(name, width, expected):
    assert shorten([name], width) == [expected]


@pytest.mark.parametrize(
    ("names", "width", "expected"),
    [
        # the functor's wrapper, the lambda, a number, a tile, the element type: the most telling one stays
        ([MUL, MUL_BY_SCALAR], 24, ["vectorized…<Binary<Mul>>", "vectorized…<AUnary<Mul>>"]),
        ([GELU, GELU.replace("#1}", "#2}", 1)], 24, ["vectorized…<Gelu::λ1>", "vectorized…<Gelu::λ2>"]),
        ([CAT, CAT.replace(")16", ")8")], 24, ["CatArray…contig<16>", "CatArray…contig<8>"]),
        ([XMMA, XMMA.replace("tn_n", "nn_n")], 24, ["sm80…gemm…tn_n…64x64x8…", "sm80…gemm…nn_n…64x64x8…"]),
        ([TANH, TANH.replace("float", "c10::Half")], 24, ["tanh::λ1(float)", "tanh::λ1(Half)"]),
        ([NVJET, NVJET.replace("coopA", "coopB")], 24, ["nvjet…256x128…coopA_NNT", "nvjet…256x128…coopB_NNT"]),
        # a word that only one of them has
        ([XMMA, XMMA + "_splitK"], 24, ["sm80…gemm…tn_n…64x64x8…", "sm80…gemm…64x64x8…splitK"]),
        # namespaces, when nothing else differs
        (["one::step(int, int, int)", "two::step(int, int, int)"], 12, ["one::step", "two::step"]),
        (["alpha::time_step_kernel()", "gamma::time_step_kernel()"], 16, ["alpha::time_step", "gamma::time_step"]),
        # only the parameters differ
        (["add(int, float *)", "add(int, double *)"], 16, ["add(…float)", "add(…double)"]),
        (["add(int, float *)", "add(int, float **)"], 12, ["add", "add #2"]),
        # the shortened form is another kernel's name
        (["tanh", "void tanh<float>(float *, int)"], 12, ["tanh", "tanh<float>"]),
        (["vectorized…<Gelu>", GELU], 24, ["vectorized…<Gelu>", "…elementwise<Gelu>"]),
        (["add", "void add(int, float *, float *)"], 12, ["add", "add #2"]),
        # equal names stay equal
        ([TANH, MUL, TANH], 24, ["vectorized…<tanh>", "vectorized…<Mul>", "vectorized…<tanh>"]),
    ],
)
def test_names_that_differ_stay_apart(names, width, expected):
    assert shorten(names, width) == expected


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["f<", "f<int, ", "f(", "(", ">", "x::", "a_", "λ", "g<1,2>,", "\n"])
def test_very_long_names_are_shortened(piece):
    name = "kernel<" + piece * (100_000 // len(piece))  # quadratic work would take minutes, more than tests may
    assert all(len(text) <= 32 for text in shorten([name, f"{name}1"], 32))


PIECES = (
    *("at::native::", "<unnamed>::", "(anonymous namespace)::", "foo", "bar_kernel", "MulFunctor", "BinaryFunctor"),
    *("vectorized_elementwise_kernel", "reduce_kernel", "Kernel2", "ReduceOp", "kernel", "void ", "float", "T1"),
    *("unsigned int", "const ", "(int)4", "(bool)1", "true", "-", "4", "sm80_gemm_f32f32_tn_n_tilesize64x64x8"),
    *("operator()", "operator<<", "operator ()", "[lambda(float) (instance 1)]", "{lambda()#2}", "::", "->", "<<"),
    *("<", ">", "(", ")", "[", "]", "{", "}", ",", ", ", " ", "*", "&", "_", "λ", "…", " #2", "\n", "\x00", "\ud800"),
)
NAMES = st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text(max_size=60)
LISTS = st.lists(NAMES, max_size=10)
WIDTHS = st.integers(-1, 90)


@slow_given(LISTS, WIDTHS)
def test_no_text_is_wider_than_the_column_and_all_can_be_printed(names, width):
    texts = shorten(names, width)
    assert len(texts) == len(names)
    assert all(len(text) <= max(width, NARROWEST) and text.isprintable() for text in texts)


@given(LISTS, WIDTHS)
def test_texts_are_as_distinct_as_names(names, width):
    texts = shorten(names, width)
    assert len(set(zip(names, texts, strict=True))) == len(set(names)) == len(set(texts))


@given(LISTS, WIDTHS)
def test_what_fits_is_unchanged_whatever_stands_beside_it(names, width):
    for name, text in zip(names, shorten(names, width), strict=True):
        if len(name) <= width and name.isprintable():
            assert text == name


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40).map("_".join), st.sets(st.integers(0, 999)))
def test_many_builds_of_one_kernel_stay_apart(name, numbers):
    names = [f"void {name}<{number}, at::native::MulFunctor<float>>(T1 *)" for number in numbers]
    assert len(set(shorten(names, NARROWEST))) == len(numbers)
