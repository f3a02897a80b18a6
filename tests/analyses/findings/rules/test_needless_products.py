"""Products, layers, convolutions and sums whose result takes less arithmetic."""

import pytest

from kanalyze.analyses.findings.rules import needless_products
from kanalyze.analyses.findings.rules.needless_products import one_hot_products, product_order
from support.build import in_line, kernel, launched, report
from support.kernel_names import GEMM, UP
from support.measures import assert_told, measures
from support.steps import NODE, alike, operator, passes, shaped

STEP = 2_000_000
FILL = "void at::native::vectorized_elementwise_kernel<2, at::native::FillFunctor<long>, std::array<char*, 1ul> >(int)"
ONES = (
    "void at::native::_scatter_gather_elementwise_kernel<128, 8, at::native::_cuda_scatter_fill_internal_kernel<"
    "at::native::OpaqueType<8>>::operator()<at::native::TensorAssign>(at::TensorIterator&)::{lambda(int)#1}>(int)"
)
H100 = {"memory_bandwidth_bytes_per_s": 3_350_000_000_000, "name": "NVIDIA H100 80GB HBM3"}


#: What CuPy launches for a product with a matrix in COO, each as long as its letter says (µs).
OF_CUPY = {
    "c": ("cupy_copy__float32_float32", 2),
    "s": ("void cub::detail::merge_sort::DeviceMergeSortMergeKernel<int>(int)", 30),
    "t": ("cupy_take", 3),
    "d": ("cupyx_scipy_sparse_coo_sum_duplicates_diff", 4),
    "a": ("cupy_cub_all_pass1", 5),
    "v": ("void convert_CooToCsr_kernel<0>(const int *, int, int, int *)", 6),
    "m": ("void cusparse::csrmm_alg1_kernel<0>(float)", 50),
    "u": ("cupy_multiply__float32_float32_float32", 10),
    "f": ("void getrf_pivot<getrf_params_<float, 256, 2>>(int)", 50),
    "r": ("void kernel_trsm_l_mul32<float, 8, 0>(int)", 20),
    "g": ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8", 30),
    "p": ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8", 5),
}
CONVERTS = "cccccsstttdav"


def of_cupy(letters, line="y = A @ x"):
    """Five steps of what CuPy launches, each in one line of the program."""
    step = []
    for number, letter in enumerate(letters):
        at, (name, took) = 60_000 * number, OF_CUPY[letter]
        step += launched(at + 1000, at + 9000, kernel(at + 10_000, at + 10_000 + 1000 * took, name=name))
    lines = [in_line(at, at + STEP, 7, line) for at in range(0, 5 * STEP, STEP) if line]
    return alike(*step, step_ns=STEP, source_lines=lines)


INVERTS = "frfrgrg"


@pytest.mark.parametrize(
    ("lines", "tells"),
    [
        ([(INVERTS + "rp", "return cp.linalg.inv(k) @ y")], True),
        ([(INVERTS + "rp", "w = y.T @ cp.linalg.inv(cov(k, (a, b)))  # w")], True),
        ([(INVERTS + "rp", "w = cp.dot(cp.linalg.inv(k), y)")], True),
        ([(INVERTS + "r", "p = cp.linalg.inv(k)"), ("p", "w = p @ y")], False),  # more may be made of it
        ([(INVERTS + "rg", "return cp.linalg.inv(k) @ y")], False),  # by as many columns
        ([(INVERTS + "rp", "return cp.linalg.inv(k) * y @ x")], False),  # each element
        ([(INVERTS + "rp", "return self.inv(k) @ y")], False),
        ([("gp", "return cp.linalg.inv(k) @ y")], False),  # no factors
    ],
)
def test_inverses_of_cupy_that_are_multiplied(lines, tells):
    step, where, number = [], [], 0
    for letters, text in lines:
        begun = 60_000 * number
        for letter in letters:
            at, (name, took) = 60_000 * number, OF_CUPY[letter]
            step += launched(at + 1000, at + 9000, kernel(at + 10_000, at + 10_000 + 1000 * took, name=name))
            number += 1
        line = next(place for place, one in enumerate(lines) if one[1] == text)
        where += [in_line(at + begun, at + 60_000 * number, line, text) for at in range(0, 5 * STEP, STEP)]
    more = launched(1_900_000, 1_909_000, kernel(1_910_000, 1_915_000, name=OF_CUPY["u"][0]))
    found = [*needless_products.inverses_of_cupy(alike(*step, *more, step_ns=STEP, source_lines=where))]
    assert len(found) == tells
    if tells:
        assert found[0].mending.shorter.get_column("saved_ns").sum() >= 5 * (28 + 18 + 28 + 18) * 1000  # "grgr"


@pytest.mark.parametrize(("norm", "stakes"), [("two", [5 * 400_000]), ("one", [])])
def test_euclidean_distances_of_pairs_are_products(norm, stakes):
    name = f"void at::native::cdist_kernel_cuda_impl<float, at::native::dists<float>::{norm}>(long)"
    steps = alike(*launched(1000, 9000, kernel(10_000, 410_000, name=name)))
    assert_told(needless_products.pairwise_distances(steps), stakes, *["pair by pair: 100.0 %"] * len(stakes))


@pytest.mark.parametrize(
    ("letters", "line", "gone"),
    [
        (CONVERTS + "mu", "y = A @ x", 13),
        ("u" + CONVERTS + "m" + CONVERTS + "mu", "y = A.T @ (A @ x)", 26),
        ("cc" + CONVERTS + "m", "y = A @ x.copy()", 14),  # copies that the program makes before
        (CONVERTS + "m", "A = sparse.coo_matrix((values, (rows, columns)))", 0),  # another one each time
        (CONVERTS + "mm", "A = a.tocsr()", 0),
        (CONVERTS + "m", "A, b = build(x); y = A @ b", 0),
        (CONVERTS + "m", "A @= B", 0),
        (CONVERTS + "m", "y = f(x)", 0),  # of no matrix that is known
        (CONVERTS + "m", "A.data[:] = f(x)", 0),
        (CONVERTS + "m", "", 0),
        ("cccsstttdamu", "x = f(x)", 0),  # without a conversion
        ("vmu", "y = A @ x", 0),  # in order already: next to nothing
        ("ssmu", "y = cp.sort(x)", 0),
    ],
)
def test_products_that_convert_their_matrices(letters, line, gone):
    of = of_cupy(letters, line)
    told = [*needless_products.converted_products(of)]
    assert [len(one.mending.gone) for one in told] == [5 * gone] * bool(gone)
    assert all(one.headline == "Sparse matrices in COO are sorted anew by each product" for one in told)
    busy = 1000 * sum(OF_CUPY[letter][1] for letter in letters if letter not in "mu")
    assert all(5 * busy <= one.at_stake_ns <= 5 * 60_000 * len(letters) for one in told)


WORK = (GEMM, 16_000)
DIAG = ("aten::diag", "[[8192], []]", [(FILL, 9_000)])
EMBED = ("aten::diag_embed", "[[4, 512], []]", DIAG[2])
SCALED = ("aten::matmul", "[[512, 8192], [8192, 8192]]", [WORK])
OTHER = ("aten::mm", "[[16, 16], [16, 16]]", [WORK])
JOINED = "[5, 8192], [9, 8192], [7, 8192]"


@pytest.mark.parametrize(
    ("operators", "stake", "gone"),
    [
        ((DIAG, SCALED), 25_000, 5),
        ((DIAG, ("aten::mm", "[[8192, 8192], [8192, 512]]", [WORK])), 25_000, 5),
        ((EMBED, ("aten::bmm", "[[4, 9, 512], [4, 512, 512]]", [WORK])), 25_000, 5),
        ((DIAG, SCALED, (f"{NODE}MmBackward0#1", "[]", [WORK, (UP, 2_000)])), 43_000, 10),
        ((DIAG, SCALED, OTHER, (f"{NODE}MmBackward0#2", "[]", [WORK])), 25_000, 5),  # another one's gradients
        ((("aten::diag", "[[8192, 8192], []]", DIAG[2]), SCALED), 0, 0),  # the diagonal of a matrix
        ((("aten::diag", "[[32], []]", DIAG[2]), ("aten::mm", "[[9, 32], [32, 32]]", [WORK])), 0, 0),
        ((DIAG, ("aten::add", "[[8192, 8192], [8192, 8192]]", [WORK]), SCALED), 0, 0),  # it is added
        ((DIAG, OTHER, SCALED), 0, 0),
        ((DIAG, SCALED, ("aten::add", "[[8192, 8192], [8192, 8192]]", [WORK])), 0, 0),  # the product is of another one
        ((DIAG, SCALED, ("aten::cat", f"[[{JOINED}, [8192, 8192]], []]", [WORK])), 0, 0),
        ((DIAG, SCALED, ("aten::einsum", f"[[], [{JOINED}, [8192, 8192]], []]", [WORK])), 0, 0),
        ((DIAG, SCALED, *[OTHER] * 15), 0, 0),
    ],
)
def test_products_with_diagonals(operators, stake, gone):
    told = needless_products.diagonal_products(passes(*operators))
    assert_told(told, [5 * stake] * bool(stake), *["multiplied by diagonal ones"] * bool(stake))
    assert [len(one.mending.gone) for one in told] == [gone] * bool(stake)


def batched(weights, samples, copied, name="aten::matmul"):
    """Five steps of a product that copies a tensor of a shape before it, and is in backward after that."""
    step = [
        shaped(name, 0, 90_000, f"[{weights}, {samples}]"),
        shaped("aten::copy_", 1_000, 30_000, f"[{copied}, {copied}, []]"),
        shaped("aten::bmm", 40_000, 80_000, "[[40000, 16, 8], [40000, 8, 1]]"),
        *launched(10_000, 17_000, kernel(19_000, 39_000, name=UP)),
        *launched(50_000, 57_000, kernel(59_000, 79_000, name=GEMM)),
    ]
    return alike(*step)


@pytest.mark.parametrize(
    ("shapes", "stake"),
    [
        (("[400, 16, 8]", "[100, 400, 8, 1]", "[100, 400, 16, 8]"), 200_000),
        (("[400, 16, 8]", "[100, 400, 8, 1]", "[4, 400, 16, 8]"), 0),  # little is copied
        (("[400, 16, 8]", "[100, 400, 8, 1]", "[100, 400, 16, 8]", "aten::linear"), 0),
    ],
)
def test_products_that_copy_a_matrix_for_each_sample(shapes, stake):
    told = needless_products.expanded_products(batched(*shapes))
    assert_told(told, [stake] * bool(stake), *["14 times its elements"] * bool(stake))
    left = (51_200 + 320_000 + 640_000) / (51_200 + 320_000 + 640_000 + 2 * 5_120_000)
    assert [one.mending.shorter["saved_ns"].to_list() for one in told] == [[int(20_000 * (1 - left))] * 10] * bool(
        stake
    )


def neighbours(width, layer, asks="aten::_nnz", then="[[1000, 64]]"):
    """Five steps that sum rows of a width over neighbours, 1,000 rows of a sparse matrix, and run a layer after it."""
    step = [
        shaped("Neighbours", 0, 90_000, f"[[1000, {width}], [1000, 1000]]"),
        shaped("aten::addmm", 1_000, 89_000, f"[[1000, {width}], [1000, 1000], [1000, {width}], [], []]"),
        shaped(asks, 2_000, 3_000, "[[1000, 1000]]"),
        *launched(10_000, 17_000, kernel(19_000, 39_000, name="void csrmm_alg2<float>(int)")),
        *operator("aten::linear", 100_000, of=GEMM, input_shapes=layer),
        *operator("aten::mul", 200_000, of=UP, input_shapes=then),
    ]
    return alike(*step)


@pytest.mark.parametrize(
    ("summed", "stake"),
    [
        ((512, "[[1000, 512], [64, 512], [64]]"), 100_000),
        ((512, "[[1000, 512], [256, 512], [256]]"), 0),  # not far narrower
        ((512, "[[1000, 64], [64, 64], [64]]"), 0),  # of something else
        ((512, "[[1000, 512], [64, 512], [64]]", "aten::t"), 0),  # no sparse matrix
        ((512, "[[1000, 512], [1, 512], [1]]", "aten::_nnz", "[[1000, 512], [1000, 1]]"), 0),  # a gate for each row
    ],
)
def test_sums_over_neighbours_before_a_narrow_layer(summed, stake):
    told = needless_products.sparse_order(neighbours(*summed))
    assert_told(told, [stake] * bool(stake), *["rows of 512 columns", "makes 64"] * bool(stake))
    assert [one.mending.shorter["saved_ns"].to_list() for one in told] == [[15_000] * 5] * bool(stake)


HEAD = ("aten::linear", "[[8, 1000, 64], [5000, 64], []]", [WORK])
LAST = ("aten::topk", "[[8, 5000], [], [], [], []]", [("topk", 5_000)])
ALL = ("aten::argmax", "[[8, 1000, 5000], [], []]", [("reduce", 5_000)])


@pytest.mark.parametrize(
    ("operators", "stake"),
    [
        ((HEAD, LAST), 16_000),
        ((HEAD, LAST, ALL), 0),
        ((HEAD, *[LAST] * 300), 0),  # one position after the other
        ((HEAD, ("aten::mul", "[[8, 1000, 100], []]", [WORK])), 0),  # a part of each row
        ((HEAD, OTHER, LAST), 0),  # of something else
        ((("aten::linear", "[[8, 1000, 64], [1000, 64], []]", [WORK]), ("aten::topk", "[[8, 1000]]", [WORK])), 0),
        ((HEAD, LAST, (f"{NODE}MmBackward0#0", "[]", [WORK])), 0),
    ],
)
def test_layers_of_whose_rows_few_are_read(operators, stake):
    told = needless_products.unread_rows(passes(*operators))
    assert_told(told, [5 * stake] * bool(stake), *["of which 0.1 % at most are read"] * bool(stake))


GATHER = ("aten::index_select", "[[100, 64], [], [4000]]", [("gather", 5_000)])
LINEAR = ("aten::linear", "[[4000, 64], [64, 64], [64]]", [WORK])
NARROWS = ("aten::linear", "[[4000, 64], [16, 64], [16]]", [WORK])
RELU = ("aten::relu", "[[4000, 64]]", [("relu", 8_000)])
FURTHER = ("aten::index_select", "[[16, 64], [], [4000]]", GATHER[2])
CANDIDATES = ("aten::embedding", "[[100, 64], [40, 100]]", GATHER[2])
PLACES = "[[40, 100, 64], [], [100, 64], [100, 64], [], []]"
ROWS = "[[40, 100, 64], [64, 64], [64]]"


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("operators", "stake"),
    [
        ((GATHER, LINEAR), 16_000),
        ((GATHER, LINEAR, RELU, LINEAR), 40_000),
        ((CANDIDATES, LINEAR), 16_000),
        ((("aten::index", "[[100, 64], []]", [("gather", 5_000)]), LINEAR), 0),  # nobody knows by how many
        ((("aten::index_select", "[[0, 64], [], [4000]]", GATHER[2]), LINEAR), 0),
        ((GATHER, LINEAR, ("aten::layer_norm", "[[4000, 64], [], [64], [64], [], []]", [WORK])), 32_000),
        ((GATHER, LINEAR, (f"{NODE}AddmmBackward0#1", "[]", [WORK])), 32_000),
        # narrow rows are summed in place of wide ones
        ((GATHER, NARROWS, (f"{NODE}IndexSelectBackward0#0", "[]", [("sums", 9_000)])), 25_000),
        ((GATHER, LINEAR, (f"{NODE}IndexSelectBackward0#0", "[]", [("sums", 9_000)])), 16_000),
        # what makes no node has the number of the next one that does
        ((GATHER, LINEAR, ("aten::relu#3", *RELU[1:]), OTHER, (f"{NODE}MmBackward0#3", "[]", [WORK])), 24_000),
        ((GATHER, LINEAR, ("aten::dropout", "[[4000, 64]]", [WORK]), LINEAR), 16_000),  # of each row another one
        ((("aten::index_select", "[[2000, 64], [], [4000]]", GATHER[2]), LINEAR), 0),  # not far fewer
        ((("aten::index_select", "[[100, 64], [], [500]]", GATHER[2]), LINEAR), 0),  # rows of something else
        ((GATHER, ("aten::linear", "[[4000, 64], [256, 64], [256]]", [WORK])), 0),  # wider than what was gathered
        ((GATHER, ("aten::linear", "[[8000, 32], [32, 32], [32]]", [WORK])), 0),
        ((GATHER, ("aten::cat", "[[[4000, 64], [4000, 64]], []]", [WORK]), LINEAR), 0),
        ((GATHER, RELU), 0),
        ((GATHER, LINEAR, ("aten::mul", "[[4000, 1], [4000, 64]]", [WORK])), 16_000),
        ((GATHER, LINEAR, OTHER, ("aten::add", "[[4000, 64], [4000, 64], []]", [WORK])), 0),  # of what was gathered
        ((GATHER, LINEAR, ("aten::mul", "[[4000, 8, 8], [4000, 8, 8]]", [WORK])), 0),  # in another shape
        ((GATHER, LINEAR, FURTHER, OTHER, ("aten::add", "[[4000, 64], [4000, 64], []]", [WORK])), 0),
        ((CANDIDATES, ("aten::matmul", "[[40, 100, 64], [40, 64, 1]]", [WORK])), 0),  # a matrix for each sample
        ((GATHER, ("aten::matmul", "[[16, 250, 64], [16, 64, 64]]", [WORK])), 0),  # for each expert
        ((CANDIDATES, ("aten::layer_norm", PLACES, [WORK]), ("aten::linear", ROWS, [WORK])), 0),  # by place, too
    ],
)
def test_layers_on_gathered_rows(operators, stake):
    told = needless_products.gathered_layers(passes(*operators))
    assert_told(told, [5 * stake] * bool(stake), *["40 times for each", "100 rows, not 4,000"] * bool(stake))


def test_each_thread_numbers_what_it_runs_for_itself():
    images = "[[8, 3, 64, 64], [8, 3, 3, 3], []]"
    node, other = (f"{NODE}AddmmBackward0#1", "[]", [WORK]), ("aten::conv2d#{}", images, [("conv", 15_000)])
    for number, stake in ((2, 32_000), (1, 16_000)):
        beside = (other[0].format(number), *other[1:])
        made = passes(GATHER, LINEAR, beside, node, threads={"aten::conv2d": 3})
        assert_told(needless_products.gathered_layers(made), [5 * stake])


HOT = ("aten::one_hot", "[[128, 32], []]", [(FILL, 9_000), (ONES, 1_000)])
CAST = ("aten::to", "[[128, 32, 4096], [], [], [], []]", [(UP, 8_000)])
LOOKED_UP = ("aten::linear", "[[128, 32, 4096], [64, 4096], []]", [WORK])
SMOOTHED = ("aten::scatter_", "[[8192, 1000], [], [8192, 1], []]", [(FILL, 9_000), (ONES, 1_000)])
LAYER = ("aten::linear", "[[8192, 784], [512, 784], [512]]", [WORK])


@pytest.mark.parametrize(
    ("operators", "stake", "gone"),
    [
        ((HOT, CAST, LOOKED_UP), 34_000, 3),
        ((HOT, CAST, LOOKED_UP, (f"{NODE}MmBackward0#2", "[]", [WORK])), 50_000, 3),
        ((HOT, CAST, LOOKED_UP, OTHER, (f"{NODE}MmBackward0#3", "[]", [WORK])), 34_000, 3),  # another one's gradients
        ((SMOOTHED, ("aten::mm", "[[1000, 8192], [8192, 64]]", [WORK])), 26_000, 2),  # it sums by class
        ((SMOOTHED, LAYER, (f"{NODE}AddmmBackward0#1", "[]", [WORK])), 0, 0),  # of something else: targets were made
        ((HOT, LAYER), 0, 0),  # as are actions
    ],
)
def test_products_with_one_hot_matrices(operators, stake, gone):
    told = one_hot_products(passes(*operators, limits=H100))
    assert_told(told, [5 * stake] * bool(stake), *["One-hot matrices are multiplied"] * bool(stake))
    assert [len(one.mending.gone) for one in told] == [5 * gone] * bool(stake)


def test_without_shapes_products_with_one_hot_matrices_take_as_long_as_now():
    node = (f"{NODE}MmBackward0#2", "[]", [WORK])
    made = passes(*[(name, "[]", kernels) for name, _, kernels in (HOT, CAST, LOOKED_UP, node)], limits=H100)
    told = one_hot_products(made)
    assert_told(told, [5 * 34_000])
    assert_mends(told, made, 15, 0)


def test_no_product_takes_longer_for_a_larger_result():
    large = ("aten::linear", "[[100000, 10], [512, 10], []]", [(GEMM, 70_000)])  # of which to write it takes 60 µs
    cast = ("aten::to", "[[100000, 10], [], [], [], []]", [(UP, 3_000)])
    made = passes(("aten::one_hot", "[[100000], []]", HOT[2]), cast, large, limits=H100)
    assert_mends(one_hot_products(made), made, 15, 0)


def assert_mends(told, made, gone, saved_ns):
    """How many operations are gone, and what others save."""
    assert [measures(one, made)[1:3] for one in told] == [(gone, saved_ns)]


FIRST = ("aten::bmm", "[[16, 4096, 32], [16, 32, 4096]]")
SECOND = ("aten::bmm", "[[16, 4096, 4096], [16, 4096, 32]]")
DIVIDED = ("aten::div", "[[2, 8, 4096, 4096], [2, 8, 4096, 1]]")
GRAM = ("aten::mm", "[[512, 9000], [9000, 512]]")
VECTOR = ("aten::mv", "[[512, 512], [512]]")


def test_the_products_of_a_layers_gradients_are_no_chain():
    """The gradient of a layer's input has the shape of that input, of which the next product makes its weight's."""
    node = shaped(f"{NODE}MmBackward0", 0, 90_000, "[]")
    first = operator("aten::mm", 1000, input_shapes="[[512, 20], [20, 512]]")
    second = operator("aten::mm", 20_000, input_shapes="[[20, 512], [512, 512]]")
    assert_told(product_order(report([node, *first, *second])), [])
    assert product_order(report([*first, *second]))


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("operators", "stake", "words"),
    [
        ((FIRST, SECOND), 20_000, "of 4,096 × 4,096 that are multiplied by far narrower ones"),
        ((FIRST, ("aten::sum", "[[2, 8, 4096, 4096], []]"), DIVIDED, SECOND), 40_000, "has 128 times less arithmetic"),
        ((FIRST, ("aten::add", "[[16, 4096, 1], []]"), SECOND), 30_000, "100.0 %"),  # of a smaller tensor
        ((FIRST, SECOND, (f"{NODE}BmmBackward0#0", "[]")), 30_000, "with their gradients"),
        ((GRAM, VECTOR), 20_000, "of 512 × 512"),
        # an update of low rank that is made first: it comes second in the product
        ((("aten::mm", "[[1024, 8], [8, 1024]]"), ("aten::mm", "[[64, 1024], [1024, 1024]]")), 20_000, "1,024 × 1,024"),
        ((("aten::mm", "[[9000, 64], [64, 512]]"), ("aten::addmm", "[[8], [9000, 512], [512, 8]]")), 20_000, "512"),
        ((FIRST, ("aten::_softmax", "[[16, 4096, 4096], [], []]"), SECOND), 0, None),
        ((FIRST, ("aten::relu", "[[16, 4096, 4096]]"), SECOND), 0, None),
        *(
            ((FIRST, between, SECOND), 0, None)
            for between in [
                ("aten::mul", "[[16, 4096, 4096], [16, 4096, 4096]]"),  # masks, decay
                ("aten::mul", "[[16, 4096, 4096], [4096, 4096]]"),
                ("aten::mul", "[[4096, 4096], [16, 4096, 4096]]"),
                ("aten::where", "[[4096, 4096], [16, 4096, 4096], []]"),
                ("aten::add", "[[4096, 4096], [16, 4096, 4096], []]"),
                ("aten::_softmax", "[[4, 4096, 4096], [], []]"),  # head by head
                ("mylib::softmax", "[]"),
                ("mylib::softmax", "[[], [16, 4096, 4096]]"),
                ("python", "[]"),  # a kernel of no operator
            ]
        ),
        ((FIRST, ("aten::mul", "[[16, 4096, 4096], []]"), SECOND), 30_000, "100.0 %"),
        ((FIRST, ("aten::zeros", "[[], [], []]"), SECOND), 30_000, "100.0 %"),
        # what is added to has no other order
        ((("aten::addmm", "[[512, 512], [512, 16], [16, 512]]"), ("aten::mm", "[[16, 512], [512, 512]]")), 0, None),
        ((("aten::addmm", "[[512], [512, 16], [16, 512]]"), ("aten::mm", "[[16, 512], [512, 512]]")), 20_000, "512"),
        ((GRAM, VECTOR, VECTOR), 0, None),  # the matrix is used again
        # twice the work
        ((("aten::mm", "[[512, 200], [200, 512]]"), ("aten::mm", "[[512, 512], [512, 512]]")), 0, None),
        ((("aten::mm", "[[99, 5], [5, 99]]"), ("aten::mm", "[[99, 99], [99, 5]]")), 0, None),  # small
        ((FIRST, ("aten::bmm", "[[8, 4096, 4096], [8, 4096, 32]]")), 0, None),  # of another batch
        ((FIRST, ("aten::mm", "[[64, 64], [64, 64]]"), SECOND), 0, None),
        ((("aten::bmm", "[]"), ("aten::bmm", "[]")), 0, None),  # no shapes
        ((FIRST, SECOND, *[("aten::mm", "[[64, 64], [64, 64]]")] * 10), 0, None),  # others take more
    ],
)
def test_products_whose_other_order_takes_less(operators, stake, words):
    made = [(*one, [(f"kernel of {number}", 10_000)]) for number, one in enumerate(operators)]
    assert_told(product_order(passes(*made)), [5 * stake] * bool(stake), *filter(None, [words]))
