"""Products, layers, convolutions and sums whose result takes less arithmetic."""

import pytest

from kanalyze.analyses.findings.rules import needless_products
from kanalyze.analyses.findings.rules.needless_products import one_hot_products, product_order
from support.build import host, kernel, launched, report
from support.kernel_names import GEMM, UP
from support.measures import assert_told, measures
from support.steps import in_steps, operators as operators_of

STEP = 2_000_000
NODE = "autograd::engine::evaluate_function: "
FILL = "void at::native::vectorized_elementwise_kernel<2, at::native::FillFunctor<long>, std::array<char*, 1ul> >(int)"
ONES = (
    "void at::native::_scatter_gather_elementwise_kernel<128, 8, at::native::_cuda_scatter_fill_internal_kernel<"
    "at::native::OpaqueType<8>>::operator()<at::native::TensorAssign>(at::TensorIterator&)::{lambda(int)#1}>(int)"
)
H100 = {"memory_bandwidth_bytes_per_s": 3_350_000_000_000, "name": "NVIDIA H100 80GB HBM3"}


def passes(*operators, limits=None, threads=()):
    """Five passes of operators: name, shapes of the inputs, kernels (name, ns), perhaps values of the inputs.

    Each has its place as number; of nodes, which run on thread 2, the name ends with that of their operator. `threads`
    are those of others by name.
    """
    events, details = [], []
    for at in range(0, 5 * STEP, STEP):
        begin = at
        for number, (text, inputs, kernels, *values) in enumerate(operators):
            name, _, of = text.partition("#")
            node = name.startswith(NODE)
            thread = dict(threads).get(name, 2 if node else 1)
            known = {"sequence_number": at // STEP * 50 + int(of or number), "forward_thread_id": int(node)}
            details.append({"event_id": len(events), "input_shapes": inputs, **known})
            details[-1] |= {"input_values": values[0]} if values else {}
            events.append(host("op", name, begin, begin + 90_000, thread=thread))
            if node:
                details.append({"event_id": len(events), "input_shapes": "[]", **known})
                events.append(host("op", "MmBackward0", begin + 500, begin + 89_000, thread=thread))
                events.append(host("op", "aten::mm", begin + 1000, begin + 88_000, thread=thread))
            for place, (made, ns) in enumerate(kernels):
                start = begin + 20_000 * place
                launch = kernel(start + 10_000, start + 10_000 + ns, name=made)
                events += launched(start + 1000, start + 8000, launch, thread=thread)
            begin += 100_000
    return in_steps(events, 5, STEP, op_detail=details, limits=limits)


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
}
CONVERTS = "cccccsstttdav"


def of_cupy(letters, line="y = A @ x"):
    """Five steps of what CuPy launches, each in one line of the program."""
    each, lines = [(number, *OF_CUPY[letter]) for number, letter in enumerate(letters)], []
    events = [
        event
        for at in range(0, 5 * STEP, STEP)
        for number, name, took in each
        for event in launched(
            *(at + 60_000 * number + 1000, at + 60_000 * number + 9000),
            kernel(at + 60_000 * number + 10_000, at + 60_000 * number + 10_000 + 1000 * took, name=name),
        )
    ]
    if line:
        where = {"process_id": 1, "thread_id": 1, "file": "a.py", "line": 7, "function": "f", "text": line}
        lines = [{**where, "start_ns": at, "dur_ns": STEP} for at in range(0, 5 * STEP, STEP)]
    return in_steps(events, 5, STEP, source_lines=lines)


@pytest.mark.parametrize(
    ("letters", "line", "gone"),
    [
        (CONVERTS + "mu", "y = A @ x", 13),
        ("u" + CONVERTS + "m" + CONVERTS + "mu", "y = A.T @ (A @ x)", 26),
        ("cc" + CONVERTS + "m", "y = A @ x.copy()", 14),  # copies that the program makes before
        (CONVERTS + "m", "A = sparse.coo_matrix((values, (rows, columns)))", 0),  # another one each time
        (CONVERTS + "mm", "A = a.tocsr()", 0),
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
    events, details = [], []
    for at in range(0, 5 * STEP, STEP):
        for operator, inputs, start, end in (
            (name, f"[{weights}, {samples}]", 0, 90_000),
            ("aten::copy_", f"[{copied}, {copied}, []]", 1_000, 30_000),
            ("aten::bmm", "[[40000, 16, 8], [40000, 8, 1]]", 40_000, 80_000),
        ):
            details.append({"event_id": len(events), "input_shapes": inputs})
            events.append(host("op", operator, at + start, at + end))
        for start, of in ((10_000, UP), (50_000, GEMM)):
            events += launched(at + start, at + start + 7_000, kernel(at + start + 9_000, at + start + 29_000, name=of))
    return in_steps(events, 5, STEP, op_detail=details)


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


WINDOWS = ("void at::native::im2col_kernel<float>(long)", 14_000)
SUMMED = ("void at::native::col2im_batched_kernel<float>(long)", 13_000)
ORDERED = ("void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(int)>(int)", 12_000)
THREE = '["", "[3, 3]", "[1, 1]", "[1, 1]", "[1, 1]"]'  # kernel, dilation, padding, stride
IMAGES = "[[4, 64, 28, 28], [], [], [], []]"
UNFOLD = ("aten::im2col", IMAGES, [WINDOWS], THREE)
BY_WEIGHTS = ("aten::matmul", "[[32, 576], [4, 576, 784]]", [ORDERED, WORK])
SUM = (f"{NODE}Im2ColBackward0#0", "[[4, 576, 784]]", [SUMMED])
LAYER = "[[4, 784, 576], [32, 576], [32]]"


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("operators", "stake"),
    [
        ([UNFOLD, BY_WEIGHTS], 26_000),  # the product itself stays
        ([UNFOLD, BY_WEIGHTS, (f"{NODE}MmBackward0#1", "[]", [ORDERED, WORK]), SUM], 51_000),
        ([UNFOLD, ("aten::linear", LAYER, [ORDERED, WORK])], 26_000),
        ([UNFOLD, ("aten::einsum", "[[], [[32, 576], [4, 576, 784]], []]", [WORK])], 14_000),
        ([UNFOLD, BY_WEIGHTS, BY_WEIGHTS], 38_000),  # two layers of one input
        ([UNFOLD, ("aten::to", "[[4, 576, 784], []]", [ORDERED]), BY_WEIGHTS], 38_000),  # under autocast
        (
            [
                UNFOLD,
                ("aten::reshape", "[[4, 784, 576], []]", [ORDERED]),
                ("aten::mm", "[[3136, 576], [576, 32]]", [WORK]),
            ],
            26_000,
        ),
        # windows beside each other, and some with a distance
        (
            [
                ("aten::im2col", "[[4, 3, 60, 60], []]", [WINDOWS], THREE.replace('1, 1]"]', '2, 2]"]')),
                ("aten::matmul", "[[32, 27], [4, 27, 900]]", [WORK]),
            ],
            14_000,
        ),
        ([UNFOLD], 0),  # nothing known of what takes them
        # weights of each sample; of each place; what has the windows' own size; a sum over places
        ([UNFOLD, ("aten::bmm", "[[4, 32, 576], [4, 576, 784]]", [WORK])], 0),
        ([UNFOLD, ("aten::mul", "[[4, 64, 9, 28, 28], [4, 1, 9, 28, 28]]", [(UP, 9_000)])], 0),
        ([UNFOLD, ("aten::mm", "[[576, 3136], [3136, 576]]", [WORK])], 0),
        ([UNFOLD, ("aten::matmul", "[[4, 576, 784], [784, 576]]", [WORK])], 0),
        # keys and values, unfolded alike, of which one is projected
        ([UNFOLD, UNFOLD, BY_WEIGHTS, ("aten::mul", "[[4, 64, 9, 784], [4, 64, 1, 784]]", [(UP, 9_000)])], 0),
        # windows that are normalized before
        ([UNFOLD, ("aten::sub", "[[4, 576, 784], [4, 1, 784], []]", [(UP, 9_000)]), BY_WEIGHTS], 0),
        # a convolution that PyTorch does so by itself
        ([("aten::conv2d", "[[4, 64, 28, 28], [32, 64, 3, 3]]", [WINDOWS, WORK])], 0),
    ],
)
def test_convolutions_by_products_with_windows(operators, stake):
    told = needless_products.unfolded_convolutions(passes(*operators, ("aten::relu", "[[9]]", [(UP, 9_000)])))
    assert_told(told, [5 * stake] * bool(stake), *["F.unfold"] * bool(stake))


def neighbours(width, layer, asks="aten::_nnz", then="[[1000, 64]]"):
    """Five steps that sum rows of a width over neighbours, 1,000 rows of a sparse matrix, and run a layer after it."""
    events, details = [], []
    for at in range(0, 5 * STEP, STEP):
        shapes = f"[[1000, {width}], [1000, 1000], [1000, {width}], [], []]"
        for name, inputs, start, end in (
            ("Neighbours", f"[[1000, {width}], [1000, 1000]]", 0, 90_000),
            ("aten::addmm", shapes, 1_000, 89_000),
            (asks, "[[1000, 1000]]", 2_000, 3_000),
            ("aten::linear", layer, 100_000, 190_000),
            ("aten::mul", then, 200_000, 290_000),
        ):
            details.append({"event_id": len(events), "input_shapes": inputs})
            events.append(host("op", name, at + start, at + end))
        for start, name in ((10_000, "void csrmm_alg2<float>(int)"), (110_000, GEMM), (210_000, UP)):
            events += launched(
                at + start, at + start + 7_000, kernel(at + start + 9_000, at + start + 29_000, name=name)
            )
    return in_steps(events, 5, STEP, op_detail=details)


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


GATHER = ("aten::index_select", "[[100, 64], [], [4000]]", [("gather", 5_000)])
LINEAR = ("aten::linear", "[[4000, 64], [64, 64], [64]]", [WORK])
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
    shapes = ["[]", "[[512, 20], [20, 512]]", "[[20, 512], [512, 512]]"]
    events = []
    for name, start, end in ((f"{NODE}MmBackward0", 0, 90_000), ("aten::mm", 1000, 9000), ("aten::mm", 20_000, 29_000)):
        events.append(host("op", name, start, end))
    for begin in (1000, 20_000):
        made = kernel(begin + 2000, begin + 9000)
        events += launched(begin + 100, begin + 900, made)
    details = [{"event_id": number, "input_shapes": text} for number, text in enumerate(shapes)]
    assert_told(product_order(report(events, op_detail=details)), [])
    assert product_order(
        report(events[1:], op_detail=[{"event_id": 0, "input_shapes": shapes[1]}, details[2] | {"event_id": 1}])
    )


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


@pytest.mark.parametrize(
    ("name", "shapes", "strides", "stake", "words"),
    [
        ("aten::mean", "[[16, 9000, 101], [], [], []]", "[[9100, 1, 1], [], [], []]", 150_000, "100 times and more"),
        ("aten::sum", "[[64, 4096]]", "[[0, 1]]", 150_000, "each element 64 times"),
        ("aten::sum", "[[16, 9000, 101]]", "[[909000, 101, 1]]", 0, None),
        ("aten::sum", "[[4096, 9000]]", "[[1, 4096]]", 0, None),  # transposed
        ("aten::sum", "[[16, 9000, 9]]", "[[9100, 1, 1]]", 0, None),  # short windows
        ("aten::max", "[[16, 9000, 101]]", "[[9100, 1, 1]]", 0, None),  # no running sum gives it
        ("aten::sum", "[[16, 0, 101]]", "[[9100, 1, 1]]", 0, None),
        ("aten::sum", "[[]]", "[[]]", 0, None),
        ("aten::sum", "[[16, 9000, 101]]", None, 0, None),
    ],
)
def test_sums_read_elements_again(name, shapes, strides, stake, words):
    made = operators_of((name, {"input_shapes": shapes, "input_strides": strides}, 30_000))
    assert_told(needless_products.overlapping_windows(made), [stake] * bool(stake), *filter(None, [words]))


def test_what_takes_little_beside_others_is_left_out():
    columns = {"input_shapes": "[[16, 9000, 101]]", "input_strides": "[[9100, 1, 1]]"}
    made = operators_of(("aten::mean", columns, 30_000), ("aten::mm", columns, 400_000))
    assert_told(needless_products.overlapping_windows(made), [])


MEAN, MEAN_BACK = "aten::avg_pool2d", "aten::avg_pool2d_backward"
MAXIMUM = "aten::max_pool2d_with_indices"
PHOTOS, OTHERS = "[4, 1, 384, 512]", "[], [], [], [], [], []"


def pooled(*each, image=PHOTOS, within=None, limits=H100):
    """Five steps of pools of an image: name, window, step and padding of both axes (None: not recorded), ns."""
    events, details = [], []
    for begin in range(0, 50_000_000, 10_000_000):
        for number, (name, window, step, padding, took) in enumerate(each):
            at, back = begin + 3_000_000 * number, name.endswith("backward")
            if outer := within and not back:
                details.append({"event_id": len(events), "input_shapes": "[]"})
                events.append(host("op", within, at, at + 9_500))
            shapes = f"[{image}, {image}, {OTHERS}]" if back else f"[{image}, {OTHERS}]"
            inputs = '"", ' * (1 + back)
            given = f'[{inputs}"{window}", "{step}", "{padding}", "[1, 1]", "False", ""]'
            values = {"input_values": given} if window else {}
            details.append({"event_id": len(events), "input_shapes": shapes, **values})
            inner = at + 500 * bool(outer)
            made = kernel(at + 10_000, at + 10_000 + took, name=f"void {name.removeprefix('aten::')}<float>(int)")
            events += [host("op", name, inner, at + 9_000), *launched(at + 1_000, at + 8_000, made)]
    return in_steps(events, 5, 10_000_000, op_detail=details, limits=limits)


def square(name, side, took, *, step=1):
    return (name, [side] * 2, [step] * 2, [side // 2] * 2, took)


WIDE = square(MEAN, 49, 347_000)


@pytest.mark.parametrize(
    ("pools", "left_ns"),
    [
        # a 49th of their time twice, and two passes over the image, each of 5 µs as it is small
        ([WIDE], 24_000),
        ([WIDE, square(MEAN_BACK, 49, 2_140_000)], 24_000 + 97_000),
        # what one kernel does not gain others of its windows do
        ([square(MEAN, 9, 22_000), square(MEAN_BACK, 9, 150_000)], 15_000 + 43_000),
        ([square(MAXIMUM, 31, 300_000)], 29_000),
        # windows 7 apart are fewer: what the first pass leaves is 7 times as much as the result
        ([square(MEAN, 49, 347_000, step=7)], 67_000),
        ([(MEAN, [49, 25], [1], [24, 12], 347_000)], 31_000),
    ],
)
def test_pools_of_large_windows(pools, left_ns):
    of = pooled(*pools, within="aten::max_pool2d" if pools[0][0] == MAXIMUM else None)
    found = list(needless_products.pooled_windows(of))
    took = sum(one[-1] for one in pools)
    size, function = " × ".join(map(str, pools[0][1])), "max_pool2d" if pools[0][0] == MAXIMUM else "avg_pool2d"
    assert_told(found, [5 * took], f"Windows of up to {size}", f"F.{function}(x, (1, k), …)")
    assert not found[0].at_most
    assert took - measures(found[0], of)[2] // 5 == pytest.approx(left_ns, rel=0.05)


@pytest.mark.parametrize(
    ("pools", "others"),
    [
        ([square(MEAN, 3, 347_000)], {}),  # few elements
        ([square(MEAN, 9, 22_000)], {}),  # nearly as quick as two passes
        ([(MEAN, [49, 49], [49, 49], [0, 0], 347_000)], {}),  # windows beside each other
        ([(MEAN, [49, 49], [1, 1], [0, 0], 347_000)], {"image": "[4, 64, 49, 49]"}),  # a single one
        ([(MEAN, [1, 49], [1, 1], [0, 24], 347_000)], {}),  # one pass
        ([(MEAN, None, None, None, 347_000)], {}),
        ([square(MAXIMUM, 31, 300_000)], {}),  # with places, of which a pass along an axis has others
        ([WIDE, square(MEAN_BACK, 2, 2_140_000), square(MEAN_BACK, 2, 2_140_000)], {}),  # a small part of the time
        ([WIDE], {"limits": {"name": "unknown"}}),  # of unknown bandwidth
        ([WIDE], {"image": "[512, 16, 384, 512]"}),  # of so many elements it is quick
    ],
)
def test_pools_that_passes_along_axes_do_not_spare(pools, others):
    assert_told(needless_products.pooled_windows(pooled(*pools, **others)), [])


def filtered(*kernels, side=4096):
    """Five steps of kernels of CuPy (name, ns), each of which has a thread for each pixel."""
    shape = {"grid": (side * side // 128, 1, 1), "block": (128, 1, 1)}
    events = []
    for begin in range(0, 50_000_000, 10_000_000):
        at = begin
        for name, took in kernels:
            events += launched(at + 1_000, at + 8_000, kernel(at + 10_000, at + 10_000 + took, name=name, **shape))
            at += took + 20_000
    return in_steps(events, 5, 10_000_000, limits=H100)


CORRELATES = "cupyx_scipy_ndimage_correlate_"


@pytest.mark.parametrize(
    ("kernels", "left_ns", "size"),
    [
        ([("2d_nearest_w17_17", 2_660_000), ("2d_reflect_w9_9", 755_000)], 413_000 + 268_000, "17 × 17"),
        ([("3d_grid_constant_w1_17_17_i64", 2_660_000)], 413_000, "17 × 17"),
        ([("3d_mirror_w7_7_7", 2_660_000)], 314_000, "7 × 7 × 7"),
    ],
)
def test_filters_by_all_of_their_weights(kernels, left_ns, size):
    of = filtered(*((f"{CORRELATES}{name}", took) for name, took in kernels))
    found, took = list(needless_products.filtered_windows(of)), sum(took for _, took in kernels)
    assert_told(found, [5 * took], f"Filters of up to {size}", "if weights are separable")
    assert found[0].at_most
    assert took - measures(found[0], of)[2] // 5 == pytest.approx(left_ns, rel=0.05)


@pytest.mark.parametrize(
    "kernels",
    [
        [(f"{CORRELATES}2d_nearest_w1_17", 2_660_000)],  # along an axis
        [(f"{CORRELATES}2d_nearest_w17_17", 200_000)],  # most of the weights are zero, and no work
        [("cupyx_scipy_ndimage_max_2d_nearest_w17_17", 2_660_000)],  # of a footprint that is no rectangle
        [(f"{CORRELATES}2d_nearest_w17_17", 700_000), ("k", 7_000_000)],  # a small part of the time
    ],
)
def test_filters_that_passes_along_axes_do_not_spare(kernels):
    assert_told(needless_products.filtered_windows(filtered(*kernels)), [])


IMAGES = "[[64, 3, 32, 32], [8, 3, 3, 3], [8]]"
SLOW, FLOAT = "aten::_slow_conv2d_forward", '["float", "float", "float"]'


def layers(outer, inner=SLOW, types=FLOAT, launches=10, beside=None):
    """Five steps of a layer of 800 µs, and what runs backward for it, each with kernels of 20 µs, 40 µs apart."""
    events, details = [], []

    def add(name, at, took, **columns):
        details.append({"event_id": len(events), "input_types": types, "input_shapes": IMAGES, **columns})
        events.append(host("op", name, at, at + took))

    def run(at):
        for begin in range(at, at + 40_000 * launches, 40_000):
            events.extend(launched(begin, begin + 5_000, kernel(begin + 10_000, begin + 30_000)))

    for number, at in enumerate(range(0, 10_000_000, 2_000_000)):
        add(outer, at, 800_000, sequence_number=number)
        add(inner, at + 1_000, 790_000)
        run(at + 2_000)
        if beside:
            add(beside, at + 850_000, 20_000)
        add("autograd::engine::evaluate_function: ConvolutionBackward0", at + 900_000, 500_000, sequence_number=number)
        run(at + 902_000)
    return in_steps(events, 5, 2_000_000, op_detail=details)


@pytest.mark.parametrize(
    ("outer", "known", "told"),
    [
        ("aten::conv2d", {}, "(conv2d) image by image"),
        ("aten::lstm", {"inner": "aten::lstm", "types": '["c10::Half", "TensorList"]'}, "(lstm) image by image"),
        ("aten::lstm", {"inner": "aten::lstm", "types": '["c10::BFloat16", "TensorList"]'}, None),  # not everywhere
        ("aten::conv2d", {"types": '["double", "double", "double"]'}, None),  # of which cuDNN has no quick ones
        ("aten::lstm", {"inner": "aten::_cudnn_rnn"}, None),
        ("aten::conv2d", {"inner": "aten::cudnn_convolution"}, None),
        ("aten::conv2d", {"beside": "aten::cudnn_convolution"}, None),  # off for some alone
        ("aten::conv2d", {"inner": "aten::_conv_depthwise2d"}, None),  # which PyTorch takes by itself
        ("aten::conv2d", {"inner": "aten::slow_conv_dilated2d"}, None),  # as deterministic ones, too
        ("aten::conv2d", {"launches": 2}, None),
        ("aten::conv2d", {"launches": 0}, None),  # on the CPU
    ],
)
def test_layers_without_cudnn(outer, known, told):
    of = layers(outer, **known)
    found = needless_products.cudnn_off(of)
    # all that the GPU does forward and backward, and what it idles in between
    assert_told(found, [5 * 1_300_000] * bool(told), *([told, "in 20 launches a step"] if told else ()))
    if told:  # of each layer and its backward pass one kernel is left, of a quarter of the time
        assert measures(found[0], of)[1:3] == (5 * 18, 5 * 2 * (20_000 - 50_000))


def convolved(image, weights, took, stride="[1, 1]", name="aten::_conv_depthwise2d"):
    """Five steps of a convolution of float32."""
    events, details = [], []
    values = f'["", "", "", "", "{stride}", "[0, 0]", "[1, 1]"]'
    types = '["float", "float", "ScalarList", "", "ScalarList", "ScalarList", "ScalarList"]'
    shapes = f"[{image}, {weights}, [], [], [], [], []]" if image else "[]"
    for at in range(0, 100_000_000, 20_000_000):
        details.append({"event_id": len(events), "input_types": types, "input_shapes": shapes, "input_values": values})
        made = kernel(at + 10_000, at + 10_000 + took, name="void conv_depthwise2d_forward_kernel<float>(int)")
        events += [host("op", name, at, at + 9_000), *launched(at + 1_000, at + 8_000, made)]
    return in_steps(events, 5, 20_000_000, op_detail=details, limits=H100)


ROOM, LINE = "[16, 1, 1, 24000]", "[1, 16, 1, 87999]"


@pytest.mark.parametrize(
    ("image", "weights", "took", "left"),
    [
        (LINE, ROOM, 17_000_000, (150_000, 180_000)),
        (LINE, ROOM, 200_000, None),  # as quick as transforms are
        (LINE, "[16, 1, 1, 31]", 17_000_000, None),  # few taps
        ("[1, 16, 1, 87999]", "[16, 16, 1, 24000]", 17_000_000, None),  # products of channels
        ("[8, 64, 56, 56]", "[64, 1, 31, 31]", 2_000_000, None),  # of two dimensions
        ("[16, 1, 1, 160000]", "[514, 1, 1, 1024]", 9_000_000, None),  # frames, each a step apart
        ("", "", 17_000_000, None),
    ],
)
def test_convolutions_of_many_taps(image, weights, took, left):
    of = convolved(image, weights, took, stride="[1, 256]" if "160000" in image else "[1, 1]")
    found = needless_products.long_convolution(of)
    assert_told(found, [5 * took] * bool(left))
    if left:
        each = took - measures(found[0], of)[2] // 5
        assert left[0] <= each <= left[1]


def test_transposed_convolutions_have_other_weights():
    of = convolved("[16, 1026, 1, 1000]", "[1026, 1, 1, 1024]", 9_000_000, name="aten::cudnn_convolution_transpose")
    assert list(needless_products.long_convolution(of)) == []
